"""Run the second study in a folder: trainings, pilots, forecasts and windows, and the two tables.

Every piece is a file that is whole or not there, so that an interrupted run goes on where it stopped; the tables are written
anew after every group of conditions. On a GPU trainings and passes for forecasts run in this process,
and worker processes do the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from lagreach._util.disk import is_file, make_folder
from lagreach._util.progress import Progress, progress_bar
from lagreach.errors import InputError
from lagreach.study.checkpoints import load_tensors, save_tensors
from lagreach.study.config import StudyConfig, read_config
from lagreach.study.replicas import Replicas
from lagreach.study.store import RunDirectory
from lagreach.study.tables import Row, read_rows, write_rows
from studies.validation.design import Condition, ValidationPlan, conditions, validation_plan
from studies.validation.trainings import (
    BEST,
    ConditionJob,
    is_trained,
    outcomes_path,
    pools,
    replicas_of,
    train_conditions,
    weights_path,
)
from studies.validation2 import PROTOCOL
from studies.validation2.clean_pilot import clean_pilot
from studies.validation2.forecasts import ForecastSize, Looked, forecast_sums
from studies.validation2.jobs import (
    Checkpoint,
    ForecastJob,
    WindowJob,
    forecasts_path,
    known_task,
    measure_forecasts,
    measure_windows,
    windows_path,
)
from studies.validation2.responses import responses
from studies.validation2.tables import save_tables

PILOT_SHARE = 0.05  # of the training's steps


def study(scale: str = "paper", seeds: int | None = None) -> StudyConfig:
    """Return the study at a scale, perhaps with fewer seeds."""
    config = read_config(PROTOCOL).at_scale(scale)
    return config if seeds is None else config.model_copy(update={"seeds": seeds})


def run_study(
    out: str | Path,
    config: StudyConfig,
    *,
    device: str = "cpu",
    workers: int = 1,
    minutes: float = float("inf"),
    resume: bool = False,
    tasks: Sequence[str] = (),
    size: ForecastSize | None = None,
    show_progress: bool | None = None,
) -> RunDirectory:
    """Run or resume; after `minutes` no further group of conditions is begun. With `tasks`, only conditions of these."""
    run = RunDirectory.create(out, config, resume=resume)
    with run.lock(), progress_bar(show_progress) as report:
        run.log(f"start: {workers} processes, device {device}, torch {torch.__version__}")
        work = _Work(run, config, device, workers, report, size or ForecastSize(), tasks)
        work.run_all(time.monotonic() + 60 * minutes)
    return run


class WorkerPool:
    """Worker processes, or this one."""

    def __init__(self, workers: int, done: Callable[[], None]) -> None:
        self._pool = ProcessPoolExecutor(workers, get_context("spawn"), _one_thread) if workers > 1 else None
        self._done, self._waiting = done, list[Future[None]]()

    def submit(self, function: Callable[[Any], None], job: Any) -> None:
        if self._pool is None:
            function(job)
            self._done()
            return
        future = self._pool.submit(function, job)
        future.add_done_callback(lambda _: self._done())
        self._waiting.append(future)

    def wait(self) -> None:
        for future in self._waiting:
            future.result()
        if self._pool is not None:
            self._pool.shutdown()


def _one_thread() -> None:
    torch.set_num_threads(1)


class _Work:
    def __init__(
        self,
        run: RunDirectory,
        config: StudyConfig,
        device: str,
        workers: int,
        report: Progress,
        size: ForecastSize,
        tasks: Sequence[str] = (),
    ) -> None:
        self.run, self.config, self.device, self.size = run, config, device, size
        self.plan: ValidationPlan = validation_plan(config)
        self.everything = [c for c in conditions(self.plan, config.seed) if not tasks or c.plan.name in tasks]
        self.seeds = config.seed_list()
        self._report, self._counts = report, {"training": 0, "predictors": 0}
        self.pool = WorkerPool(workers, lambda: self._count("predictors", 1))
        make_folder(run.path / "predictors")

    def _count(self, name: str, count: int) -> None:
        self._counts[name] += count
        pieces = len(self.seeds) * (len(self.plan.predictors.stages) + 1)
        self._report(name, self._counts[name], len(self.everything) * (1 if name == "training" else pieces))

    def run_all(self, deadline: float) -> None:
        self._windows(self.everything, ["init"])
        size = self.plan.side_by_side
        for start in range(0, len(self.everything), size):
            if time.monotonic() > deadline:
                self.run.log("out of time: the rest is left for --resume")
                break
            self._group(self.everything[start : start + size])
        self.pool.wait()
        self._collect()
        if all(self._is_done(condition) for condition in self.everything):
            self._finish()

    def _group(self, group: Sequence[Condition]) -> None:
        clock = [time.monotonic()]
        names = tuple(condition.name for condition in group)
        train_conditions(ConditionJob(str(self.run.path), names, self.device))
        self._count("training", len(group))
        clock.append(time.monotonic())
        for condition in group:
            if not self.run.is_whole(responses_path(self.run, condition)):
                self._respond(condition)
        clock.append(time.monotonic())
        self._windows(group, [stage for stage in self.plan.predictors.stages if stage != "init"])
        for condition in group:
            self._forecast(condition)
        clock.append(time.monotonic())
        self._collect()
        trained, answered, forecast = (f"{after - before:.1f}" for before, after in pairwise(clock))
        self.run.log(f"{group[-1].name}: trained {trained} s, responses {answered} s, passes {forecast} s")

    def _windows(self, group: Sequence[Condition], stages: Sequence[str]) -> None:
        jobs = [
            WindowJob(str(self.run.path), condition.name, stage, seed)
            for condition in sorted(group, key=lambda condition: -condition.task.length)
            for stage in stages
            for seed in self.seeds
        ]
        for job in jobs:
            if self.run.is_whole(windows_path(self.run, job.condition, job.stage, job.seed)):
                self._count("predictors", 1)
            else:
                self.pool.submit(measure_windows, job)

    def _respond(self, condition: Condition) -> None:
        """Measure what the best checkpoints have of each lag."""
        task = known_task(condition)
        replicas = list(replicas_of(self.plan, self.seeds))
        held = Replicas([condition.model(seed) for _, seed in replicas], device=self.device)
        held.load(load_tensors(weights_path(self.run, condition), self.run.read)[BEST].to(held.flat))
        x, _ = pools(task, condition.plan.name, "test", self.config.test_sequences, tuple(self.seeds))
        share, gain = responses(task, held, x, [self.seeds.index(seed) for _, seed in replicas])
        rows: list[Row] = [
            {"training": condition.training(*replica), "lag": lag, "share": share[r, k], "gain": gain[r, k]}
            for r, replica in enumerate(replicas)
            for k, lag in enumerate(task.lags)
        ]
        write_rows(responses_path(self.run, condition), rows, self.run.write)

    def _forecast(self, condition: Condition) -> None:
        """Make the passes of all forecasts of a condition; worker processes turn them into shares."""
        missing = [s for s in self.seeds if not self.run.is_whole(forecasts_path(self.run, condition.name, s))]
        self._count("predictors", len(self.seeds) - len(missing))
        if not missing:
            return
        task, plan = known_task(condition), self.plan
        models = {seed: condition.model(seed) for seed in self.seeds}
        first = torch.stack([torch.nn.utils.parameters_to_vector(m.parameters()).detach() for m in models.values()])
        kept = load_tensors(weights_path(self.run, condition), self.run.read)
        piloted = self._pilot(condition)
        stages = [stage for stage in plan.predictors.stages if stage != "init"]
        replicas = list(replicas_of(plan, self.seeds))
        for seed in missing:
            place = self.seeds.index(seed)
            of_seed = [r for r, (_, s) in enumerate(replicas) if s == seed]
            flat = torch.cat((first[place][None], piloted[place][None], *(kept[stage][of_seed] for stage in stages)))
            at = [Checkpoint("init", 0), Checkpoint("pilot", 0)]
            at += [Checkpoint(stage, replicas[r][0]) for stage in stages for r in of_seed]
            device = torch.device(self.device)
            looked = Looked.draw(task, condition.plan.name, seed, self.size, device)
            settings = condition.optimiser.settings()
            sums = forecast_sums(task, models[seed], flat.to(device), looked, settings, self.size, seed)
            self.pool.submit(
                measure_forecasts, ForecastJob(str(self.run.path), condition.name, seed, tuple(at), tuple(sums))
            )

    def _pilot(self, condition: Condition) -> torch.Tensor:
        path = self.run.training(condition.name) / "pilot.safetensors"
        if not self.run.is_whole(path):
            flat = clean_pilot(
                known_task(condition),
                condition.plan.name,
                [condition.model(seed) for seed in self.seeds],
                tuple(self.seeds),
                condition.optimiser.settings(),
                max(1, round(PILOT_SHARE * self.plan.steps)),
                self.plan.batch,
                self.device,
            )
            save_tensors(path, {"pilot": flat.cpu()}, self.run.write)
        return load_tensors(path, self.run.read)["pilot"]

    def _is_done(self, condition: Condition) -> bool:
        whole = self.run.is_whole
        return is_trained(self.run, condition) and all(
            whole(forecasts_path(self.run, condition.name, seed))
            and all(whole(windows_path(self.run, condition.name, s, seed)) for s in self.plan.predictors.stages)
            for seed in self.seeds
        )

    def _collect(self) -> None:
        """Write the tables from whatever there is."""
        outcomes: list[Row] = []
        predictions: list[Row] = []
        for condition in self.everything:
            if not is_file(responses_path(self.run, condition)):
                continue
            more = {(row["training"], row["lag"]): row for row in self._read(responses_path(self.run, condition))}
            for row in self._read(outcomes_path(self.run, condition)):
                answer = more[row["training"], row["lag"]]
                outcomes.append(row | {"share": answer["share"], "gain": answer["gain"]})
            paths = [forecasts_path(self.run, condition.name, seed) for seed in self.seeds]
            stages = self.plan.predictors.stages
            paths += [windows_path(self.run, condition.name, stage, s) for stage in stages for s in self.seeds]
            predictions += [row for path in paths if is_file(path) for row in self._read(path)]
        save_tables(self.run.path, outcomes, predictions, self.run.write)

    def _read(self, path: Path) -> list[Row]:
        try:
            return read_rows(path, read=self.run.read)
        except InputError:  # being written by a worker just now
            return []

    def _finish(self) -> None:
        trainings = len(self.everything) * len(self.plan.sequences) * len(self.seeds)
        text = f"# {self.config.title}\n\n{len(self.everything)} conditions, {trainings} trainings.\n"
        self.run.write_text("RESULTS.md", text)
        self.run.finish()


def responses_path(run: RunDirectory, condition: Condition) -> Path:
    """File with what the best checkpoints of a condition have of each lag."""
    return run.training(condition.name) / "responses.parquet"
