"""Budgets of seconds: what they leave out, and what is said where they are too small."""

import numpy as np
import pytest

import lagreach
from lagreach.advice import look
from lagreach.data.sequences import as_sequences
from lagreach.diagnosis import pacing as pieces
from lagreach.forecasting import pacing
from lagreach.forecasting.linearise import choose_linearisation
from lagreach.forecasting.pacing import FEWEST_DIRECTIONS, FEWEST_SEQUENCES, Pace, affordable, measured_pace
from lagreach.forecasting.plan import make_plan
from lagreach.forecasting.run import ForecastRun
from lagreach.forecasting.target_batches import Measurement
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


class Work:
    """Derivatives of the weights that take their time by a law, on a clock of its own."""

    def __init__(self, monkeypatch, *, once, sequence, direction, loading=0.0):
        self.now, self.pieces, self.loading = 0.0, [], loading
        self.once, self.sequence, self.direction = once, sequence, direction
        run = ForecastRun(Recurrent(), make_plan(as_sequences(data(192, 24)), LAGS, 0), "mse", None, None, 0)
        self.measurement, self.sample = run.measurement, run.sample
        for place in (pieces, pacing):
            monkeypatch.setattr(place, "clock", lambda: self.now)
        monkeypatch.setattr(
            Measurement, "add_reachable", lambda part, sums, taken, how: self.add(len(part.plan), len(taken))
        )

    def add(self, sequences, directions):
        self.now += self.loading if not self.pieces else 0.0
        self.now += self.seconds(sequences, directions)
        self.pieces.append((sequences, directions))

    def seconds(self, sequences, directions, together=128):
        return -(-sequences // together) * self.once + sequences * (self.sequence + self.direction * directions)

    def pace(self, method, left, most=128):
        how = choose_linearisation(self.measurement.network, self.sample, method)
        options = {"most": most, "beside": 8, "fit": 0.0, "anchors": 24, "wanted": 192}
        return measured_pace(self.measurement, self.measurement.network.weights, how, left=left, **options)


@pytest.mark.parametrize("method", ["backward", "difference"])
def test_an_ample_budget_is_seen_from_one_piece(monkeypatch, method):
    work = Work(monkeypatch, once=0.05, sequence=0.01, direction=1e-4)
    assert work.pace(method, left=1e3).seconds(192, 128, 8) >= work.seconds(192, 128)
    assert len(work.pieces) == 1


@pytest.mark.parametrize("loading", [0.0, 0.5])
def test_what_is_done_once_is_not_counted_for_every_sequence(monkeypatch, loading):
    work = Work(monkeypatch, once=0.05, sequence=0.01, direction=1e-4, loading=loading)
    pace = work.pace("backward", left=1.0)
    for directions in (16, 64, 128):
        assert pace.seconds(128, directions, 8) == pytest.approx(work.seconds(128, directions), rel=0.2)
    assert len(work.pieces) == (4 if loading else 3)
    assert max(sequences for sequences, _ in work.pieces) <= 8


def test_runs_of_the_model_that_no_direction_takes_are_not_counted_for_each(monkeypatch):
    work = Work(monkeypatch, once=0.0, sequence=1e-3, direction=2e-4)
    pace = work.pace("difference", left=1.0)
    assert pace.seconds(192, 64, 8) == pytest.approx(work.seconds(192, 64))
    assert len(work.pieces) == 3


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
