"""First stage: the mean signal gradient of every lag in every block of sequences.

Blocks are disjoint, so products of two different blocks' means estimate squared norms without bias, and flipping
their signs gives the null distribution. A block is a unit of work: stages run on any share of the blocks, and parts
merge by putting their blocks together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from lagreach._moved import renamed
from lagreach._util.buffers import zeros
from lagreach.errors import InputError, TooLargeError
from lagreach.gradients.band_gradients import band_gradients
from lagreach.gradients.contrast import planted_gradient, signal_gradients, target_spread
from lagreach.gradients.measurement_plan import MeasurementPlan, PairBatch, select
from lagreach.gradients.overflow import check_gradients

LIMIT_BYTES = 2**30
DOUBLE = np.dtype(np.float64)


if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"Directions": "BlockMeans", "directions": "block_means"})


@dataclass(frozen=True)
class BlockMeans:
    """Block means of the signal gradients, float64; the first stage's result.

    `pairings` (block, pairing, band, param) hold the data's signal in every pairing of the sequences, `probe` (block,
    probe, band, param) the planted one's for a planted share of one. `block` numbers the blocks that are present, `size`
    counts their sequences. `sketch` (block, pairing, lag, coordinate) holds the lags inside bands one by one, see `LagSketch`.
    """

    block: np.ndarray
    size: np.ndarray
    pairings: np.ndarray
    probe: np.ndarray
    spread: np.ndarray  # (block, group, 2): sums whose ratio is the variance of the target part
    sketch: np.ndarray | None = None

    @classmethod
    def merge(cls, parts: Iterable[BlockMeans]) -> BlockMeans:
        """Put the blocks of several parts together, in the order of their numbers."""
        all_parts = list(parts)
        block = np.concatenate([p.block for p in all_parts])
        if len(set(block.tolist())) != len(block):
            raise InputError("two parts hold the same block", got=sorted(block.tolist()), fix="merge every part once")
        if len(all_parts) == 1:  # gradients of many weights are large: no copy that nobody needs
            return all_parts[0]
        all_parts.sort(key=lambda part: int(part.block[0]))
        sketched = ("sketch",) if all_parts[0].sketch is not None else ()
        names = ("block", "size", "pairings", "probe", "spread", *sketched)
        joined = {name: np.concatenate([getattr(p, name) for p in all_parts]) for name in names}
        order = np.argsort(joined["block"])
        if (np.diff(order) < 0).any():  # parts that lie within each other
            joined = {name: values[order] for name, values in joined.items()}
        return cls(**joined)

    @cached_property
    def data(self) -> np.ndarray:
        """The data's signal, (block, band, param): the mean over pairings."""
        return self.pairings.mean(1)

    def planted_scale(self, group: tuple[int, ...]) -> np.ndarray:
        """Spread of the targets along the output direction of each probe, (probe,)."""
        sums = self.spread.sum(0)
        return np.sqrt(sums[:, 0] / sums[:, 1])[list(group)]


