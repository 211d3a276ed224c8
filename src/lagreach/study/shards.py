"""Diagnose a large data set in shards: workers measure blocks of sequences, and the parts merge to the same answer.

Each worker builds the model and the data for itself, so that nothing large travels: give a module-level function that
returns both, with the data as files that every worker can read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from torch import nn

from lagreach._util.progress import Progress
from lagreach._util.threads import one_thread, threads_of_user
from lagreach.adapters.fresh_state import from_fresh_state
from lagreach.data.sequences import as_sequences, fingerprint, telling_sample
from lagreach.diagnosis.assemble import MeasuredWindow, assemble
from lagreach.diagnosis.diagnose import diagnose, diagnosis_plans
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
from lagreach.diagnosis.whole_model import model_plan
from lagreach.errors import InputError
from lagreach.gradients.exchange import Exchanged, ExchangePlan, exchange
from lagreach.gradients.lag_contrasts import LagContrasts, lag_contrasts
from lagreach.gradients.measurement_plan import MeasurementPlan
from lagreach.gradients.partial_inputs import Neighbours
from lagreach.study.executors import Executor, counting
from lagreach.study.executors.ranks import RanksExecutor
from lagreach.whole_model.choice import choose_lags
from lagreach.whole_model.measurement_plan import WholeModelPlan
from lagreach.whole_model.running import at_rest
from lagreach.whole_model.spread import Spread, Work

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
def _plans(build: Build, options: tuple[tuple[str, Any], ...], settings: MeasureSettings) -> list[MeasurementPlan]:
    """Build model and data once in each worker."""
    model, data = build()
    chosen = dict(options)
    lags_of, inputs, only = (chosen.pop(name, None) for name in ("lags_of", "inputs", "only"))
    sample = telling_sample(as_sequences(data))
    call, _ = from_fresh_state(model, sample, None)
    choice = choose_lags(model, sample, lags_of=lags_of or "auto", inputs=inputs, call=call, only=only, of_layers=True)
    return diagnosis_plans(model, data, settings=settings, call=call, views=choice.views, **chosen)


@one_thread()
def measure_first(shard: Shard) -> FirstPass:
    """First pass on a shard."""
    plan = _plans(shard.build, shard.options, shard.settings)[shard.layer]
    return first_pass(plan, shard.statistics, shard.blocks)


@one_thread()
def measure_second(item: tuple[Shard, BetweenPasses]) -> SecondPass:
    """Second pass on a shard, along the directions of the merged first pass."""
    shard, between = item
    plan = _plans(shard.build, shard.options, shard.settings)[shard.layer]
    return second_pass(plan, between, shard.statistics, shard.settings, shard.blocks)


@one_thread()
def measure_contrasts(item: tuple[Shard, tuple[int, ...], Neighbours | None]) -> LagContrasts:
    """Contrasts of single lags on a shard."""
    shard, lags, neighbours = item
    plan = _plans(shard.build, shard.options, shard.settings)[shard.layer]
    return lag_contrasts(plan, lags, neighbours, shard.blocks)


@one_thread()
def measure_exchange(item: tuple[Shard, ExchangePlan]) -> Exchanged:
    """Exchange of single inputs on a shard."""
    shard, exchange_plan = item
    return exchange(_plans(shard.build, shard.options, shard.settings)[shard.layer], exchange_plan, shard.blocks)


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

    def exchange(self, exchange_plan: ExchangePlan) -> Exchanged:
        """Exchange single inputs over all blocks."""
        tick = counting(self.progress, "lags", len(self.shards))
        items = [(shard, exchange_plan) for shard in self.shards]
        return Exchanged.merge(self.executor.map(measure_exchange, items, on_result=tick))


@dataclass(frozen=True)
class ModelShard:
    """Some blocks of a whole model's sequences, and what is measured of them."""

    build: Build
    options: tuple[tuple[str, Any], ...]
    settings: MeasureSettings
    blocks: tuple[int, ...]
    work: Work


@lru_cache(maxsize=1)
def _model_plan(build: Build, options: tuple[tuple[str, Any], ...], settings: MeasureSettings) -> WholeModelPlan:
    """Build model and data once in each worker, and fix what is measured as `diagnose` does."""
    model, data = build()
    chosen = {name: value for name, value in options if name != "params"}  # which only recurrent layers have
    return model_plan(model, data, settings=settings, **chosen)


@threads_of_user()
def measure_model_part(shard: ModelShard) -> Any:
    """One pass on some blocks of a whole model's sequences."""
    plan = _model_plan(shard.build, shard.options, shard.settings)
    with at_rest(plan.model.module):
        return shard.work(plan, shard.blocks)


