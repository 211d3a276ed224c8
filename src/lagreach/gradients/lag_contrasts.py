"""The swap contrast of single lags: where in a band a dependence lies, and which lags are worth a closer look.

With `neighbours`, the weights' gradients are those of reading the part of the input that its neighbours do not predict.
For a nearly linear network only the lags that the target depends on, given the rest, then have a mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lagreach.errors import InputError
from lagreach.gradients.contrast import signal_gradients
from lagreach.gradients.measurement_plan import MeasurementPlan, PairBatch, select
from lagreach.gradients.partial_inputs import Neighbours
from lagreach.gradients.step_inputs import part_reading
from lagreach.transport.carry import Carry, Steps, WeightSums
from lagreach.transport.exact import walk_back
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


class ContrastSums:
    """Contrasts of some blocks while they are summed; `result` divides by the numbers of sequences."""

    def __init__(
        self, plan: MeasurementPlan, lags: Sequence[int], neighbours: Neighbours | None, numbers: list[int]
    ) -> None:
        self._plan, self._lags, self._neighbours, self._numbers = plan, list(lags), neighbours, numbers
        self._data = np.zeros((len(numbers), len(self._lags), plan.width))
        self._size = np.zeros(len(numbers))
        self._row_of = {number: row for row, number in enumerate(numbers)}

    def add(self, piece: PairBatch) -> None:
        """Carry the signals of some pairs back, exactly."""
        part, names, neighbours = piece.part, self._plan.names, self._neighbours
        np.add.at(self._size, [self._row_of[number] for number in piece.block], 1)
        reading = None if neighbours is None else part_reading(part, names)
        # what is read is the difference to one partner; else, transport being linear, all pairings go together
        others, weights = ([piece.swapped], None) if reading is not None else self._plan.exchanged(piece)
        signals = signal_gradients(part.recurrence, piece.objective, others, part.states, "dependence", weights)
        signal = torch.stack(signals).mean(0)
        difference = part.x - part.x[piece.partner]
        for rows, groups in piece.bundles():
            slices = [group for _, group in groups]
            for after, lags in same_neighbours(self._lags, neighbours if reading else None):
                chosen = select(part, rows)
                if reading is not None and neighbours is not None:
                    left = neighbours.unpredicted(difference[rows], after) / 2  # the other half is the partner's
                    chosen = reading.widened(chosen, left)
                for lag, sums in _by_lag(chosen, names, signal[rows], lags, slices):
                    columns = sums if reading is None else reading.part_columns(sums)
                    self._add(lag, [block for block, _ in groups], columns.cpu().numpy())

    def _add(self, lag: int, blocks: list[int], sums: np.ndarray) -> None:
        rows = [self._row_of[block] for block in blocks]
        np.add.at(self._data[:, self._lags.index(lag)], rows, self._plan.scaled(sums))

    def result(self) -> LagContrasts:
        """Means by block."""
        return LagContrasts(np.array(self._numbers), tuple(self._lags), self._data / self._size[:, None, None])


def lag_contrasts(
    plan: MeasurementPlan,
    lags: Sequence[int],
    neighbours: Neighbours | None = None,
    blocks: Iterable[int] | None = None,
    tick: Callable[[int], None] | None = None,
) -> LagContrasts:
    """Measure the block means of the contrast of single lags for some blocks (all by default)."""
    numbers = list(range(plan.block_plan.count)) if blocks is None else list(blocks)
    sums = ContrastSums(plan, lags, neighbours, numbers)
    plan.feed([sums], numbers, tick)
    return sums.result()


def _by_lag(
    part: Rollout, names: list[str], signal: Tensor, lags: list[int], groups: list[slice]
) -> Iterator[tuple[int, Tensor]]:
    """Yield each lag with its gradients (group, param)."""
    steps = Steps(part, names, groups)
    sums = WeightSums(steps)
    for lag, _ in walk_back([Carry(steps, signal)], lags[-1], lambda lag, _: [sums] if lag in lags else []):
        if lag in lags:
            yield lag, sums.take()[:, 0]
