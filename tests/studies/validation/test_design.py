"""The fraction of the grid is even, deterministic, and buildable."""

import math
from collections import Counter
from itertools import combinations

import pytest
import torch

from lagreach.errors import InputError
from lagreach.study.config import find_study
from studies.validation.design import balanced_fraction, conditions, validation_plan
from studies.validation.tables import FAMILIES

PAPER = find_study("validation").at_scale("paper")
TAILS = find_study("validation-tails").at_scale("paper")
CELLS = ("const_gate", "shared_gate", "diag_gate", "gru", "lstm", "elman", "min_gru")
GATES = ("0.5", "0.2", "0.05", "0.01", "chrono")


def fraction(size, seed=0):
    return balanced_fraction(tuple("abcdefghijkl"), CELLS, GATES, ("momentum", "adamw"), size, seed)


def count(config):
    plan = validation_plan(config)
    return len(conditions(plan, config.seed)) * len(plan.sequences) * config.seeds


def test_levels_appear_equally_often():
    rows = fraction(48)
    assert len(set(rows)) == len(rows) == 48
    for column, levels in ((0, 12), (1, 7), (3, 2)):
        counts = Counter(row[column] for row in rows)
        assert len(counts) == levels
        assert max(counts.values()) - min(counts.values()) <= 1
    gates = Counter(row[2] for row in rows if row[2] != "none")
    assert set(gates) == set(GATES)
    assert max(gates.values()) - min(gates.values()) <= 1


def test_pairs_of_levels_are_spread():
    """No pair is more than two above what an even spread would give."""
    rows = [row for row in fraction(48) if row[2] != "none"]  # gates and cells without gates always go together
    for a, b in combinations(range(4), 2):
        pairs = Counter((row[a], row[b]) for row in rows)
        even = len(rows) / (len({row[a] for row in rows}) * len({row[b] for row in rows}))
        assert max(pairs.values()) <= even + 2


def test_what_cannot_be_built_is_not_chosen():
    for seed in range(3):
        for _, cell, gate, _ in fraction(36, seed):
            assert (cell == "elman") == (gate == "none")
            assert (cell, gate) != ("const_gate", "chrono")


def test_the_choice_follows_from_the_seed():
    again = balanced_fraction.__wrapped__(tuple("abcdefghijkl"), CELLS, GATES, ("momentum", "adamw"), 36, 0)
    assert again == fraction(36)
    assert fraction(36, 1) != fraction(36)


def test_more_than_the_grid_holds_is_refused():
    with pytest.raises(InputError, match="fraction"):
        balanced_fraction(("a",), ("gru",), ("0.5",), ("adamw",), 2, 0)


def test_the_study_is_within_its_limits():
    plan = validation_plan(PAPER)
    chosen = conditions(plan, PAPER.seed)
    assert len({one.name for one in chosen}) == len(chosen)
    assert count(PAPER) + count(TAILS) <= 1500
    assert (plan.sequences[0], plan.sequences[-1], PAPER.seeds) == (100, 30_000, 5)
    assert {one.plan.family for one in chosen} == {"recall", "adding", "sparse", "dense"} <= set(FAMILIES)
    lags = {lag for one in chosen for lag in one.task.lags}
    assert min(lags) <= 4
    assert max(lags) == 512
    assert {one.cell for one in chosen} == set(CELLS)
    for one in chosen[::7]:
        x, y = one.task.sample(2, torch.Generator().manual_seed(0))
        assert one.model(0)(x).shape == y.shape


def test_tails_are_trained_at_every_index_and_coefficient_both_ways():
    plan = validation_plan(TAILS)
    chosen = conditions(plan, TAILS.seed)
    combinations = {(one.task.noise_alpha, *one.ratios, one.optimiser.clip is not None) for one in chosen}
    ratios = [plan.tails.task.build().noise / c for c in plan.tails.coefficients]
    lags = len(chosen[0].task.lags)
    assert combinations == {(a, *[r] * lags, clip) for a in (1.3, 1.6, 2.0) for r in ratios for clip in (False, True)}
    assert len({one.name for one in chosen}) == len(combinations) == len(chosen)
    assert all(math.isnan(ratio) for ratio in conditions(validation_plan(PAPER), 0)[0].ratios)


@pytest.mark.parametrize(
    "changes", [{"conditions": 0}, {"conditions": 2, "cells": []}, {"predictors": {"stages": ["late"]}}]
)
def test_a_plan_that_makes_no_sense_is_refused(changes):
    with pytest.raises(InputError, match="validation plan does not fit"):
        validation_plan(PAPER.model_copy(update={"validation": PAPER.validation | changes}))


def test_capacity_binds_where_every_step_asks_for_more_than_the_units_hold():
    chosen = conditions(validation_plan(PAPER), PAPER.seed)
    by_task = {one.plan.name: one.capacity_binds for one in chosen}
    assert by_task["recall_512"] == [False]
    assert by_task["sparse_12"] == [False, False]
    assert by_task["dense_96"] == [False, False, False, True, True, True]


def test_stages_lie_at_one_five_and_twenty_percent():
    assert validation_plan(PAPER).stage_epochs() == {"early_1": 1, "early_5": 5, "early_20": 20, "end": 100}


def test_another_kind_of_study_is_refused():
    with pytest.raises(InputError, match="not a validation study"):
        validation_plan(find_study("livi-v1"))