class BlockSums:
    """Signal gradients of some blocks while they are summed; `result` divides by the numbers of sequences.

    The arrays are the largest of a diagnosis: their memory is that of the one before.
    """

    def __init__(self, plan: MeasurementPlan, numbers: list[int]) -> None:
        probes, pairings = len(plan.probe.group), plan.pairings
        needed = len(numbers) * (pairings + probes) * len(plan.bands) * plan.width * 8
        if needed > LIMIT_BYTES:
            raise TooLargeError(
                "the block gradients would not fit into 1 GiB",
                got=f"{len(numbers)} blocks x {pairings + probes} signals x {len(plan.bands)} lags x {plan.width} weights",
                fix='ask for fewer lags, blocks or probes, or for fewer weights with params="input" or a function',
            )
        self._plan, self._numbers = plan, numbers
        self._data = zeros((len(numbers), pairings, len(plan.bands), plan.width), DOUBLE)
        self._probe = zeros((len(numbers), probes, len(plan.bands), plan.width), DOUBLE)
        self._spread = np.zeros((len(numbers), len(plan.probe.output), 2))
        sketch = plan.sketch
        sketched = None if sketch is None else (len(numbers), pairings, len(sketch.lags), sketch.size)
        self._sketch = None if sketched is None else zeros(sketched, DOUBLE)
        self._size = np.zeros(len(numbers), dtype=int)
        self._row_of = {number: row for row, number in enumerate(numbers)}

    def add(self, piece: PairBatch) -> None:
        """Add the gradients of some pairs."""
        plan = self._plan
        signals, planted = _starts(plan, piece)
        for direction, sums in enumerate(_spreads(plan, piece)):
            np.add.at(self._spread[:, direction], [self._row_of[block] for block in piece.block], sums)
        for rows_together, groups in piece.bundles():
            rows = [self._row_of[block] for block, _ in groups]
            np.add.at(self._size, rows, [group.stop - group.start for _, group in groups])
            starts = ([start[rows_together] for start in signals], [start[rows_together] for start in planted])
            part = select(piece.part, rows_together)
            by_band = band_gradients(plan, part, *starts, [group for _, group in groups])
            for band, (in_data, in_probe, inside) in enumerate(by_band):
                for row, of_data, of_probe in zip(rows, plan.scaled(in_data), plan.scaled(in_probe), strict=True):
                    self._data[row, :, band] += of_data
                    self._probe[row, :, band] += of_probe
                if inside is not None:
                    self._add_inside(band, rows, inside)

    def _add_inside(self, band: int, rows: list[int], sketches: np.ndarray) -> None:
        assert self._plan.sketch is not None
        assert self._sketch is not None
        first = self._plan.sketch.lags.index(self._plan.bands.edges[band][0])
        np.add.at(self._sketch[:, :, first : first + sketches.shape[2]], rows, sketches)

    def result(self) -> BlockMeans:
        """Means by block; the sums are used up."""
        self.finish(self._numbers)
        return self.means(self._numbers)

    def finish(self, blocks: Sequence[int]) -> None:
        """Divide the sums of these blocks, which follow each other, once nothing will be added to them."""
        means = self.means(blocks)
        size = means.size[:, None, None, None]
        for sums in (means.pairings, means.probe, *(() if means.sketch is None else (means.sketch,))):
            np.divide(sums, size, out=sums)
        for gradients in (means.pairings, means.probe, means.spread):
            check_gradients(self._plan, "lag gradients", gradients)

    def means(self, blocks: Sequence[int]) -> BlockMeans:
        """Finished blocks, which follow each other; nothing is copied."""
        rows = slice(self._row_of[blocks[0]], self._row_of[blocks[-1]] + 1)
        sketch = None if self._sketch is None else self._sketch[rows]
        of_rows = self._size[rows], self._data[rows], self._probe[rows], self._spread[rows]
        return BlockMeans(np.array(self._numbers[rows]), *of_rows, sketch)


def block_means(
    plan: MeasurementPlan, blocks: Iterable[int] | None = None, progress: Callable[[int], None] | None = None
) -> BlockMeans:
    """Measure the block means of the signal gradients for some blocks (all by default)."""
    numbers = list(range(plan.block_plan.count)) if blocks is None else list(blocks)
    sums = BlockSums(plan, numbers)
    plan.feed([sums], numbers, progress)
    return sums.result()


def _starts(plan: MeasurementPlan, piece: PairBatch) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients at the states: those whose transport is the data's signal, by pairing, and the probes', by output direction."""
    part = piece.part
    others, weights = plan.exchanged(piece)
    signals = signal_gradients(part.recurrence, piece.objective, others, part.states, plan.signal, weights)
    return signals, [planted_gradient(part.recurrence, piece.objective, part.states, d) for d in plan.probe.output]


def _spreads(plan: MeasurementPlan, piece: PairBatch) -> Iterator[np.ndarray]:
    """Two sums per sequence whose ratio is the variance of the target part, for each output direction."""
    part = piece.part
    for direction in plan.probe.output:
        yield target_spread(part.recurrence, piece.objective, piece.swapped, part.states, direction)
