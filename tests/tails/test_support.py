"""The three checks of the stable model: what they compute, how often they reject stable samples, and others."""

import math

import numpy as np
import pytest
from scipy import stats

from lagreach.tails import calibration, fit_tail, stable, support
from lagreach.tails.fit import ESTIMATORS
from lagreach.types import Status
from tests.tails.laws import NOT_STABLE, symmetric_stable


def rejections(draw, n, seeds):
    """Number of samples that each of the three checks rejects, and that any of them rejects."""
    counts = np.zeros(4, dtype=int)
    for seed in range(seeds):
        rng = np.random.default_rng((seed, n, 77))
        samples = draw(rng, n)
        failed = [not check.passed for check in support.check_support(samples - np.median(samples), rng)]
        counts += [*failed, any(failed)]
    return counts


# --- the statistics -----------------------------------------------------------------------------------------------


def test_statistics_against_their_definitions():
    samples = NOT_STABLE["t3"][0](np.random.default_rng(0), 2000)
    samples -= np.median(samples)
    statistics = support.stable_statistics(samples, np.random.default_rng(1))
    fits = {name: estimate(samples, 0.95) for name, estimate in ESTIMATORS.items()}
    assert statistics.alpha == pytest.approx(fits["mle"].alpha, abs=1e-6)
    assert statistics.estimator_gap == pytest.approx(fits["mcculloch"].alpha - fits["ecf"].alpha, abs=1e-9)
    distance = stats.kstest(samples, lambda x: stable.cdf(x / fits["mle"].scale, fits["mle"].alpha)).statistic
    assert statistics.distance == pytest.approx(math.sqrt(2000) * distance, rel=1e-4)
    blocks = np.random.default_rng(1).permutation(np.sort(samples)).reshape(-1, 8).mean(axis=1)
    of_means = fit_tail(blocks, check=False).alpha
    assert statistics.mean_gap == pytest.approx(of_means - statistics.alpha, abs=1e-5)


def test_order_units_and_location_do_not_matter():
    samples = symmetric_stable(1.6)(np.random.default_rng(3), 1000)
    plain = fit_tail(samples, generator=5)
    assert plain.checks == fit_tail(np.random.default_rng(0).permutation(samples), generator=5).checks
    moved = fit_tail(100.0 * samples + 7.0, generator=5)
    for one, other in zip(plain.checks, moved.checks, strict=True):
        assert other.statistic == pytest.approx(one.statistic, abs=1e-6)


def test_critical_values_are_read_from_the_table():
    assert set(support.CRITICAL) == {400, 1500, 6000, 24000}
    for n, rows in support.CRITICAL.items():
        assert len(rows) == len(support.ALPHAS)
        for alpha, row in zip(support.ALPHAS, rows, strict=True):
            np.testing.assert_allclose(support.critical_values(alpha, n), row)
    np.testing.assert_array_equal(support.critical_values(0.7, 10**6), support.critical_values(1.1, 24000))
    half_way = support.critical_values(1.75, 6000)
    np.testing.assert_allclose(
        half_way, 0.5 * (support.critical_values(1.7, 6000) + support.critical_values(1.8, 6000))
    )


def test_kolmogorov_limits_are_far_below_those_of_a_known_law():
    """Fitted parameters shrink the distance: the textbook value at this size would be 1.55."""
    textbook = stats.kstwobign.isf(support.SIZE)
    for rows in support.CRITICAL.values():
        assert max(row[2] for row in rows) < 0.8 * textbook


def test_small_samples_are_not_checked():
    samples = symmetric_stable(1.6)(np.random.default_rng(3), 400)
    assert fit_tail(samples[:-1]).stable_supported is None
    assert fit_tail(samples).stable_supported is not None
    assert fit_tail(samples, check=False).stable_supported is None


# --- size ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("alpha", [1.3, 1.8])
def test_size_on_stable_samples(alpha):
    """99.9 % binomial bounds of 40 runs at 1.7 % each and 5.1 % together."""
    counts = rejections(symmetric_stable(alpha), 600, 40)
    assert np.all(counts[:3] <= stats.binom.isf(0.0005, 40, support.SIZE))
    assert counts[3] <= stats.binom.isf(0.0005, 40, 3 * support.SIZE)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1000, 8000])
@pytest.mark.parametrize("alpha", [1.1, 1.3, 1.5, 1.7, 1.9, 2.0])
def test_size_on_many_stable_samples(alpha, n):
    """99.9 % binomial bounds of 400 runs. The table itself was simulated: its own error widens them by a third."""
    counts = rejections(symmetric_stable(alpha), n, 400)
    assert np.all(counts[:3] <= stats.binom.isf(0.0005, 400, 4 / 3 * support.SIZE))
    assert counts[3] <= stats.binom.isf(0.0005, 400, 3 * support.SIZE)
    assert counts[3] >= stats.binom.ppf(0.0005, 400, 1.5 * support.SIZE)


# --- power --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["product", "matched", "modulated", "laplace"])
def test_laws_that_are_not_stable_are_rejected(name):
    """Far from stable: every one of the checks sees it at n = 2000 (larger simulations: in all samples)."""
    counts = rejections(NOT_STABLE[name][0], 2000, 4)
    assert counts[3] == 4
    assert counts[0] == 4


def test_a_student_law_is_rejected_and_said_so():
    samples = NOT_STABLE["t3"][0](np.random.default_rng(0), 8000)
    fit = fit_tail(samples)
    assert fit.stable_supported is False
    assert fit.status is Status.STABLE_NOT_SUPPORTED
    assert "failed" in str(fit)
    # averages of the fitted law would concentrate with another exponent than those of the samples
    assert fit.kappa > 2.4


@pytest.mark.slow
def test_power_at_eight_thousand():
    for name, least in (("t1.5", 20), ("t3", 39), ("contaminated", 32), ("modulated", 40), ("laplace", 40)):
        assert rejections(NOT_STABLE[name][0], 8000, 40)[3] >= least


# --- calibration --------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_calibration_reproduces_the_table_roughly():
    """Sixty replicates instead of thousands: the limit of G2 comes out within an eighth."""
    draws = calibration.simulate(1.55, 400, 60, np.random.default_rng(1))
    stored = support.CRITICAL[400][support.ALPHAS.index(1.55)]
    outside = np.mean(draws[:, 2] > stored[2])
    assert outside <= stats.binom.isf(0.0005, 60, support.SIZE) / 60
    assert np.quantile(draws[:, 2], 1.0 - support.SIZE) == pytest.approx(stored[2], rel=0.12)
    assert np.median(draws[:, 0]) == pytest.approx(1.55, abs=0.03)


def test_calibration_is_deterministic_and_ordered():
    first, again = (calibration.calibrate(400, 2, 0) for _ in range(2))
    assert first == again
    for low_gap, high_gap, distance, low_mean, high_mean in first:
        assert low_gap <= high_gap
        assert low_mean <= high_mean
        assert distance > 0.0
