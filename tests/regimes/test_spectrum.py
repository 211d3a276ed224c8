"""Time scales of single units, and their spectrum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lagreach import regimes
from lagreach.errors import InputError
from lagreach.types import Status


def test_time_scales_per_unit():
    lags = np.arange(0, 40)
    tau = np.array([0.8, 3.0, 60.0, 1e4])
    scales = regimes.timescales(lags, np.exp(-lags[:, None] / tau) * [1.0, 5.0, 1e-8, 2.0])
    np.testing.assert_allclose(scales.tau, tau, rtol=1e-9)
    np.testing.assert_allclose(scales.r2, 1.0, rtol=1e-9)
    deep = regimes.timescales(lags, log10_rates=-lags[:, None] * 30.0 - 100.0)  # down to 1e-1270
    np.testing.assert_allclose(deep.tau, 1 / (30 * np.log(10)), rtol=1e-12)


def test_time_scales_agree_with_the_exponential_law():
    lags = np.arange(1, 30)
    rates = np.exp(-lags / 6.0 + 0.2 * np.random.default_rng(2).standard_normal(lags.size))
    one = regimes.timescales(lags, rates[:, None])
    whole = regimes.fit_regimes(lags, rates)["exponential"]
    np.testing.assert_allclose(one.tau[0], whole.params["tau"], rtol=1e-10)
    np.testing.assert_allclose(one.r2[0], whole.r2, rtol=1e-10)


def test_units_without_a_time_scale_say_why():
    lags = np.arange(8)
    rates = np.stack(
        [
            np.exp(-lags / 2.0),
            np.ones(8),
            np.exp(lags / 2.0),
            np.where(lags < 3, 1.0 / (1 + lags), 0.0),
            np.zeros(8),
        ],
        axis=1,
    )
    rates[5, 0] = np.nan
    scales = regimes.timescales(lags, rates)
    np.testing.assert_allclose(scales.tau[0], 2.0, rtol=1e-12)
    assert scales.n_points.tolist() == [7, 8, 8, 3, 0]
    assert np.isnan(scales.tau[1:]).all()
    assert scales.status == (
        Status.OK,
        Status.NO_DECAY,
        Status.NO_DECAY,
        Status.TOO_FEW_POINTS,
        Status.TOO_FEW_POINTS,
    )
    assert "2 units without one: the curve does not decay" in str(scales)
    above = regimes.timescales(lags, rates, floor=0.5)
    assert above.status[0] is Status.TOO_FEW_POINTS


@pytest.mark.parametrize("rates", [np.ones(4), np.ones((4, 0)), np.ones((3, 2))])
def test_bad_rates_are_refused(rates):
    with pytest.raises(InputError):
        regimes.timescales(np.arange(4), rates)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5))
def test_effective_number_counts_distinct_scales(octaves, copies):
    tau = np.repeat(1.5 * 2.0 ** np.arange(octaves), copies)
    spectrum = regimes.spectrum_summary(tau)
    np.testing.assert_allclose(spectrum.effective_number, octaves, rtol=1e-12)
    np.testing.assert_allclose(spectrum.entropy, np.log(octaves), atol=1e-12)
    assert spectrum.quantiles[0.0] == tau[0]
    assert spectrum.quantiles[1.0] == tau[-1]


def test_spectrum_weights_and_missing_units():
    spectrum = regimes.spectrum_summary([2.5, 40.0, np.nan], weights=[3.0, 1.0, 7.0])
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    np.testing.assert_allclose(spectrum.entropy, entropy, rtol=1e-12)
    assert (spectrum.n_units, spectrum.n_missing) == (2, 1)
    assert "2 time scales" in str(spectrum)
    tau = np.random.default_rng(0).lognormal(2, 1, 501)
    np.testing.assert_allclose(regimes.spectrum_summary(tau).quantiles[0.5], np.median(tau), rtol=1e-12)
    for bad in ([np.nan], [0.0], [np.inf], [[1.0]]):
        with pytest.raises(InputError):
            regimes.spectrum_summary(bad)
    with pytest.raises(InputError):
        regimes.spectrum_summary([1.0, 2.0], weights=[1.0, -1.0])
