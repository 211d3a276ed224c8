"""First stage: the mean signal gradient of every lag in every block of sequences.

Blocks are disjoint, so products of two different blocks' means estimate squared norms without bias, and flipping
their signs gives the null distribution. A block is a unit of work: stages run on any share of the blocks, and parts
merge by putting their blocks together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from lagreach.errors import InputError, TooLargeError
from lagreach.gradients.band_gradients import band_gradients
from lagreach.gradients.contrast import planted_gradient, signal_gradient, target_spread
from lagreach.gradients.overflow import check_gradients
from lagreach.gradients.subject import Piece, Subject, select

LIMIT_BYTES = 2**30


@dataclass(frozen=True)
class Directions:
    """Block means of the signal gradients, float64; the first stage's result.

    `pairings` (block, pairing, band, param) hold the data's signal in every pairing of the sequences, `probe` (block,
    probe, band, param) the planted one's for a planted share of one. `block` numbers the blocks that are present, `size`
    counts their sequences.
    """

    block: np.ndarray
    size: np.ndarray
    pairings: np.ndarray
    probe: np.ndarray
    spread: np.ndarray  # (block, group, 2): sums whose ratio is the variance of the target part

    @classmethod
    def merge(cls, parts: Iterable[Directions]) -> Directions:
        """Put the blocks of several parts together, in the order of their numbers."""
        found = list(parts)
        block = np.concatenate([p.block for p in found])
        if len(set(block.tolist())) != len(block):
            raise InputError("two parts hold the same block", got=sorted(block.tolist()), fix="merge every part once")
        order = np.argsort(block)
        names = ("size", "pairings", "probe", "spread")
        joined = {name: np.concatenate([getattr(p, name) for p in found])[order] for name in names}
        return cls(block=block[order], **joined)

    @cached_property
    def data(self) -> np.ndarray:
        """The data's signal, (block, band, param): the mean over pairings."""
        return self.pairings.mean(1)

    def planted(self, group: tuple[int, ...]) -> np.ndarray:
        """Probe gradients scaled to the spread of the targets, (block, probe, band, param)."""
        return self.probe * self.planted_scale(group)[None, :, None, None]

    def planted_scale(self, group: tuple[int, ...]) -> np.ndarray:
        """Spread of the targets along the output direction of each probe, (probe,)."""
        sums = self.spread.sum(0)
        return np.sqrt(sums[:, 0] / sums[:, 1])[list(group)]


class BlockSums:
    """Signal gradients of some blocks while they are summed; `result` divides by the numbers of sequences."""

    def __init__(self, subject: Subject, numbers: list[int]) -> None:
        probes, pairings = len(subject.probe.group), subject.pairings
        needed = len(numbers) * (pairings + probes) * len(subject.bands) * subject.width * 8
        if needed > LIMIT_BYTES:
            raise TooLargeError(
                "the block gradients would not fit into 1 GiB",
                got=f"{len(numbers)} blocks x {pairings + probes} signals x {len(subject.bands)} lags x {subject.width} weights",
                fix='ask for fewer lags, blocks or probes, or for fewer weights with params="input" or a function',
            )
        self._subject, self._numbers = subject, numbers
        self._data = np.zeros((len(numbers), pairings, len(subject.bands), subject.width))
        self._probe = np.zeros((len(numbers), probes, len(subject.bands), subject.width))
        self._spread = np.zeros((len(numbers), len(subject.probe.output), 2))
        self._size = np.zeros(len(numbers), dtype=int)
        self._row_of = {number: row for row, number in enumerate(numbers)}

    def add(self, piece: Piece) -> None:
        """Add the gradients of some pairs."""
        subject = self._subject
        signals, planted = _starts(subject, piece)
        for direction, sums in enumerate(_spreads(subject, piece)):
            np.add.at(self._spread[:, direction], [self._row_of[block] for block in piece.block], sums)
        for rows_together, groups in piece.bundles():
            rows = [self._row_of[block] for block, _ in groups]
            np.add.at(self._size, rows, [group.stop - group.start for _, group in groups])
            starts = ([start[rows_together] for start in signals], [start[rows_together] for start in planted])
            part = select(piece.part, rows_together)
            by_band = band_gradients(subject, part, *starts, [group for _, group in groups])
            for band, (in_data, in_probe) in enumerate(by_band):
                np.add.at(self._data[:, :, band], rows, subject.scaled(in_data))
                np.add.at(self._probe[:, :, band], rows, subject.scaled(in_probe))

    def result(self) -> Directions:
        """Means by block."""
        size = self._size[:, None, None, None]
        data, probe = self._data / size, self._probe / size
        for gradients in (data, probe, self._spread):
            check_gradients(self._subject, "lag gradients", gradients)
        return Directions(np.array(self._numbers), self._size, data, probe, self._spread)


def directions(
    subject: Subject, blocks: Iterable[int] | None = None, progress: Callable[[int], None] | None = None
) -> Directions:
    """Measure the block means of the signal gradients for some blocks (all by default)."""
    numbers = list(range(subject.plan.count)) if blocks is None else list(blocks)
    sums = BlockSums(subject, numbers)
    subject.feed([sums], numbers, progress)
    return sums.result()


def _starts(subject: Subject, piece: Piece) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients at the states: those whose transport is the data's signal, by pairing, and the probes', by output direction."""
    part = piece.part
    others, weights = subject.exchanged(piece)
    signals = [
        signal_gradient(part.recurrence, piece.objective, other, part.states, subject.signal, weights)
        for other in others
    ]
    return signals, [planted_gradient(part.recurrence, piece.objective, part.states, d) for d in subject.probe.output]


def _spreads(subject: Subject, piece: Piece) -> Iterator[np.ndarray]:
    """Two sums per sequence whose ratio is the variance of the target part, for each output direction."""
    part = piece.part
    for direction in subject.probe.output:
        yield target_spread(part.recurrence, piece.objective, piece.swapped, part.states, direction)
