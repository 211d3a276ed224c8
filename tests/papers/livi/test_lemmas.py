"""The paper's lemmas on envelopes, reported where they fail."""

from __future__ import annotations

import numpy as np
import pytest

from lagreach.errors import InputError
from lagreach.papers.livi import lemmas
from lagreach.types import Status
from tests.regimes.cases import LAGS


def test_monotone_envelope():
    check = lemmas.check_monotone(LAGS[::-1], 1 / LAGS[::-1])
    assert check.holds
    assert check.largest_rise < 1
    assert "holds" in str(check)


def test_rising_envelope_is_reported_with_its_lags():
    # gamma0 + gamma1 with negative corrections: |a^l (1 - l r)| vanishes at l = 1/r and rises again
    lags = np.arange(1, 40)
    log10 = np.log10(np.abs(0.9**lags * (1 - lags / 10.5))) - 350
    check = lemmas.check_monotone(lags, log10_envelope=log10)
    assert not check.holds
    assert check.status is Status.NOT_MONOTONE
    rising = np.flatnonzero(np.diff(log10) > 0)
    np.testing.assert_array_equal(check.rise_from, lags[rising])
    np.testing.assert_array_equal(check.rise_to, lags[rising + 1])
    np.testing.assert_allclose(check.rise_factor, 10 ** np.diff(log10)[rising], rtol=1e-9)
    peak = 10 ** (log10[10:].max() - log10[:12].min())
    np.testing.assert_allclose(check.largest_rise, peak, rtol=1e-9)
    assert "Lemma 5.1 fails after lags 11" in str(check)


def test_small_rises_within_the_tolerance_and_their_sum():
    values = [1.0, 0.5, 0.504, 0.2]
    assert not lemmas.check_monotone([1, 2, 3, 4], values).holds
    assert lemmas.check_monotone([1, 2, 3, 4], values, tolerance=0.01).holds
    creeping = 1.005 ** np.arange(30)
    check = lemmas.check_monotone(np.arange(1, 31), creeping, tolerance=0.01)
    assert not check.holds
    np.testing.assert_allclose(check.largest_rise, 1.005**29, rtol=1e-12)


def test_sandwich_holds_for_bounded_noise_and_alignment():
    generator = np.random.default_rng(1)
    f = LAGS**-1.2
    sigma, alignment = generator.uniform(1, 2, LAGS.size), generator.uniform(0.5, 0.8, LAGS.size)
    needed = 21.6 * (sigma / (alignment * f)) ** 2.5
    check = lemmas.check_sandwich(
        LAGS, f, sigma=sigma, alignment=alignment, required=needed, exponent=2.5, constant=21.6
    )
    assert check.holds
    np.testing.assert_allclose(check.lower_constant, 21.6 * (sigma.min() / alignment.max()) ** 2.5, rtol=1e-12)
    np.testing.assert_allclose(check.upper_constant, 21.6 * (sigma.max() / alignment.min()) ** 2.5, rtol=1e-12)
    assert abs(check.noise_slope) < 0.3
    for n in np.geomspace(50, 1e7, 15):
        low, high = check.window_bounds(n)
        inside = LAGS[needed <= n]
        window = inside.max() if inside.size else np.nan
        assert np.isnan(low) or low <= window
        assert np.isnan(window) or window <= high
    # (39) as printed drops the constant kappa_{alpha,eps}: its lower bound then overshoots the window
    n = 2000.0
    printed = LAGS[f >= sigma.max() / alignment.min() * n ** (-1 / 2.5)].max()
    assert printed > LAGS[needed <= n].max() >= check.window_bounds(n)[0]


def test_sandwich_says_where_premise_and_bounds_fail():
    f = 1 / LAGS
    sigma = np.where(LAGS > 60, 0.1, 1.0)
    needed = (sigma / f) ** 2
    common = {"alignment": 1.0, "required": needed, "exponent": 2.0, "constant": 1.0}
    premise = lemmas.check_sandwich(LAGS, f, sigma=sigma, sigma_bounds=(0.5, 2.0), **common)
    assert premise.status is Status.SANDWICH_PREMISE_FAILS
    np.testing.assert_array_equal(premise.premise_fails_at, LAGS[LAGS > 60])
    np.testing.assert_array_equal(premise.bounds_fail_at, LAGS[LAGS > 60])
    assert "premise fails at lags" in str(premise)
    # N computed with another exponent (kappa = 3) is not bounded by f^-2
    other = lemmas.check_sandwich(LAGS, f, sigma=1.0, alignment=1.0, required=f**-3.0, exponent=2.0, constant=1.0)
    assert other.status is Status.SANDWICH_FAILS
    np.testing.assert_array_equal(other.bounds_fail_at, LAGS[LAGS > 1])
    missing = lemmas.check_sandwich(
        LAGS,
        f,
        sigma=1.0,
        alignment=1.0,
        required=np.where(LAGS > 100, np.inf, f**-2.0),
        exponent=2.0,
        constant=1.0,
    )
    np.testing.assert_array_equal(missing.bounds_fail_at, LAGS[LAGS > 100])


def test_noise_of_the_lag_alone_makes_the_sandwich_empty():
    """Noise that shrinks with the envelope satisfies (38) formally, yet N(lag) does not depend on f."""
    log10_f = -LAGS * 28 / 128  # 1e-28 at lag 128
    sigma = 10**log10_f
    check = lemmas.check_sandwich(
        LAGS, log10_envelope=log10_f, sigma=sigma, alignment=1.0, required=5.0, exponent=2.0, constant=5.0
    )
    assert check.bounds_fail_at.size == 0
    assert check.status is Status.SANDWICH_EMPTY
    np.testing.assert_allclose(check.noise_slope, 1.0, rtol=1e-9)


@pytest.mark.parametrize(
    "change",
    [
        {"sigma": 0.0},
        {"sigma": np.ones(3)},
        {"alignment": np.nan},
        {"required": -1.0},
        {"exponent": 0.0},
        {"constant": np.inf},
        {"sigma_bounds": (2.0, 1.0)},
    ],
)
def test_bad_sandwich_input_is_refused(change):
    arguments = {"sigma": 1.0, "alignment": 1.0, "required": 1.0, "exponent": 2.0, "constant": 1.0, **change}
    with pytest.raises(InputError):
        lemmas.check_sandwich(LAGS, 1 / LAGS, **arguments)


@pytest.mark.parametrize("envelope", [[1.0], [1.0, 0.0], [1.0, np.nan]])
def test_bad_envelopes_are_refused(envelope):
    with pytest.raises(InputError):
        lemmas.check_monotone(np.arange(1, len(envelope) + 1), envelope)
    with pytest.raises(InputError):
        lemmas.check_monotone([1, 2], [1.0, 0.5], tolerance=-1.0)
