"""The pieces of work of a study: train a variant (all seeds together), diagnose one checkpoint of one seed.

A piece takes a small record, reads and writes the run's folder, and can be stopped at any moment: done again, it goes on
from what is there to the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from lagreach.diagnosis import Diagnosis
from lagreach.errors import InputError
from lagreach.io import load
from lagreach.measure import MeasureSettings
from lagreach.model import GatedRNN
from lagreach.pipeline import diagnose
from lagreach.study.config import FORMS, DiagnosisSettings, StudyConfig, Variant
from lagreach.study.data import FreshData, TrainingData, generator_for, hold
from lagreach.study.metrics import Row, read_rows, write_rows
from lagreach.study.optimisers import OptimiserSettings
from lagreach.study.paper_window import paper_window
from lagreach.study.replicas import Replicas
from lagreach.study.store import RunDirectory, disk_errors, latest_state, load_tensors, save_state, save_tensors
from lagreach.study.summary import summarise, summarise_paper
from lagreach.study.train import Trainer
from lagreach.tasks import Task, make_task

Tick = Callable[[int, int], None]


@dataclass(frozen=True)
class TrainJob:
    """Train one variant of a run."""

    run: str
    variant: str
    device: str = "cpu"
    kernel: str = "auto"


@dataclass(frozen=True)
class DiagnoseJob:
    """Diagnose one seed of a variant after an epoch, in one form."""

    run: str
    variant: str
    seed: int
    epoch: int
    form: str
    device: str = "cpu"


def study_task(config: StudyConfig) -> Task:
    """Return the task of a study."""
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in config.task.items()}
    return make_task(str(options.pop("name", "multi_lag")), **options)


def build_model(config: StudyConfig, variant: Variant, seed: int) -> GatedRNN:
    """Return a variant's network as it starts from a seed."""
    task, network = study_task(config), config.network_of(variant)
    return GatedRNN(
        input_size=task.input_size,
        output_size=task.output_size,
        generator=generator_for(seed, "weights"),
        **network.model_dump(),
    )


