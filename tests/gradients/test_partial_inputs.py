"""What neighbours leave of an input: closed forms, plain least squares, and silence where inputs are independent."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from lagreach import GatedRNN
from lagreach.data.autoregression import Autoregression, autoregression
from lagreach.data.by_position import ByPosition
from lagreach.diagnosis.measure import MeasureSettings, plan_measurement
from lagreach.gradients.partial_inputs import (
    RIDGE,
    InputMoments,
    InputSums,
    Neighbours,
    WholeProducts,
    fit_neighbours,
    misleading,
    neighbour_products,
)


def autoregressive(generator, sequences, time, *coefficients, inputs=1):
    """A stationary process, after a run-in."""
    x = torch.zeros(sequences, time + 100, inputs, dtype=torch.float64)
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    for t in range(time + 100):
        x[:, t] = noise[:, t] + sum(c * x[:, t - k] for k, c in enumerate(coefficients, 1) if t >= k)
    return x[:, 100:]


def moments_of(x, blocks=16):
    """Moments of differences of partners that follow each other."""
    difference = x[::2] - x[1::2]
    valid = torch.ones(difference.shape[:2], dtype=torch.bool)
    size = len(difference) // blocks
    sums = [neighbour_products(difference[b * size : (b + 1) * size], valid[:size]) for b in range(blocks)]
    nothing = np.zeros((blocks, 1), dtype=bool)
    steps, products = (np.stack([one[i] for one in sums]) for i in (0, 1))
    return InputMoments(np.arange(blocks), steps, products, nothing, nothing)


def exact(decay, distances):
    """Autocovariances of an AR(1) process."""
    return np.array([decay**h for h in range(distances)])[:, None, None, None]


def neighbours_of(covariances, steps=1e6):
    return Neighbours(autoregression(covariances, np.full(len(covariances), steps), RIDGE), covariances[0])


def test_the_closed_form_of_a_first_order_process(generator):
    """Two neighbours predict ``(x_- + x_+) phi / (1 + phi^2)``, one of them ``phi x_-``; the rest of them is not needed."""
    decay = 0.8
    neighbours = neighbours_of(exact(decay, 6))
    assert neighbours.order == 1
    x = torch.randn(3, 7, 1, generator=generator, dtype=torch.float64)
    both = decay / (1 + decay**2)
    middle, before, behind = x[:, 1:-1], x[:, :-2], x[:, 2:]
    torch.testing.assert_close(
        neighbours.unpredicted(x, 1)[:, 1:-1], middle - both * (before + behind), rtol=0, atol=1e-6
    )
    torch.testing.assert_close(neighbours.unpredicted(x, 0)[:, 1:-1], middle - decay * before, rtol=0, atol=1e-6)
    torch.testing.assert_close(neighbours.unpredicted(x, 1)[:, :1], x[:, :1] - decay * x[:, 1:2], rtol=0, atol=1e-6)
    np.testing.assert_allclose(neighbours.left, (1 - decay**2) / (1 + decay**2), rtol=1e-6)


def process(distances, c=2, groups=1):
    """Autocovariances of processes of second order, of inputs that follow from each other."""
    step = np.array([[0.5, 0.2, 0.2, 0.0], [-0.1, 0.3, 0.1, 0.1], [1, 0, 0, 0], [0, 1, 0, 0]])
    fresh = np.zeros((4, 4))
    fresh[:2, :2] = [[1.0, 0.3], [0.3, 0.8]]
    still = np.linalg.solve(np.eye(16) - np.kron(step, step), fresh.ravel()).reshape(4, 4)
    one = np.stack([(np.linalg.matrix_power(step, k) @ still)[:c, :c] for k in range(distances)])
    return np.stack([one * (1 + g) for g in range(groups)], axis=1)


@pytest.mark.parametrize("groups", [1, 2])
def test_unpredicted_is_what_all_others_up_to_the_anchor_leave(generator, groups):
    """At every position, also at the start; nothing behind the anchor is used."""
    time, c = 9, 2
    covariances = process(time, groups=groups)
    neighbours = neighbours_of(covariances)
    assert neighbours.order == 2
    d = torch.randn(3, time, groups * c, generator=generator, dtype=torch.float64)

    def at(i, j, g):
        return covariances[i - j, g] if i >= j else covariances[j - i, g].T

    for after in (0, 1, 2, 5):
        unpredicted = neighbours.unpredicted(d, after).unflatten(2, (groups, c))
        for p, g in itertools.product(range(time - after), range(groups)):
            seen = [q for q in range(p + after + 1) if q != p]
            mine = d.unflatten(2, (groups, c))[:, :, g]
            expected = mine[:, p].numpy()
            if seen:
                among = np.block([[at(i, j, g) for j in seen] for i in seen])
                cross = np.concatenate([at(p, j, g) for j in seen], axis=1)
                expected = expected - mine[:, seen].flatten(1).numpy() @ np.linalg.solve(among, cross.T)
            np.testing.assert_allclose(unpredicted[:, p, g].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("coefficients", "order"), [((0.9,), 1), ((-0.5,), 1), ((0.5, 0.3), 2), ((0,) * 7 + (0.8,), 8)]
)
def test_the_order_of_the_process_is_found(generator, coefficients, order):
    for _ in range(5):
        x = autoregressive(generator, 256, 40, *coefficients)
        neighbours = fit_neighbours(moments_of(x))
        assert order <= neighbours.order <= order + 1
        left = neighbours.unpredicted(x[::2] - x[1::2], neighbours.order)[:, 9:-9, 0]
        middle = (x[::2] - x[1::2])[..., 0]
        for shift in (-8, -2, -1, 1, 2, 8):
            related = np.corrcoef(left.flatten(), middle[:, 9 + shift : 31 + shift].flatten())[0, 1]
            assert abs(related) < 5 / left.numel() ** 0.5


@pytest.mark.parametrize("kind", ["level", "cycle", "far"])
def test_what_is_left_is_not_related_to_other_inputs(generator, kind):
    """Sequences with a level of their own or a cycle of their own phase, and one input that another one echoes five steps on."""
    time, n = 20, 4000
    x = torch.randn(n, time, 2, generator=generator, dtype=torch.float64)
    if kind == "level":
        x = x + 1.5 * torch.randn(n, 1, 2, generator=generator, dtype=torch.float64)
    elif kind == "cycle":
        phase = 6.283 * torch.rand(n, 1, 2, generator=generator, dtype=torch.float64)
        x = 0.5 * x + 1.4 * torch.sin(6.283 / 24 * torch.arange(time)[None, :, None] + phase)
    else:
        x[:, 5:, 1] = x[:, :-5, 0] + 0.5 * x[:, 5:, 1]
    neighbours = fit_neighbours(moments_of(x))
    difference = x[::2] - x[1::2]
    for lag in (3, 9):
        left = neighbours.unpredicted(difference, lag)[:, : time - lag]
        for position in (0, 4, 10):
            others = [q for q in range(position + lag + 1) if q != position]
            related = torch.einsum("ri,rqj->qij", left[:, position], difference[:, others]) / len(difference)
            spread = (left[:, position].square().mean(0)[:, None] * difference.square().mean((0, 1))).sqrt()
            assert (related.abs() / spread).max() < 5.5 / len(difference) ** 0.5


@pytest.mark.thorough
def test_independent_inputs_are_left_alone(generator):
    """The test for correlation has a level of one in a hundred."""
    called = [fit_neighbours(moments_of(torch.randn(64, 24, 3, generator=generator))) for _ in range(200)]
    assert sum(one is not None for one in called) <= 8


def test_a_calendar_that_all_share_is_no_correlation(generator):
    shared = torch.cumsum(torch.randn(1, 40, 1, generator=generator), dim=1)
    assert fit_neighbours(moments_of(shared + torch.randn(128, 40, 1, generator=generator))) is None


def test_many_inputs_are_predicted_from_themselves(generator):
    x = autoregressive(generator, 128, 24, 0.8, inputs=40)
    neighbours = fit_neighbours(moments_of(x))
    assert neighbours.covariance.shape == (40, 1, 1)
    model, few = neighbours.model, slice(7, 8)
    of_one = Autoregression(tuple(f[:, few] for f in model.filters), tuple(p[few] for p in model.precision))
    one = Neighbours(of_one, neighbours.covariance[few])
    np.testing.assert_allclose(neighbours.unpredicted(x, 1)[..., few], one.unpredicted(x[..., few], 1), rtol=1e-12)


def test_an_input_that_stays_the_same_leaves_nothing(generator):
    x = torch.randn(64, 1, 1, generator=generator).expand(-1, 24, -1)
    assert fit_neighbours(moments_of(x)).left < 1e-6


def test_sequences_of_one_step_have_no_neighbours(generator):
    assert fit_neighbours(moments_of(torch.randn(32, 1, 1, generator=generator))) is None


def test_sums_of_pieces_and_lengths(generator):
    """Steps that one of two partners has not do not count, and blocks merge."""
    x = autoregressive(generator, 48, 20, 0.7, inputs=2)
    lengths = torch.randint(8, 21, (48,), generator=generator)
    model = GatedRNN("diag_gate", 2, 3, 1, dtype=torch.float64, generator=generator)
    settings = MeasureSettings(probes=1, blocks=8)
    data = {"x": x, "y": torch.randn(48, 20, 1, generator=generator), "lengths": lengths}
    plan = plan_measurement(model, data, "mse", [0, 5, 19], settings=settings)

    def collected(blocks):
        sums = InputSums(plan, blocks)
        plan.feed([sums], blocks)
        return sums.result()

    whole = collected(list(range(8)))
    parts = InputMoments.merge([collected([5, 0, 2]), collected([1, 3, 4, 6, 7])])
    np.testing.assert_allclose(parts.products, whole.products, rtol=1e-12)
    np.testing.assert_array_equal(parts.told, whole.told)
    expected, steps = np.zeros((8, 2, 2)), np.zeros(8)
    for (a, b), block in zip(plan.block_plan.pairs, plan.block_plan.blocks, strict=True):
        n = int(min(lengths[a], lengths[b]))
        d = (x[a] - x[b])[:n].numpy()
        expected[block] += d[2:].T @ d[:-2]
        steps[block] += max(n - 2, 0)
    np.testing.assert_allclose(whole.products[:, 2, 0], expected, rtol=1e-10)
    np.testing.assert_allclose(whole.steps[:, 2], steps)
    longest = np.minimum(*lengths[torch.from_numpy(plan.block_plan.pairs)].T.numpy()).max()
    assert whole.told.any(0).tolist() == [True, True, bool(longest == 20)]
    with pytest.raises(Exception, match="two parts hold the same block"):
        InputMoments.merge([whole, whole])


def changing(generator, sequences=200, time=20):
    """Walks, each from a level of its own."""
    return torch.randn(sequences, time, 1, generator=generator).cumsum(1) + 5 * torch.randn(
        sequences, 1, 1, generator=generator
    )


def with_whole(x, parts=1):
    """Moments with those of whole sequences, in so many parts."""
    made = []
    for number, some in enumerate(x.split(len(x) // parts)):
        difference, moments = some[::2] - some[1::2], moments_of(some, blocks=4)
        sums = WholeProducts()
        for piece in difference.split(7):
            sums.add(piece, torch.ones(piece.shape[:2], dtype=torch.bool))
        whole, near = sums.result()
        made.append(dataclasses.replace(moments, block=moments.block + 4 * number, whole=whole, near=near))
    return made


def test_inputs_that_change_in_their_course_are_predicted_position_by_position(generator):
    (moments,) = with_whole(changing(generator))
    neighbours = fit_neighbours(moments)
    assert isinstance(neighbours.model, ByPosition)
    steady = autoregressive(generator, 200, 20, 0.7)
    (moments,) = with_whole(steady)
    assert isinstance(fit_neighbours(moments).model, Autoregression)


def test_parts_hold_the_same_whole_sequences(generator):
    x = changing(generator)
    (one,), parts = with_whole(x), with_whole(x, 5)
    merged = InputMoments.merge(parts)
    for mine, theirs in zip(merged.whole_covariance(), one.whole_covariance(), strict=True):
        np.testing.assert_allclose(mine, theirs)
    np.testing.assert_allclose(merged.near.sum(0), one.near.sum(0))


def test_short_and_few_sequences_tell_no_whole_covariance(generator):
    x = changing(generator)
    sums, valid = WholeProducts(), torch.ones(100, 20, dtype=torch.bool)
    sums.add(x[::2], valid)
    assert sums.result()[0].shape == (1, 20, 20)
    valid[3, 10:] = False
    sums.add(x[::2], valid)
    assert sums.result()[0].shape == (1, 0, 0)
    (few,) = with_whole(x[:48])
    assert few.whole_covariance() is None


@pytest.mark.parametrize("kind", ["steady", "missing as zeros", "loudness of its own"])
def test_inputs_that_are_large_together_are_told_from_steady_ones(kind, generator):
    told = []
    for _ in range(10):
        x = autoregressive(generator, 300, 40, 0.9).float()
        if kind == "missing as zeros":
            x = x * (torch.rand(x.shape, generator=generator) < 0.6)
        elif kind == "loudness of its own":
            x = x * torch.randn(300, 1, 1, generator=generator).exp()
        told.append(with_whole(x)[0].loud())
    assert sum(told) <= 1 if kind == "steady" else sum(told) >= 8


def test_inputs_that_follow_exactly_are_spoken_of(generator):
    x = autoregressive(generator, 300, 23, 0.7)
    (moments,) = with_whole(torch.cat((x[:, 3:], x[:, :-3]), dim=2))
    said = misleading(moments, fit_neighbours(moments), 1.0)
    assert any("follow exactly" in note for note in said)
    assert misleading(moments, None, 5.0) == ()
