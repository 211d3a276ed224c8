"""Trainings of the validation study: one condition at all numbers of sequences and all seeds in one computation.

All trainings take the same number of steps, so that the number of sequences is the only thing that differs between
replicas of a seed: each draws its batches from the first N sequences of the seed's pool, in an order of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from lagreach._util.disk import make_folder
from lagreach.errors import InputError
from lagreach.study.checkpoints import latest_state, load_tensors, remove_states, save_state, save_tensors
from lagreach.study.config import StudyConfig
from lagreach.study.data import generator_for
from lagreach.study.losses import replica_losses
from lagreach.study.replicas import Replicas
from lagreach.study.store import RunDirectory
from lagreach.study.tables import Row, read_rows, write_rows
from lagreach.study.trainer import Trainer, run_epoch
from lagreach.tasks import Task
from studies.validation.design import Condition, ValidationPlan, conditions, validation_plan

CHUNK = 128  # sequences that are tested at a time
BEST = "best"  # name of the weights with the lowest held-out loss


@dataclass(frozen=True)
class PooledData:
    """Batches from pools: replica r uses ``sequences[r]`` sequences of the pool of its seed, from ``start[r]`` on.

    `x` and `y` are (seed, seq, time, ...), `seeds` names the pools and ``pool[r]`` says which one a replica uses. A replica
    runs through its sequences in a new random order each time, without regard to where epochs end.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None
    seeds: tuple[int, ...]
    sequences: tuple[int, ...]
    pool: tuple[int, ...]
    start: tuple[int, ...]
    batch: int
    steps_per_epoch: int

    def indices(self, number: int) -> Tensor:
        """Numbers of the sequences of an epoch, (replica, step, batch)."""
        count = self.steps_per_epoch * self.batch
        streams = [
            start + stream((self.seeds[pool], "order", sequences), sequences, number * count, count)
            for sequences, pool, start in zip(self.sequences, self.pool, self.start, strict=True)
        ]
        return torch.stack(streams).unflatten(1, (self.steps_per_epoch, self.batch))

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of each step."""
        chosen = self.indices(number).to(self.x.device)
        pool = torch.tensor(self.pool, device=self.x.device)[:, None]
        for step in range(self.steps_per_epoch):
            yield self.x[pool, chosen[:, step]], self.y[pool, chosen[:, step]]


def stream(key: tuple[object, ...], sequences: int, start: int, count: int) -> Tensor:
    """Entries `start` to ``start + count`` of an endless stream of numbers: every sequence once, then anew in another order.

    >>> whole = stream((0,), 5, 0, 12)
    >>> sorted(whole[5:10].tolist()), bool((stream((0,), 5, 3, 6) == whole[3:9]).all())
    ([0, 1, 2, 3, 4], True)
    """
    first, last = start // sequences, (start + count - 1) // sequences
    orders = [torch.randperm(sequences, generator=generator_for(*key, turn)) for turn in range(first, last + 1)]
    return torch.cat(orders)[start - first * sequences :][:count]


@lru_cache(maxsize=3)  # conditions of one task follow each other
def pools(task: Task, name: str, what: str, sequences: int, seeds: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Draw sequences for each seed, (seed, seq, time, ...); on the CPU, so that they are the same on every device."""
    drawn = [task.sample(sequences, generator_for(name, seed, what)) for seed in seeds]
    return torch.stack([x for x, _ in drawn]), torch.stack([y for _, y in drawn])


