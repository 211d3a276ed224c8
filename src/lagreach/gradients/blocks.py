"""First stage: the mean signal gradient of every lag in every block of sequences.

Blocks are disjoint, so products of two different blocks' means estimate squared norms without bias, and flipping
their signs gives the null distribution. A block is a unit of work: stages run on any share of the blocks, and parts
merge by putting their blocks together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lagreach.adapters import View
from lagreach.batch import Batch
from lagreach.errors import InputError, TooLargeError
from lagreach.gradients.bands import Bands
from lagreach.gradients.contrast import Probe, planted_gradient, signal_gradient, target_spread
from lagreach.gradients.sequences import BlockPlan, Sequences
from lagreach.transport.cotangent import Cotangent
from lagreach.transport.exact import Linearisation, exact_transport
from lagreach.transport.first_order import first_order_transport
from lagreach.transport.objective import Loss, Objective, make_objective
from lagreach.transport.rollout import Rollout, chunks, run

LIMIT_BYTES = 2**30


@dataclass(frozen=True)
class Task:
    """What is measured: a model, sequences with their pairs, a loss, weights and bands of lags."""

    view: View
    sequences: Sequences
    plan: BlockPlan
    loss: Loss
    names: list[str]
    bands: Bands
    probe: Probe
    time: int
    signal: str = "dependence"
    transport: str = "exact"
    steps: object = None
    memory: int | None = None  # bytes to stay within

    @property
    def width(self) -> int:
        """Number of selected weights."""
        return sum(self.view.template.params[name].numel() for name in self.names)

    def run(self, index: list[int]) -> tuple[Rollout, Objective]:
        """Run the model on these sequences; return its states and the objective of its outputs."""
        batch = self.sequences.read(index)
        part = run(self.view.bind(batch))
        return part, self.objective(batch, part)

    def objective(self, batch: Batch, part: Rollout) -> Objective:
        """Return the loss of the sequences of a batch."""
        shape = tuple(part.output.shape)
        lengths = batch.lengths if shape[1] == part.x.shape[1] else None
        options = {"mask": batch.mask, "lengths": lengths, "steps": self.steps}
        return make_objective(self.loss, batch.y, part.recurrence, shape, **options)  # type: ignore[arg-type]

    def carry(self, part: Rollout, delta: Tensor, lags: list[int]) -> Iterator[Cotangent]:
        """Carry gradients back to each of the lags, exactly or to first order."""
        if self.transport == "exact":
            return (cotangent for cotangent, _ in exact_transport(part, delta, lags))
        return iter(first_order_transport(part, delta, lags))


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
    for row, number in enumerate(numbers):
        members, partners = task.plan.members(number)
        size[row] = len(members)
        for own, other in parts_of(task, members, partners):
            part, objective = task.run(own)
            # a pair is in the same piece, so the partners' targets are the same objective in another order
            swapped_objective = objective.select(partner_rows(own, other))
            linear = Linearisation(part, part.x.shape[1])
            delta = signal_gradient(part.recurrence, objective, swapped_objective, part.states, task.signal)
            for band, carried in enumerate(band_cotangents(task, part, delta)):
                data[row, band] += pull_flat(linear, carried, task.names)
            _add_probes(task, part, linear, objective, swapped_objective, probe[row], spread[row])
        if progress is not None:
            progress(number)
    scale = size[:, None, None]
    return Directions(np.array(numbers), size, data / scale, probe / scale[..., None], spread)


def _add_probes(
    task: Task,
    part: Rollout,
    linear: Linearisation,
    own: Objective,
    other: Objective,
    probe: np.ndarray,
    spread: np.ndarray,
) -> None:
    """Plant at the far edge of each band: the input at the position reached weights what arrives there."""
    inputs = task.probe.planted(part.x.double())
    for group, direction in enumerate(task.probe.output):
        spread[group] += target_spread(part.recurrence, own, other, part.states, direction)
        delta = planted_gradient(part.recurrence, own, part.states, direction)
        for band, cotangent in enumerate(task.carry(part, delta, task.bands.lags)):
            carried = cotangent.double()
            for p in (i for i, g in enumerate(task.probe.group) if g == group):
                weighted = carried * inputs[p, :, : carried.shape[1], None]
                probe[p, band] += pull_flat(linear, weighted, task.names)


def parts_of(task: Task, members: list[int], partners: list[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Cut a block into pieces that fit into memory; pairs stay together."""
    pairs, chunk = len(members) // 2, None
    if task.memory is not None:  # a dozen tensors of the size of the states are alive at the peak
        per_pair = 2 * task.time * task.view.template.stack.state_size * task.view.template.dtype.itemsize
        chunk = max(1, task.memory // (12 * per_pair))
    for rows in chunks(task.view.template, (pairs, 2 * task.time), chunk):
        both = slice(2 * rows.start, 2 * rows.stop)
        yield members[both], partners[both]


def partner_rows(own: list[int], other: list[int]) -> Tensor:
    """Row of each sequence's partner within the same piece."""
    place = {number: row for row, number in enumerate(own)}
    return torch.tensor([place[number] for number in other])


def band_cotangents(task: Task, part: Rollout, delta: Tensor) -> Iterator[Tensor]:
    """Sum of the carried gradients over the lags of each band, by position reached, in float64."""
    lags = [lag for first, last in task.bands.edges for lag in range(first, last + 1)]
    ends = set(task.bands.lags)
    total: Tensor | None = None
    for cotangent in task.carry(part, delta, lags):
        carried = cotangent.double()
        if total is None:
            total = carried.clone()
        else:
            total[:, : carried.shape[1]] += carried
        if cotangent.lag in ends:
            yield total
            total = None


def pull_flat(linear: Linearisation, carried: Tensor, names: list[str]) -> np.ndarray:
    """Gradient of the named weights as one float64 vector, scaled so that float32 models do not underflow."""
    size = carried.abs().max()
    if not size > 0:
        return np.zeros(sum(linear.params[name].numel() for name in names))
    power = 2.0 ** torch.frexp(size).exponent.item()
    grads = linear.pull((carried / power).to(linear.states.dtype), params=names)[1]
    return (torch.cat([grads[name].flatten() for name in names]).double() * power).cpu().numpy()