@dataclass(frozen=True)
class _OnShards(Spread):
    """Passes over a whole model's sequences, spread over an executor's workers."""

    sharded: Sharded
    settings: MeasureSettings

    def parts(self, plan: WholeModelPlan, work: Work, progress: Progress | None) -> Iterator[Any]:
        """Results of the work, shard after shard."""
        way = self.sharded
        shards = [
            ModelShard(way.build, way.options, self.settings, tuple(blocks), work)
            for blocks in way.cut(plan.block_plan.count)
        ]
        yield from way.executor.map(measure_model_part, shards, on_result=counting(progress, work.stage, len(shards)))


@dataclass
class Sharded:
    """What `diagnose` hands its passes to: every shard of the blocks is a piece of work for an executor."""

    build: Build
    options: tuple[tuple[str, Any], ...]
    executor: Executor
    shards: int | None = None
    layer: int = -1

    def cut(self, blocks: int) -> list[list[int]]:
        """Cut the blocks into shards."""
        count = min(blocks, self.shards or 4 * self.executor.workers)
        return [part.tolist() for part in np.array_split(np.arange(blocks), count)]

    def spread(self, settings: MeasureSettings) -> Spread:
        """The way for lags of a whole model."""
        return _OnShards(self, settings)

    def __call__(
        self, plan: MeasurementPlan, chosen: MeasureSettings, progress: Progress | None, statistics: Statistics
    ) -> MeasuredWindow:
        """Measure the window of the next recurrence."""
        self.layer += 1
        parts = [
            Shard(self.build, self.options, self.layer, tuple(blocks), chosen, statistics)
            for blocks in self.cut(plan.block_plan.count)
        ]
        tick = counting(progress, "directions", len(parts))
        first = FirstPass.merge(self.executor.map(measure_first, parts, on_result=tick))
        look = _LookOnShards(parts, self.executor, progress)
        between = between_passes(plan, first.means, chosen, first.inputs, look)
        tick = counting(progress, "noise", len(parts))
        second = SecondPass.merge(self.executor.map(measure_second, [(p, between) for p in parts], on_result=tick))
        window = assemble(plan, first, between, second, chosen, statistics)
        return MeasuredWindow(
            window, second.noise.sample, False, first.collected | second.collected, plan.block_plan.sequences
        )


def diagnose_sharded(
    build: Build,
    executor: Executor,
    *,
    shards: int | None = None,
    settings: MeasureSettings | None = None,
    **options: Any,
) -> Diagnosis:
    """Diagnose with the passes over the data spread over an executor's workers.

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
    shared = ("loss", "lags", "params", "require", "steps", "outputs", "lags_of", "inputs", "only")
    frozen = tuple(sorted((name, _frozen(options[name])) for name in shared if name in options))
    return diagnose(model, data, settings=settings, measure=Sharded(build, frozen, executor, shards), **options)


def diagnose_on_ranks(
    model: nn.Module, data: Any, *, settings: MeasureSettings | None = None, **options: Any
) -> Diagnosis:
    """Diagnose with every rank of `torchrun` doing its share of the sequences; call it on all of them.

    Each rank is given the same model (wrapped in `DistributedDataParallel` or not) and all of the data; each returns the
    answer that one process gives. Ranks talk through gloo, whatever the training uses.

    Parameters
    ----------
    options
        As for `diagnose_sharded`.

    Examples
    --------
    In a script that runs under ``torchrun --nproc-per-node 8 script.py``::

        torch.distributed.init_process_group()
        diagnosis = diagnose_on_ranks(DistributedDataParallel(model), data, loss="cross_entropy")
        if torch.distributed.get_rank() == 0:
            print(diagnosis)
    """
    executor = RanksExecutor()
    with executor:
        source = as_sequences(data)
        executor.check_same("data", fingerprint(source))
        executor.check_same("weights", _fingerprint_of_weights(model))
        quiet = {} if executor.rank == 0 else {"progress": False}
        return diagnose_sharded(
            lambda: (model, source), executor, shards=executor.workers, settings=settings, **options | quiet
        )


def _fingerprint_of_weights(model: nn.Module) -> str:
    sums = [float(weight.detach().double().sum()) for weight in model.parameters()]
    return hashlib.blake2b(np.array(sums).tobytes(), digest_size=16).hexdigest()


def _frozen(value: Any) -> Any:
    """Lists as tuples, so that a worker knows whether it has built this already."""
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    return tuple(value) if isinstance(value, (list, range)) else value