class ConditionTraining:
    """A condition's training in a run's folder: goes on from the latest whole state, saves as it goes."""

    def __init__(self, run: RunDirectory, config: StudyConfig, condition: Condition, device: str, kernel: str) -> None:
        self.run, self.config, self.condition, self.device = run, config, condition, torch.device(device)
        self.plan, self.seeds = validation_plan(config), config.seed_list()
        self.folder = run.training(condition.name)
        make_folder(self.folder)
        replicas = list(replicas_of(self.plan, self.seeds))
        self._pool = [self.seeds.index(seed) for _, seed in replicas]
        first = {seed: condition.model(seed) for seed in self.seeds}
        held = Replicas([first[seed] for _, seed in replicas], device=device, kernel=kernel)
        task = condition.task
        budgets = self.plan.sequences
        start = {n: 0 if self.plan.nested else sum(budgets[:k]) for k, n in enumerate(budgets)}
        drawn = budgets[-1] if self.plan.nested else sum(budgets)
        x, y = pools(task, condition.plan.name, "data", drawn, tuple(self.seeds))
        mask = task.mask()
        data = PooledData(
            x.to(self.device),
            y.to(self.device),
            None if mask is None else mask.to(self.device),
            tuple(self.seeds),
            tuple(sequences for sequences, _ in replicas),
            tuple(self._pool),
            tuple(start[sequences] for sequences, _ in replicas),
            condition.optimiser.batch or self.plan.batch,
            self.plan.steps // self.plan.epochs,
        )
        self.trainer = Trainer(held, data, task.loss, condition.optimiser.settings(), self.plan.epochs)
        self._held_out = pools(task, condition.plan.name, "held out", self.plan.held_out, tuple(self.seeds))
        # what is kept on the way: weights of the stages, and those with the lowest held-out loss
        self._kept = {stage: torch.zeros_like(held.flat) for stage in self.plan.stage_epochs()}
        self._best = held.flat.clone()
        self._best_loss = torch.full((len(held),), torch.inf, dtype=torch.float64)
        state = latest_state(self.folder, lambda note: run.log(f"{condition.name}: {note}"), run.read)
        if state is not None:
            self._load(state)

    @property
    def unfinished(self) -> bool:
        """Whether there are epochs left."""
        return self.trainer.epoch < self.plan.epochs

    def after_epoch(self) -> None:
        """Keep the weights of stages, look at the held-out loss, save where it is time to."""
        epoch = self.trainer.epoch
        for stage, at in self.plan.stage_epochs().items():
            if epoch == at:
                self._kept[stage].copy_(self.trainer.replicas.flat)
        if epoch in looked_at(self.plan):
            loss, _ = self._test(*self._held_out)
            better = loss < self._best_loss
            self._best_loss = torch.where(better, loss, self._best_loss)
            self._best = torch.where(better.to(self.device)[:, None], self.trainer.replicas.flat, self._best)
        if self.device.type == "cuda":  # the next epoch runs on another stream, and changes the weights in place
            torch.cuda.synchronize()
        if epoch % self.plan.save_every == 0 and self.unfinished:
            save_state(self.folder, epoch, self._state(), self.run.write)

    def finish(self) -> None:
        """Test on fresh sequences, and write weights and outcomes; the states are of no use any more."""
        task, held = self.condition.task, self.trainer.replicas
        fresh = pools(task, self.condition.plan.name, "test", self.config.test_sequences, tuple(self.seeds))
        loss, score = self._test(*fresh, score=True)
        end = held.flat.clone()
        held.load(self._best)
        loss_best, score_best = self._test(*fresh, score=True)
        held.load(end)
        rows = []
        for r, (sequences, seed) in enumerate(replicas_of(self.plan, self.seeds)):
            scores = {"score": score[r], "score_best": score_best[r]}
            rows += self._outcomes(sequences, seed, r, scores, float(loss[r]), float(loss_best[r]))
        kept = self._kept | {BEST: self._best}
        save_tensors(weights_path(self.run, self.condition), kept, self.run.write)
        write_rows(outcomes_path(self.run, self.condition), rows, self.run.write)  # last: it makes a finished condition
        remove_states(self.folder)
        self.run.log(f"{self.condition.name}: trained")

    def _outcomes(
        self, sequences: int, seed: int, r: int, scores: dict[str, Tensor], loss: float, loss_best: float
    ) -> list[Row]:
        condition, task = self.condition, self.condition.task
        floor = task.noise_floor
        shared: Row = {
            "training": condition.training(sequences, seed),
            "condition": condition.name,
            "task": condition.plan.family,
            "task_name": condition.plan.name,
            "cell": condition.cell,
            "gate_init": condition.gate,
            "optimiser": condition.optimiser.optimiser,
            "clip": condition.optimiser.clip is not None,
            "noise_alpha": float(getattr(task, "noise_alpha", 2.0)),
            "sequences": sequences,
            "seed": seed,
            "hidden": condition.plan.hidden,
            "length": task.length,
            "steps": self.plan.steps,
            "loss": loss,
            "loss_best": loss_best,
            "floor": float("nan") if floor is None else float(floor),
            "status": self.trainer.status[r].name,
            "batch": float(condition.optimiser.batch or self.plan.batch),
        }
        return [
            shared
            | {"lag": lag, "capacity_binds": binds, "ratio": ratio}
            | {name: float(of_lags[k]) for name, of_lags in scores.items()}
            for k, (lag, binds, ratio) in enumerate(
                zip(task.lags, condition.capacity_binds, condition.ratios, strict=True)
            )
        ]

    @torch.no_grad()
    def _test(self, x: Tensor, y: Tensor, *, score: bool = False) -> tuple[Tensor, list[Tensor]]:
        """Loss (replica,) of the present weights on sequences of each seed, and each replica's scores by lag."""
        losses, outputs, pool = [], [], torch.tensor(self._pool)
        for start in range(0, x.shape[1], CHUNK):
            chunk = slice(start, start + CHUNK)
            output = self.trainer.replicas(x[:, chunk][pool].to(self.device))
            losses.append(
                replica_losses(
                    self.condition.task.loss, output, y[:, chunk][pool].to(self.device), self.trainer.data.mask
                ).double()
            )
            if score:
                outputs.append(output.cpu())
        # chunks are equal but for the last one
        sizes = torch.tensor([min(CHUNK, x.shape[1] - start) for start in range(0, x.shape[1], CHUNK)])
        loss = (torch.stack(losses).cpu() * sizes[:, None]).sum(0) / sizes.sum()
        if not score:
            return loss, []
        whole = torch.cat(outputs, dim=1)
        return loss, [self.condition.task.recovered(x[p], y[p], one) for p, one in zip(self._pool, whole, strict=True)]

    def _state(self) -> dict[str, Tensor]:
        best = {"best": self._best, "best loss": self._best_loss}
        return self.trainer.state() | {f"stage {name}": kept for name, kept in self._kept.items()} | best

    def _load(self, state: dict[str, Tensor]) -> None:
        kept_weights = {name: state.pop(name) for name in [*state] if name.startswith(("stage ", "best"))}
        self.trainer.load(state)
        for stage, kept in self._kept.items():
            kept.copy_(kept_weights[f"stage {stage}"])
        self._best, self._best_loss = kept_weights["best"].to(self.device), kept_weights["best loss"]
        self.run.log(f"{self.condition.name}: going on from epoch {self.trainer.epoch}")


