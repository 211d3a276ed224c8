"""Detection theory: stated error rates are what simulated tests achieve, and printed bounds fail where said."""

from __future__ import annotations

from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from lagreach import detection
from lagreach.detection import (
    bayes_error,
    detectable_signal,
    detection_error,
    detection_status,
    kl_divergence,
    mutual_information,
    paper_information_bound,
    paper_kl_bound,
    paper_requirement,
    required_sequences,
    robust_efficiency,
)
from lagreach.errors import InputError
from lagreach.tails import stable
from lagreach.types import Status

ALPHAS = [1.2, 1.5, 1.8, 2.0]
CRITERIA = ["exact", "fano", "converse", "robust"]


def within_binomial(count, runs, probability):
    low, high = stats.binom.ppf([0.0005, 0.9995], runs, probability)
    return low <= count <= high


def simulated_errors(statistic, alpha, *, delta, n, runs, seed, scale=1.0):
    """Wrong signs of a statistic of n values around +-delta/2, each hypothesis half of the time."""
    generator = np.random.default_rng(seed)
    wrong = 0
    for chunk in np.array_split(np.arange(runs), max(1, runs * n // 1_000_000)):
        present = generator.random(chunk.size) < 0.5
        location = np.where(present, 0.5 * delta, -0.5 * delta)[:, None]
        values = location + stable.rvs(alpha, (chunk.size, n), generator, scale)
        wrong += int(np.sum((statistic(values) > 0) != present))
    return wrong


def mean_of(values):
    return values.mean(axis=1)


# ---------------------------------------------------------------- the stated error is the simulated one


@pytest.mark.parametrize(("alpha", "delta"), [(1.2, 4.0), (1.5, 1.0), (1.8, 0.5), (2.0, 0.3)])
def test_exact_requirement_by_real_averaging(alpha, delta):
    n = int(np.ceil(required_sequences(delta, 1.0, alpha)))
    assert 50 < n < 500
    runs = 6000
    expected = float(detection_error(n, delta, 1.0, alpha))
    assert 0.045 < expected <= 0.05
    wrong = simulated_errors(mean_of, alpha, delta=delta, n=n, runs=runs, seed=int(10 * alpha))
    assert within_binomial(wrong, runs, expected)


@pytest.mark.parametrize("error", [0.2, 0.05, 0.01])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_exact_requirement_from_the_law_of_the_mean(alpha, error):
    """The mean of N values has scale sigma N^-(1-1/alpha): drawn as such, N may be as large as it likes."""
    delta, sigma, runs = 0.02, 3.0, 60_000
    n = required_sequences(delta, sigma, alpha, None, error)
    scale = float(sigma * n ** -(1 - 1 / alpha))
    wrong = simulated_errors(
        mean_of, alpha, delta=delta, n=1, runs=runs, seed=int(100 * alpha + 1000 * error), scale=scale
    )
    assert within_binomial(wrong, runs, error)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.8])
def test_v1_rate_misses_its_error(alpha):
    """With the printed exponent alpha for kappa, N is far too small: the error is nowhere near 5 %."""
    delta = 0.5
    n = int(np.ceil(required_sequences(delta, 1.0, alpha, rate="v1")))
    runs = 4000
    wrong = simulated_errors(mean_of, alpha, delta=delta, n=n, runs=runs, seed=3)
    assert within_binomial(wrong, runs, float(detection_error(n, delta, 1.0, alpha)))
    assert not within_binomial(wrong, runs, 0.05)
    assert wrong / runs > 0.07


def aggregate(method, alpha, clip):
    if method == "clip":
        return lambda values: np.clip(values, -clip, clip).sum(axis=1)
    if method == "sign":
        return lambda values: np.sign(values).sum(axis=1)
    return lambda values: stable.score(values, alpha).sum(axis=1)


