"""Training data of several models at once: held in memory and reshuffled every epoch, or drawn fresh for every step.

Everything follows from a seed for each model and the number of the epoch and step, so that a resumed training sees what
an uninterrupted one would have seen, and no model's data depend on which others train beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lagreach.errors import InputError, TooLargeError
from lagreach.tasks import Task

LIMIT_BYTES = 8 * 2**30  # of training data held in memory


def generator_for(*key: object, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator seeded by what it is for, such as ``(seed, "order", epoch)``."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)


@runtime_checkable
class TrainingData(Protocol):
    """Batches for all models, epoch by epoch."""

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        ...

    @property
    def mask(self) -> Tensor | None:
        """Steps of time that count, (time,)."""
        ...

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets, (replica, seq, time, ...), of each step of an epoch."""
        ...


@dataclass(frozen=True)
class HeldData:
    """Sequences in memory. `x` and `y` have a replica axis, of length one where all models share the data."""

    x: Tensor
    y: Tensor
    mask: Tensor | None
    seeds: tuple[int, ...]
    batch: int

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch; the last one may be smaller."""
        return -(-self.x.shape[1] // self.batch)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Every sequence once, in an order of each model's own."""
        count = self.x.shape[1]
        orders = torch.stack(
            [torch.randperm(count, generator=generator_for(s, "order", number)) for s in self.seeds]
        ).to(self.x.device)
        replica = torch.arange(len(self.seeds), device=self.x.device)[:, None] % len(self.x)
        for start in range(0, count, self.batch):
            chosen = orders[:, start : start + self.batch]
            yield self.x[replica, chosen], self.y[replica, chosen]


@dataclass(frozen=True)
class FreshData:
    """New sequences for every step: training on as many sequences as there are steps times batch."""

    task: Task
    seeds: tuple[int, ...]
    batch: int
    steps_per_epoch: int
    device: torch.device | str = "cpu"

    @property
    def mask(self) -> Tensor | None:
        """Steps of time that count."""
        mask = self.task.mask()
        return None if mask is None else mask.to(self.device)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Draw each step's sequences from the seed, the epoch and the step."""
        for step in range(self.steps_per_epoch):
            drawn = [
                self.task.sample(self.batch, generator_for(s, "fresh", number, step, device=self.device))
                for s in self.seeds
            ]
            yield torch.stack([x for x, _ in drawn]), torch.stack([y for _, y in drawn])


def hold(
    source: Task | Sequence[Tensor],
    sequences: int | None,
    seeds: Sequence[int],
    batch: int,
    device: torch.device | str,
    dtype: torch.dtype,
) -> HeldData:
    """Draw each model's sequences from a task, or hold the given tensors for all models."""
    if isinstance(source, Task):
        if sequences is None or sequences < 1:
            raise InputError("a task needs the number of sequences to train on", got=sequences, fix="sequences=8000")
        size = 4 * len(seeds) * sequences * source.length * (source.input_size + 1)
        if size > LIMIT_BYTES:
            raise TooLargeError(
                "the training data would not fit into memory",
                got=f"{len(seeds)} models x {sequences} sequences x {source.length} steps: {size / 2**30:.1f} GiB",
                expected=f"at most {LIMIT_BYTES / 2**30:.0f} GiB",
                fix="train fewer models together, on fewer sequences, or with fresh=True",
            )
        # drawn on the CPU on every device: the same seed is the same data everywhere
        drawn = [source.sample(sequences, generator_for(s, "data")) for s in seeds]
        x, y = torch.stack([x for x, _ in drawn]), torch.stack([y for _, y in drawn])
        mask = source.mask()
    else:
        x, y, mask = (*source, None)[:3]  # type: ignore[assignment]
        if len(x) != len(y):
            raise InputError("inputs and targets must have as many sequences", got=f"{len(x)} and {len(y)}")
        x, y = x[None], y[None]
        if sequences is not None:
            x, y = x[:, :sequences], y[:, :sequences]
    if not torch.isfinite(x).all():
        raise InputError("the inputs hold NaN or inf", got=f"shape {tuple(x.shape[1:])}", expected="finite numbers")
    y = y.to(dtype) if y.is_floating_point() else y
    mask = None if mask is None else mask.to(device, dtype)
    return HeldData(x.to(device, dtype), y.to(device), mask, tuple(seeds), batch)
