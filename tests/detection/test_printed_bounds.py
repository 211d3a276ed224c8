"""The paper's inequalities, and where they fail."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lagreach.detection import (
    detectable_signal,
    detection_error,
    kl_divergence,
    mutual_information,
    paper_information_bound,
    paper_kl_bound,
    paper_requirement,
    required_sequences,
)
from lagreach.tails import stable
from tests.detection.cases import ALPHAS, mean_of, simulated_errors, within_binomial


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
    ratios = [
        required_sequences(1.0, 1.0, alpha, None, error, criterion="fano") / exact,
        required_sequences(1.0, 1.0, alpha, None, error, criterion="fano", constant=fisher / 8) / exact,
        required_sequences(1.0, 1.0, alpha, None, error, criterion="converse") / exact,
    ]
    np.testing.assert_allclose(ratios, [half, eighth, converse], rtol=5e-3)


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


def test_inequality_33_is_capped_at_one_bit():
    np.testing.assert_allclose(paper_information_bound(1, 1e3, 1.0, 1.5), np.log(2), rtol=1e-15)
    np.testing.assert_allclose(paper_information_bound(1, 0.1, 1.0, 1.5), paper_kl_bound(1, 0.1, 1.0, 1.5), rtol=1e-15)
