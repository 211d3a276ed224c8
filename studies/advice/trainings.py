"""Trainings of the study: all runs of one shape together, the weights with the lowest held-out loss kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from lagreach.study.data import generator_for
from lagreach.study.losses import replica_losses
from lagreach.study.replicas import Replicas
from lagreach.study.tables import Row
from lagreach.study.trainer import Trainer, run_epoch
from studies.advice.changes import Run
from studies.advice.situations import SCORED_BY_LOSS, TASKS
from studies.validation.trainings import stream

LOOKS = 10  # at the held-out loss
HELD_OUT, TEST, CHUNK = 256, 1024, 256


@lru_cache(maxsize=64)
def pool(task: str, seed: int, what: str, sequences: int) -> tuple[Tensor, Tensor]:
    """Sequences of a task for a seed; on the CPU, so that they are the same on every device."""
    return TASKS[task].sample(sequences, generator_for(task, seed, what))


def cut(x: Tensor, length: int | None) -> Tensor:
    """Cut sequences (seq, time, ...) into pieces of some length; what is left over at the end goes.

    >>> cut(torch.arange(10).view(1, 10, 1), 4)[..., 0]
    tensor([[0, 1, 2, 3],
            [4, 5, 6, 7]])
    """
    if length is None:
        return x
    count = x.shape[1] // length
    return x[:, : count * length].unflatten(1, (count, length)).flatten(0, 1)


@dataclass(frozen=True)
class Batches:
    """Batches of every run, from sequences that lie one after the other: run r has ``sizes[r]`` of them from ``starts[r]`` on."""

    x: Tensor
    y: Tensor
    mask: Tensor | None
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    orders: tuple[int, ...]
    batch: int
    steps_per_epoch: int

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of each step, each run in an order of its own."""
        count = self.steps_per_epoch * self.batch
        streams = [
            start + stream((setting, "order"), size, number * count, count)
            for start, size, setting in zip(self.starts, self.sizes, self.orders, strict=True)
        ]
        chosen = torch.stack(streams).to(self.x.device)
        for step in range(self.steps_per_epoch):
            part = chosen[:, step * self.batch : (step + 1) * self.batch]
            yield self.x[part], self.y[part]


def groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that can be one computation, by a name that depends on them alone."""
    by_shape: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        setting = run.setting
        shape: tuple[object, ...] = (
            setting.task_name,
            setting.cell,
            setting.units,
            setting.optimiser,
            setting.steps,
            setting.piece,
            setting.batch,
        )
        by_shape.setdefault((*shape, repr(run.model.stack.cells[0])), []).append(run)
    named = {}
    for shape, members in by_shape.items():
        parts = [shape, *((run.situation, run.arm, run.seed, run.change, run.setting.lr) for run in members)]
        named[hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()] = members
    return named


class GroupTraining:
    """One group on its way."""

    def __init__(self, name: str, runs: list[Run], device: str) -> None:
        self.name, self.runs, self.device = name, runs, torch.device(device)
        first = runs[0].setting
        self.task, self.task_name = first.task, first.task_name
        self.mask = self.task.mask()
        if self.mask is not None:
            self.mask = self.mask.to(device)
        data = self._batches(first.piece, first.batch, max(1, first.steps // LOOKS))
        rates = [run.setting.lr for run in runs]
        replicas = Replicas([run.model for run in runs], device=device)
        self.trainer = Trainer(replicas, data, self.task.loss, first.settings(), LOOKS, rates)
        self.best = replicas.flat.clone()
        self.best_loss = torch.full((len(runs),), torch.inf, dtype=torch.float64)
        self.held_out = self._pairs("held out", HELD_OUT)

    @property
    def unfinished(self) -> bool:
        """Whether there are looks left."""
        return self.trainer.epoch < LOOKS

    def _batches(self, piece: int | None, batch: int, steps: int) -> Batches:
        held: dict[tuple[int, int], tuple[int, int]] = {}
        parts: list[tuple[Tensor, ...]] = []
        for run in self.runs:
            key = run.seed, run.setting.sequences
            if key not in held:
                drawn = pool(self.task_name, run.seed, "data", run.setting.sequences)
                parts.append(tuple(cut(part, piece) for part in drawn))
                held[key] = sum(len(x) for x, _ in parts[:-1]), len(parts[-1][0])
        places = [held[run.seed, run.setting.sequences] for run in self.runs]
        x, y = (torch.cat([part[k] for part in parts]).to(self.device) for k in (0, 1))
        starts, sizes = (tuple(place[k] for place in places) for k in (0, 1))
        return Batches(x, y, self.mask, starts, sizes, tuple(run.start_seed for run in self.runs), batch, steps)

    def _pairs(self, what: str, count: int) -> tuple[Tensor, Tensor]:
        drawn = [pool(self.task_name, run.seed, what, count) for run in self.runs]
        return torch.stack([x for x, _ in drawn]).to(self.device), torch.stack([y for _, y in drawn]).to(self.device)

    def look(self) -> None:
        """Keep the weights of the runs that have their lowest held-out loss now."""
        loss, _ = self._test(*self.held_out)
        better = loss < self.best_loss
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.best = torch.where(better.to(self.device)[:, None], self.trainer.replicas.flat, self.best)
        if self.device.type == "cuda":  # the next steps run on another stream, and change the weights in place
            torch.cuda.synchronize()

    def rows(self) -> list[Row]:
        """What the weights with the lowest held-out loss recover, on fresh sequences."""
        self.trainer.replicas.load(self.best)
        x, y = self._pairs("test", TEST)
        loss, output = self._test(x, y)
        output = output.nan_to_num().cpu()
        x, y = x.cpu(), y.cpu()
        if self.task_name in SCORED_BY_LOSS:
            scores = [float(share) for share in self._explained(y, loss)]
        else:
            with ThreadPoolExecutor() as threads:
                slopes = threads.map(lambda r: self.task.recovered(x[r], y[r], output[r])[-1], range(len(x)))
                scores = [float(slope) for slope in slopes]
        return [
            {
                "situation": run.situation, "arm": run.arm, "seed": run.seed, "change": run.change,
                "share": scores[r], "loss": float(loss[r]), "status": self.trainer.status[r].name,
            }
            for r, run in enumerate(self.runs)
        ]  # fmt: skip

    def _explained(self, y: Tensor, loss: Tensor) -> Tensor:
        """Of what the lag could explain, the part that is; targets have mean zero, so the constant's loss is their square."""
        constant = replica_losses(
            self.task.loss, torch.zeros_like(y), y, None if self.mask is None else self.mask.cpu()
        )
        floor = self.task.noise_floor
        assert floor is not None, "a task that is scored by its loss knows the least one"
        return (constant.double() - loss) / (constant.double() - floor)

    @torch.no_grad()
    def _test(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Losses and outputs of all runs, some sequences at a time."""
        losses, outputs = [], []
        for start in range(0, x.shape[1], CHUNK):
            output = self.trainer.replicas(x[:, start : start + CHUNK])
            losses.append(replica_losses(self.task.loss, output, y[:, start : start + CHUNK], self.mask).double().cpu())
            outputs.append(output)
        return torch.stack(losses).mean(0), torch.cat(outputs, dim=1)  # chunks are equal


def train_groups(parts: Sequence[GroupTraining]) -> None:
    """Train several groups side by side."""
    while running := [part for part in parts if part.unfinished]:
        run_epoch([part.trainer for part in running])
        for part in running:
            part.look()
