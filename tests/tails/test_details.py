"""Details that hold exactly: definitions, ends of ranges, and errors that follow from the law."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import optimize, stats

from lagreach.errors import ConformanceError, InputError
from lagreach.tails import _stable_quadrature, _stable_table, concentration, ecf, hill, mcculloch, mle, stable
from lagreach.tails._common import Estimate
from lagreach.tails.block_means import measure_spreads
from lagreach.tails.ecf import GRID
from lagreach.testing import check_estimator
from tests.tails.laws import symmetric_stable


class Constant(np.random.Generator):
    """Draws one number over and over."""

    def __init__(self, value):
        super().__init__(np.random.PCG64(0))
        self.value = value

    def random(self, size):
        return np.full(size, self.value)


@pytest.mark.parametrize("alpha", [0.8, 1.5, 2.0])
def test_a_draw_of_zero_stands_for_the_first_half_step(alpha):
    samples = stable.rvs(alpha, 3, Constant(0.0))
    assert np.isfinite(samples).all()
    np.testing.assert_array_equal(samples, stable.rvs(alpha, 3, Constant(2.0**-54)))


def test_hill_is_the_mean_log_excess_over_the_next_largest():
    samples = np.array([0.1, -9.0, 0.3, 4.0, -0.2, 7.0, 1.0, -2.0, 0.5, 3.0])
    fit = hill.estimate(samples, 0.95, exceedances=3)
    assert fit.alpha == pytest.approx(3 / sum(math.log(x / 3.0) for x in (4.0, 7.0, 9.0)), rel=1e-12)
    assert fit.interval[1] == pytest.approx(fit.alpha * (1 + stats.norm.ppf(0.975) / math.sqrt(3)), rel=1e-12)


@pytest.mark.parametrize("slope", [2.4, 0.1])
def test_with_alpha_at_an_end_the_intercept_alone_fits_the_scale(slope):
    """A curve steeper than any stable law, or flatter: the scale is that of the best law with the alpha of the end."""
    fit = ecf.from_modulus(np.exp(-(np.abs(GRID) ** slope)), scale=1.0, n=3, level=0.95)
    assert fit.alpha != slope
    loss = optimize.minimize_scalar(
        lambda log_scale: np.sum((fit.alpha * (log_scale + np.log(GRID)) - slope * np.log(GRID)) ** 2), (-1.0, 1.0)
    )
    assert math.log(fit.scale) == pytest.approx(loss.x, abs=1e-6)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.8])
def test_error_of_mcculloch_s_alpha_from_the_covariance_of_four_quantiles(alpha):
    """cov(x_p, x_q) = p (1-q) / (n f_p f_q) and the ratio's gradient, without the symmetry that the code uses."""
    levels, n = np.array([0.05, 0.25, 0.75, 0.95]), 10_000
    x = np.asarray(stable.ppf(levels, alpha))
    density = np.asarray(stable.pdf(x, alpha))
    covariance = np.minimum.outer(levels, levels) * (1 - np.maximum.outer(levels, levels)) / np.outer(density, density)
    inner, outer = x[2] - x[1], x[3] - x[0]
    gradient = np.array([-1 / inner, outer / inner**2, -outer / inner**2, 1 / inner])
    error = math.sqrt(gradient @ covariance @ gradient / n)

    def ratio(at):
        q = np.asarray(stable.ppf(levels, at))
        return (q[3] - q[0]) / (q[2] - q[1])

    slope = (ratio(alpha + 1e-3) - ratio(alpha - 1e-3)) / 2e-3
    low, high = mcculloch.from_quantiles(x, n, 0.95).interval
    assert high - low == pytest.approx(2 * stats.norm.ppf(0.975) * error / abs(slope), rel=1e-2)


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_at_the_ends_of_the_likelihood_interval_the_likelihood_has_fallen_by_the_quantile(level):
    samples = symmetric_stable(1.7)(np.random.default_rng(4), 400)
    alpha, log_scale = mle.maximise(samples)

    def cost(at):
        """Mean negative log likelihood at the best scale."""
        loss = optimize.minimize_scalar(
            lambda log: log - np.mean(stable.logpdf(samples * math.exp(-log), at)), (log_scale - 0.1, log_scale + 0.1)
        )
        return loss.fun

    for end in mle.likelihood_interval(samples, alpha, log_scale, level):
        fallen = samples.size * (cost(end) - cost(alpha))
        assert fallen == pytest.approx(0.5 * stats.chi2.ppf(level, 1), rel=1e-2)


def test_agreement_with_a_tail_index_is_that_of_one_over_kappa():
    rate = concentration(np.random.default_rng(0).standard_normal(600), resamples=20, arrangements=1)
    narrow = dataclasses.replace(rate, inverse_interval=(0.3, 0.4))
    assert narrow.agrees_with(1.5)  # 1 - 1/1.5 = 1/3
    assert not narrow.agrees_with(1.3)
    assert not narrow.agrees_with(1.9)
    gaussian = dataclasses.replace(rate, inverse_interval=(0.45, 0.5))
    assert gaussian.agrees_with(2)
    assert gaussian.agrees_with(3.5)  # beyond two a mean is as good as a Gaussian one


def test_the_least_resampling_is_enough_and_less_is_refused():
    samples = np.random.default_rng(0).standard_normal(600)
    assert concentration(samples, resamples=20, arrangements=1).n == 600
    for options in ({"resamples": 19}, {"arrangements": 0}):
        with pytest.raises(InputError, match="too little resampling"):
            concentration(samples, **options)


@pytest.mark.parametrize(("alpha", "scale"), [(1.5, 0.0), (1.5, math.inf), (math.nan, 1.0)])
def test_an_estimator_must_return_numbers(alpha, scale):
    with pytest.raises(ConformanceError, match="not a number"):
        check_estimator(lambda samples, level: Estimate(alpha, scale, (1.0, 2.0)))


@pytest.mark.parametrize("engine", [_stable_quadrature.law, _stable_table.law], ids=["quadrature", "table"])
@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.5, 1.999, 2.0])
def test_what_lies_beyond_and_what_lies_before_are_one_half_together(engine, alpha):
    """Near the centre, in the tail, and where one law takes over from the other."""
    x = np.array([0.0, 1e-8, 0.3, 5.0, 19.999, 20.0, 20.001, 300.0, 1e9])
    values = engine(x, alpha, ("half", "sf"))
    np.testing.assert_allclose(values["half"] + values["sf"], 0.5, rtol=0, atol=4e-16)
    assert values["half"][0] == 0.0
    assert (np.diff(values["half"]) >= 0.0).all()


@pytest.mark.parametrize("n", [9, 10, 13, 16, 17, 24, 31, 40])
def test_no_value_enters_a_mean_twice(n):
    """One value differs from the others by 1: the means that hold it, and not all do, differ by 1/m."""
    values = np.zeros(n)
    values[n // 2] = 1.0
    (spread,) = measure_spreads(values, (8,), 0.0, 200, np.random.default_rng(0))
    assert spread == pytest.approx(1 / 8 / math.sqrt(1 - 8 / n), rel=1e-12)
