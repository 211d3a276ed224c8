"""Shares in closed form: reservoirs where they are known, actual ridge fits, the null, intervals, and invariance."""

import dataclasses

import numpy as np
import pytest
import torch

from lagreach.errors import InputError
from lagreach.statistics.linear_share import AMPLE, Observed, ShareMoments, enough_anchors, share_curves
from lagreach.statistics.linear_share import observed as observed_module
from lagreach.statistics.linear_share import products as products_module
from lagreach.statistics.linear_share.moments import SUMS
from lagreach.statistics.readable import readable_rows, start
from tests.statistics.linear_fits import BLOCKS, curves, moments, observe, reservoir, ridge_fits

MANY = np.array([AMPLE])


@pytest.mark.parametrize("last", [False, True])
def test_a_delay_line_holds_its_length_and_nothing_beyond(last):
    lags = [0, 5, 11, 12, 20]
    shares = curves("delay", lags, sequences=640, time=32, size=12, last=last).planted(MANY, 0.05)
    np.testing.assert_allclose(shares.value[:3, 0], 1.0, atol=1e-6)
    assert (shares.value[3:, 0] < 0.05).all()
    assert (shares.low[3:, 0] == 0).all()


def test_a_leaky_unit_blends_its_lags():
    """A state ``sum_k r^k x_{t-k}`` has the squared correlation ``(1 - r^2) r^(2l)`` with the input l steps before."""
    lags = [0, 1, 4, 8]
    shares = curves("leaky", lags, sequences=800, time=100, size=1).planted(MANY, 0.05)
    known = np.array([(1 - 0.81) * 0.81**lag for lag in lags])
    # the first steps, whose states are smaller, and those without an old input are among the anchors
    np.testing.assert_allclose(shares.value[:, 0], known, rtol=0.15)
    assert (curves("leaky", lags, sequences=800, time=100, size=1).needed(0.05).value == np.inf).all()


def test_white_features_have_the_share_of_the_ridge_formula():
    """With S = 1 and d features, ``a = rho / (rho + d noise / N)``, the noise being all that is not fitted."""
    fitted = curves("delay", [3], sequences=3200, time=24, size=12, last=True)
    for strength, count in ((0.05, 1000.0), (0.5, 100.0)):
        a = 0.5
        for _ in range(50):  # the maximum of G: a fixed point
            unexplained = 1 - strength * (2 * a - a**2)
            gamma = 12 * a**2 / count
            a = strength / (strength + 12 * unexplained / (1 - gamma) / count)
        np.testing.assert_allclose(fitted.planted(np.array([count]), strength).value[0, 0], a, atol=0.02)


@pytest.mark.parametrize(
    ("kind", "lag", "strength", "sequences", "last"),
    [
        ("delay", 3, 0.5, 30, True),
        ("delay", 8, 0.5, 100, True),
        ("random", 3, 0.5, 2, False),
        ("random", 8, 0.05, 100, False),
        ("random", 3, 0.5, 100, True),
    ],
)
def test_shares_are_those_of_actual_ridge_fits(kind, lag, strength, sequences, last):
    slopes = ridge_fits(kind, lag, strength, sequences, time=40, size=12, last=last, fits=40)
    fitted = curves(kind, [lag], sequences=3200, time=40, size=12, last=last)
    share = fitted.planted(np.array([float(sequences)]), strength).value[0, 0]
    error = slopes.std() / len(slopes) ** 0.5
    assert abs(share - slopes.mean()) < 0.06 + 2 * error


def test_half_is_reached_where_the_share_says():
    fitted = curves("random", [3, 8], sequences=800, time=40)
    needed = fitted.needed(0.05).value[:, 0]
    shares = fitted.planted(needed, 0.05).value
    np.testing.assert_allclose(np.diag(shares), 0.5, atol=0.1)
    ends = fitted.needed(0.05)
    assert (ends.low <= ends.value).all()
    assert (ends.value <= ends.high).all()


def test_strength_and_sequences_trade_off():
    fitted = curves("random", [3], sequences=800, time=40)
    shares = fitted.planted(np.array([10.0, 100.0, 1000.0]), 0.05).value[0]
    assert (np.diff(shares) > 0).all()
    stronger = fitted.planted(np.array([10.0]), 0.5).value[0, 0]
    assert stronger > shares[0]
    # ten times the variance is worth about ten times the sequences, while noise is all there is
    assert (
        abs(fitted.planted(np.array([1.0]), 0.1).value[0, 0] - fitted.planted(np.array([10.0]), 0.01).value[0, 0])
        < 0.05
    )


