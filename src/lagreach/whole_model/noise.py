"""Last pass: what each sequence's whole gradient of the input weights says along the direction of every lag.

The whole gradient, over all outputs, is what hides a lag in training; a few anchors would be noisier than training is. The
direction used for a sequence comes from the other blocks, so that it owes nothing to that sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lagreach._util.interrupts import as_it_stands
from lagreach._util.progress import Progress, Tick
from lagreach.gradients.noise import NoiseValues
from lagreach.whole_model.factors import Products, summed_by_block
from lagreach.whole_model.measurement_plan import WholeModelPlan
from lagreach.whole_model.outputs import cotangents
from lagreach.whole_model.spread import Here, Spread

TABLE_BYTES = 2**30  # of directions that are held at once; beyond that they come from some of the sequences
PRODUCT_BYTES = 2**28  # of rows of the tables that are looked up at once


class LagDirections:
    """Mean gradient of every signal and band, without the block that is being looked at.

    Held as tables (row, signal, width), a row for each input, or for each token that was met at that band. With a `weighting`
    (input or token, width), directions and gradients are those of weights whose gradients are multiplied by it.
    """

    def __init__(
        self,
        bands: Sequence[Sequence[Products]],
        device: torch.device,
        dtype: torch.dtype,
        weighting: Tensor | None = None,
    ) -> None:
        self._parts = bands
        self._rows = [_rows_of(signals) for signals in self._parts]
        self._rows = [None if rows is None else rows.to(device) for rows in self._rows]
        signals, width = len(bands[0]), self._parts[0][0].arrived.shape[1]
        self._tables = [
            torch.zeros(self._height(band), signals, width, device=device, dtype=dtype) for band in range(len(bands))
        ]
        self._weighting = [self._weights_of(band, weighting, device, dtype) for band in range(len(bands))]
        self._norms: list[Tensor] = []
        self._without: int | None = None
        for band, parts in enumerate(self._parts):
            self._add(band, parts, 1.0)

    def along(self, block: int, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Components (seq, time, signal, band) of what reaches each step, along directions of length one."""
        if self._without != block:
            self._leave_out(block)
        return torch.stack([self._component(band, inputs, gradients) for band in range(len(self._tables))], dim=-1)

    def _leave_out(self, block: int) -> None:
        for band, parts in enumerate(self._parts):
            if self._without is not None:
                self._add(band, [one.select(one.block == self._without) for one in parts], 1.0)
            self._add(band, [one.select(one.block == block) for one in parts], -1.0)
        self._without = block
        norms = [
            (table if weights is None else table * weights).square().sum((0, 2)).sqrt()
            for table, weights in zip(self._tables, self._weighting, strict=True)
        ]
        self._norms = [torch.where(norm > 0, norm, 1.0) for norm in norms]

    def _component(self, band: int, inputs: Tensor, gradients: Tensor) -> Tensor:
        table, rows, weights = self._tables[band], self._rows[band], self._weighting[band]
        if weights is not None:  # once for the direction, once for the gradient
            table = table * weights.square()
        if rows is None:
            turned = torch.einsum("nti,isw->ntsw", inputs.to(table), table)
        else:
            place = torch.searchsorted(rows, inputs)
            turned = table[torch.where(rows[place.clamp(max=len(rows) - 1)] == inputs, place, len(rows))]
        return torch.einsum("ntsw,ntw->nts", turned, gradients.to(table)) / self._norms[band]

    def _weights_of(
        self, band: int, weighting: Tensor | None, device: torch.device, dtype: torch.dtype
    ) -> Tensor | None:
        """What the rows of a band's table are multiplied by, (row, 1, width)."""
        if weighting is None:
            return None
        rows = self._rows[band]
        if rows is not None:  # the last row stands for tokens that were not met
            weighting = torch.cat((weighting[rows.cpu()], torch.zeros_like(weighting[:1])))
        return weighting[:, None].to(device, dtype)

    def _height(self, band: int) -> int:
        """Rows of a table; a last row of zeros stands for tokens that were not met."""
        rows = self._rows[band]
        return self._parts[band][0].read.shape[1] if rows is None else len(rows) + 1

    def _add(self, band: int, parts: Sequence[Products], sign: float) -> None:
        """Add outer products to a table, or take them away."""
        table, rows = self._tables[band], self._rows[band]
        for signal, one in enumerate(parts):
            arrived, read = sign * one.arrived.to(table), one.read.to(table.device)
            if rows is None:
                table[:, signal] += read.to(table).T @ arrived
            else:
                table[:, signal].index_add_(0, torch.searchsorted(rows, read), arrived)


def _rows_of(signals: Sequence[Products]) -> Tensor | None:
    """Tokens that were met, in ascending order; None where inputs are numbers."""
    if not signals[0].tokens:
        return None
    return torch.unique(torch.cat([one.read for one in signals]))