@pytest.mark.parametrize("method", ["clip", "sign", "score"])
@pytest.mark.parametrize("alpha", [1.2, 1.8])
def test_robust_requirement_by_simulation(alpha, method):
    delta, runs = 0.25, 3000
    n = int(np.ceil(required_sequences(delta, 1.0, alpha, criterion="robust", method=method)))
    n += 1 - n % 2  # odd, so that signs cannot tie
    expected = float(detection_error(n, delta, 1.0, alpha, criterion="robust", method=method))
    wrong = simulated_errors(
        aggregate(method, alpha, 1.5), alpha, delta=delta, n=n, runs=runs, seed=int(alpha * 10) + len(method)
    )
    assert within_binomial(wrong, runs, expected)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["clip", "sign", "score"])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_robust_requirement_at_small_signals(alpha, method):
    delta, runs = 0.125, 20_000
    n = int(np.ceil(required_sequences(delta, 1.0, alpha, criterion="robust", method=method)))
    n += 1 - n % 2
    expected = float(detection_error(n, delta, 1.0, alpha, criterion="robust", method=method))
    wrong = simulated_errors(aggregate(method, alpha, 1.5), alpha, delta=delta, n=n, runs=runs, seed=int(alpha * 10))
    assert within_binomial(wrong, runs, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "delta"), [(1.2, 3.0), (1.5, 0.6), (1.8, 0.25), (2.0, 0.15)])
def test_exact_requirement_by_long_averages(alpha, delta):
    n = int(np.ceil(required_sequences(delta, 1.0, alpha)))
    assert n > 500
    runs = 20_000
    wrong = simulated_errors(mean_of, alpha, delta=delta, n=n, runs=runs, seed=int(10 * alpha))
    assert within_binomial(wrong, runs, float(detection_error(n, delta, 1.0, alpha)))


@pytest.mark.parametrize("alpha", [1.2, 1.5])
def test_clipping_batch_means_costs_what_is_said(alpha):
    batch, delta, clip, runs = 16, 0.25, 1.5, 3000
    n = float(required_sequences(delta, 1.0, alpha, criterion="robust", batch=batch))
    alone = float(required_sequences(delta, 1.0, alpha, criterion="robust"))
    np.testing.assert_allclose(n / alone, batch ** ((2 - alpha) / alpha), rtol=1e-12)
    scale = float(batch ** -(1 - 1 / alpha))  # of a batch mean, drawn from its exact law
    batches = int(np.ceil(n / batch))
    wrong = simulated_errors(
        aggregate("clip", alpha, clip * scale), alpha, delta=delta, n=batches, runs=runs, seed=8, scale=scale
    )
    expected = float(detection_error(batches * batch, delta, 1.0, alpha, criterion="robust", batch=batch))
    assert within_binomial(wrong, runs, expected)


def test_one_batch_of_gaussian_values_costs_nothing():
    np.testing.assert_allclose(
        required_sequences(0.1, 1.0, criterion="robust", batch=64), required_sequences(0.1, 1.0, criterion="robust")
    )


# ---------------------------------------------------------------- closed forms and conventions


def test_gaussian_closed_forms():
    z = float(mpmath.sqrt(2) * mpmath.erfinv(mpmath.mpf("0.9")))
    n = (2 * z * 3.0 / 0.2) ** 2
    np.testing.assert_allclose(required_sequences(0.2, 3.0), n, rtol=1e-12)
    np.testing.assert_allclose(required_sequences(0.2, 3.0, kappa=2.0), n, rtol=1e-12)
    # alpha = 2 speaks of the stable scale: sd = sigma sqrt(2)
    np.testing.assert_allclose(required_sequences(0.2, 3.0 / np.sqrt(2), 2.0), n, rtol=1e-9)
    np.testing.assert_allclose(required_sequences(0.2, 3.0, criterion="robust", method="score"), n, rtol=1e-9)
    np.testing.assert_allclose(
        required_sequences(0.2, 3.0, criterion="robust", method="sign"), n * np.pi / 2, rtol=1e-9
    )
    # (34) for unit variance: c = 1/2
    np.testing.assert_allclose(
        required_sequences(0.2, 3.0, criterion="fano"), (3 / 0.2) ** 2 * 2 * np.log(10), rtol=1e-9
    )