@dataclass(frozen=True)
class ConditionJob:
    """Train some conditions of a run: one on a processor, several side by side on a GPU."""

    run: str
    conditions: tuple[str, ...]
    device: str = "cpu"
    kernel: str = "auto"


def train_conditions(job: ConditionJob) -> None:
    """Train until the last step; what is finished already is left alone."""
    run = RunDirectory(job.run)
    config = run.config()
    known = {one.name: one for one in conditions(validation_plan(config), config.seed)}
    left = [known[name] for name in job.conditions if not is_trained(run, known[name])]
    trainings = [ConditionTraining(run, config, condition, job.device, job.kernel) for condition in left]
    while running := [training for training in trainings if training.unfinished]:
        run_epoch([training.trainer for training in running])
        for training in running:
            training.after_epoch()
    for training in trainings:
        training.finish()


def replicas_of(plan: ValidationPlan, seeds: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Number of sequences and seed of each replica, in the order in which they are stored."""
    for sequences in plan.sequences:
        for seed in seeds:
            yield sequences, seed


def looked_at(plan: ValidationPlan) -> set[int]:
    """Epochs with a look at the held-out loss: the stages, and ten more."""
    return {*plan.stage_epochs().values(), *(max(1, round(k * plan.epochs / 10)) for k in range(1, 11))}


def weights_path(run: RunDirectory, condition: Condition) -> Path:
    """File with the weights of all replicas at all stages but the first, and of the checkpoint with the lowest held-out loss."""
    return run.training(condition.name) / "weights.safetensors"


def outcomes_path(run: RunDirectory, condition: Condition) -> Path:
    """File with the outcomes of all replicas."""
    return run.training(condition.name) / "outcomes.parquet"


def is_trained(run: RunDirectory, condition: Condition) -> bool:
    """Whether weights and outcomes are there, and whole."""
    try:
        load_tensors(weights_path(run, condition), run.read)
        read_rows(outcomes_path(run, condition), read=run.read)
    except InputError:
        return False
    return True