def held_directions(signals: Sequence[Products], limit: int, dtype: torch.dtype) -> list[Products]:
    """The signals of a band in few rows and of size one, so that nothing underflows.

    Of numbers, what a block read is summed up; of tokens, every so many rows are kept if tables of all would be too large.
    """
    if signals[0].tokens:
        width, rows = signals[0].arrived.shape[1], max(len(one.arrived) for one in signals)
        every = max(1, -(-rows * len(signals) * width * dtype.itemsize // limit))
        signals = [one.select(torch.arange(0, len(one.arrived), every)) for one in signals]
    else:
        signals = [summed_by_block(one) for one in signals]
    scales = [max(float(one.arrived.abs().max()), 1e-300) if len(one.arrived) else 1.0 for one in signals]
    return [replace(one, arrived=(one.arrived / scale).to(dtype)) for one, scale in zip(signals, scales, strict=True)]


@dataclass
class NoiseWork:
    """The last pass on some blocks, along the directions of these signals (band, signal), as `held_directions` has them."""

    bands: list[list[Products]]
    dtype: torch.dtype
    stage: str = "noise"
    _directions: LagDirections | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tables are made anew in another process."""
        return vars(self) | {"_directions": None}

    def __call__(self, plan: WholeModelPlan, blocks: tuple[int, ...], tick: Tick = None) -> NoiseValues:
        """Run the model once more on every pair, with one way back from the whole loss of each sequence."""
        if self._directions is None:
            self._directions = LagDirections(self.bands, plan.model.device, self.dtype, weighting=plan.weighting)
        return noise_along(plan, self._directions, blocks, tick)


def measure_noise(
    plan: WholeModelPlan, work: NoiseWork, progress: Progress | None = None, spread: Spread | None = None
) -> NoiseValues:
    """Have the last pass done, and put its parts together; interrupted before that says something, it is not measured."""
    put_back = as_it_stands()
    try:
        return NoiseValues.merge((spread or Here()).parts(plan, work, progress))
    except KeyboardInterrupt:
        put_back()
        return NoiseValues.unmeasured(plan.block_plan.count, len(plan.group), len(plan.bands))


def noise_along(
    plan: WholeModelPlan, directions: LagDirections, blocks: tuple[int, ...], progress: Tick = None
) -> NoiseValues:
    """Values of every sequence's whole gradient along the directions, of some blocks."""
    bands, signals = len(plan.bands), 1 + len(plan.group)
    measured = sorted({0, bands // 2, bands - 1})
    place = np.full(plan.block_plan.count, -1)
    place[list(blocks)] = np.arange(len(blocks))
    step_sums = np.full((len(blocks), signals, bands, 3), np.nan)
    step_sums[:, 0, measured] = 0.0
    number, block, values = [], [], []

    def along(rows: np.ndarray, home: np.ndarray) -> tuple[np.ndarray, np.ndarray, Tensor, Tensor]:
        piece = plan.run(rows)
        field, _ = cotangents(piece.objective, piece.output)
        size = field.flatten(1).abs().amax(1)
        power = torch.exp2(torch.floor(torch.log2(torch.where(size > 0, size, 1.0))))[:, None, None]
        arrived = piece.reading.pull(piece.output, field / power, keep=False)
        gradients = arrived.to(torch.float64 if arrived.dtype == torch.float64 else torch.float32) * power
        gradients = gradients * piece.inside[..., None]
        values_by_step = gradients.new_empty(len(rows), gradients.shape[1], signals, bands)
        room = max(1, PRODUCT_BYTES // (gradients[0].numel() * gradients.element_size() * signals))
        for number_of_block in np.unique(home):
            members = np.flatnonzero(home == number_of_block)
            for start in range(0, len(members), room):
                part = torch.from_numpy(members[start : start + room]).to(gradients.device)
                values_by_step[part] = directions.along(
                    int(number_of_block), piece.reading.inputs[part], gradients[part]
                )
        return rows, home, values_by_step.double(), piece.inside

    for rows, home, by_step, inside in plan.each(along, progress, blocks):
        number.append(rows)
        block.append(home)
        values.append(by_step.sum(1).cpu().numpy())
        count = inside.sum(1).double()[:, None]
        for band in measured:
            steps = count * by_step[:, :, 0, band]  # a sequence's value is the mean of its steps' values
            new = torch.cat((count, steps.sum(1, keepdim=True), steps.square().sum(1, keepdim=True)), dim=1)
            np.add.at(step_sums[:, 0, band], place[home], new.cpu().numpy())
    joined = np.concatenate(values)
    part = NoiseValues(
        np.concatenate(number),
        np.concatenate(block),
        joined[:, 0],
        joined[:, 1:],
        np.array(blocks),
        step_sums,
    )
    return NoiseValues.merge([part])
