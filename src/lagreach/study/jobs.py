"""The pieces of work of a study: train a variant (all seeds together), diagnose one checkpoint of one seed.

A piece takes a small record, reads and writes the run's folder, and can be stopped at any moment: done again, it goes on
from what is there to the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lagreach._util.disk import make_folder
from lagreach._util.room import give_back
from lagreach.diagnosis.diagnose import diagnose
from lagreach.diagnosis.files import diagnosis_from_bytes, to_bytes
from lagreach.diagnosis.measure import MeasureSettings
from lagreach.diagnosis.result import Diagnosis
from lagreach.errors import InputError
from lagreach.models.gated_rnn import GatedRNN
from lagreach.papers.livi.printed_window import paper_window
from lagreach.study.checkpoints import latest_state, load_tensors, remove_states, save_state, save_tensors
from lagreach.study.config import RECIPES, DiagnosisSettings, StudyConfig, Variant
from lagreach.study.data import FreshData, HeldData, TrainingData, generator_for, hold
from lagreach.study.optimisers import OptimiserSettings
from lagreach.study.replicas import Replicas
from lagreach.study.store import RunDirectory
from lagreach.study.summary import summarise, summarise_paper
from lagreach.study.tables import Row, read_rows, write_rows
from lagreach.study.trainer import Trainer, run_epoch
from lagreach.tasks import Task, make_task

PLACE = ("variant", "seed", "epoch")  # of a diagnosis among those of a study
SharedData = dict[tuple[int, int], HeldData]  # by sequences and batch: variants with the same seeds see the same data


@dataclass(frozen=True)
class TrainJob:
    """Train some variants of a run: one on a processor, all of them side by side on a GPU."""

    run: str
    variants: tuple[str, ...]
    device: str = "cpu"
    kernel: str = "auto"


@dataclass(frozen=True)
class DiagnoseJob:
    """Diagnose one seed of a variant after an epoch, by one recipe."""

    run: str
    variant: str
    seed: int
    epoch: int
    recipe: str
    device: str = "cpu"
    memory: int | None = None  # bytes to stay within


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


def make_trainer(config: StudyConfig, variant: Variant, device: str, kernel: str, shared: SharedData) -> Trainer:
    """Return the training of all seeds of a variant, at its start."""
    plan, task, seeds = config.training_of(variant), study_task(config), config.seed_list()
    models = [build_model(config, variant, s) for s in seeds]
    replicas = Replicas(models, device=device, kernel=kernel, precision=plan.precision)
    data: TrainingData
    if plan.fresh:
        data = FreshData(task, tuple(seeds), plan.batch, -(-plan.sequences // plan.batch), device)
    else:
        same = (plan.sequences, plan.batch)
        if same not in shared:
            shared[same] = hold(task, plan.sequences, seeds, plan.batch, device, replicas.flat.dtype)
        data = shared[same]
    fields = set(OptimiserSettings.__dataclass_fields__) & set(type(plan).model_fields)
    settings = OptimiserSettings(**{name: getattr(plan, name) for name in fields})
    return Trainer(replicas, data, task.loss, settings, plan.epochs)


class VariantTraining:
    """A variant's training in a run's folder: goes on from the latest whole state, saves as it goes."""

    def __init__(
        self,
        run: RunDirectory,
        config: StudyConfig,
        variant: Variant,
        device: str,
        kernel: str,
        shared: SharedData,
    ) -> None:
        self.run, self.config, self.variant = run, config, variant
        self.plan, self.folder = config.training_of(variant), run.training(variant.name)
        self.wanted = config.checkpoint_epochs(variant)
        make_folder(self.folder)
        self.trainer = make_trainer(config, variant, device, kernel, shared)
        self.metrics: list[Row] = []
        self.scores: list[Row] = []
        if not self._go_on():
            self._checkpoint()

    def _go_on(self) -> bool:
        """Go on from the latest whole state, if there is one with the tables that belong to it."""
        state = latest_state(self.folder, self._note, self.run.read)
        if state is None:
            return False
        try:
            now = int(state["counters"][0])
            metrics, scores = (
                [row for row in table if row["epoch"] <= now] for table in _tables(self.run, self.variant)
            )
            # a training that goes on from this state cannot make again what belongs to earlier epochs: it must all be there
            if now not in {row["epoch"] for row in metrics}:
                raise InputError("the metrics end before the state", expected="a row for every epoch")
            for past in self.wanted:
                if past <= now:
                    load_tensors(self.run.model_path(self.variant.name, past), self.run.read)
            self.trainer.load(state)
        except (InputError, KeyError, TypeError, ValueError) as error:
            self._note(f"{error}; starting again")
            remove_states(self.folder)
            return False
        self.metrics, self.scores = metrics, scores
        self._note(f"going on from epoch {now}")
        return True

    def _note(self, note: str) -> None:
        self.run.log(f"{self.variant.name}: {note}")

    @property
    def unfinished(self) -> bool:
        """Whether there are epochs left."""
        return self.trainer.epoch < self.plan.epochs

    def record(self, loss: np.ndarray, norm: np.ndarray) -> None:
        """Note what an epoch gave, and save where it is time to."""
        epoch, status = self.trainer.epoch, self.trainer.status
        for r, seed in enumerate(self.config.seed_list()):
            numbers = {"loss": float(loss[r]), "gradient_norm": float(norm[r]), "status": status[r].name}
            self.metrics.append({"epoch": epoch, "seed": seed, **numbers})
        if epoch in self.wanted:
            self._checkpoint()
        if epoch in self.wanted or epoch % self.plan.save_every == 0:
            write_rows(self.folder / "metrics.parquet", self.metrics, self.run.write)
            # last: a state tells a resumed run that everything up to its epoch has been written
            save_state(self.folder, epoch, self.trainer.state(), self.run.write)
            self.run.log(f"{self.variant.name}: epoch {epoch} of {self.plan.epochs} saved")

    def finish(self) -> None:
        """Write what an empty training would lack, and say how it ended."""
        if not self.metrics:
            seeds = self.config.seed_list()
            rows = [{"epoch": 0, "seed": s, "loss": None} for s in seeds]
            write_rows(self.folder / "metrics.parquet", rows, self.run.write)
        self.run.log(f"{self.variant.name}: trained, {', '.join(status.name for status in self.trainer.status)}")

    def _checkpoint(self) -> None:
        """Save the weights, and how much of each lag the models have recovered on fresh sequences."""
        task, trainer = study_task(self.config), self.trainer
        for r, seed in enumerate(self.config.seed_list()):
            x, y = task.sample(self.config.test_sequences, generator_for(seed, "test"))
            with torch.no_grad():
                model = trainer.replicas.model(r).to(trainer.alive.device)
                scores = task.recovered(x, y, model(x.to(trainer.alive.device)).cpu())
            self.scores.extend(
                {"epoch": trainer.epoch, "seed": seed, "lag": lag, "recovered": float(score)}
                for lag, score in zip(task.lags, scores.tolist(), strict=True)
            )
        write_rows(self.folder / "recovered.parquet", self.scores, self.run.write)
        path = self.run.model_path(self.variant.name, trainer.epoch)
        save_tensors(path, trainer.replicas.params, self.run.write)


def train_variants(job: TrainJob) -> None:
    """Train until the last epoch, saving states on the way and weights at the epochs to be diagnosed."""
    _train(job)
    give_back()  # for the diagnoses, which other processes make


def _train(job: TrainJob) -> None:
    run = RunDirectory(job.run)
    config = run.config()
    left = [config.variant(name) for name in job.variants if not is_trained(run, config, config.variant(name))]
    shared: SharedData = {}
    trainings = [VariantTraining(run, config, variant, job.device, job.kernel, shared) for variant in left]
    while running := [training for training in trainings if training.unfinished]:
        for training, outcome in zip(running, run_epoch([t.trainer for t in running]), strict=True):
            training.record(*outcome)
    for training in trainings:
        training.finish()


def is_trained(run: RunDirectory, config: StudyConfig, variant: Variant) -> bool:
    """Whether the weights of every wanted epoch are there, and whole."""
    try:
        for epoch in config.checkpoint_epochs(variant):
            load_tensors(run.model_path(variant.name, epoch), run.read)
        metrics, scores = _tables(run, variant)
    except InputError:
        return False
    # weights are written before the rows that belong to them, so a training may have stopped in between
    wanted = config.checkpoint_epochs(variant)
    return wanted[-1] in {row["epoch"] for row in metrics} and set(wanted) <= {row["epoch"] for row in scores}


def _tables(run: RunDirectory, variant: Variant) -> tuple[list[Row], list[Row]]:
    """Read loss and gradient norms by epoch, and the shares of the lags that were recovered."""
    folder = run.training(variant.name)
    metrics = read_rows(folder / "metrics.parquet", ("epoch", "seed", "loss"), run.read)
    return metrics, read_rows(folder / "recovered.parquet", ("epoch", "seed", "lag", "recovered"), run.read)


def stored_model(run: RunDirectory, config: StudyConfig, variant: Variant, seed: int, epoch: int) -> GatedRNN:
    """Read the model of one seed after an epoch."""
    model = build_model(config, variant, seed)
    held = load_tensors(run.model_path(variant.name, epoch), run.read)
    model.load_state_dict({name: value[config.seed_list().index(seed)] for name, value in held.items()})
    return model


def diagnose_checkpoint(job: DiagnoseJob) -> None:
    """Diagnose and save; a diagnosis that is there and whole is left alone."""
    run = RunDirectory(job.run)
    path = run.diagnosis_path(job.variant, job.seed, job.epoch, job.recipe)
    if is_diagnosed(run, job):
        return
    config = run.config()
    variant, settings, task = config.variant(job.variant), config.diagnosis, study_task(config)
    model = stored_model(run, config, variant, job.seed, job.epoch).to(job.device)
    batch = task.batch(settings.sequences, generator_for(job.seed, "diagnosis"))
    labels: Row = {"study": config.name, "scale": config.scale, "variant": variant.name, "seed": job.seed}
    labels |= {"epoch": job.epoch, "recipe": job.recipe}
    if job.recipe == "paper":
        lags_seen = [lag for lag in _explicit_lags(settings, task) if lag > 0]
        printed = paper_window(model.cpu(), batch, lags_seen, task.loss, settings.error, config.seed)
        write_rows(path, [summarise_paper(labels, printed, settings.budget_grid)], run.write)
        run.log(f"diagnosed {path.name}")
        return
    lags: Any = settings.lags if settings.lags == "auto" else list(settings.lags)
    diagnosis = diagnose(
        model,
        {"x": batch.x, "y": batch.y} | ({} if batch.mask is None else {"mask": batch.mask}),
        task.loss,
        lags,
        sequences=config.training_of(variant).sequences,
        strength=settings.strength,
        error=settings.error,
        seed=config.seed,
        require=[lag for lag in task.lags if lag < task.length],
        settings=MeasureSettings(blocks=settings.blocks, probes=settings.probes),
        memory=job.memory,
        progress=False,
        **RECIPES[job.recipe],  # type: ignore[arg-type]
    )
    run.write(path, to_bytes(replace(diagnosis, labels=labels)))
    run.log(f"diagnosed {path.name}")


def _explicit_lags(settings: DiagnosisSettings, task: Task) -> list[int]:
    """Return the lags to look at where bands are no use: those asked for, or powers of two and the task's own."""
    if settings.lags != "auto":
        return sorted({*settings.lags, *task.lags})
    powers = [2**k for k in range(task.length.bit_length()) if 2**k < task.length]
    return sorted({*powers, *(lag for lag in task.lags if lag < task.length)})


