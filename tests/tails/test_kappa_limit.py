"""The exponent of large means from that of small ones: when it counts as staying below 1/2, and the table of the docs."""

import math

import numpy as np
import pytest
from scipy import special
from scipy.stats import binom

from lagreach.tails import concentration
from lagreach.tails.block_means import signs_of_the_limit
from lagreach.types import Status
from tests.tails.kappa_table import HARSH, LAWS, MILD, RUNS, measure
from tests.tails.laws import NOT_STABLE, louder


def signs(spreads, sd=1.0, sizes=(1, 8, 64)):
    values = np.array([-sd, sd]) / math.sqrt(2.0)  # standard deviation sd
    return [float(sign) for sign in signs_of_the_limit(values, np.array(spreads), sizes, 0.05)]


def test_a_pure_power_law_gains_nothing():
    overall, carried_on, gain, _ = signs([m ** (-1 / 3) for m in (1, 8, 64)])
    assert (overall, carried_on) == pytest.approx((1 / 3, 1 / 3))
    assert gain == pytest.approx(0.0, abs=1e-12)


def test_exponents_that_rise_are_carried_on_by_what_they_gained():
    """.3 between means of 1 and 8, .4 between means of 8 and 64."""
    overall, carried_on, gain, _ = signs([1.0, 8**-0.3, 8**-0.7])
    assert (overall, carried_on, gain) == pytest.approx((0.35, 0.5, 0.1))


def test_the_shortfall_is_measured_from_the_standard_deviation():
    """Means of 64 spread as those of Gaussian values with this standard deviation, or by a tenth less."""
    z = special.ndtri(0.95)
    assert signs([1.0, 0.5, 2 * z * 3.0 / 8], sd=3.0)[-1] == pytest.approx(0.0, abs=1e-12)
    assert signs([1.0, 0.5, 0.9 * 2 * z * 3.0 / 8], sd=3.0)[-1] == pytest.approx(-math.log(0.9))


def test_what_cannot_be_told_speaks_for_a_finite_variance():
    """Resamples of tied values without any spread."""
    _, carried_on, gain, shortfall = signs([0.0, 0.0, 0.0], sd=0.0)
    assert (carried_on, gain, shortfall) == (math.inf, math.inf, -math.inf)


@pytest.mark.parametrize("name", ["t3", "modulated", "contaminated"])
def test_an_exponent_that_moves_towards_one_half_is_not_taken_for_kappa(name):
    """Between means of 1 and 8 the exponent is below 1/2 beyond doubt; larger means, and the standard deviation, say 2."""
    rng = np.random.default_rng(1)
    samples = NOT_STABLE[name][0](rng, 4096)
    assert concentration(samples, generator=rng, resamples=80, blocks=(1, 8)).inverse_interval[1] < 0.5
    larger = concentration(samples, generator=rng, resamples=80)
    assert (larger.kappa, larger.status, larger.blocks) == (2.0, Status.KAPPA_TWO, (1, 64))
    assert larger.inverse_interval[0] < 0.5 <= larger.inverse_interval[1]
    assert larger.kappa_pessimistic > 2.0


def test_rare_loud_values_that_begin_to_show_are_not_taken_for_heavy_tails():
    """One value in 300 is 32 times as loud: means of 64 concentrate far more slowly than those of 8."""
    rng = np.random.default_rng(0)
    samples = louder(0.003, 32.0)(rng, 8192)
    first, last = (
        concentration(samples, generator=rng, resamples=50, blocks=b).inverse_interval for b in ((1, 8), (8, 64))
    )
    assert last[1] < first[0]  # away from 1/2, beyond doubt
    assert concentration(samples, generator=rng, resamples=100).inverse_interval[1] >= 0.5


# --- the table of the docs, in small and whole ----------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("name", MILD)
def test_finite_variance_has_kappa_two_and_n_from_the_standard_deviation(name):
    for n in (600, 2000):
        row = measure(name, n, 12, resamples=60)
        assert row.covered >= 11 / 12
        assert row.heavy <= 1 / 12
        assert 1 / 1.5 < row.ratio < 1.5


@pytest.mark.parametrize("name", HARSH)
def test_harsh_laws_are_covered_or_refused(name):
    """Twelve runs cannot show nine in ten: they must not contradict it. The full table is `test_kappa_table_slow`."""
    assert 12 * measure(name, 600, 12, resamples=60).covered_or_refused >= binom.ppf(0.001, 12, 0.9)


@pytest.mark.slow
@pytest.mark.parametrize("n", RUNS)
@pytest.mark.parametrize("name", LAWS)
def test_kappa_table_slow(name, n):
    row = measure(name, n, RUNS[n])
    assert row.covered_or_refused >= 0.9
    if name in MILD:
        assert row.covered >= 0.9
        assert 1 / 1.5 < row.ratio < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stable 1.8", "stable 1.5", "stable 1.3"])
def test_stable_laws_are_recognised_in_large_samples(name):
    row = measure(name, 64_000, 12, resamples=200)
    assert row.covered >= 0.9
    assert row.heavy >= 0.75


@pytest.mark.slow
@pytest.mark.parametrize("name", MILD)
def test_finite_variance_is_not_lost_in_large_samples(name):
    row = measure(name, 64_000, 8, resamples=200)
    assert row.covered >= 7 / 8
    assert 1 / 1.5 < row.ratio < 1.5
