"""Trainings of the study: all runs of one shape together, the weights with the lowest held-out loss kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from lagreach.study.data import generator_for
from lagreach.study.losses import replica_losses
from lagreach.study.replicas import Replicas
from lagreach.study.rows import Row
from lagreach.study.trainer import Trainer, run_epoch
from studies.advice.changes import Run
from studies.advice.situations import TASKS
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
    """Batches of every run: its own sequences, in an order of its own."""

    x: tuple[Tensor, ...]
    y: tuple[Tensor, ...]
    mask: Tensor | None
    orders: tuple[int, ...]
    batch: int
    steps_per_epoch: int

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of each step."""
        count = self.steps_per_epoch * self.batch
        chosen = [
            stream((own, "order"), len(x), number * count, count).to(x.device)
            for own, x in zip(self.orders, self.x, strict=True)
        ]
        for step in range(self.steps_per_epoch):
            part = slice(step * self.batch, (step + 1) * self.batch)
            yield (
                torch.stack([x[order[part]] for x, order in zip(self.x, chosen, strict=True)]),
                torch.stack([y[order[part]] for y, order in zip(self.y, chosen, strict=True)]),
            )


def groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that can be one computation, by a name that depends on them alone."""
    by_shape: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        own = run.setting
        shape = own.task_name, own.cell, own.units, own.optimiser, own.steps, own.piece, own.batch
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
        held: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        for run in runs:
            key = run.seed, run.setting.sequences
            if key not in held:
                drawn = pool(first.task_name, run.seed, "data", run.setting.sequences)
                held[key] = tuple(cut(part, first.piece).to(device) for part in drawn)  # type: ignore[assignment]
        pairs = [held[run.seed, run.setting.sequences] for run in runs]
        data = Batches(
            tuple(x for x, _ in pairs), tuple(y for _, y in pairs), self.mask, tuple(run.own for run in runs),
            first.batch, max(1, first.steps // LOOKS),
        )  # fmt: skip
        rates = [run.setting.lr for run in runs]
        replicas = Replicas([run.model for run in runs], device=device)
        self.trainer = Trainer(replicas, data, self.task.loss, first.settings(), LOOKS, rates)
        self.best = replicas.flat.clone()
        self.best_loss = torch.full((len(runs),), torch.inf, dtype=torch.float64)

    @property
    def unfinished(self) -> bool:
        """Whether there are looks left."""
        return self.trainer.epoch < LOOKS

    def look(self) -> None:
        """Keep the weights of the runs that have their lowest held-out loss now."""
        loss = self._test("held out", HELD_OUT)[0]
        better = loss < self.best_loss
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.best = torch.where(better.to(self.device)[:, None], self.trainer.replicas.flat, self.best)
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def rows(self) -> list[Row]:
        """What came out, on fresh sequences."""
        end = self._test("test", TEST, score=True)[1]
        self.trainer.replicas.load(self.best)
        loss, scores = self._test("test", TEST, score=True)
        return [
            {
                "situation": run.situation, "arm": run.arm, "seed": run.seed, "change": run.change,
                "share": float(scores[r][-1]), "share_end": float(end[r][-1]), "loss": float(loss[r]),
                "status": self.trainer.status[r].name,
            }
            for r, run in enumerate(self.runs)
        ]  # fmt: skip

    @torch.no_grad()
    def _test(self, what: str, count: int, *, score: bool = False) -> tuple[Tensor, list[Tensor]]:
        pairs = {run.seed: pool(self.task_name, run.seed, what, count) for run in self.runs}
        losses, outputs = [], []
        for start in range(0, count, CHUNK):
            x, y = (
                torch.stack([pairs[run.seed][k][start : start + CHUNK] for run in self.runs]).to(self.device)
                for k in (0, 1)
            )
            output = self.trainer.replicas(x)
            losses.append(replica_losses(self.task.loss, output, y, self.mask).double().cpu())
            if score:
                outputs.append(output.cpu())
        loss = torch.stack(losses).mean(0)  # chunks are equal
        if not score:
            return loss, []
        whole = torch.cat(outputs, dim=1).nan_to_num()
        return loss, [self.task.recovered(*pairs[run.seed], one) for run, one in zip(self.runs, whole, strict=True)]


def train_groups(parts: Sequence[GroupTraining]) -> None:
    """Train several groups side by side."""
    while running := [part for part in parts if part.unfinished]:
        run_epoch([part.trainer for part in running])
        for part in running:
            part.look()