def is_diagnosed(run: RunDirectory, job: DiagnoseJob) -> bool:
    """Whether the diagnosis is there, can be read, and is the one that was asked for."""
    path = run.diagnosis_path(job.variant, job.seed, job.epoch, job.recipe)
    try:
        if job.recipe == "paper":
            rows = read_rows(path, ("lags", "n_data", "windows", *PLACE), run.read)
            return len(rows) == 1 and _is_of(rows[0], job)
        return _is_of(read_diagnosis(run, job).labels, job)
    except InputError:
        return False


def _is_of(labels: Mapping[str, object], job: DiagnoseJob) -> bool:
    """Whether labels name this piece of work: files may have been put into each other's places."""
    return tuple(labels.get(name) for name in PLACE) == tuple(getattr(job, name) for name in PLACE)


def read_diagnosis(run: RunDirectory, job: DiagnoseJob) -> Diagnosis:
    """Read a finished diagnosis."""
    path = run.diagnosis_path(job.variant, job.seed, job.epoch, job.recipe)
    return diagnosis_from_bytes(run.read(path), path.name)


def summary_row(run: RunDirectory, job: DiagnoseJob, budgets: tuple[int, ...]) -> Row:
    """Numbers of a finished diagnosis."""
    path = run.diagnosis_path(job.variant, job.seed, job.epoch, job.recipe)
    row = read_rows(path, read=run.read)[0] if job.recipe == "paper" else summarise(read_diagnosis(run, job), budgets)
    return row | {"recipe": job.recipe}  # files of version 0.1.0 call it their form


def diagnose_jobs(run: RunDirectory, config: StudyConfig, device: str = "cpu", workers: int = 1) -> list[DiagnoseJob]:
    """Every diagnosis of a study: recipes beyond the first only after the last epoch."""
    jobs = []
    memory = shared_memory(device, workers)
    for variant in config.variants:
        epochs = config.checkpoint_epochs(variant)
        for seed in config.seed_list():
            for epoch in epochs:
                recipes = config.diagnosis.recipes if epoch == epochs[-1] else config.diagnosis.recipes[:1]
                jobs += [
                    DiagnoseJob(str(run.path), variant.name, seed, epoch, recipe, device, memory) for recipe in recipes
                ]
    return jobs


def shared_memory(device: str, workers: int) -> int | None:
    """Bytes of a GPU for each process that works on it; half is left, because each keeps what it has freed."""
    if device == "cpu" or workers == 1:
        return None
    return int(torch.cuda.get_device_properties(device).total_memory) // (2 * workers)
