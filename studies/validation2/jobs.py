"""Pieces of work of the second study that worker processes do: windows of a checkpoint, and shares from sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lagreach._util.threads import one_thread
from lagreach.errors import LagreachError
from lagreach.study.checkpoints import load_tensors
from lagreach.study.optimisers import OptimiserSettings
from lagreach.study.store import RunDirectory
from lagreach.study.tables import Row, write_rows
from studies.validation.design import Condition, ValidationPlan, conditions, validation_plan
from studies.validation.predictors import Prediction, fresh_batch, predict
from studies.validation.tables import PREDICTORS
from studies.validation.trainings import replicas_of, weights_path
from studies.validation2.forecasts import Sums, shares_of
from studies.validation2.tasks import KnownDependency

BEFORE = ("init", "pilot", "newton", "nudge")  # stages at which the network is the same for every number of sequences
SHARES = ("readable", "reachable", "budgeted", "forecast", "readable_data", "reachable_data", "share_now")


@dataclass(frozen=True)
class WindowJob:
    """Predictors of the first study for all trainings of a condition from one seed, at one stage."""

    run: str
    condition: str
    stage: str
    seed: int


@dataclass(frozen=True)
class Checkpoint:
    """A network: the stage it is at, and the number of sequences it was trained on (0 before training)."""

    stage: str
    sequences: int


@dataclass(frozen=True)
class ForecastJob:
    """Sums of all checkpoints of a condition and seed."""

    run: str
    condition: str
    seed: int
    checkpoints: tuple[Checkpoint, ...]
    sums: tuple[Sums, ...]


def windows_path(run: RunDirectory, condition: str, stage: str, seed: int) -> Path:
    """File of one piece of the first study's predictors."""
    return run.path / "predictors" / f"{condition}-{stage}-s{seed}.parquet"


def forecasts_path(run: RunDirectory, condition: str, seed: int) -> Path:
    """File with all forecasts of a condition and seed."""
    return run.path / "predictors" / f"{condition}-forecasts-s{seed}.parquet"


def find_condition(run: RunDirectory, name: str) -> tuple[Condition, ValidationPlan, list[int]]:
    """Look a condition up, with the plan and the seeds of its run."""
    config = run.config()
    plan = validation_plan(config)
    condition = next(known for known in conditions(plan, config.seed) if known.name == name)
    return condition, plan, config.seed_list()


def known_task(condition: Condition) -> KnownDependency:
    """Return the task of a condition of this study."""
    task = condition.task
    assert isinstance(task, KnownDependency)
    return task


def lag_strength(task: KnownDependency) -> float:
    """Share of the target's variance that one lag explains, on average over the lags."""
    return task.strength / len(task.lags)


def measure_windows(job: WindowJob) -> None:
    """Measure windows and simple predictors, as the first study did, with the strength that a lag really has."""
    run = RunDirectory(job.run)
    condition, plan, seeds = find_condition(run, job.condition)
    own_plan = plan.predictors.model_copy(update={"strength": lag_strength(known_task(condition))})
    batch = fresh_batch(condition, own_plan, job.seed)
    rows: list[Row] = []
    predictions: list[Prediction] | None = None
    for r, (sequences, seed) in enumerate(replicas_of(plan, seeds)):
        if seed != job.seed:
            continue
        if predictions is None or job.stage not in BEFORE:
            model = condition.model(seed)
            if job.stage not in BEFORE:
                flat = load_tensors(weights_path(run, condition), run.read)[job.stage][r]
                torch.nn.utils.vector_to_parameters(flat, model.parameters())
            try:
                predictions = predict(model, condition.task, batch, condition.plan.hidden, own_plan, seeds[0])
            except LagreachError as error:  # say because its states are no numbers
                run.log(f"{condition.name}, {job.stage}, seed {seed}: no predictors: {error}")
                predictions = [Prediction(name, lag, np.nan) for name in PREDICTORS for lag in condition.task.lags]
        shared = {"training": condition.training(sequences, seed), "condition": condition.name}
        rows += [shared | {"seed": seed, "stage": job.stage} | prediction.row() for prediction in predictions]
    write_rows(windows_path(run, job.condition, job.stage, job.seed), rows, run.write)


def time_left(settings: OptimiserSettings, done: int, steps: int) -> float:
    """Sum of the learning rate's factors over the steps that are left."""
    return float(sum(settings.factor(k, steps) for k in range(done, steps)))


@one_thread()
def measure_forecasts(job: ForecastJob) -> None:
    """Turn sums into shares, for every training that a checkpoint stands for."""
    run = RunDirectory(job.run)
    condition, plan, _ = find_condition(run, job.condition)
    settings, task = condition.optimiser.settings(), known_task(condition)
    done = {stage: epoch * plan.steps // plan.epochs for stage, epoch in plan.stage_epochs().items()}
    rows: list[Row] = []
    for checkpoint, sums in zip(job.checkpoints, job.sums, strict=True):
        stage = checkpoint.stage
        budgets = plan.sequences if stage in BEFORE else (checkpoint.sequences,)
        shares = shares_of(sums, task.strength, budgets, time_left(settings, done.get(stage, 0), plan.steps))
        rows += _rows(condition, job.seed, stage, budgets, shares)
    write_rows(forecasts_path(run, job.condition, job.seed), rows, run.write)


def _rows(
    condition: Condition, seed: int, stage: str, budgets: Sequence[int], shares: dict[str, np.ndarray]
) -> list[Row]:
    rows: list[Row] = []
    for k, sequences in enumerate(budgets):
        shared = {"training": condition.training(sequences, seed), "condition": condition.name, "seed": seed}
        for name, values in shares.items():
            by_lag = values[:, k] if name in SHARES else values
            rows += [
                shared | {"stage": stage} | Prediction(name, lag, float(value)).row()
                for lag, value in zip(condition.task.lags, by_lag, strict=True)
            ]
    return rows
