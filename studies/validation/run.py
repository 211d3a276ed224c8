"""Run the validation study in a folder: trainings, predictors from their checkpoints, and the two tables.

Each condition's weights and outcomes, and each piece of predictors (a condition, a stage and a seed), are files that are whole
or not there, so that an interrupted run goes on wherever it stopped. On a GPU the trainings run in this process, several
conditions side by side, while worker processes measure the predictors of what is finished.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lagreach._util.disk import is_file, make_folder
from lagreach._util.progress import Progress
from lagreach.errors import InputError, LagreachError, RunError
from lagreach.study.checkpoints import load_tensors
from lagreach.study.config import StudyConfig
from lagreach.study.executors import Executor
from lagreach.study.store import RunDirectory
from lagreach.study.tables import Row, read_rows, write_rows
from studies.validation.design import Condition, ValidationPlan, conditions, validation_plan
from studies.validation.predictors import Prediction, fresh_batch, predict
from studies.validation.tables import PREDICTORS, save_tables
from studies.validation.trainings import (
    ConditionJob,
    is_trained,
    outcomes_path,
    replicas_of,
    train_conditions,
    weights_path,
)

PARTS = ("trainings", "predictors")
ABLATED = ("init", "end")  # stages at which variants are measured


@dataclass(frozen=True)
class PredictorJob:
    """Predictors of all trainings of a condition from one seed, at one stage."""

    run: str
    condition: str
    stage: str
    seed: int


def run_validation(
    run: RunDirectory,
    config: StudyConfig,
    workers: Executor,
    report: Progress,
    *,
    device: str = "cpu",
    kernel: str = "auto",
    only: str | None = None,
    command: str = "python -m studies.validation run",
) -> None:
    """Train, measure, and write the tables; `only` one of PARTS leaves the other for later."""
    if only is not None and only not in PARTS:
        raise InputError("unknown part of the study", got=repr(only), expected=" or ".join(PARTS))
    started, plan = time.perf_counter(), validation_plan(config)
    everything, stages = conditions(plan, config.seed), plan.predictors.stages
    left = [one for one in everything if not is_trained(run, one)]
    make_folder(run.path / "predictors")
    if only == "predictors" and left:
        run.log(f"{len(left)} of {len(everything)} conditions are not trained: their predictors must wait")
    progress = _Counting(report, len(everything) - len(left), len(everything), run, config, everything)
    if only != "predictors":
        _train(run, config, workers, left, progress, device, kernel, predicting=only is None)
    if only != "trainings":
        _measure(run, config, workers, [one for one in everything if is_trained(run, one)], stages, progress)
    if all(is_trained(run, one) and (run.is_whole(merged_path(run, one)) or not stages) for one in everything):
        finish(run, config, everything, time.perf_counter() - started, command)


class _Counting:
    """Shows how many conditions are trained and how many pieces of predictors are measured."""

    def __init__(
        self,
        report: Progress,
        trained: int,
        of: int,
        run: RunDirectory,
        config: StudyConfig,
        everything: Sequence[Condition],
    ) -> None:
        stages = validation_plan(config).predictors.stages
        pieces = len(everything) * len(stages) * config.seeds
        done = pieces - sum(len(pieces_left(run, config, one, stages)) for one in everything)
        self._report, self._done = report, {"training": [trained, of], "predictors": [done, pieces]}
        for name, (count, whole) in self._done.items():
            report(name, count, whole)

    def add(self, name: str, count: int = 1) -> None:
        self._done[name][0] += count
        self._report(name, *self._done[name])


def _train(
    run: RunDirectory,
    config: StudyConfig,
    workers: Executor,
    left: list[Condition],
    progress: _Counting,
    device: str,
    kernel: str,
    *,
    predicting: bool,
) -> None:
    if device == "cpu":
        jobs = [ConditionJob(str(run.path), (one.name,), device, kernel) for one in left]
        workers.map(train_conditions, jobs, on_result=lambda *_: progress.add("training"))
        return
    plan = validation_plan(config)
    size, stages = plan.side_by_side, plan.predictors.stages
    groups = [left[start : start + size] for start in range(0, len(left), size)]
    with ThreadPoolExecutor(1) as behind:  # it only waits for the worker processes
        waiting = []
        if predicting:
            first = [stage for stage in stages if stage == "init"]
            waiting.append(behind.submit(_measure, run, config, workers, left, first, progress))
        for group in groups:
            train_conditions(ConditionJob(str(run.path), tuple(one.name for one in group), device, kernel))
            progress.add("training", len(group))
            if predicting:
                waiting.append(behind.submit(_measure, run, config, workers, group, stages, progress))
        for one in waiting:
            one.result()


def _measure(
    run: RunDirectory,
    config: StudyConfig,
    workers: Executor,
    chosen: Sequence[Condition],
    stages: Sequence[str],
    progress: _Counting,
) -> None:
    """Measure the pieces that are left, the longest ones first, and put finished conditions together."""
    if not stages:
        return
    all_stages = validation_plan(config).predictors.stages
    longest_first = sorted(chosen, key=lambda one: -one.task.length)
    jobs = [job for one in longest_first for job in pieces_left(run, config, one, stages)]
    workers.map(measure_predictors, jobs, on_result=lambda *_: progress.add("predictors"))
    if jobs:
        run.log(f"predictors: {len(jobs)} pieces measured")
    for one in chosen:
        if not run.is_whole(merged_path(run, one)) and not pieces_left(run, config, one, all_stages):
            merge_pieces(run, config, one)


def piece_path(run: RunDirectory, condition: str, stage: str, seed: int) -> Path:
    """File of one piece of predictors."""
    return run.path / "predictors" / f"{condition}-{stage}-s{seed}.parquet"


def merged_path(run: RunDirectory, condition: Condition) -> Path:
    """File with all predictors of a condition."""
    return run.path / "predictors" / f"{condition.name}.parquet"


def pieces_left(
    run: RunDirectory, config: StudyConfig, condition: Condition, stages: Sequence[str]
) -> list[PredictorJob]:
    """Pieces of a condition that are not measured yet."""
    if run.is_whole(merged_path(run, condition)):
        return []
    jobs = [PredictorJob(str(run.path), condition.name, stage, seed) for stage in stages for seed in config.seed_list()]
    return [job for job in jobs if not run.is_whole(piece_path(run, job.condition, job.stage, job.seed))]


def merge_pieces(run: RunDirectory, config: StudyConfig, condition: Condition) -> None:
    """Put the pieces of a condition into one file."""
    stages = validation_plan(config).predictors.stages
    paths = [piece_path(run, condition.name, stage, seed) for stage in stages for seed in config.seed_list()]
    rows = [row for path in paths for row in read_rows(path, read=run.read)]
    write_rows(merged_path(run, condition), rows, run.write)
    for path in paths:
        path.unlink(missing_ok=True)


def measure_predictors(job: PredictorJob) -> None:
    """Measure one piece and save it."""
    run = RunDirectory(job.run)
    config = run.config()
    plan = validation_plan(config)
    everything = conditions(plan, config.seed)
    condition = next(one for one in everything if one.name == job.condition)
    batch, seeds = fresh_batch(condition, plan.predictors, job.seed), config.seed_list()
    rows: list[Row] = []
    predictions: list[Prediction] | None = None
    for r, (sequences, seed) in enumerate(replicas_of(plan, seeds)):
        if seed != job.seed:
            continue
        training = condition.training(sequences, seed)
        ablate = job.stage in ABLATED and training in ablated(plan, everything, seeds)
        # at the start the network is the same for every number of sequences
        if predictions is None or job.stage != "init" or ablate:
            model = condition.model(seed)
            if job.stage != "init":
                flat = load_tensors(weights_path(run, condition), run.read)[job.stage][r]
                torch.nn.utils.vector_to_parameters(flat, model.parameters())
            predictions = _predict(run, training, condition, model, batch, plan, config.seed, ablate=ablate)
        shared = {"training": training, "condition": condition.name, "seed": seed, "stage": job.stage}
        kept = predictions if ablate else [one for one in predictions if "|" not in one.predictor]
        rows += [shared | one.row() for one in kept]
    write_rows(piece_path(run, job.condition, job.stage, job.seed), rows, run.write)


def _predict(
    run: RunDirectory,
    training: str,
    condition: Condition,
    model: torch.nn.Module,
    batch: Any,
    plan: ValidationPlan,
    seed: int,
    *,
    ablate: bool,
) -> list[Prediction]:
    """Predictors of a network; NaN where they are refused, say because its states are no numbers."""
    try:
        return predict(model, condition.task, batch, condition.plan.hidden, plan.predictors, seed, ablate=ablate)
    except LagreachError as error:
        run.log(f"{training}: no predictors: {error}")
        return [Prediction(name, lag, np.nan) for name in PREDICTORS for lag in condition.task.lags]


def ablated(plan: ValidationPlan, everything: Sequence[Condition], seeds: Sequence[int]) -> set[str]:
    """Trainings for which variants are measured: spread over conditions first, then over sequences and seeds."""
    chosen = [one for one in everything if one.plan.family != "tails"]
    count = min(plan.predictors.ablations, len(chosen) * len(plan.sequences) * len(seeds))
    order = np.random.default_rng(0).permutation(len(chosen))
    trainings = set()
    for k in range(count):
        turn, place = divmod(k, len(chosen))
        sequences = plan.sequences[(place + turn) % len(plan.sequences)]
        trainings.add(chosen[order[place]].training(sequences, seeds[(place + turn) % len(seeds)]))
    return trainings


def finish(
    run: RunDirectory, config: StudyConfig, everything: Sequence[Condition], seconds: float, command: str
) -> None:
    """Write the tables, and last RESULTS.md, which makes a run a finished one."""
    outcomes = [row for one in everything for row in read_rows(outcomes_path(run, one), read=run.read)]
    measured = bool(validation_plan(config).predictors.stages)
    folders = run.path.name if measured else f"results/validation --tails {run.path.name}"
    merged = [merged_path(run, one) for one in everything] if measured else []
    predictors = [row for path in merged for row in read_rows(path, read=run.read)]
    save_tables(run.path, outcomes, predictors, run.write)
    run.write_text("claims.json", "[]")
    trainings = {row["training"]: row["status"] for row in outcomes}
    lines = [
        f"# {config.title}",
        "",
        config.about.strip(),
        "",
        f"Scale **{config.scale}**: {len(everything)} conditions, {len(trainings)} trainings "
        f"({sum(status != 'OK' for status in trainings.values())} diverged), {len(outcomes)} outcomes, "
        f"{len(predictors)} predictions. Made by `{command}`; {seconds / 60:.1f} minutes in the last call.",
        "",
        f"`python -m studies.validation {folders}` analyses the tables.",
    ]
    run.write_text("RESULTS.md", "\n".join(lines) + "\n")
    run.finish()


def validation_status(run: RunDirectory, config: StudyConfig) -> dict[str, tuple[int, int]]:
    """Conditions trained and pieces of predictors measured, of how many."""
    plan = validation_plan(config)
    everything, stages = conditions(plan, config.seed), plan.predictors.stages
    pieces = len(everything) * len(stages) * config.seeds
    left = sum(len(pieces_left(run, config, one, stages)) for one in everything)
    trained = sum(is_file(outcomes_path(run, one)) for one in everything)
    return {"conditions": (trained, len(everything)), "predictors": (pieces - left, pieces)}


def show_validation(folder: Path) -> dict[str, Any]:
    """What a call of `study run` reports about a run of this kind."""
    run = RunDirectory(folder)
    if not run.config_path.exists():
        raise RunError("there is no run in this folder", got=str(folder), expected="a folder made by `study run`")
    status = validation_status(run, run.config())
    return {"run": str(folder), "finished": run.finished} | {name: list(counts) for name, counts in status.items()}
