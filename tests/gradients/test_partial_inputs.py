"""What neighbours leave of an input: closed forms, plain least squares, and silence where inputs are independent."""

import numpy as np
import pytest
import torch

from lagreach import GatedRNN
from lagreach.diagnosis.measure import MeasureSettings, plan_measurement
from lagreach.gradients.partial_inputs import (
    InputMoments,
    InputSums,
    Neighbours,
    fit_neighbours,
    neighbour_products,
    orders_for,
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


def exact(decay, order, c=1):
    """Autocovariances of an AR(1) process."""
    return np.stack([decay**h * np.eye(c)[None] for h in range(2 * order + 1)])


def test_the_closed_form_of_a_first_order_process():
    """Two neighbours predict ``(x_- + x_+) phi / (1 + phi^2)``, one of them ``phi x_-``; the rest of them is not needed."""
    decay = 0.8
    neighbours = Neighbours(2, exact(decay, 2))
    both = decay / (1 + decay**2)
    np.testing.assert_allclose(neighbours.coefficients(2, 2).ravel(), [0, both, both, 0], atol=1e-7)
    np.testing.assert_allclose(neighbours.coefficients(1, 0).ravel(), [decay], atol=1e-7)
    np.testing.assert_allclose(neighbours.coefficients(0, 2).ravel(), [decay, 0], atol=1e-7)
    np.testing.assert_allclose(neighbours.left, (1 - decay**2) / (1 + decay**2), rtol=1e-6)


def test_unpredicted_is_what_least_squares_leaves_at_every_position(generator):
    """Also at the start, and with fewer neighbours behind than before: for the anchor is the last that counts."""
    c, order = 2, 2
    root = np.random.default_rng(0).normal(size=(c, c))
    covariances = np.stack([0.7**h * (root @ root.T + 0.1 * h * np.eye(c, k=1))[None] for h in range(2 * order + 1)])
    neighbours = Neighbours(order, covariances)
    d = torch.randn(3, 8, c, generator=generator, dtype=torch.float64)

    def at(i, j):
        return covariances[i - j, 0] if i >= j else covariances[j - i, 0].T

    for after in range(order + 1):
        unpredicted = neighbours.unpredicted(d, after)
        for p in range(8 - after):
            seen = [q for q in range(max(0, p - order), p + after + 1) if q != p]
            if not seen:
                np.testing.assert_array_equal(unpredicted[:, p], d[:, p])
                continue
            among = np.block([[at(i, j) for j in seen] for i in seen])
            cross = np.concatenate([at(p, j) for j in seen], axis=1)
            expected = d[:, p].numpy() - d[:, seen].flatten(1).numpy() @ np.linalg.solve(among, cross.T)
            np.testing.assert_allclose(unpredicted[:, p].numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("coefficients", "order"), [((0.9,), 1), ((-0.5,), 1), ((0.5, 0.3), 2)])
def test_the_order_of_the_process_is_found(generator, coefficients, order):
    for _ in range(5):
        x = autoregressive(generator, 256, 40, *coefficients)
        neighbours = fit_neighbours(moments_of(x))
        assert neighbours.order in (order, 2 * order)
        left = neighbours.unpredicted(x[::2] - x[1::2], neighbours.order)[:, 8:-8, 0]
        middle = (x[::2] - x[1::2])[..., 0]
        for shift in (-2, -1, 1, 2):
            related = np.corrcoef(left.flatten(), middle[:, 8 + shift : 32 + shift].flatten())[0, 1]
            assert abs(related) < 5 / left.numel() ** 0.5


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
    assert neighbours.covariances.shape[1:] == (40, 1, 1)
    one = Neighbours(neighbours.order, neighbours.covariances[:, 7:8])
    np.testing.assert_allclose(neighbours.unpredicted(x, 1)[..., 7:8], one.unpredicted(x[..., 7:8], 1), rtol=1e-12)


def test_an_input_that_stays_the_same_leaves_nothing(generator):
    x = torch.randn(64, 1, 1, generator=generator).expand(-1, 24, -1)
    assert fit_neighbours(moments_of(x)).left < 1e-6


def test_short_sequences_have_no_neighbours():
    assert orders_for(3) == ()
    assert fit_neighbours(moments_of(torch.ones(32, 3, 1).cumsum(1))) is None


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
