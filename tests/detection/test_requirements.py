"""How many sequences a signal needs: closed forms, conventions, inverses, and what is refused."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lagreach import detection
from lagreach.detection import (
    bayes_error,
    detectable_signal,
    detection_error,
    detection_status,
    mutual_information,
    required_sequences,
    robust_efficiency,
)
from lagreach.errors import InputError
from lagreach.tails import stable
from lagreach.types import Status
from tests.detection.cases import CRITERIA, mean_of, simulated_errors, within_binomial

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