@pytest.mark.slow
def test_intervals_hold_the_truth_about_as_often_as_they_say():
    lags, counts = [0, 3, 8, 11], np.array([30.0, 300.0, AMPLE])
    truth = curves("random", lags, sequences=16000, time=24, seed=10**6).planted(counts, 0.05).value
    runs = 60
    inside = np.zeros_like(truth)
    for seed in range(runs):
        shares = curves("random", lags, sequences=160, time=24, seed=seed).planted(counts, 0.05)
        inside += (shares.low - 0.005 <= truth) & (truth <= shares.high + 0.005)
    assert (inside / runs).mean() > 0.9
    assert (inside / runs).min() > 0.75


@pytest.mark.thorough
def test_nothing_is_found_where_nothing_is():
    """Lags beyond a delay line: the share is zero within its interval, and the estimate is not pushed up by noise."""
    values, covered = [], 0
    for seed in range(20):
        shares = curves("delay", [12, 16, 20], sequences=96, time=24, last=True, seed=seed).planted(
            np.array([AMPLE]), 0.05
        )
        covered += int((shares.low == 0).sum())
        values.append(shares.value[:, 0])
    assert covered >= 0.9 * 60
    # a fit judged on its own rows would show 12 features / 96 rows
    assert np.mean(values) < 0.05


def test_dependences_in_the_data_are_recovered_to_the_share_of_a_fit():
    generator = torch.Generator().manual_seed(0)
    x, states = reservoir("random", 1600, 40, 12, generator)
    y = 0.6 * torch.nn.functional.pad(x, (0, 0, 3, 0))[:, :40] + 0.6 * torch.nn.functional.pad(x, (0, 0, 20, 0))[:, :40]
    y = y + 0.5 * torch.randn(y.shape, generator=generator, dtype=torch.float64)
    lags = [0, 3, 20]
    in_theory = share_curves(moments(observe(x, y), states, lags))
    shares = in_theory.data(np.array([100.0, AMPLE]))
    planted = in_theory.planted(MANY, 0.05)
    # inputs are independent, so the joint fit recovers of each lag what a fit to it alone would
    np.testing.assert_allclose(shares.value[1:, 1], planted.value[1:, 0], atol=0.03)
    # against the slopes of an ordinary least-squares fit
    phi = states.flatten(0, 1) - states.flatten(0, 1).mean(0)
    beta = torch.linalg.lstsq(phi, y.flatten(0, 1)).solution
    fitted = (phi @ beta).unflatten(0, (1600, 40))
    for place, lag in ((1, 3), (2, 20)):
        z = x[:, : 40 - lag]
        slope = float((fitted[:, lag:] * z).mean() / (0.6 * z.square().mean()))
        np.testing.assert_allclose(shares.value[place, 1], slope, atol=0.03)
    assert shares.low[1, 0] <= shares.value[1, 0] <= shares.high[1, 0]


def test_the_design_effect_is_that_of_residuals_that_last():
    generator = torch.Generator().manual_seed(0)
    x, states = reservoir("leaky", 800, 60, 1, generator)
    white = torch.randn(800, 60, 1, generator=generator, dtype=torch.float64)
    lasting, e = [], torch.zeros(800, 1, dtype=torch.float64)
    for t in range(60):
        e = 0.9 * e + (1 - 0.81) ** 0.5 * white[:, t]
        lasting.append(e)
    plain = share_curves(moments(observe(x, white), states, [0])).design_effect
    effect = share_curves(moments(observe(x, torch.stack(lasting, dim=1)), states, [0])).design_effect
    assert abs(plain - 1) < 0.15
    # sum over k of 0.81^|k| for processes that both forget by 0.9 a step, on 60 steps that start at rest
    assert 5 < effect < 10


def test_slower_residuals_need_more_sequences():
    generator = torch.Generator().manual_seed(0)
    x, states = reservoir("random", 800, 40, 12, generator)
    white = torch.randn(800, 40, 1, generator=generator, dtype=torch.float64)
    constant = torch.randn(800, 1, 1, generator=generator, dtype=torch.float64).expand(-1, 40, -1)
    slow = 0.3 * white + constant
    needed = [share_curves(moments(observe(x, y), states, [3])).needed(0.05).value[0, 0] for y in (white, slow)]
    assert needed[1] != pytest.approx(needed[0], rel=0.02)


def test_the_fixed_budget_of_descent_recovers_what_ridge_would_later():
    generator = torch.Generator().manual_seed(0)
    x, states = reservoir("random", 800, 40, 12, generator)
    y = torch.randn(800, 40, 1, generator=generator, dtype=torch.float64)
    sums = moments(observe(x, y), states, [3])
    S = states.flatten(0, 1).T @ states.flatten(0, 1) / (800 * 40)
    c = torch.nn.functional.pad(x, (0, 0, 3, 0))[:, :40].flatten(0, 1).T @ states.flatten(0, 1) / (800 * 40)
    values, vectors = torch.linalg.eigh(S)
    shares = []
    for time in (0.1, 10.0, 1e9):
        share = share_curves(sums, budget=time).planted(MANY, 0.05).value[0, 0]
        filtered = (1 - torch.exp(-time * values)) / values
        known = float(((c @ vectors).square() * filtered).sum() / (37 / 40))
        np.testing.assert_allclose(share, known, atol=0.02)
        shares.append(share)
    ridge = share_curves(sums).planted(MANY, 0.05).value[0, 0]
    assert shares[0] < shares[1] < shares[2] == pytest.approx(ridge, abs=0.01)