def test_gaussian_clipping_efficiency():
    """Clipping at c standard scales of a normal law with variance 2, by closed form."""
    c = 1.5 / np.sqrt(2.0)  # in standard deviations
    inside = 2 * stats.norm.cdf(c) - 1
    power = inside - 2 * c * stats.norm.pdf(c) + 2 * c**2 * stats.norm.sf(c)
    np.testing.assert_allclose(robust_efficiency(2.0, "clip", clip=1.5), inside**2 / power / 2, rtol=1e-8)


def test_cauchy_efficiencies():
    np.testing.assert_allclose(robust_efficiency(1.0, "score"), 0.5, rtol=1e-9)
    np.testing.assert_allclose(robust_efficiency(1.0, "sign"), 4 / np.pi**2, rtol=1e-9)
    inside = 2 / np.pi * np.arctan(1.5)
    power = 2 / np.pi * (1.5 - np.arctan(1.5)) + 1.5**2 * (1 - inside)
    np.testing.assert_allclose(robust_efficiency(1.0, "clip", clip=1.5), inside**2 / power, rtol=1e-8)


def test_clipping_interpolates_between_sign_and_mean():
    for alpha in (1.3, 1.7):
        np.testing.assert_allclose(
            robust_efficiency(alpha, "clip", clip=1e-3), robust_efficiency(alpha, "sign"), rtol=1e-3
        )
        assert robust_efficiency(alpha, "clip", clip=100.0) < 0.5 * robust_efficiency(alpha, "sign")
    np.testing.assert_allclose(robust_efficiency(2.0, "clip", clip=12.0), 0.5, rtol=1e-8)  # no clipping at all
    clipped = robust_efficiency(np.array([1.1, 1.5, 1.9]), "clip") / robust_efficiency(
        np.array([1.1, 1.5, 1.9]), "score"
    )
    assert np.all((clipped > 0.75) & (clipped < 1))


def test_measured_kappa_uses_the_gaussian_equivalent_range():
    z = stats.norm.ppf(0.99)
    for kappa in (2.0, 2.5, 4.0):
        expected = (2 * z * 0.7 / 0.1) ** kappa
        np.testing.assert_allclose(required_sequences(0.1, 0.7, kappa=kappa, error=0.01), expected, rtol=1e-9)
        np.testing.assert_allclose(detection_error(expected, 0.1, 0.7, kappa=kappa), 0.01, rtol=1e-8)
        # it stands for the stable law with the same kappa and the same range of one sequence
        alpha = kappa / (kappa - 1)
        scale = 0.7 * z / stable.isf(0.01, alpha)
        for criterion in CRITERIA:
            np.testing.assert_allclose(
                required_sequences(0.1, 0.7, kappa=kappa, error=0.01, criterion=criterion),
                required_sequences(0.1, scale, alpha, error=0.01, criterion=criterion),
                rtol=1e-8,
            )


def test_measured_kappa_alone_does_not_tell_the_law():
    for criterion in ("robust", "fano", "converse"):
        detection_error(100, 0.1, 1.0, criterion=criterion)
        with pytest.raises(InputError, match="needs the law"):
            detection_error(100, 0.1, 1.0, kappa=2.5, criterion=criterion)
    with pytest.raises(InputError, match="needs the law"):
        mutual_information(100, 0.1, 1.0, kappa=2.5)


def test_rates():
    n = required_sequences(0.1, 2.0, 1.5)
    np.testing.assert_allclose(required_sequences(0.1, 2.0, 1.5, rate="stable"), n)
    np.testing.assert_allclose(np.log(n) / np.log(required_sequences(0.1, 2.0, 1.5, rate="v1")), 3 / 1.5)
    for rate in ("stable", "v1"):
        with pytest.raises(InputError, match="stable law"):
            required_sequences(0.1, 2.0, rate=rate)


