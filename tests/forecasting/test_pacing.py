"""Budgets of seconds: what they leave out, and what is said where they are too small."""

import numpy as np
import pytest

import lagreach
from lagreach.advice import look
from lagreach.forecasting import pacing
from lagreach.forecasting.pacing import FEWEST_DIRECTIONS, FEWEST_SEQUENCES, Pace, affordable
from tests.forecasting.models import Recurrent, data

LAGS = [0, 2, 9]
SMALL = "is too small"


def forecast(**options):
    return lagreach.forecast(Recurrent(), data(192, 24), lags=LAGS, progress=False, **options)


@pytest.mark.parametrize("pace", [Pace(0.02, 1e-4, 0.0), Pace(0.0, 2e-3, 0.0), Pace(0.01, 1e-3, 0.2)])
@pytest.mark.parametrize("left", [2.0, 5.0, 20.0, 200.0])
def test_what_is_planned_fits_or_is_the_least(pace, left):
    sequences, directions = affordable(pace, left, most=256, fewest=16, beside=8, anchors=24, available=256)
    least = (sequences, directions) == (FEWEST_SEQUENCES, FEWEST_DIRECTIONS)
    assert pace.seconds(sequences, directions, 8) <= left or least
    assert directions + 8 <= max(sequences * 24 // 4, FEWEST_DIRECTIONS + 8)


def test_more_time_never_leaves_out_more():
    pace = Pace(0.01, 1e-3, 0.1)
    given = [
        affordable(pace, left, most=256, fewest=16, beside=8, anchors=64, available=256) for left in (1, 4, 16, 64)
    ]
    worth = [sequences * min(directions, 64) for sequences, directions in given]
    assert worth == sorted(worth)


def test_a_budget_with_room_changes_nothing():
    free, ample = forecast(), forecast(budget=1e6)
    assert ample.warnings == free.warnings
    for name in ("directions", "sequences_for_all_weights", "sequences_used", "derivatives"):
        assert ample.settings[name] == free.settings[name]
    np.testing.assert_array_equal(ample.if_present.values, free.if_present.values)


def test_a_budget_that_is_too_small_takes_the_least_and_says_so():
    made = forecast(budget=1e-3)
    assert made.settings["directions"] == FEWEST_DIRECTIONS
    assert made.settings["sequences_for_all_weights"] == FEWEST_SEQUENCES
    assert any(SMALL in warning and 'weights="readout"' in warning for warning in made.warnings)


def test_directions_that_are_asked_for_are_the_most_within_a_budget():
    assert forecast(directions=64, budget=1e-3).settings["directions"] == FEWEST_DIRECTIONS
    assert forecast(directions=8, budget=1e-3).settings["directions"] == 8
    assert forecast(directions=24, budget=1e6).settings["directions"] == 24


def test_a_budget_in_between_gives_up_sequences_and_says_how_many(monkeypatch):
    model = Recurrent()
    pace = Pace(0.1, 0.0, 0.0)
    monkeypatch.setattr("lagreach.forecasting.run.measured_pace", lambda *_, **__: pace)
    monkeypatch.setattr(pacing.Budget, "left", 8.0)
    made = lagreach.forecast(model, data(192, 24), lags=LAGS, progress=False, budget=10.0, derivatives="backward")
    assert made.settings["sequences_for_all_weights"] == affordable(
        pace, 8.0, most=256, fewest=16, beside=8, anchors=24, available=192
    )[0]  # fmt: skip
    assert any("of 192 sequences, and is rough" in warning for warning in made.warnings)


@pytest.mark.thorough
def test_advice_deals_its_budget_out_to_its_forecasts_and_says_where_it_was_too_small(monkeypatch):
    given = []

    def recorded(*args, **options):
        given.append(options["budget"])
        return lagreach.forecast(*args, **options)

    monkeypatch.setattr(look, "forecast", recorded)
    kinds = ["gates", "units"]
    advice = lagreach.advise(Recurrent(), data(64, 24, lag=20), lag=20, budget=1e-3, kinds=kinds, progress=False)
    assert len(given) >= 2
    assert max(given) < 1e-3
    small = [warning for warning in advice.warnings if SMALL in warning]
    assert len(small) == 1
    assert "the budget of 0.001 s" in small[0]
    ample = lagreach.advise(Recurrent(), data(64, 24, lag=20), lag=20, budget=1e6, kinds=["gates"], progress=False)
    assert not any(SMALL in warning for warning in ample.warnings)