def test_a_gradient_is_seen_from_the_sequences_that_its_law_says():
    """Along c, the planted mean ``sqrt(rho) c`` against the spread of ``g_n``: ``N = (2 z sd / Delta)^2``."""
    fitted = curves("delay", [3, 15], sequences=3200, time=24, size=12, last=True)
    needed = fitted.visible(0.05, 0.05).value[:, 0]
    np.testing.assert_allclose(needed[0], (2 * 1.6449) ** 2 / 0.05, rtol=0.15)
    assert needed[1] > 3200


@pytest.mark.parametrize("size", [1, 12])
def test_what_no_gradient_holds_is_never_seen_but_by_chance(size):
    """Lags beyond a delay line: half of them had a number, of sequences that would show nothing."""
    lags = list(range(size, 31))
    made = [curves("delay", lags, sequences=160, time=32, size=size, seed=seed) for seed in range(10)]
    seen = np.isfinite([fitted.visible(0.05, 0.05).value[:, 0] for fitted in made])
    assert seen.mean() < 0.04


def test_order_batches_and_shards_do_not_matter():
    generator = torch.Generator().manual_seed(0)
    x, states = reservoir("random", 96, 100, 6, generator)
    y = torch.randn(96, 100, 1, generator=generator, dtype=torch.float64)
    lags = [0, 3, 40]
    whole = observe(x, y)
    together = moments(whole, states, lags)

    def some(index):
        observed = dataclasses.replace(
            whole,
            **{name: getattr(whole, name)[index] for name in
               ("block", "times", "shares", "planted", "residual", "towards", "along_residual", "along_output", "chance")},
        )  # fmt: skip
        return readable_rows(observed, states[index], lags)

    apart = start(BLOCKS, 6, lags, torch.ones(1, 1))
    other = start(BLOCKS, 6, lags, torch.ones(1, 1))
    order = torch.randperm(96, generator=generator)
    for index in order[:50].split(7):
        apart.add(some(index))
    for index in order[50:].split(11):
        other.add(some(index))
    apart.merge(other)
    for name in SUMS:
        torch.testing.assert_close(getattr(apart, name), getattr(together, name), rtol=1e-10, atol=1e-12)
    one, two = (share_curves(sums).planted(np.array([100.0]), 0.05).value for sums in (together, apart))
    np.testing.assert_allclose(one, two, atol=1e-6)


@pytest.mark.parametrize("targets", [30, 100])
@pytest.mark.parametrize("room", [1, 2**26])
@pytest.mark.parametrize("block", [[3, 0, 9], [4, 5, 6]])
def test_devices_without_compiled_sums_sum_the_same(targets, room, block, monkeypatch):
    """On a GPU blocks are summed together, as many as there is room for; here on the CPU, blocks are of unequal sizes."""
    generator = torch.Generator().manual_seed(0)

    def draws(*sizes):
        return torch.randn(*sizes, generator=generator, dtype=torch.float64)

    seq, time, lags = 17, 110, [0, 1, 2, 9, 105]
    times = torch.arange(time - targets, time).expand(seq, -1)
    observed = Observed(
        block=torch.tensor(block)[torch.arange(seq) % 7 % 3],
        times=times,
        shares=torch.full((seq, targets), 1 / targets, dtype=torch.float64),
        planted=draws(seq, time, 4),
        residual=draws(seq, targets, 2),
        towards=draws(seq, targets, 2, 2),
        along_residual=draws(seq, targets, 2),
        along_output=draws(seq, targets, 2),
        along=(0, 1, 0, 1),
        chance=torch.rand(seq, 64, generator=generator, dtype=torch.float64),
    )
    features, gradient = draws(seq, min(targets, 64), 2, 5), draws(seq, 1, 5)

    def sums():
        made = ShareMoments(BLOCKS, 5, 2, lags, (0, 1, 0, 1), torch.eye(2)[[0, 1, 0, 1]])
        for _ in range(2):  # added to what is there
            made.add(observed.rows(features, gradient, lags))
        return made

    here = sums()
    for module in (products_module, observed_module):
        monkeypatch.setattr(module, "compiled_sums", lambda values: False)
        monkeypatch.setattr(module, "ROOM", room)
    there = sums()
    for name in SUMS:
        torch.testing.assert_close(getattr(there, name), getattr(here, name), rtol=1e-10, atol=1e-12)


