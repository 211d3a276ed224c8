"""What-if numbers: the measured ones at the measured setting, the formula elsewhere, and agreement with measuring again."""

import math

import numpy as np
import pytest
from scipy.special import ndtri

import lagreach
from lagreach.advice.what_if import log_quantile, what_if
from lagreach.diagnosis.measure import MeasureSettings
from lagreach.errors import InputError
from tests.report.cases import CASES, data, gated, heavy, refused

NUMBERS = ("sequences", "low", "high", "pessimistic", "robust")


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_as_measured_it_is_the_window(name):
    window = CASES[name]().layers[0].window
    for strength in (None, 0.01, 1.0):
        answer = what_if(window, sequences=300, strength=strength)
        for number in NUMBERS:
            expected = getattr(window.required_if_present(strength), number)
            np.testing.assert_allclose(getattr(answer.planted, number), expected, rtol=1e-12)
            np.testing.assert_allclose(getattr(answer.in_data, number), getattr(window.required, number), rtol=1e-12)
        assert answer.at == window.at(300, strength)
        assert str(answer) == str(answer.at)


def test_each_setting_has_its_place_in_the_formula():
    window = heavy().layers[0].window
    kappa, base = window.concentration.exponent, what_if(window)
    for noise in (0.5, 3.0):
        louder = what_if(window, noise=noise)
        np.testing.assert_allclose(louder.planted.sequences, base.planted.sequences * noise**kappa, rtol=1e-12)
        np.testing.assert_allclose(louder.in_data.sequences, base.in_data.sequences * noise**kappa, rtol=1e-12)
        np.testing.assert_allclose(louder.planted.robust, base.planted.robust * noise**2, rtol=1e-12)
    other = what_if(window, kappa=4.0)  # N = m (R_m / delta)^kappa with m = 8, the largest measured size
    ratio = (window.required_if_present(1.0).sequences / 8) ** (1 / kappa) / math.sqrt(window.strength)
    np.testing.assert_allclose(other.planted.sequences, 8 * ratio**4.0, rtol=1e-10)
    rarer = what_if(window, error=0.01)
    turn = math.exp(log_quantile(kappa, 0.01) - log_quantile(kappa, 0.05))
    np.testing.assert_allclose(rarer.planted.sequences, base.planted.sequences * turn**kappa, rtol=1e-12)


def test_the_quantile_of_kappa_two_is_the_normal_one():
    for error in (0.001, 0.05, 0.3):
        assert log_quantile(2.0, error) == pytest.approx(math.log(math.sqrt(2) * ndtri(1 - error)), abs=1e-10)


def test_another_error_gives_what_measuring_with_it_gives():
    model = lagreach.GatedRNN("const_gate", 2, 4, 1, gate_init=0.2)
    measured = {
        error: lagreach.measure_window(model, data(), lags=[0, 3, 9], settings=MeasureSettings(error=error))
        for error in (0.05, 0.2)
    }
    assert all(window.concentration.exponent == 2.0 for window in measured.values())
    answer = what_if(measured[0.05], error=0.2)
    again = measured[0.2].required_if_present()
    for number in ("sequences", "robust"):
        np.testing.assert_allclose(getattr(answer.planted, number), getattr(again, number), rtol=1e-9)
    both = np.isfinite(measured[0.05].required.sequences)
    assert both.any()
    np.testing.assert_allclose(answer.in_data.sequences[both], measured[0.2].required.sequences[both], rtol=1e-9)


def test_intervals_hold_their_number_and_lose_the_part_of_kappa():
    window = heavy().layers[0].window
    for settings in ({"noise": 0.01}, {"noise": 20.0}, {"kappa": 2.0}, {"kappa": 5.0}, {"error": 0.001, "kappa": 3.0}):
        planted = what_if(window, **settings).planted
        assert (planted.low <= planted.sequences * (1 + 1e-12)).all()
        assert (planted.sequences <= planted.high * (1 + 1e-12)).all()
    measured, fixed = what_if(window).planted, what_if(window, kappa=window.concentration.exponent).planted
    np.testing.assert_allclose(fixed.sequences, measured.sequences, rtol=1e-12)
    assert (np.log(fixed.high / fixed.low) <= np.log(measured.high / measured.low) + 1e-12).all()


def test_what_is_not_known_stays_unknown():
    window = refused().layers[0].window
    answer = what_if(window, kappa=3.0, noise=0.1)
    assert np.isnan(answer.planted.sequences).all()
    assert np.isfinite(answer.planted.robust).all()
    assert answer.at.lag is None
    assert answer.at.status is lagreach.Status.KAPPA_REFUSED
    missing = np.isinf(window.required.sequences)
    assert missing.any()
    assert np.isinf(answer.in_data.sequences[missing]).all()
    assert np.isfinite(answer.in_data.low[missing]).all()


@pytest.mark.parametrize(
    "wrong", [{"sequences": 0}, {"strength": 0.0}, {"error": 0.5}, {"kappa": 1.9}, {"kappa": math.inf}, {"noise": 0.0}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(InputError):
        what_if(gated().layers[0].window, **wrong)


def test_the_old_name_still_works_and_says_the_new_one():
    answer = what_if(gated().layers[0].window)
    with pytest.warns(DeprecationWarning, match=r"WhatIf\.found is now WhatIf\.in_data"):
        assert answer.found is answer.in_data
