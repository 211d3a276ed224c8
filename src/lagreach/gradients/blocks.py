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


def directions(
    subject: Subject, blocks: Iterable[int] | None = None, progress: Callable[[int], None] | None = None
) -> Directions:
    """Measure the block means of the signal gradients for some blocks (all by default)."""
    numbers = list(range(subject.plan.count)) if blocks is None else list(blocks)
    probes = len(subject.probe.group)
    pairings = subject.pairings
    needed = len(numbers) * (pairings + probes) * len(subject.bands) * subject.width * 8
    if needed > LIMIT_BYTES:
        raise TooLargeError(
            "the block gradients would not fit into 1 GiB",
            got=f"{len(numbers)} blocks x {pairings + probes} signals x {len(subject.bands)} lags x {subject.width} weights",
            fix='ask for fewer lags, blocks or probes, or for fewer weights with params="input" or a function',
        )
    data = np.zeros((len(numbers), pairings, len(subject.bands), subject.width))
    probe = np.zeros((len(numbers), probes, len(subject.bands), subject.width))
    spread = np.zeros((len(numbers), len(subject.probe.output), 2))
    size = np.zeros(len(numbers), dtype=int)
    row_of = {number: row for row, number in enumerate(numbers)}
    for piece in subject.pieces(numbers):
        signals, planted = _starts(subject, piece)
        for direction, sums in enumerate(_spreads(subject, piece)):
            np.add.at(spread[:, direction], [row_of[block] for block in piece.block], sums)
        for own, groups in piece.bundles():
            rows = [row_of[block] for block, _ in groups]
            np.add.at(size, rows, [group.stop - group.start for _, group in groups])
            starts = ([start[own] for start in signals], [start[own] for start in planted])
            found = band_gradients(subject, select(piece.part, own), *starts, [group for _, group in groups])
            for band, (in_data, in_probe) in enumerate(found):
                np.add.at(data[:, :, band], rows, subject.scaled(in_data))
                np.add.at(probe[:, :, band], rows, subject.scaled(in_probe))
        if progress is not None:
            progress(len(piece.number))
    data /= size[:, None, None, None]
    probe /= size[:, None, None, None]
    return Directions(np.array(numbers), size, data, probe, spread)


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
