"""Divergences, information and Bayes errors, against closed forms and adaptive quadrature."""

from __future__ import annotations

from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from lagreach.detection import bayes_error, detection_error, kl_divergence, mutual_information
from lagreach.tails import stable
from tests.detection.cases import ALPHAS


def density(alpha):
    return lambda x: float(stable.pdf(x, alpha, method="quadrature"))


def integral(function, d):
    """Adaptive quadrature over the line, cut where the densities have their structure."""
    cuts = [-np.inf, -60.0 - d, -d / 2 - 2, -d / 2, 0.0, d / 2, d / 2 + 2, 60.0 + d, np.inf]
    return sum(integrate.quad(function, a, b, epsabs=1e-13, epsrel=1e-10, limit=200)[0] for a, b in pairwise(cuts))


@pytest.mark.parametrize("d", [0.2, 1.0, 5.0])
def test_gaussian_information(d):
    """Stable scale 1 is variance 2; the integral by mpmath, independent of everything here."""
    with mpmath.workdps(25):
        sd = mpmath.sqrt(2)
        information = mpmath.quad(
            lambda t: mpmath.npdf(t, d / 2, sd) * (mpmath.log(2) - mpmath.log(1 + mpmath.exp(-mpmath.mpf(d) * t / 2))),
            [-30, -5, 0, 5, 30],
        )
    np.testing.assert_allclose(mutual_information(1, d, 1.0, 2.0), float(information), rtol=1e-8)
    np.testing.assert_allclose(kl_divergence(1, d, 1.0, 2.0), d**2 / 4, rtol=1e-12)


@pytest.mark.parametrize("d", [1e-4, 0.3, 2.0, 40.0])
def test_cauchy_divergence(d):
    """The divergence of shifted Cauchy laws is log(1 + d^2/4)."""
    np.testing.assert_allclose(kl_divergence(1, d, 1.0, 1.0), np.log1p(d**2 / 4), rtol=1e-7)


@pytest.mark.thorough
@pytest.mark.parametrize("d", [0.3, 1.0, 4.0])
def test_information_against_adaptive_quadrature(d):
    f = density(1.5)

    def information(t):
        p, q = f(t - d / 2), f(t + d / 2)
        return 0.5 * (p * np.log(2 * p / (p + q)) + q * np.log(2 * q / (p + q)))

    def divergence(t):
        p, q = f(t - d / 2), f(t + d / 2)
        return p * np.log(p / q)

    np.testing.assert_allclose(mutual_information(1, d, 1.0, 1.5), integral(information, d), rtol=1e-6)
    np.testing.assert_allclose(kl_divergence(1, d, 1.0, 1.5), integral(divergence, d), rtol=1e-6)


def test_two_ways_to_the_log_ratio_meet():
    """Below d = 1/2 the log ratio is an integral of the score, above a difference of log densities."""
    for quantity in (mutual_information, kl_divergence):
        left, right = quantity(1, np.array([0.5 - 1e-9, 0.5 + 1e-9]), 1.0, 1.4)
        np.testing.assert_allclose(left, right, rtol=2e-8)


def test_information_depends_on_the_distance_alone():
    d = 0.7
    n = (d * 3.0 / 0.2) ** 3  # kappa = 3
    np.testing.assert_allclose(mutual_information(n, 0.2, 3.0, 1.5), mutual_information(1, d, 1.0, 1.5), rtol=1e-10)
    sd = 3.0
    np.testing.assert_allclose(
        mutual_information(n, 0.2, sd), mutual_information(n, 0.2, sd / np.sqrt(2), 2.0), rtol=1e-12
    )


@pytest.mark.thorough
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("d", [0.5, 2.0, 6.0])
def test_sign_test_is_the_bayes_test(alpha, d):
    """Half the integral of min(p, q): no test does better than the sign at equal odds."""
    f = density(alpha)
    overlap = integral(lambda t: 0.5 * min(f(t - d / 2), f(t + d / 2)), d)
    np.testing.assert_allclose(detection_error(1, d, 1.0, alpha), overlap, rtol=1e-6)
    np.testing.assert_allclose(bayes_error(1, d, 1.0, alpha), overlap, rtol=1e-6)


@pytest.mark.thorough
def test_bayes_error_at_other_odds():
    d, prior = 3.0, 0.8
    f = density(1.5)
    overlap = integral(lambda t: min(prior * f(t - d / 2), (1 - prior) * f(t + d / 2)), d)
    np.testing.assert_allclose(bayes_error(1, d, 1.0, 1.5, prior=prior), overlap, rtol=1e-4)
    np.testing.assert_allclose(
        bayes_error(1, d, 1.0, 1.5, prior=prior), bayes_error(1, d, 1.0, 1.5, prior=1 - prior), rtol=1e-9
    )
    # the best threshold on the mean is worse: large values say nothing, so the prior should decide them
    cuts = np.linspace(-40, 40, 4001)
    threshold = prior * stable.cdf(cuts - d / 2, 1.5) + (1 - prior) * stable.sf(cuts + d / 2, 1.5)
    assert bayes_error(1, d, 1.0, 1.5, prior=prior) < threshold.min() - 1e-3
    # Gaussian: one threshold, closed form
    cut = 2 / d * np.log((1 - prior) / prior)
    normal = prior * stats.norm.cdf((cut - d / 2) / np.sqrt(2)) + (1 - prior) * stats.norm.sf(
        (cut + d / 2) / np.sqrt(2)
    )
    np.testing.assert_allclose(bayes_error(1, d, 1.0, 2.0, prior=prior), normal, rtol=1e-8)
    assert bayes_error(1, 0.01, 1.0, 1.5, prior=0.9) == pytest.approx(0.1, rel=1e-9)
    for alpha in (1.5, 2.0):
        assert bayes_error(1, 0.0, 1.0, alpha, prior=0.9) == pytest.approx(0.1, rel=1e-9)
