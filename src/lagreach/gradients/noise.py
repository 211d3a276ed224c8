"""Second stage: what each sequence's gradient says along the direction of every lag.

What hides a lag in training is the fluctuation over sequences of the *whole* gradient along that lag's direction
(``noise="gradient"``). The fluctuation of the lag's own term (``noise="lag"``, as the paper's scripts have it) shrinks with
the transport exactly as the signal does, so that N would not depend on the envelope at all.

The direction used for a sequence comes from the other blocks, so that it owes nothing to that sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lagreach.errors import InputError
from lagreach.gradients.blocks import Directions, Task, band_cotangents, parts_of
from lagreach.gradients.sequence_gradients import as_direction, sequence_gradients, total_adjoint
from lagreach.transport.objective import Objective, output_gradient
from lagreach.transport.rollout import Rollout
from lagreach.transport.sensitivity import immediate_sensitivity

NOISES = ("gradient", "lag")
DIRECTIONS = ("matched", "random")
UNITS = ("sequence", "step")


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
        found = list(parts)
        number = np.concatenate([p.number for p in found])
        if len(set(number.tolist())) != len(number):
            raise InputError("two parts hold the same sequences", got=f"{len(number)} values")
        order = np.argsort(number)
        steps = np.concatenate([p.step_block for p in found])
        by_block = np.argsort(steps)
        return cls(
            number=number[order],
            block=np.concatenate([p.block for p in found])[order],
            data=np.concatenate([p.data for p in found])[order],
            probe=np.concatenate([p.probe for p in found])[order],
            step_block=steps[by_block],
            step_sums=np.concatenate([p.step_sums for p in found])[by_block],
        )

    def step_spread(self) -> np.ndarray:
        """Standard deviation of the step-by-step values, (1 + probe, band); NaN where they were not measured."""
        count, total, squares = np.moveaxis(self.step_sums.sum(0), -1, 0)
        with np.errstate(invalid="ignore"):
            return np.sqrt(squares / count - np.square(total / count))


def unit_directions(found: Directions, group: tuple[int, ...], kind: str, generator: np.random.Generator) -> np.ndarray:
    """Direction of each signal for each block, from the other blocks: (block, 1 + probe, band, param), of length one."""
    if kind not in DIRECTIONS:
        raise InputError("unknown direction", got=repr(kind), expected=" or ".join(DIRECTIONS))
    means = np.concatenate((found.data[:, None], found.planted(group)), axis=1)
    if kind == "random":
        means = np.broadcast_to(generator.normal(size=means.shape[1:]), means.shape)
        others = means
    else:
        weighted = means * found.size[:, None, None, None]
        others = weighted.sum(0, keepdims=True) - weighted
    largest = np.abs(others).max(-1, keepdims=True)
    scaled = others / np.where(largest > 0, largest, 1.0)
    norm = np.linalg.norm(scaled, axis=-1, keepdims=True)
    return scaled / np.where(norm > 0, norm, 1.0)


def noise_values(
    task: Task,
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
    if noise not in NOISES:
        raise InputError("unknown noise", got=repr(noise), expected=" or ".join(NOISES))
    if unit not in UNITS:
        raise InputError("unknown unit", got=repr(unit), expected=" or ".join(UNITS))
    numbers = list(range(task.plan.count)) if blocks is None else list(blocks)
    signals, bands = directions.shape[1:3]
    index, block, values = [], [], []
    step_sums = np.full((len(numbers), signals, bands, 3), np.nan)
    for row, number in enumerate(numbers):
        members, partners = task.plan.members(number)
        along = torch.from_numpy(directions[number])
        for own, _ in parts_of(task, members, partners):
            part, objective = task.run(own)
            adjoint = total_adjoint(part, objective)
            if noise == "gradient":
                grads = sequence_gradients(part, adjoint, task.names).double()
                found = torch.einsum("np,sbp->nsb", grads, along.to(grads))
            else:
                found = _lag_values(task, part, objective, along)
            measured = range(bands) if unit == "step" else sorted({0, bands // 2, bands - 1})
            _add_steps(task, part, objective, adjoint, along, noise, list(measured), step_sums[row])
            index += own
            block += [number] * len(own)
            values.append(found.cpu().numpy())
        if progress is not None:
            progress(number)
    joined = np.concatenate(values)
    return NoiseValues.merge(
        [NoiseValues(np.array(index), np.array(block), joined[:, 0], joined[:, 1:], np.array(numbers), step_sums)]
    )


def _lag_values(task: Task, part: Rollout, objective: Objective, along: Tensor) -> Tensor:
    """``<g_n^(l), w>`` for every sequence, signal and band."""
    delta = output_gradient(part.recurrence, objective, part.states)[0]
    found = torch.zeros(len(part.x), *along.shape[:2], dtype=torch.float64)
    for band, carried in enumerate(band_cotangents(task, part, delta)):
        for signal in range(along.shape[0]):
            moved = _moved(task, part, along[signal, band])
            found[:, signal, band] = (carried * moved[:, : carried.shape[1]]).sum((1, 2))
    return found


def _moved(task: Task, part: Rollout, flat: Tensor) -> Tensor:
    return immediate_sensitivity(part, as_direction(part.recurrence, task.names, flat)).double()


def _add_steps(
    task: Task,
    part: Rollout,
    objective: Objective,
    adjoint: Tensor,
    along: Tensor,
    noise: str,
    measured: list[int],
    sums: np.ndarray,
) -> None:
    """Add count, sum and squares of the values by step; a sequence's value is the mean of its steps' values."""
    time = part.x.shape[1]
    carried_by_band = {}
    if noise == "lag":
        delta = output_gradient(part.recurrence, objective, part.states)[0]
        carried_by_band = dict(enumerate(band_cotangents(task, part, delta)))
    signals = range(along.shape[0]) if len(measured) == along.shape[1] else [0]
    for signal in signals:
        for band in measured:
            carried = carried_by_band.get(band, adjoint.double())
            steps = time * (carried * _moved(task, part, along[signal, band])[:, : carried.shape[1]]).sum(-1)
            new = np.array([steps.numel(), steps.sum().item(), steps.square().sum().item()])
            sums[signal, band] = np.where(np.isnan(sums[signal, band]), new, sums[signal, band] + new)