def test_sums_do_not_depend_on_how_features_lie_in_memory():
    """Fused layers keep time first, and are summed in a pass of their own."""
    generator = torch.Generator().manual_seed(0)
    x, states = reservoir("random", 96, 30, 6, generator)
    observed = observe(x, torch.randn(96, 30, 1, generator=generator, dtype=torch.float64))
    time_first = states.transpose(0, 1).contiguous().transpose(0, 1)
    one, other = (readable_rows(observed, features, [0, 3]).gradient for features in (states.contiguous(), time_first))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_fits_leave_the_threads_of_numpy_alone(monkeypatch):
    """They wait for each other where a training keeps the cores busy: 33 seconds instead of one, with 320 features."""
    expected = curves("delay", [0, 5], sequences=64, time=16, size=8)
    for name in ("eigh", "eigvalsh", "inv", "solve", "svd"):
        monkeypatch.delattr(np.linalg, name)
    again = curves("delay", [0, 5], sequences=64, time=16, size=8)
    np.testing.assert_array_equal(again.share, expected.share)


@pytest.mark.parametrize(("fastest", "slowest", "most"), [(0.8, 0.9, 0.3), (0.5, 0.95, 0.05)])
def test_products_in_single_precision_move_shares_by_less_than_their_intervals(fastest, slowest, most, request):
    """Units that hardly differ, about a large mean: S has a condition of 5e10 (0.8) or 4e6 (0.5)."""
    usual = torch.get_float32_matmul_precision()
    request.addfinalizer(lambda: torch.set_float32_matmul_precision(usual))
    torch.set_float32_matmul_precision("medium")  # what a user may allow for the model
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(320, 100, 1, generator=generator, dtype=torch.float64) for _ in range(2))
    keep, s, steps = torch.linspace(fastest, slowest, 6, dtype=torch.float64), 0, []
    for t in range(100):
        s = keep * s + x[:, t]
        steps.append(s)
    states = (torch.stack(steps, dim=1) + 100).float().double()
    lags, counts = [0, 1, 2, 5, 10, 40], np.array([100.0, 1e4, AMPLE])
    exact, single = (
        share_curves(moments(observe(planted, y), states, lags), floor=1e-12).planted(counts, 0.05)
        for planted in (x.float().double(), x.float())  # products are taken in the precision of the inputs
    )
    assert not np.array_equal(single.value, exact.value)
    assert (np.abs(single.value - exact.value) <= most * (exact.high - exact.low) / 2).all()
    assert torch.get_float32_matmul_precision() == "medium"


def test_fewer_steps_of_long_sequences_say_the_same_within_the_interval():
    """Of many long sequences fewer steps are looked at, which moves shares by less than their intervals."""
    assert enough_anchors(1000, 640, 12) == 16
    generator = torch.Generator().manual_seed(0)
    x, states = reservoir("random", 640, 160, 12, generator)
    y = torch.randn(640, 160, 1, generator=generator, dtype=torch.float64)
    whole = observe(x, y)
    lags, counts = [0, 3, 8, 12, 30], np.array([30.0, 300.0, AMPLE])
    many, fewer = (
        share_curves(moments(seen, states, lags)).planted(counts, 0.05)
        for seen in (whole, dataclasses.replace(whole, chance=whole.chance[:, :16]))
    )
    assert ((fewer.low - 0.01 <= many.value) & (many.value <= fewer.high + 0.01)).all()
    np.testing.assert_allclose(fewer.value, many.value, atol=0.03)


def test_sums_of_different_fits_do_not_merge():
    with pytest.raises(InputError, match="same fit"):
        start(2, 3, [0], torch.ones(1, 1)).merge(start(2, 4, [0], torch.ones(1, 1)))


def test_a_choice_of_anchors_is_fair():
    """Sums over the anchors of long sequences are those over all steps, on average, also with steps that count unequally."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 300, 1, generator=generator, dtype=torch.float64)
    shares = torch.rand(400, 300, generator=generator, dtype=torch.float64) * (torch.arange(300) % 3 > 0)
    shares = shares / shares.sum(1, keepdim=True)
    observed = dataclasses.replace(observe(x, x), shares=shares)
    index, weights = observed.anchors
    assert index.shape[1] == 64
    assert (shares.gather(1, index) > 0).all()
    ramp = torch.arange(300, dtype=torch.float64).expand(400, -1)
    chosen, all_steps = (weights * ramp.gather(1, index)).sum(1), (shares * ramp).sum(1)
    assert abs(float((chosen - all_steps).mean())) < 0.3
    assert float((chosen - all_steps).std()) < 3


def test_what_cannot_be_a_strength_is_refused():
    with pytest.raises(InputError, match="share of the target's variance"):
        curves("delay", [0], sequences=64, time=16).planted(MANY, 1.5)