def test_small_errors_cost_polynomially_many_sequences():
    """q_{1-eps} ~ eps^(-1/alpha), so N ~ eps^(-1/(alpha-1)); the paper's log(1/2eps) grows far more slowly."""
    eps = np.array([1e-7, 1e-9])
    for alpha in (1.3, 1.6):
        exact = np.log(required_sequences(0.1, 1.0, alpha, None, eps))
        np.testing.assert_allclose(np.diff(exact) / np.diff(np.log(eps)), -1 / (alpha - 1), rtol=2e-3)
        printed = np.log(required_sequences(0.1, 1.0, alpha, None, eps, criterion="fano"))
        assert abs(np.diff(printed)[0]) < 1


def test_everything_broadcasts():
    delta, sigma, alpha = np.array([0.1, 0.2, 0.4]), np.array([[1.0], [2.0]]), 1.6
    for criterion in CRITERIA:
        n = required_sequences(delta, sigma, alpha, criterion=criterion)
        assert n.shape == (2, 3)
        np.testing.assert_allclose(n[1, 2], required_sequences(0.4, 2.0, 1.6, criterion=criterion), rtol=1e-12)
        assert isinstance(required_sequences(0.4, 2.0, 1.6, criterion=criterion), float)
        assert detectable_signal(n, sigma, alpha, criterion=criterion).shape == (2, 3)
        assert detection_error(n, delta, sigma, alpha, criterion=criterion).shape == (2, 3)
    assert mutual_information(10, delta, sigma, alpha).shape == (2, 3)
    assert isinstance(mutual_information(10, 0.1, 1.0), float)
    assert required_sequences(0.1, 1.0, np.array([1.2, 0.9, 2.0])).shape == (3,)


# ---------------------------------------------------------------- no concentration


@pytest.mark.parametrize("alpha", [0.3, 0.7, 1.0])
def test_means_do_not_help_for_alpha_at_most_one(alpha):
    for criterion in ("exact", "fano", "converse"):
        assert required_sequences(0.1, 1.0, alpha, criterion=criterion) == np.inf
        assert required_sequences(1e6, 1.0, alpha, criterion=criterion) == np.inf
        assert detectable_signal(1e9, 1.0, alpha, criterion=criterion) == np.inf
    assert detection_status(alpha) is Status.NO_CONCENTRATION
    assert not detection_status(alpha).usable
    assert "no number of them suffices" in str(detection_status(alpha))
    assert required_sequences(0.0, 1.0, alpha) == np.inf


def test_error_of_the_mean_does_not_fall_for_alpha_at_most_one():
    n = np.array([1.0, 100.0, 1e4])
    flat = detection_error(n, 2.0, 1.0, 1.0)
    np.testing.assert_allclose(flat, 0.25, rtol=1e-9)  # Cauchy: P(X > 1) whatever N
    assert np.all(np.diff(detection_error(n, 2.0, 1.0, 0.8)) > 0)
    runs = 4000
    wrong = simulated_errors(mean_of, 0.8, delta=2.0, n=30, runs=runs, seed=2)
    assert within_binomial(wrong, runs, float(detection_error(30, 2.0, 1.0, 0.8)))


def test_robust_aggregation_works_without_a_mean():
    n = required_sequences(0.25, 1.0, 1.0, criterion="robust", method="sign")
    np.testing.assert_allclose(n, (2 * stats.norm.ppf(0.95) / 0.25) ** 2 * np.pi**2 / 4, rtol=1e-9)
    assert detection_status(1.0, criterion="robust") is Status.OK


def test_status_of_ordinary_tails():
    assert detection_status() is Status.OK
    assert detection_status(1.5) is Status.OK
    assert detection_status(1.05) is Status.EXPONENT_FRAGILE
    # why: 0.01 in alpha moves N a hundredfold
    ratio = required_sequences(0.1, 1.0, 1.09) / required_sequences(0.1, 1.0, 1.10)
    assert ratio > 100


