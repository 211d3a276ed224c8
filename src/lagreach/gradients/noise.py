"""Second stage: what each sequence's gradient says along the direction of every lag.

What hides a lag in training is the fluctuation over sequences of the *whole* gradient along that lag's direction
(``noise="gradient"``). The fluctuation of the lag's own term (``noise="lag"``, as the paper's scripts have it) shrinks with
the transport exactly as the signal does, so that N would not depend on the envelope at all.

The direction used for a sequence comes from the other blocks, so that it owes nothing to that sequence.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from lagreach._moved import renamed
from lagreach._util.buffers import empty
from lagreach.errors import InputError
from lagreach.gradients.blocks import BlockMeans
from lagreach.gradients.measurement_plan import MeasurementPlan, PairBatch, band_cotangents
from lagreach.gradients.overflow import check_gradients
from lagreach.gradients.sequence_gradients import (
    SequenceGradients,
    SequenceLinearisation,
    ThroughStates,
    whole_gradients,
)
from lagreach.transport.exact import by_weight
from lagreach.transport.objective import output_gradient, valid_steps
from lagreach.transport.rollout import Rollout
from lagreach.types import DIRECTIONS, NOISES, UNITS

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"statistics": "noise_values"})


SQUARES = (1e-250, 1e250)  # beyond which a vector is scaled first, so that its squares neither underflow nor overflow


@dataclass(frozen=True)
class NoiseValues:
    """One value per sequence and lag: the gradient along the lag's direction.

    `number` and `block` (seq,), `data` (seq, band), `probe` (seq, probe, band). `step_sums` (block, 1 + probe, band, 3) hold
    count, sum and sum of squares of the same values step by step, where they were measured (NaN elsewhere).
    """

    number: np.ndarray
    block: np.ndarray
    data: np.ndarray
    probe: np.ndarray
    step_block: np.ndarray
    step_sums: np.ndarray

    @classmethod
    def merge(cls, parts: Iterable[NoiseValues]) -> NoiseValues:
        """Put parts together; the order of sequences and blocks is by their numbers."""
        all_parts = list(parts)
        number = np.concatenate([p.number for p in all_parts])
        if len(set(number.tolist())) != len(number):
            raise InputError(
                "two parts hold the same sequences", got=f"{len(number)} values", fix="merge every part once"
            )
        order = np.argsort(number)
        steps = np.concatenate([p.step_block for p in all_parts])
        by_block = np.argsort(steps)
        return cls(
            number=number[order],
            block=np.concatenate([p.block for p in all_parts])[order],
            data=np.concatenate([p.data for p in all_parts])[order],
            probe=np.concatenate([p.probe for p in all_parts])[order],
            step_block=steps[by_block],
            step_sums=np.concatenate([p.step_sums for p in all_parts])[by_block],
        )

    @classmethod
    def unmeasured(cls, blocks: int, probes: int, bands: int) -> NoiseValues:
        """Stand in for values that were not measured, with nothing for every block."""
        numbers, data = np.arange(blocks), np.zeros((blocks, 1 + probes, bands))
        return cls(numbers, numbers, data[:, 0], data[:, 1:], numbers[:0], np.empty((0, 1 + probes, bands, 3)))

    @property
    def measured(self) -> bool:
        """Whether these are values of sequences at all."""
        return len(self.step_block) > 0

    @property
    def sample(self) -> np.ndarray:
        """Values at the middle band, for the first probe: one sample of the noise, to fit tails to and to draw."""
        return self.probe[: len(self.probe) if self.measured else 0, 0, self.probe.shape[2] // 2]

    def step_spread(self) -> np.ndarray:
        """Standard deviation of the step-by-step values, (1 + probe, band); NaN where they were not measured."""
        count, total, squares = np.moveaxis(self.step_sums.sum(0), -1, 0)
        with np.errstate(invalid="ignore"):
            return np.sqrt(squares / count - np.square(total / count))


def unit_directions(
    means: BlockMeans,
    group: tuple[int, ...],
    kind: str,
    generator: np.random.Generator,
    data: np.ndarray | None = None,
) -> np.ndarray:
    """Direction of each signal for each block, from the other blocks: (block, 1 + probe, band, param), of length one.

    `data` (block, band, param) is the data's signal, if it is not the swap contrast.
    """
    if kind not in DIRECTIONS:
        raise InputError("unknown direction", got=repr(kind), expected=" or ".join(DIRECTIONS))
    shape = (len(means.block), 1 + means.probe.shape[1], *means.data.shape[1:])
    if kind == "random":
        return np.broadcast_to(_normalised(generator.normal(size=shape[1:])), shape)
    others = empty(shape, np.dtype(np.float64))  # one of the largest arrays of a diagnosis
    scale = means.size[:, None] * np.concatenate(([1.0], means.planted_scale(group)))  # (block, signal)
    signals = [means.data if data is None else data, *np.moveaxis(means.probe, 1, 0)]
    for (signal, values), band in itertools.product(enumerate(signals), range(shape[2])):  # what fits into a cache
        sums = values[:, band] * scale[:, signal, None]
        _normalised(np.subtract(sums.sum(0), sums, out=others[:, signal, band]))
    return others


def _normalised(vectors: np.ndarray) -> np.ndarray:
    """Bring the vectors along the last axis to length one, in place; zeros stay zeros."""
    square = np.einsum("...p,...p->...", vectors, vectors)
    extreme = ~((square > SQUARES[0]) & (square < SQUARES[1]))
    if extreme.any():
        some = vectors[extreme]
        largest = np.abs(some).max(-1, keepdims=True)
        vectors[extreme] = some / np.where(largest > 0, largest, 1.0)
        square[extreme] = np.square(vectors[extreme]).sum(-1)
    vectors /= np.sqrt(np.where(square > 0, square, 1.0))[..., None]
    return vectors


class NoiseSums:
    """Values of the sequences seen so far along the directions of their blocks."""

    def __init__(
        self, plan: MeasurementPlan, directions: np.ndarray, numbers: list[int], noise: str, unit: str
    ) -> None:
        if noise not in NOISES:
            raise InputError("unknown noise", got=repr(noise), expected=" or ".join(NOISES))
        if unit not in UNITS:
            raise InputError("unknown unit", got=repr(unit), expected=" or ".join(UNITS))
        self._plan, self._directions, self._numbers = plan, directions, numbers
        self._noise, self._by_step = noise, unit == "step"
        signals, bands = directions.shape[1:3]
        self._measured = range(bands) if self._by_step else sorted({0, bands // 2, bands - 1})
        self._step_sums = np.full((len(numbers), signals, bands, 3), np.nan)
        self._row_of = {number: row for row, number in enumerate(numbers)}
        self._index: list[np.ndarray] = []
        self._block: list[np.ndarray] = []
        self._values: list[np.ndarray] = []

    def add(self, piece: PairBatch) -> None:
        """Measure the sequences of some pairs."""
        plan, part, along = self._plan, piece.part, self._directions
        rows = np.array([self._row_of[number] for number in piece.block])
        add_steps = partial(_add_steps, plan, part, plan.scaled(along[0]), rows, self._step_sums)
        if self._noise == "gradient":
            gradients = whole_gradients(part, piece.objective, plan.names)
            self._values.append(_along(plan.scaled(gradients.by_sequence()), along, piece.block))
            add_steps(gradients, self._measured, probes=self._by_step)
        else:
            linearisation = SequenceLinearisation(part, plan.names)
            delta = output_gradient(part.recurrence, piece.objective, part.states)[0]
            by_band = []
            for band, ([arrived], _) in enumerate(band_cotangents(plan, part, [delta])):
                gradients = ThroughStates(linearisation, arrived)
                by_band.append(_along(plan.scaled(gradients.by_sequence()), along[:, :, [band]], piece.block))
                if band in self._measured:
                    add_steps(gradients, [band], probes=self._by_step)
            self._values.append(np.concatenate(by_band, axis=2))
        self._index.append(piece.number)
        self._block.append(piece.block)

    def result(self) -> NoiseValues:
        """Return the values, sequences in the order of their numbers."""
        joined, number = np.concatenate(self._values), np.concatenate(self._index)
        check_gradients(self._plan, "gradients", joined)
        block, numbers = np.concatenate(self._block), np.array(self._numbers)
        return NoiseValues.merge([NoiseValues(number, block, joined[:, 0], joined[:, 1:], numbers, self._step_sums)])


def noise_values(
    plan: MeasurementPlan,
    directions: np.ndarray,
    *,
    noise: str = "gradient",
    unit: str = "sequence",
    blocks: Iterable[int] | None = None,
    progress: Callable[[int], None] | None = None,
) -> NoiseValues:
    """Measure the values of the sequences in some blocks (all by default).

    `directions` comes from `unit_directions` on the merged first stage and holds every block.
    """
    numbers = list(range(plan.block_plan.count)) if blocks is None else list(blocks)
    sums = NoiseSums(plan, directions, numbers, noise, unit)
    plan.feed([sums], numbers, progress)
    return sums.result()


def _along(rows: np.ndarray, directions: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Inner products of gradients (seq, param) with the directions of their own block, (seq, signal, band)."""
    products = np.empty((len(rows), *directions.shape[1:3]))
    for number in np.unique(block):
        mine = block == number
        along = directions[number].reshape(-1, rows.shape[1])
        products[mine] = (rows[mine] @ along.T).reshape(-1, *directions.shape[1:3])
    return products


def _add_steps(
    plan: MeasurementPlan,
    part: Rollout,
    directions: np.ndarray,
    rows: np.ndarray,
    sums: np.ndarray,
    gradients: SequenceGradients,
    bands: Iterable[int],
    *,
    probes: bool,
) -> None:
    """Add count, sum and squares of the values by step; a sequence's value is the mean of its steps' values.

    The `gradients` are those of all of these bands. One direction (that of the first block) serves all sequences here: only a
    spread is wanted.
    """
    time = part.x.shape[1]
    inside = valid_steps(part.lengths, len(part.x), time, part.x.device)
    for signal in range(len(directions)) if probes else [0]:
        for band in bands:
            direction = by_weight(part.recurrence.params, plan.names, torch.tensor(directions[signal, band]))
            values = gradients.by_step(direction)
            counted = inside[:, time - values.shape[1] :]  # positions that an anchor within the length reaches
            count = counted.sum(1, keepdim=True)
            steps = count * values * counted
            new = torch.cat((count, steps.sum(1, keepdim=True), steps.square().sum(1, keepdim=True)), 1).cpu().numpy()
            place = sums[:, signal, band]
            place[np.unique(rows)] = np.nan_to_num(place[np.unique(rows)])
            np.add.at(place, rows, new)
