"""Empirical N and the censored regression, against closed forms and simulations."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from studies.validation.bootstrap import cluster_weights, estimate
from studies.validation.calibration import ABOVE, BELOW, SEEN, calibration_line, crossing, measurable, tobit

LOG_N = np.array([2.0, 3.0, 4.0])


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.1, 0.4, 0.6], (3.5, SEEN)),
        ([0.0, 0.5, 0.9], (3.0, SEEN)),  # reaching counts
        ([0.6, 0.7, 0.9], (2.0, BELOW)),
        ([0.0, 0.1, 0.49], (4.0, ABOVE)),
        ([0.6, 0.2, 0.8], (2.0 + 1 + 0.1 / 0.4, SEEN)),  # a dip is averaged with its neighbour: 0.4, 0.4, 0.8
    ],
)
def test_crossing(scores, expected):
    place = crossing(LOG_N, np.array(scores), 0.5)
    assert place == (pytest.approx(expected[0]), expected[1])
    back = crossing(LOG_N[::-1], np.array(scores[::-1]), 0.5)
    assert back == (pytest.approx(expected[0]), expected[1])


def simulated(generator, rows, slope=1.0, intercept=0.0, spread=0.4):
    x = generator.uniform(1.0, 6.0, rows)
    return x, intercept + slope * x + spread * generator.normal(size=rows)


def censored(y, low=2.0, high=4.5):
    side = np.where(y < low, BELOW, np.where(y > high, ABOVE, SEEN))
    return np.clip(y, low, high), side


def test_without_censoring_it_is_least_squares():
    x, y = simulated(np.random.default_rng(0), 50)
    design = np.stack([np.ones(50), x], axis=1)
    fit = tobit(design, y, np.zeros(50, dtype=int), np.ones((1, 50)))
    expected, residual, *_ = np.linalg.lstsq(design, y, rcond=None)
    np.testing.assert_allclose(fit.coefficients[0], expected, rtol=1e-6)
    np.testing.assert_allclose(fit.spread[0], np.sqrt(residual[0] / 50), rtol=1e-6)


def test_maximum_of_the_likelihood_as_a_general_optimiser_finds_it():
    x, latent = simulated(np.random.default_rng(1), 200)
    y, side = censored(latent)
    weights = np.random.default_rng(2).integers(0, 3, (2, 200)).astype(float)
    fit = tobit(np.stack([np.ones(200), x], axis=1), y, side, weights)
    for k in range(2):

        def loss(p, w=weights[k]):
            z = (y - p[0] - p[1] * x) / np.exp(p[2])
            terms = np.where(side == SEEN, norm.logpdf(z) - p[2], norm.logcdf(-side * z))
            return -(w * terms).sum()

        best = minimize(
            loss, [0.0, 1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10, "maxiter": 4000}
        )
        np.testing.assert_allclose([*fit.coefficients[k], np.log(fit.spread[k])], best.x, atol=2e-5)


@pytest.mark.parametrize(("slope", "intercept"), [(1.0, 0.0), (1.0, 1.0), (0.5, 1.0)])
def test_censoring_does_not_bias_the_line(slope, intercept):
    generator = np.random.default_rng(3)
    free, cut, dropped = [], [], []
    for _ in range(60):
        x, latent = simulated(generator, 150, slope, intercept)
        y, side = censored(latent)
        ones = np.ones((1, 150))
        free.append(calibration_line(x, latent, np.zeros(150, dtype=int), ones).slope[0])
        cut.append(calibration_line(x, y, side, ones).slope[0])
        dropped.append(np.polyfit(x[side == SEEN], y[side == SEEN], 1)[0])
    error = np.std(cut) / np.sqrt(len(cut))
    assert abs(np.mean(cut) - np.mean(free)) < 4 * error
    assert abs(np.mean(dropped) - slope) > 6 * error  # dropping censored curves would bias it


def test_the_interval_of_a_perfect_predictors_slope_covers_one():
    generator = np.random.default_rng(4)
    covered = 0
    for _ in range(60):
        x = generator.uniform(1.0, 6.0, 240)
        condition, seed = np.repeat(np.arange(20), 12), np.tile(np.repeat(np.arange(4), 3), 20)
        off = 0.2 * generator.normal(size=20)[condition] + 0.2 * generator.normal(size=240)
        y, side = censored(x + off)
        draws = cluster_weights(condition, seed, 100, generator)
        line = calibration_line(x, y, side, np.concatenate([np.ones((1, 240)), draws]))
        covered += estimate(float(line.slope[0]), line.slope[1:]).covers(1.0)
    assert covered >= 52  # below it with probability 1 % if 95 % cover


def test_a_predictor_that_asks_for_ten_times_too_many_is_off_by_a_decade():
    x, latent = simulated(np.random.default_rng(5), 2000, spread=0.1)
    y, side = censored(latent)
    line = calibration_line(x + 1, y, side, np.ones((1, 2000)))
    assert (line.slope[0], line.intercept[0], line.offset[0]) == pytest.approx((1.0, -1.0, -1.0), abs=0.02)
    assert line.spread[0] == pytest.approx(0.1, abs=0.01)


def test_a_replicate_without_an_answer_has_none():
    x, latent = simulated(np.random.default_rng(6), 40)
    y, side = censored(latent)
    weights = np.stack([np.ones(40), (side != SEEN).astype(float)])
    line = calibration_line(x, y, side, weights)
    assert np.isfinite(line.slope[0])
    assert np.isnan(line.slope[1])


def test_too_few_curves_within_the_range_are_not_measurable():
    x = np.arange(10.0)
    assert measurable(np.zeros(10, dtype=int), x)
    assert not measurable(np.zeros(10, dtype=int), np.ones(10))
    assert not measurable(np.full(10, ABOVE), x)
