"""One law of N: plans, detection theory, windows at other strengths, what-ifs and chunks all follow it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

import lagreach
from lagreach.advice.what_if import what_if
from lagreach.detection import detectable_signal, required_sequences
from lagreach.detection.law import log_n, log_ratio, log_sequences, moved, reach, strength_shift, turned
from lagreach.regimes import window_growth
from tests.report.cases import gated, heavy

sizes = st.floats(1e-3, 1e3)
kappas = st.floats(2.0, 10.0)


@given(sizes, sizes, kappas, st.integers(1, 64))
def test_the_law_is_its_own_inverse_and_turning_back_and_forth_changes_nothing(spread, signal, kappa, start):
    log = log_sequences(math.log(spread / signal), kappa, math.log(start))
    np.testing.assert_allclose(np.exp(log), start * (spread / signal) ** kappa, rtol=1e-10)
    np.testing.assert_allclose(log_ratio(log, kappa, math.log(start)), math.log(spread / signal), atol=1e-10)
    there = turned(log, kappa, 3.0, math.log(start))
    np.testing.assert_allclose(turned(there, 3.0, kappa, math.log(start)), log, rtol=1e-9, atol=1e-9)


@given(sizes, sizes, st.floats(0.001, 0.4))
def test_what_a_diagnosis_computes_is_the_documented_number(sd, delta, error):
    ranges = 2 * ndtri(1 - error) * np.array([sd])
    computed = np.exp(log_n(np.array([delta**2]), ranges, 1, 2.0))[0]
    np.testing.assert_allclose(computed, required_sequences(delta, sd, error=error, kappa=2.0), rtol=1e-9)
    np.testing.assert_allclose(detectable_signal(computed, sd, error=error, kappa=2.0), delta, rtol=1e-9)


@given(sizes, kappas, st.integers(1, 500), st.floats(0.1, 3.0))
def test_plans_follow_it(constant, kappa, lag, beta):
    growth = window_growth("power", {"c": 1.0, "beta": beta}, kappa, constant)
    needed = growth.required(float(lag))
    np.testing.assert_allclose(needed, constant * float(lag) ** (beta * kappa), rtol=1e-9)
    if math.isfinite(needed):
        np.testing.assert_allclose(growth.at(needed), lag, rtol=1e-6)


@pytest.mark.parametrize("diagnosis", [gated, heavy])
@pytest.mark.parametrize("strength", [0.01, 0.2, 1.0])
def test_strength_and_what_if_agree(diagnosis, strength):
    window = diagnosis().layers[0].window
    direct, asked = window.required_if_present(strength), what_if(window, strength=strength).planted
    for name in ("sequences", "pessimistic", "robust"):
        np.testing.assert_allclose(getattr(direct, name), getattr(asked, name), rtol=1e-9, err_msg=name)
    kappa = window.concentration.exponent
    expected = np.exp(moved(np.log(window.probe.sequences), kappa, strength_shift(strength)))
    np.testing.assert_allclose(direct.sequences, expected, rtol=1e-12)
    np.testing.assert_allclose(direct.sequences, window.probe.sequences * strength ** (-kappa / 2), rtol=1e-9)


def test_windows_of_all_kinds_read_the_same_lag():
    diagnosis = gated()
    window = diagnosis.layers[0].window
    planted = window.required_if_present()
    for sequences in (1, 50, 10**4, 10**8):
        expected = reach(planted.lags, planted.sequences, sequences)
        assert window.at(sequences).lag == expected == what_if(window, sequences=sequences).at.lag
        assert diagnosis.window(sequences).lag == expected


def test_a_chunk_that_keeps_half_of_the_signal_needs_as_many_more_as_half_of_the_signal_does():
    from lagreach.advice.suggest import _Chunks

    diagnosis = gated()
    chunks = _Chunks(diagnosis)
    chunks.at_end, chunks.time, chunks.kappa = False, 40, 3.0
    halved = chunks.share(10, 40) / chunks.share(10, 15)
    assert chunks.needed(10, 100.0, 15) == pytest.approx(100.0 * halved**3.0, rel=1e-12)
    assert chunks.needed(10, 100.0, 10) == math.inf
    assert chunks.needed(10, math.inf, 15) == math.inf


def test_noise_error_and_kappa_of_a_what_if_are_the_laws_own():
    window = replace(gated().layers[0].window)
    base = window.required_if_present().sequences
    loud = what_if(window, noise=2.0).planted.sequences
    np.testing.assert_allclose(np.log(loud / base), window.concentration.exponent * math.log(2.0), rtol=1e-9)
    slow = what_if(window, kappa=3.0).planted.sequences
    np.testing.assert_allclose(np.log(slow), turned(np.log(base), window.concentration.exponent, 3.0), rtol=1e-9)
    assert lagreach.required_sequences is required_sequences
