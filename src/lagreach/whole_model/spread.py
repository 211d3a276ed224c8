"""Who does the work on which blocks of sequences: this process, group after group, or many of them at once.

Every pass over the data is a piece of work on some blocks whose results merge. Here an interrupt keeps the groups of blocks
that are finished; `lagreach.study.shards` spreads the same pieces over processes, machines, or the ranks of `torchrun`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np

from lagreach._util.interrupts import as_it_stands
from lagreach._util.progress import Progress, Tick, ticks
from lagreach.whole_model.measurement_plan import WholeModelPlan

FEWEST = 8  # blocks that an interrupt must leave for an answer


@runtime_checkable
class Work(Protocol):
    """Something that is measured on some blocks; small enough to be sent anywhere."""

    @property
    def stage(self) -> str:
        """Its name for progress."""
        ...

    def __call__(self, plan: WholeModelPlan, blocks: tuple[int, ...], tick: Tick = None) -> Any:
        """Measure some blocks."""
        ...


class Spread(ABC):
    """Has work done on all blocks of a plan."""

    @abstractmethod
    def parts(self, plan: WholeModelPlan, work: Work, progress: Progress | None) -> Iterator[Any]:
        """Results of the work, blocks in their order; those of the first blocks alone if it was interrupted."""


class Here(Spread):
    """Group after group of blocks in this process. Groups are as small as still fills the memory there is."""

    def parts(self, plan: WholeModelPlan, work: Work, progress: Progress | None = None) -> Iterator[Any]:
        """Results of the work; an interrupt before eight blocks are done goes through."""
        tick = ticks(progress, work.stage, plan.block_plan.sequences)
        return until_interrupted(groups(plan), lambda blocks: work(plan, blocks, tick))


def until_interrupted(made_of: Iterable[tuple[int, ...]], make: Callable[[tuple[int, ...]], Any]) -> Iterator[Any]:
    """Make the parts of groups of blocks; an interrupt ends it, or goes through while too few blocks are done."""
    done = 0
    for blocks in made_of:
        put_back = as_it_stands()
        try:
            part = make(blocks)
        except KeyboardInterrupt:
            put_back()
            if done < FEWEST:
                raise
            return
        yield part
        done += len(blocks)


def groups(plan: WholeModelPlan) -> list[tuple[int, ...]]:
    """Blocks that are measured together: first as many as an answer needs, then as few as fill the memory there is."""
    pairs = np.bincount(plan.block_plan.blocks, minlength=plan.block_plan.count)
    together, made = plan.pairs_together, [[0]]
    for block in range(1, plan.block_plan.count):
        if block >= FEWEST and pairs[made[-1]].sum() >= together:
            made.append([])
        made[-1].append(block)
    return [tuple(blocks) for blocks in made]