def make_trainer(config: StudyConfig, variant: Variant, device: str, kernel: str) -> Trainer:
    """Return the training of all seeds of a variant, at its start."""
    plan, task, seeds = config.training_of(variant), study_task(config), config.seed_list()
    replicas = Replicas([build_model(config, variant, s) for s in seeds], device=device, kernel=kernel)
    data: TrainingData
    if plan.fresh:
        data = FreshData(task, tuple(seeds), plan.batch, -(-plan.sequences // plan.batch), device)
    else:
        data = hold(task, plan.sequences, seeds, plan.batch, device, replicas.flat.dtype)
    fields = set(OptimiserSettings.__dataclass_fields__) & set(type(plan).model_fields)
    settings = OptimiserSettings(**{name: getattr(plan, name) for name in fields})
    return Trainer(replicas, data, task.loss, settings, plan.epochs)


def train_variant(job: TrainJob, tick: Tick | None = None) -> None:
    """Train until the last epoch, saving states on the way and weights at the epochs to be diagnosed."""
    run = RunDirectory(job.run)
    config = run.config()
    variant = config.variant(job.variant)
    plan, task, seeds = config.training_of(variant), study_task(config), config.seed_list()
    wanted = config.checkpoint_epochs(variant)
    folder = run.training(variant.name)
    folder.mkdir(parents=True, exist_ok=True)
    if is_trained(run, config, variant):
        return
    trainer = make_trainer(config, variant, job.device, job.kernel)
    state = latest_state(folder, lambda note: run.log(f"{variant.name}: {note}"))
    if state is not None:
        trainer.load(state)
        run.log(f"{variant.name}: going on from epoch {trainer.epoch}")
    metrics = [row for row in _rows(folder / "metrics.parquet") if row["epoch"] <= trainer.epoch]
    scores = [row for row in _rows(folder / "recovered.parquet") if row["epoch"] <= trainer.epoch]
    if state is None:
        _checkpoint(run, config, variant, trainer, scores)
    while trainer.epoch < plan.epochs:
        loss, norm = trainer.run_epoch()
        for r, seed in enumerate(seeds):
            own = {"loss": float(loss[r]), "gradient_norm": float(norm[r]), "status": trainer.status[r].name}
            metrics.append({"epoch": trainer.epoch, "seed": seed, **own})
        last = trainer.epoch == plan.epochs
        if trainer.epoch in wanted:
            _checkpoint(run, config, variant, trainer, scores)
        if trainer.epoch in wanted or last or trainer.epoch % plan.save_every == 0:
            write_rows(folder / "metrics.parquet", metrics)
            save_state(folder, trainer.epoch, trainer.state())  # after what it makes superfluous to compute again
        if tick is not None:
            tick(trainer.epoch, plan.epochs)
    write_rows(folder / "metrics.parquet", metrics or [{"epoch": 0, "seed": s, "loss": None} for s in seeds])
    run.log(f"{variant.name}: trained, {', '.join(status.name for status in trainer.status)}; task {task.name}")


def is_trained(run: RunDirectory, config: StudyConfig, variant: Variant) -> bool:
    """Whether the weights of every wanted epoch are there, and whole."""
    try:
        for epoch in config.checkpoint_epochs(variant):
            load_tensors(run.model_path(variant.name, epoch))
        read_rows(run.training(variant.name) / "metrics.parquet")
    except (InputError, OSError):
        return False
    return True


def _rows(path: Any) -> list[Row]:
    return read_rows(path) if path.exists() else []


def _checkpoint(run: RunDirectory, config: StudyConfig, variant: Variant, trainer: Trainer, scores: list[Row]) -> None:
    """Save the weights, and how much of each lag the models have recovered on fresh sequences."""
    task = study_task(config)
    for r, seed in enumerate(config.seed_list()):
        x, y = task.sample(config.test_sequences, generator_for(seed, "test"))
        with torch.no_grad():
            found = task.recovered(x, y, trainer.replicas.model(r)(x))
        scores.extend(
            {"epoch": trainer.epoch, "seed": seed, "lag": lag, "recovered": float(score)}
            for lag, score in zip(task.lags, found.tolist(), strict=True)
        )
    write_rows(run.training(variant.name) / "recovered.parquet", scores)
    save_tensors(run.model_path(variant.name, trainer.epoch), trainer.replicas.params)


def stored_model(run: RunDirectory, config: StudyConfig, variant: Variant, seed: int, epoch: int) -> GatedRNN:
    """Read the model of one seed after an epoch."""
    model = build_model(config, variant, seed)
    held = load_tensors(run.model_path(variant.name, epoch))
    model.load_state_dict({name: value[config.seed_list().index(seed)] for name, value in held.items()})
    return model


def diagnose_checkpoint(job: DiagnoseJob) -> None:
    """Diagnose and save; a diagnosis that is there and whole is left alone."""
    run = RunDirectory(job.run)
    path = run.diagnosis_path(job.variant, job.seed, job.epoch, job.form)
    if is_diagnosed(run, job):
        return
    config = run.config()
    variant, own, task = config.variant(job.variant), config.diagnosis, study_task(config)
    model = stored_model(run, config, variant, job.seed, job.epoch).to(job.device)
    batch = task.batch(own.sequences, generator_for(job.seed, "diagnosis"))
    labels: Row = {"study": config.name, "scale": config.scale, "variant": variant.name, "seed": job.seed}
    labels |= {"epoch": job.epoch, "form": job.form}
    if job.form == "paper":
        lags_seen = [lag for lag in _explicit_lags(own, task) if lag > 0]
        printed = paper_window(model.cpu(), batch, lags_seen, task.loss, own.error, config.seed)
        write_rows(path, [summarise_paper(labels, printed, own.budget_grid)])
        run.log(f"diagnosed {path.name}")
        return
    lags: Any = own.lags if own.lags == "auto" else list(own.lags)
    found = diagnose(
        model,
        {"x": batch.x, "y": batch.y} | ({} if batch.mask is None else {"mask": batch.mask}),
        task.loss,
        lags,
        sequences=config.training_of(variant).sequences,
        strength=own.strength,
        error=own.error,
        seed=config.seed,
        require=[lag for lag in task.lags if lag < task.length],
        settings=MeasureSettings(blocks=own.blocks, probes=own.probes),
        progress=False,
        **FORMS[job.form],  # type: ignore[arg-type]
    )
    assert isinstance(found, Diagnosis)
    with disk_errors(path.parent):
        replace(found, labels=labels).save(path)
    run.log(f"diagnosed {path.name}")


def _explicit_lags(settings: DiagnosisSettings, task: Task) -> list[int]:
    """Return the lags to look at where bands are no use: those asked for, or powers of two and the task's own."""
    if settings.lags != "auto":
        return sorted({*settings.lags, *task.lags})
    powers = [2**k for k in range(task.length.bit_length()) if 2**k < task.length]
    return sorted({*powers, *(lag for lag in task.lags if lag < task.length)})


def is_diagnosed(run: RunDirectory, job: DiagnoseJob) -> bool:
    """Whether the diagnosis is there and can be read."""
    path = run.diagnosis_path(job.variant, job.seed, job.epoch, job.form)
    try:
        if job.form == "paper":
            read_rows(path)
        else:
            load(path)
    except InputError:
        return False
    return True


def summary_row(run: RunDirectory, job: DiagnoseJob, budgets: tuple[int, ...]) -> Row:
    """Numbers of a finished diagnosis."""
    path = run.diagnosis_path(job.variant, job.seed, job.epoch, job.form)
    return read_rows(path)[0] if job.form == "paper" else summarise(load(path), budgets)


def diagnose_jobs(run: RunDirectory, config: StudyConfig, device: str = "cpu") -> list[DiagnoseJob]:
    """Every diagnosis of a study: forms beyond the first only after the last epoch."""
    jobs = []
    for variant in config.variants:
        epochs = config.checkpoint_epochs(variant)
        for seed in config.seed_list():
            for epoch in epochs:
                forms = config.diagnosis.forms if epoch == epochs[-1] else config.diagnosis.forms[:1]
                jobs += [DiagnoseJob(str(run.path), variant.name, seed, epoch, form, device) for form in forms]
    return jobs
