"""First stage: the mean signal gradient of every lag in every block of sequences.

Blocks are disjoint, so products of two different blocks' means estimate squared norms without bias, and flipping
their signs gives the null distribution. A block is a unit of work: stages run on any share of the blocks, and parts
merge by putting their blocks together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from lagreach.errors import InputError, TooLargeError
from lagreach.gradients.contrast import planted_gradient, signal_gradient, target_spread
from lagreach.gradients.sequence_gradients import SequenceLinearisation
from lagreach.gradients.task import Piece, Task, band_cotangents
from lagreach.transport.objective import Objective

LIMIT_BYTES = 2**30


@dataclass(frozen=True)
class Directions:
    """Block means of the signal gradients, float64; the first stage's result.

    `data` (block, band, param) and `probe` (block, probe, band, param); the probe's is for a planted share of one. `block`
    numbers the blocks that are present, `size` counts their sequences.
    """

    block: np.ndarray
    size: np.ndarray
    data: np.ndarray
    probe: np.ndarray
    spread: np.ndarray  # (block, group, 2): sums whose ratio is the variance of the target part

    @classmethod
    def merge(cls, parts: Iterable[Directions]) -> Directions:
        """Put the blocks of several parts together, in the order of their numbers."""
        found = list(parts)
        block = np.concatenate([p.block for p in found])
        if len(set(block.tolist())) != len(block):
            raise InputError("two parts hold the same block", got=sorted(block.tolist()))
        order = np.argsort(block)
        joined = {f: np.concatenate([getattr(p, f) for p in found])[order] for f in ("size", "data", "probe", "spread")}
        return cls(block=block[order], **joined)

    def planted(self, group: tuple[int, ...]) -> np.ndarray:
        """Probe gradients scaled to the spread of the targets, (block, probe, band, param)."""
        sums = self.spread.sum(0)
        scale = np.sqrt(sums[:, 0] / sums[:, 1])
        return self.probe * scale[list(group)][None, :, None, None]


def directions(
    task: Task, blocks: Iterable[int] | None = None, progress: Callable[[int], None] | None = None
) -> Directions:
    """Measure the block means of the signal gradients for some blocks (all by default)."""
    numbers = list(range(task.plan.count)) if blocks is None else list(blocks)
    probes = len(task.probe.group)
    needed = len(numbers) * (1 + probes) * len(task.bands) * task.width * 8
    if needed > LIMIT_BYTES:
        raise TooLargeError(
            "the block gradients would not fit into 1 GiB",
            got=f"{len(numbers)} blocks x {1 + probes} signals x {len(task.bands)} lags x {task.width} weights",
            fix='ask for fewer lags, blocks or probes, or for fewer weights with params="input" or a function',
        )
    data = np.zeros((len(numbers), len(task.bands), task.width))
    probe = np.zeros((len(numbers), probes, len(task.bands), task.width))
    spread = np.zeros((len(numbers), len(task.probe.output), 2))
    size = np.zeros(len(numbers), dtype=int)
    row_of = {number: row for row, number in enumerate(numbers)}
    for piece in task.pieces(numbers):
        rows = np.array([row_of[block] for block in piece.block])
        np.add.at(size, rows, 1)
        part, swapped = piece.part, piece.swapped
        weights = SequenceLinearisation(part, task.names)
        delta = signal_gradient(part.recurrence, piece.objective, swapped, part.states, task.signal)
        for band, carried in enumerate(band_cotangents(task, part, delta)):
            np.add.at(data[:, band], rows, weights.pull(carried))
        _add_probes(task, piece, weights, swapped, rows, probe, spread)
        if progress is not None:
            progress(len(piece.number))
    scale = size[:, None, None]
    return Directions(np.array(numbers), size, data / scale, probe / scale[..., None], spread)


def _add_probes(
    task: Task,
    piece: Piece,
    weights: SequenceLinearisation,
    swapped: Objective,
    rows: np.ndarray,
    probe: np.ndarray,
    spread: np.ndarray,
) -> None:
    """Plant at the far edge of each band: the input at the position reached weights what arrives there."""
    part = piece.part
    inputs = task.probe.planted(part.x.double())
    for group, direction in enumerate(task.probe.output):
        np.add.at(
            spread[:, group], rows, target_spread(part.recurrence, piece.objective, swapped, part.states, direction)
        )
        delta = planted_gradient(part.recurrence, piece.objective, part.states, direction)
        for band, cotangent in enumerate(task.carry(part, delta, task.bands.lags)):
            carried = cotangent.double()
            for p in (i for i, g in enumerate(task.probe.group) if g == group):
                weighted = carried * inputs[p, :, : carried.shape[1], None]
                np.add.at(probe[:, p, band], rows, weights.pull(weighted))