def test_no_signal_takes_infinitely_many():
    np.testing.assert_array_equal(np.isinf(required_sequences([0.0, 0.1], 1.0, 1.5)), [True, False])
    assert detection_error(100, 0.0, 1.0, 1.5) == 0.5
    assert mutual_information(100, 0.0, 1.0, 1.5) == 0.0


# ---------------------------------------------------------------- inverses


noise_settings = st.one_of(
    st.fixed_dictionaries({"alpha": st.floats(1.15, 2.0), "rate": st.sampled_from(["kappa", "stable", "v1"])}),
    st.fixed_dictionaries({"kappa": st.floats(2.0, 6.0)}),
    st.just({}),
)


@settings(max_examples=120, deadline=None)
@given(
    noise=noise_settings,
    delta=st.floats(1e-3, 10.0),
    sigma=st.floats(0.05, 20.0),
    error=st.floats(1e-4, 0.4),
    criterion=st.sampled_from(CRITERIA),
    method=st.sampled_from(["clip", "sign", "score"]),
    batch=st.integers(1, 64),
)
def test_signal_error_and_number_are_inverses(*, noise, delta, sigma, error, criterion, method, batch):
    options = {**noise, "criterion": criterion, "method": method, "batch": batch}
    n = required_sequences(delta, sigma, error=error, **options)
    np.testing.assert_allclose(detectable_signal(n, sigma, error=error, **options), delta, rtol=1e-8)
    if criterion == "exact" or noise.get("kappa", 2.0) == 2.0:
        np.testing.assert_allclose(detection_error(n, delta, sigma, **options), error, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(alpha=st.floats(1.1, 2.0), d=st.floats(0.05, 30.0), factor=st.floats(1.01, 5.0))
def test_more_sequences_never_hurt(alpha, d, factor):
    assert detection_error(factor, d, 1.0, alpha) < detection_error(1.0, d, 1.0, alpha)
    assert required_sequences(d * factor, 1.0, alpha) < required_sequences(d, 1.0, alpha)


# ---------------------------------------------------------------- information by quadrature


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


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("d", [0.5, 2.0, 6.0])
def test_sign_test_is_the_bayes_test(alpha, d):
    """Half the integral of min(p, q): no test does better than the sign at equal odds."""
    f = density(alpha)
    overlap = integral(lambda t: 0.5 * min(f(t - d / 2), f(t + d / 2)), d)
    np.testing.assert_allclose(detection_error(1, d, 1.0, alpha), overlap, rtol=1e-6)
    np.testing.assert_allclose(bayes_error(1, d, 1.0, alpha), overlap, rtol=1e-6)


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


# ---------------------------------------------------------------- the paper's inequalities, and where they fail


def test_inequality_32_fails_beyond_small_distances():
    """(32) puts I d^2/2 below the divergence, which grows only like log d."""
    d = np.array([2.0, 4.0, 8.0, 40.0])
    ratio = kl_divergence(1, d, 1.0, 1.5) / paper_kl_bound(1, d, 1.0, 1.5)
    np.testing.assert_allclose(ratio, [0.876, 0.630, 0.301, 0.0244], rtol=2e-3)
    # no constant saves it
    for constant in (1e-2, 1e-4):
        far = np.array([1e3, 1e5])
        assert np.any(kl_divergence(1, far, 1.0, 1.5) < paper_kl_bound(1, far, 1.0, 1.5, constant=constant))
    # as d -> 0 it is an equality, and for alpha = 2 everywhere
    np.testing.assert_allclose(kl_divergence(1, 1e-3, 1.0, 1.5), paper_kl_bound(1, 1e-3, 1.0, 1.5), rtol=1e-6)
    np.testing.assert_allclose(kl_divergence(1, d, 1.0, 2.0), paper_kl_bound(1, d, 1.0, 2.0), rtol=1e-9)


def test_rate_in_32_is_too_fast():
    """N^(2/alpha) for N^(2/kappa): at alpha = 1.5 the printed bound is N^(2/3) times too large."""
    n, delta = 1000.0, 1e-5
    printed = paper_kl_bound(n, delta, 1.0, 1.5)
    np.testing.assert_allclose(printed / kl_divergence(n, delta, 1.0, 1.5), n ** (2 / 3), rtol=1e-4)
    np.testing.assert_allclose(paper_kl_bound(n, delta, 1.0, 1.5, rate="kappa") / printed, n ** (-2 / 3), rtol=1e-9)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_inequality_33_is_the_wrong_way_round(alpha):
    d = np.array([0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 20.0])
    information = mutual_information(1, d, 1.0, alpha)
    fisher = stable.fisher_information(alpha)
    for share in (2, 8):
        assert np.all(information < paper_information_bound(1, d, 1.0, alpha, constant=fisher / share))
    assert np.all(information < fisher * d**2 / 8)
    assert np.all(information < np.log(2))
    np.testing.assert_allclose(
        information[0] / paper_information_bound(1, d[0], 1.0, alpha), 0.25, rtol=1e-3
    )  # four times too large
    # any constant fails once c d^2 reaches log 2, which the information never does
    far = np.sqrt(np.log(2) / 1e-3)
    assert paper_information_bound(1, far, 1.0, alpha, constant=1e-3) == pytest.approx(np.log(2))
    assert mutual_information(1, far, 1.0, alpha) < np.log(2)


def test_information_ratio_at_alpha_one_and_a_half():
    d = np.array([0.1, 1.0, 4.0, 8.0])
    ratio = mutual_information(1, d, 1.0, 1.5) / (stable.fisher_information(1.5) * d**2 / 8)
    np.testing.assert_allclose(ratio, [0.999356, 0.939141, 0.472887, 0.172264], rtol=3e-6)


def test_appendix_d_is_not_fano():
    """1 - I/log 2 claims more than the best test's error; the correct h_b(P_e) >= log 2 - I holds."""
    claimed = 1 - mutual_information(1, 2.0, 1.0, 2.0) / np.log(2)
    truth = detection_error(1, 2.0, 1.0, 2.0)
    np.testing.assert_allclose([claimed, truth], [0.7095, 0.2398], atol=5e-4)
    d = np.geomspace(0.05, 50, 20)
    for alpha in ALPHAS:
        p = detection_error(1, d, 1.0, alpha)
        entropy = -p * np.log(p) - (1 - p) * np.log1p(-p)
        assert np.all(entropy >= np.log(2) - mutual_information(1, d, 1.0, alpha) - 1e-12)


@pytest.mark.parametrize(
    ("alpha", "error", "half", "eighth", "converse"),
    [  # N relative to exact
        (2.0, 0.05, 0.426, 1.70, 0.366),
        (2.0, 0.001, 0.325, 1.30, 0.144),
        (1.5, 0.25, 0.801, 6.41, 0.525),
        (1.5, 0.05, 0.155, 1.24, 0.124),
        (1.5, 0.001, 4.84e-4, 3.87e-3, 1.42e-4),
        (1.2, 0.05, 2.54e-3, 0.163, 1.61e-3),
        (1.1, 0.05, 2.15e-6, 4.40e-3, 9.33e-7),
    ],
)
def test_requirement_34_against_the_exact_number(alpha, error, half, eighth, converse):
    """Even with kappa for alpha, c = I/2 asks for too few, and c = I/8 lies on either side."""
    exact = required_sequences(1.0, 1.0, alpha, None, error)
    fisher = stable.fisher_information(alpha)
    found = [
        required_sequences(1.0, 1.0, alpha, None, error, criterion="fano") / exact,
        required_sequences(1.0, 1.0, alpha, None, error, criterion="fano", constant=fisher / 8) / exact,
        required_sequences(1.0, 1.0, alpha, None, error, criterion="converse") / exact,
    ]
    np.testing.assert_allclose(found, [half, eighth, converse], rtol=5e-3)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_requirement_34_is_too_small_below_an_error_of_28_percent(alpha):
    error = np.array([1e-5, 0.01, 0.1, 0.2, 0.28, 0.32, 0.4, 0.49])
    exact = required_sequences(1.0, 1.0, alpha, None, error)
    claimed = required_sequences(1.0, 1.0, alpha, None, error, criterion="fano")
    assert np.all(claimed[:5] < exact[:5])
    assert np.all(claimed[5:] > exact[5:])


def test_requirement_34_misses_its_error_in_simulation():
    runs = 4000
    for alpha, delta in ((2.0, 0.2), (1.5, 0.4)):
        n = int(np.ceil(required_sequences(delta, 1.0, alpha, criterion="fano")))
        wrong = simulated_errors(mean_of, alpha, delta=delta, n=n, runs=runs, seed=4)
        assert wrong > stats.binom.ppf(0.9995, runs, 0.05)
        assert within_binomial(wrong, runs, float(detection_error(n, delta, 1.0, alpha)))


def test_requirement_34_as_printed():
    fisher = float(stable.fisher_information(1.6))
    printed = (2.0 / (np.sqrt(fisher / 2) * 0.1)) ** 1.6 * np.log(1 / 0.1) ** 0.8
    np.testing.assert_allclose(paper_requirement(0.1, 2.0, 1.6), printed, rtol=1e-9)
    np.testing.assert_allclose(paper_requirement(0.1, 2.0, 1.6, constant=fisher / 8) / printed, 4**0.8, rtol=1e-9)
    # threshold (35), the inverse in delta
    threshold = detectable_signal(printed, 2.0, 1.6, criterion="fano", rate="v1")
    np.testing.assert_allclose(threshold, 0.1, rtol=1e-9)


@settings(max_examples=100, deadline=None)
@given(alpha=st.floats(1.05, 2.0), error=st.floats(1e-6, 0.45))
def test_converse_never_exceeds_the_exact_number(alpha, error):
    exact = required_sequences(1.0, 1.0, alpha, None, error)
    assert required_sequences(1.0, 1.0, alpha, None, error, criterion="converse") <= exact


# ---------------------------------------------------------------- refusals


@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize(
    "arguments",
    [
        {"alpha": 1.5, "kappa": 3.0},
        {"alpha": 2.1},
        {"alpha": 0.0},
        {"alpha": np.nan},
        {"kappa": 1.5},
        {"kappa": np.inf},
        {"error": 0.0},
        {"error": 0.5},
        {"error": np.nan},
        {"sigma": 0.0},
        {"sigma": np.nan},
        {"delta": -0.1},
        {"delta": np.inf},
        {"delta": []},
        {"criterion": "bayes"},
        {"rate": "v2"},
        {"criterion": "robust", "method": "median"},
        {"criterion": "robust", "clip": 0.0},
        {"criterion": "robust", "batch": 0.5},
        {"criterion": "fano", "constant": 0.0},
    ],
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(InputError):
        required_sequences(**{"delta": 0.1, "sigma": 1.0, **arguments})


@pytest.mark.usefixtures("_as_users_run_it")
def test_other_refusals():
    with pytest.raises(InputError):
        detection_error(0, 0.1, 1.0)
    with pytest.raises(InputError):
        detection_error(10, 0.1, 1.0, criterion="bayes")
    with pytest.raises(InputError):
        detectable_signal(np.nan, 1.0)
    with pytest.raises(InputError):
        bayes_error(10, 0.1, 1.0, prior=1.0)
    with pytest.raises(InputError):
        robust_efficiency(2.5)
    with pytest.raises(InputError):
        detection_status(1.5, criterion="bayes")
    for alpha in (0.0, 2.5, np.nan):
        with pytest.raises(InputError):
            detection_status(alpha)


def test_public_names_exist():
    for name in detection.__all__:
        assert callable(getattr(detection, name))
