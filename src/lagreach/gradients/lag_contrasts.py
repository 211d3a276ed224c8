"""The swap contrast of single lags: where in a band a dependence lies, and which lags are worth a closer look.

With `neighbours`, the weights' gradients are those of reading the part of the input that its neighbours do not predict.
For a nearly linear network only the lags that the target depends on, given the rest, then have a mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from lagreach.errors import InputError
from lagreach.gradients.contrast import signal_gradient
from lagreach.gradients.partial_inputs import Neighbours
from lagreach.gradients.step_inputs import part_reading
from lagreach.gradients.subject import Subject, select
from lagreach.transport.carry import Carry, Steps, WeightSums
from lagreach.transport.rollout import Rollout


@dataclass(frozen=True)
class LagContrasts:
    """Block means of the contrast of single lags: `data` (block, lag, param)."""

    block: np.ndarray
    lags: tuple[int, ...]
    data: np.ndarray

    @classmethod
    def merge(cls, parts: Iterable[LagContrasts]) -> LagContrasts:
        """Put the blocks of several parts together, in the order of their numbers."""
        listed = list(parts)
        block = np.concatenate([part.block for part in listed])
        if len(set(block.tolist())) != len(block):
            raise InputError("two parts hold the same block", got=sorted(block.tolist()), fix="merge every part once")
        order = np.argsort(block)
        return cls(block[order], listed[0].lags, np.concatenate([part.data for part in listed])[order])

    def at(self, lags: Sequence[int]) -> np.ndarray:
        """The contrasts of some of the lags, (block, lag, param)."""
        return self.data[:, [self.lags.index(lag) for lag in lags]]


def same_neighbours(lags: Sequence[int], neighbours: Neighbours | None) -> Iterator[tuple[int, list[int]]]:
    """Lags whose inputs have equally many neighbours up to the anchor, which are the last that count; and how many."""
    order = 0 if neighbours is None else neighbours.order
    for after in range(order + 1):
        mine = [lag for lag in lags if min(lag, order) == after]
        if mine:
            yield after, mine


def lag_contrasts(
    subject: Subject,
    lags: Sequence[int],
    neighbours: Neighbours | None = None,
    blocks: Iterable[int] | None = None,
    progress: Callable[[int], None] | None = None,
) -> LagContrasts:
    """Measure the block means of the contrast of single lags for some blocks (all by default), by exact transport."""
    numbers = list(range(subject.plan.count)) if blocks is None else list(blocks)
    data = np.zeros((len(numbers), len(lags), subject.width))
    size = np.zeros(len(numbers))
    row_of = {number: row for row, number in enumerate(numbers)}
    place = {lag: column for column, lag in enumerate(lags)}
    for piece in subject.pieces(numbers):
        part = piece.part
        signal = signal_gradient(part.recurrence, piece.objective, piece.swapped, part.states, "dependence")
        reading = None if neighbours is None else part_reading(part, subject.names)
        difference = part.x - part.x[piece.partner]
        for rows, groups in piece.bundles():
            own_blocks = [row_of[block] for block, _ in groups]
            np.add.at(size, own_blocks, [group.stop - group.start for _, group in groups])
            chosen, slices = select(part, rows), [group for _, group in groups]
            for after, mine in same_neighbours(lags, neighbours if reading else None):
                if reading is not None and neighbours is not None:
                    left = neighbours.unpredicted(difference[rows], after) / 2  # a partner has the other half
                    chosen = reading.widened(select(part, rows), left)
                for lag, sums in _by_lag(chosen, subject.names, signal[rows], mine, slices):
                    columns = sums if reading is None else reading.part_columns(sums)
                    np.add.at(data[:, place[lag]], own_blocks, subject.scaled(columns.cpu().numpy()))
        if progress is not None:
            progress(len(piece.number))
    return LagContrasts(np.array(numbers), tuple(lags), data / size[:, None, None])


def _by_lag(
    part: Rollout, names: list[str], signal: Tensor, lags: list[int], groups: list[slice]
) -> Iterator[tuple[int, Tensor]]:
    """Yield each lag with its gradients (group, param)."""
    steps = Steps(part, names, groups)
    carry, sums = Carry(steps, signal), WeightSums(steps)
    for lag in range(lags[-1] + 1):
        carry.step([sums] if lag in lags else [], go_on=lag < lags[-1])
        if lag in lags:
            yield lag, sums.take()[:, 0]
