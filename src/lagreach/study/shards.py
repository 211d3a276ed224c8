"""Diagnose a large data set in shards: workers measure blocks of sequences, and the parts merge to the same answer.

Each worker builds the model and the data for itself, so that nothing large travels: give a module-level function that
returns both, with the data as files that every worker can read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from torch import nn

from lagreach._util.progress import Progress
from lagreach._util.threads import one_thread
from lagreach.diagnosis.assemble import assemble
from lagreach.diagnosis.diagnose import diagnose, diagnosis_subjects
from lagreach.diagnosis.passes import (
    BetweenPasses,
    FirstPass,
    SecondPass,
    Statistics,
    between_passes,
    first_pass,
    second_pass,
)
from lagreach.diagnosis.result import Diagnosis
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.diagnosis.window import Window
from lagreach.errors import InputError
from lagreach.gradients.exchange import Exchanged, ExchangePlan, exchange
from lagreach.gradients.lag_contrasts import LagContrasts, lag_contrasts
from lagreach.gradients.partial_inputs import Neighbours
from lagreach.gradients.subject import Subject
from lagreach.study.executors import Executor, counting

Build = Callable[[], tuple[nn.Module, Any]]


@dataclass(frozen=True)
class Shard:
    """Some blocks of one recurrence of a diagnosis; small enough to send anywhere."""

    build: Build
    options: tuple[tuple[str, Any], ...]
    layer: int
    blocks: tuple[int, ...]
    settings: MeasureSettings
    statistics: Statistics


@lru_cache(maxsize=1)
def _subjects(build: Build, options: tuple[tuple[str, Any], ...], settings: MeasureSettings) -> list[Subject]:
    """Build model and data once in each worker."""
    model, data = build()
    return diagnosis_subjects(model, data, settings=settings, **dict(options))


@one_thread()
def measure_first(shard: Shard) -> FirstPass:
    """First pass on a shard."""
    subject = _subjects(shard.build, shard.options, shard.settings)[shard.layer]
    return first_pass(subject, shard.statistics, shard.blocks)


@one_thread()
def measure_second(item: tuple[Shard, BetweenPasses]) -> SecondPass:
    """Second pass on a shard, along the directions of the merged first pass."""
    shard, between = item
    subject = _subjects(shard.build, shard.options, shard.settings)[shard.layer]
    return second_pass(subject, between, shard.statistics, shard.settings, shard.blocks)


@one_thread()
def measure_contrasts(item: tuple[Shard, tuple[int, ...], Neighbours | None]) -> LagContrasts:
    """Contrasts of single lags on a shard."""
    shard, lags, neighbours = item
    subject = _subjects(shard.build, shard.options, shard.settings)[shard.layer]
    return lag_contrasts(subject, lags, neighbours, shard.blocks)


@one_thread()
def measure_exchange(item: tuple[Shard, ExchangePlan]) -> Exchanged:
    """Exchange of single inputs on a shard."""
    shard, plan = item
    return exchange(_subjects(shard.build, shard.options, shard.settings)[shard.layer], plan, shard.blocks)


@dataclass(frozen=True)
class _LookOnShards:
    """Look at the sequences again, on the shards."""

    shards: list[Shard]
    executor: Executor
    progress: Progress | None

    def contrasts(self, lags: Sequence[int], neighbours: Neighbours | None) -> LagContrasts:
        """Measure the contrasts of single lags over all blocks."""
        tick = counting(self.progress, "lags", len(self.shards))
        items = [(shard, tuple(lags), neighbours) for shard in self.shards]
        return LagContrasts.merge(self.executor.map(measure_contrasts, items, on_result=tick))

    def exchange(self, plan: ExchangePlan) -> Exchanged:
        """Exchange single inputs over all blocks."""
        tick = counting(self.progress, "lags", len(self.shards))
        items = [(shard, plan) for shard in self.shards]
        return Exchanged.merge(self.executor.map(measure_exchange, items, on_result=tick))


def diagnose_sharded(
    build: Build,
    executor: Executor,
    *,
    shards: int | None = None,
    settings: MeasureSettings | None = None,
    **options: Any,
) -> Diagnosis:
    """Diagnose with the two passes over the data spread over an executor's workers.

    Parameters
    ----------
    build
        A module-level function without arguments that returns ``(model, data)``, the same in every process.
    shards
        How many parts to cut the blocks into; four for each worker if None.
    options
        As for `lagreach.diagnose`: loss, lags, strength, error, seed, ... The answer is the one `diagnose` gives.
    """
    refused = {"budget", "memory", "dry_run", "cell", "call", "optimizer"} & set(options)
    if refused:
        raise InputError(
            "these options are not for sharded work",
            got=", ".join(sorted(refused)),
            fix="leave them out, or use lagreach.diagnose",
        )
    model, data = build()
    layer = -1
    shared = ("loss", "lags", "params", "require", "steps", "outputs")
    frozen = tuple(sorted((name, _frozen(options[name])) for name in shared if name in options))

    def measure(
        subject: Subject, chosen: MeasureSettings, progress: Progress | None, statistics: Statistics
    ) -> tuple[Window, np.ndarray, bool]:
        nonlocal layer
        layer += 1
        count = min(subject.plan.count, shards or 4 * executor.workers)
        parts = [
            Shard(build, frozen, layer, tuple(blocks.tolist()), chosen, statistics)
            for blocks in np.array_split(np.arange(subject.plan.count), count)
        ]
        tick = counting(progress, "directions", count)
        first = FirstPass.merge(executor.map(measure_first, parts, on_result=tick))
        look = _LookOnShards(parts, executor, progress)
        between = between_passes(subject, first.means, chosen, first.inputs, look)
        tick = counting(progress, "noise", count)
        second = SecondPass.merge(executor.map(measure_second, [(part, between) for part in parts], on_result=tick))
        return assemble(subject, first, between, second, chosen, statistics), second.noise.sample, False

    found = diagnose(model, data, settings=settings, measure=measure, **options)
    return found


def _frozen(value: Any) -> Any:
    """Lists as tuples, so that a worker knows whether it has built this already."""
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    return tuple(value) if isinstance(value, (list, range)) else value
