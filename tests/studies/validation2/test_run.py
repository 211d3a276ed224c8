"""A whole run of the second study at the smallest scale, and one that goes on where it was stopped."""

import subprocess
import sys

import numpy as np
import pytest

from lagreach.study.tables import read_rows
from studies.validation2.forecasts import ForecastSize
from studies.validation2.jobs import time_left
from studies.validation2.run import run_study, study
from studies.validation2.tables import COLUMNS, load_tables, save_tables

SIZE = ForecastSize(sequences=96, sequences_several_targets=96, directions=8, blocks=8)


def test_the_time_that_is_left_is_the_sum_of_the_learning_rates():
    from lagreach.study.optimisers import OptimiserSettings

    cosine = OptimiserSettings(schedule="cosine")
    assert time_left(cosine, 0, 6000) == pytest.approx(3000, rel=1e-3)
    assert time_left(cosine, 6000, 6000) == 0
    assert time_left(OptimiserSettings(), 300, 6000) == 5700


def test_tables_come_back_with_four_digits(tmp_path):
    row = {"training": "a", "condition": "c", "seed": 0, "stage": "init", "lag": 3, "predictor": "readable"}
    rows = [row | {"value": value, "low": 0.0, "high": 1.0} for value in (0.123456, np.inf)]
    save_tables(tmp_path, [], rows)
    _, loaded = load_tables(tmp_path)
    assert list(loaded.column_names) == list(COLUMNS["predictors"])
    assert loaded["value"].to_pylist() == [0.1235, np.inf]


@pytest.mark.slow
def test_a_run_is_complete_and_goes_on_where_it_was_stopped(tmp_path):
    config = study("smoke")
    run = run_study(tmp_path / "run", config, size=SIZE, minutes=0.0, show_progress=False)
    assert not run.finished
    assert load_tables(run.path)[0].num_rows == 0
    run = run_study(tmp_path / "run", config, size=SIZE, resume=True, show_progress=False)
    assert run.finished
    outcomes, predictions = (table.to_pylist() for table in load_tables(run.path))
    assert len({row["training"] for row in outcomes}) == 3 * 2 * 2
    assert all(np.isfinite(row["share"]) and np.isfinite(row["gain"]) for row in outcomes)
    pairs = {(row["training"], row["lag"]) for row in outcomes}
    for stage in ("init", "pilot", "early_1", "early_5", "early_20"):
        for name in ("forecast", "n_forecast", "share_now"):
            there = [row for row in predictions if (row["stage"], row["predictor"]) == (stage, name)]
            assert {(row["training"], row["lag"]) for row in there} == pairs
    lost = next(iter((run.path / "predictors").glob("*forecasts*")))
    before = repr(read_rows(lost))  # NaN is not equal to itself
    lost.unlink()
    run_study(tmp_path / "run", config, size=SIZE, resume=True, show_progress=False)
    assert repr(read_rows(lost)) == before


def test_the_command_names_its_parts():
    command = [sys.executable, "-m", "studies.validation2", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(word in done.stdout for word in ("run", "analyse", "page"))
