"""Whole runs of the validation study at the smallest scale."""

import json
import subprocess
import sys

import pytest

from lagreach.errors import InputError
from lagreach.study.checkpoints import load_tensors
from lagreach.study.config import find_study
from lagreach.study.executors import LocalExecutor
from lagreach.study.runner import run_study
from lagreach.study.status import run_status
from lagreach.study.store import RunDirectory
from studies.validation import run as module
from studies.validation.design import conditions, validation_plan
from studies.validation.matching import match
from studies.validation.run import ablated, pieces_left
from studies.validation.tables import FIRST_STUDY, OUTCOMES, PREDICTIONS, PREDICTORS, load_tables
from studies.validation.tails import tail_effects
from studies.validation.trainings import ConditionTraining, replicas_of

pytestmark = pytest.mark.thorough

SMOKE = find_study("validation").at_scale("smoke")
EVERYTHING = conditions(validation_plan(SMOKE), SMOKE.seed)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Through the command line, as users run it."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    options = ["--scale", "smoke", "--out", str(out), "--workers", "1", "--json"]
    command = [sys.executable, "-m", "studies.validation", "run", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout)


def contents(folder):
    outcomes, predictors = load_tables(folder)
    weights = {path.parent.name: load_tensors(path) for path in folder.rglob("weights.safetensors")}
    numbers = {
        name: {stage: w.numpy().tobytes() for stage, w in by_stage.items()} for name, by_stage in weights.items()
    }
    return repr(outcomes.to_pylist()), repr(predictors.to_pylist()), numbers


def test_the_tables_are_complete(finished):
    out, said = finished
    assert said == {"run": str(out), "finished": True, "conditions": [2, 2], "predictors": [16, 16]}
    outcomes, predictors = (table.to_pylist() for table in load_tables(out))
    assert list(outcomes[0]) == list(OUTCOMES)
    assert list(predictors[0]) == list(PREDICTIONS)
    trainings = {row["training"] for row in outcomes}
    assert len(trainings) == 2 * 2 * 2
    for one in EVERYTHING:
        for sequences in (50, 200):
            mine = one.training(sequences, 0)
            assert [row["lag"] for row in outcomes if row["training"] == mine] == list(one.task.lags)
            for stage in FIRST_STUDY:
                mine_at_stage = [r for r in predictors if r["training"] == mine and r["stage"] == stage]
                plain = {(r["predictor"], r["lag"]) for r in mine_at_stage if "|" not in r["predictor"]}
                assert plain == {(name, lag) for name in PREDICTORS for lag in one.task.lags}
    variants = {row["training"] for row in predictors if "|" in row["predictor"]}
    assert variants == ablated(validation_plan(SMOKE), EVERYTHING, SMOKE.seed_list())
    assert len(variants) == 1


def test_at_the_start_predictors_do_not_depend_on_the_number_of_sequences(finished):
    rows = [row for row in load_tables(finished[0])[1].to_pylist() if "|" not in row["predictor"]]
    one = EVERYTHING[0]

    def values(stage, sequences):
        mine = [row for row in rows if row["training"] == one.training(sequences, 1) and row["stage"] == stage]
        return repr([(row["predictor"], row["lag"], row["value"]) for row in mine])

    assert values("init", 50) == values("init", 200)
    assert values("end", 50) != values("end", 200)
    assert values("init", 50) != values("end", 50)


def test_the_folder_stays_small(finished):
    out, _ = finished
    names = sorted(path.name for path in (out / "predictors").iterdir())
    assert names == sorted(f"{one.name}.parquet" for one in EVERYTHING)
    assert "finished" in str(run_status(out))
    assert (out / "RESULTS.md").read_text().startswith("# What the learnability window predicts")


def test_a_run_in_parts_and_with_an_interruption_ends_the_same(finished, tmp_path, monkeypatch):
    out = tmp_path / "parts"
    run = run_study(SMOKE, out, only="trainings", show_progress=False)
    assert not run.finished
    assert "pieces of predictors 0 of 16" in str(run_status(out))
    done = []
    measure = module.measure_predictors

    def dying(job):
        if len(done) == 9:
            raise KeyboardInterrupt
        done.append(job)
        measure(job)

    monkeypatch.setattr(module, "measure_predictors", dying)
    with pytest.raises(KeyboardInterrupt):
        run_study(SMOKE, out, resume=True, only="predictors", show_progress=False)
    monkeypatch.undo()
    assert sum(len(pieces_left(run, SMOKE, one, FIRST_STUDY)) for one in EVERYTHING) == 7
    run_study(SMOKE, out, resume=True, show_progress=False)
    assert contents(out) == contents(finished[0])


def test_predictors_wait_for_their_trainings(tmp_path):
    run = run_study(SMOKE, tmp_path / "run", only="predictors", executor=LocalExecutor(1), show_progress=False)
    assert not run.finished
    assert "2 of 2 conditions are not trained" in (run.path / "log.txt").read_text()


@pytest.mark.parametrize(("study", "only"), [("validation", "nothing"), ("cayci", "trainings")])
def test_parts_that_do_not_exist_are_refused(tmp_path, study, only):
    with pytest.raises(InputError, match="part"):
        run_study(find_study(study).at_scale("smoke"), tmp_path / "run", only=only, show_progress=False)


def test_the_part_about_tails_is_finished_with_its_trainings(tmp_path):
    config = find_study("validation-tails").at_scale("smoke")
    run = run_study(config, tmp_path / "run", show_progress=False)
    assert run.finished
    assert run_study(config, tmp_path / "run", resume=True, show_progress=False).finished
    outcomes, predictors = load_tables(run.path)
    assert len(predictors) == 0
    everything = conditions(validation_plan(config), config.seed)
    assert set(outcomes["condition"].to_pylist()) == {one.name for one in everything}
    assert set(zip(outcomes["clip"].to_pylist(), outcomes["batch"].to_pylist(), strict=True)) == {
        (False, 128.0),
        (True, 32.0),
    }
    effects = tail_effects(match(outcomes, predictors), 20, 0)
    assert [(e.clipped, e.alpha, e.trainings) for e in effects] == [
        (clipped, alpha, 8) for clipped in (False, True) for alpha in (2.0, 1.3)
    ]


def test_networks_of_the_part_about_tails_have_data_of_their_own(tmp_path):
    config = find_study("validation-tails").at_scale("smoke")
    condition = conditions(validation_plan(config), config.seed)[0]
    data = ConditionTraining(RunDirectory(tmp_path), config, condition, "cpu", "auto").trainer.data
    seen = {}
    for (sequences, seed), drawn in zip(replicas_of(validation_plan(config), [0, 1]), data.indices(0), strict=True):
        seen[sequences, seed] = set(drawn.flatten().tolist())
    assert seen[20, 0] == set(range(20))
    assert not seen[20, 0] & seen[100, 0]
    assert max(seen[100, 1]) < data.x.shape[1] == 120
