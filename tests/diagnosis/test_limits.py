"""Time and memory of a diagnosis: what a budget affords, what is estimated, and pieces that fit."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import lagreach
from lagreach.data import survey as survey_module
from lagreach.data.sequences import as_sequences
from lagreach.diagnosis import pacing, timing, whole_model_timing
from lagreach.diagnosis.cost import DiagnosisCost, beyond_budget, within_budget
from lagreach.diagnosis.diagnose import diagnosis_plans
from lagreach.diagnosis.pacing import Pace
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.errors import InputError
from lagreach.gradients import measurement_plan as plan_module
from lagreach.statistics import all_statistics
from lagreach.transport import prepare as prepare_module


def test_dry_run_and_budget(model, data):
    plan = lagreach.cost(model, data, lags=[0, 3])
    assert isinstance(plan, DiagnosisCost)
    assert "about" in str(plan)
    assert plan.sequences == 96
    small = lagreach.diagnose(model, data, lags=[0, 3], budget=1e-6)
    assert small.layers[0].window.sequences == 16
    assert any("subsample of 16 of 96" in warning for warning in small.warnings)


def test_what_a_budget_affords():
    pace = Pace(0.0, 0.1)
    assert pace.affordable(10.0, available=1000) == 80  # a fifth is kept in hand
    assert pace.affordable(10.0, available=80) == 80
    assert pace.affordable(1e-6, available=1000) == 16
    assert pace.affordable(math.inf, available=1000) == 1000
    assert Pace(0.0, 0.0).affordable(1e-6, available=1000) == 1000  # too quick for the clock
    assert Pace(4.0, 0.1).affordable(10.0, available=1000) == 40
    assert Pace(4.0, 0.0).affordable(1.0, available=1000) == 16


def test_what_fewer_sequences_spare_leaves_room_for_more_of_them():
    """Blocks are fewer where sequences are: work on them is no reason to measure the fewest sequences alone."""
    assert Pace(6.0, 0.01).affordable(6.0, available=300) == 16
    pace = Pace(6.0, 0.01, spared=((48, 2.0), (96, 2.0)))
    assert pace.affordable(6.0, available=300) == 80
    assert pace.affordable(2.9, available=300) == 32
    assert (pace + pace.times(0.5)).seconds(20) == pytest.approx(3.3)


def test_few_sequences_go_through_fewer_blocks(monkeypatch, model, data):
    plan = of_many_pairs(model, data)
    only_lags(monkeypatch, lambda pieces, pairs, bands: 1e-6)
    monkeypatch.setattr(timing, "PER_VALUE", 1.0)
    pace = timing.measured_pace([plan], MeasureSettings(), begun=pacing.clock())
    few = plan.block_plan.subsample(16)
    values = few.count * (few.members - 1 + len(plan.probe.group)) * len(plan.bands) * plan.width
    solved = pace.seconds(16) - values
    assert solved == pytest.approx(
        pace.fixed - 32 * (plan.pairings + len(plan.probe.group)) * len(plan.bands) * plan.width
    )


def test_a_budget_is_called_too_small_only_beyond_what_estimates_are_meant_to():
    assert beyond_budget(5.0, Pace(5.0, 0.1), 16) == ()
    assert "about 10 s" in beyond_budget(5.0, Pace(8.0, 0.1), 16)[0]


@pytest.mark.thorough
def test_a_budget_that_cannot_be_kept_is_said(model, data):
    warned = lagreach.diagnose(model, data, lags=[0, 3], budget=1e-6).warnings
    assert any("budget of 1e-06 s is too small: 16 sequences" in warning for warning in warned)
    assert not any(
        "too small" in warning for warning in lagreach.diagnose(model, data, lags=[0, 3], budget=1e6).warnings
    )


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan])
def test_a_budget_that_is_no_time_is_refused(model, data, budget):
    with pytest.raises(InputError, match=f"budget={budget}"):
        lagreach.diagnose(model, data, lags=[0, 3], budget=budget)


@pytest.mark.thorough
def test_memory_limit_changes_nothing_but_the_pieces(model, data, diagnosis):
    tight = lagreach.diagnose(model, data, lags=[0, 1, 3, 8], require=[5], memory=200_000)
    np.testing.assert_allclose(tight.required.values, diagnosis.required.values, rtol=1e-4)
    for name in ("gain", "envelope"):
        np.testing.assert_allclose(getattr(tight, name).values, getattr(diagnosis, name).values, rtol=1e-4)


@pytest.mark.thorough
def test_a_plan_says_what_the_memory_leaves(model, data):
    room = [lagreach.cost(model, data, lags=[0, 3], memory=memory).memory for memory in (1, 10**6, 10**12)]
    assert room[0] < room[1] < room[2]
    assert room[1] - room[0] < 10**6 < room[2] - room[0]  # a pair and the gradients are always there


@pytest.mark.slow
def test_no_stage_runs_more_sequences_together_than_fit(model, data, monkeypatch):
    """Gains and rates are measured outside the two passes, on fewer sequences, but within the same memory."""
    together = []
    for module in (plan_module, prepare_module):
        original = module.run

        def recorded(bound, *options, original=original):
            together.append(len(bound.x))
            return original(bound, *options)

        monkeypatch.setattr(module, "run", recorded)
    lagreach.diagnose(model, data, lags=[0, 1, 3], memory=200_000)
    limited = max(together)
    together.clear()
    lagreach.diagnose(model, data, lags=[0, 1, 3])
    assert 2 <= limited < 64 <= max(together)


def only_lags(monkeypatch, seconds):
    """Let the first pass be all of the work, with so many seconds for a piece."""

    def lags(self, pairs, bands):
        return seconds(self, pairs, bands)

    monkeypatch.setattr(timing._Pieces, "lags", lags)
    monkeypatch.setattr(timing._Pieces, "noise", lambda self, pairs: 0.0)
    monkeypatch.setattr(timing._Pieces, "gains", lambda self, bands: 0.0)


class Clock:
    """Time that passes as pieces of the work are done: for starting, for every band, and for every pair and step carried back."""

    def __init__(self, start, a_band, a_step):
        self.now, self._start, self._a_band, self._a_step = 0.0, start, a_band, a_step

    def __call__(self):
        return self.now

    def passed(self, pieces, pairs, bands):
        share, steps = pieces.shares(bands)
        seconds = self._start + self._a_band * share + pairs * self._a_step * steps
        self.now += seconds
        return seconds


def of_many_pairs(model, data):
    """A plan of 9,600 pairs in 32 blocks."""
    plan = replace(diagnosis_plans(model, data, settings=MeasureSettings())[0], time=24)
    many = np.tile(plan.block_plan.pairs, (200, 1))
    blocks = np.arange(len(many)) * 32 // len(many)
    return replace(plan, block_plan=replace(plan.block_plan, pairs=many, blocks=blocks, count=32))


@pytest.mark.parametrize(
    ("start", "a_band", "a_step"),
    [(0.0, 0.0, 1e-3), (0.02, 0.05, 1e-3), (0.0, 0.0, 1.0), (1e-4, 0.0, 1e-5), (1e-2, 1.0, 0.1)],
)
def test_the_time_of_the_whole_is_told_from_pieces_that_take_little_of_it(
    monkeypatch, model, data, start, a_band, a_step
):
    clock, plan = Clock(start, a_band, a_step), of_many_pairs(model, data)
    monkeypatch.setattr(pacing, "clock", clock)
    only_lags(monkeypatch, clock.passed)
    for constant in ("SETTLING", "PER_VALUE", "PER_CUBE"):
        monkeypatch.setattr(timing, constant, 0.0)
    many, pieces = plan.block_plan.pairs, timing._Pieces(plan, MeasureSettings(), all_statistics())
    pace = timing.measured_pace([plan], MeasureSettings(), begun=0.0)
    whole = len(many) * a_step + pieces.bundles * a_band + (pieces.bundles + pieces.chunks) / 2 * start
    assert pace.seconds(plan.block_plan.sequences) == pytest.approx(whole, rel=0.01)
    assert clock.now <= max(0.02 * whole, 0.25)


def test_a_piece_that_loads_code_first_is_timed_again(monkeypatch, model, data):
    plan = diagnosis_plans(model, data, settings=MeasureSettings())[0]
    timed = []

    def lags(pieces, pairs, bands):
        timed.append((pairs, bands))
        return 9.0 if len(timed) == 1 else 0.001 * pairs * (1 + bands)

    only_lags(monkeypatch, lags)
    assert timing.measured_pace([plan], MeasureSettings(), begun=pacing.clock()).seconds(96) < 5.0


def test_little_is_timed_for_an_ample_budget(monkeypatch, model, data):
    """Two pieces bound the time; only a budget that they may not fit into is worth more of them."""
    clock, plan, made = Clock(0.01, 0.01, 1e-3), of_many_pairs(model, data), []
    monkeypatch.setattr(pacing, "clock", clock)
    only_lags(monkeypatch, lambda *piece: made.append(piece[1:]) or clock.passed(*piece))

    def timed_within(budget):
        made.clear()
        pace = timing.measured_pace([plan], MeasureSettings(), begun=clock.now, budget=budget)
        return list(made), pace.affordable(budget, plan.block_plan.sequences)

    few = timing._Pieces(plan, MeasureSettings(), all_statistics()).few
    pieces, sequences = timed_within(1e6)
    assert pieces == [(1, 1), (1, few)]
    assert sequences == plan.block_plan.sequences
    pieces, sequences = timed_within(10.0)
    assert {(1, 1), (8, 1), (1, few), (8, few)} < set(pieces)
    assert sequences < plan.block_plan.sequences


def pieces_timed(monkeypatch):
    """A whole model, and the pairs of each piece of it that is timed."""
    torch.manual_seed(0)
    causal = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    pairs = []
    original = whole_model_timing._piece
    monkeypatch.setattr(
        whole_model_timing, "_piece", lambda plan, count, *more: pairs.append(count) or original(plan, count, *more)
    )
    return causal, pairs


def test_an_estimate_of_a_whole_model_takes_few_ways_back(data, monkeypatch):
    """Its pieces have one way back from a sequence, and few pairs."""
    causal, pairs = pieces_timed(monkeypatch)
    estimated = lagreach.cost(causal, data, lags=[0, 1, 3])
    assert pairs[:2] == [1, 4]
    assert estimated.seconds > 0
    assert estimated.sequences == 96


def test_one_small_piece_of_a_whole_model_tells_that_a_budget_is_ample(data, monkeypatch):
    causal, pairs = pieces_timed(monkeypatch)
    assert lagreach.diagnose(causal, data, lags=[0, 1, 3], budget=1e6, progress=False).sequences == 96
    assert pairs == [1]


def test_of_many_sequences_a_few_tell_the_time(monkeypatch):
    x, seen, survey = torch.randn(1100, 6, 1), [], survey_module.survey
    monkeypatch.setattr(survey_module, "survey", lambda sequences: seen.append(len(sequences)) or survey(sequences))
    assert len(survey_module.rough_survey(as_sequences((x, x))).kept) == 1100
    assert seen == [survey_module.ROUGHLY]
    copies = torch.cat((x[:300], x[:300], x[:500]))
    assert len(survey_module.rough_survey(as_sequences((copies, copies))).kept) == 500
    assert seen[1:] == [survey_module.ROUGHLY, 1100]


def test_setting_up_counts_against_a_budget(model, data):
    plans = diagnosis_plans(model, data, settings=MeasureSettings())
    long_ago = pacing.clock() - 1000.0
    _, pace = within_budget(plans, MeasureSettings(), 96, 10.0, None, begun=long_ago)
    assert pace.fixed > 1000.0
