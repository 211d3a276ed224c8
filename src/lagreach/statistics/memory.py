"""What the state still holds: linear memory of old inputs.

``MC_l`` is the held-out R^2 of the best linear readout of the input l steps ago from the state. For inputs that are
independent in time, its sum over lags and input directions cannot exceed the size of the state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.gradients.measurement_plan import MeasurementPlan, PairBatch
from lagreach.statistics._statistic import STATES, LagCurve, LagStatistic, Look, Measured
from lagreach.statistics.dependence import HELD_AND_USED
from lagreach.transport.objective import valid_steps

NEGLIGIBLE = 0.05  # autocorrelation of inputs at lags 1..4 that counts as none, however surely it is there
LAGS_COMPARED = 4
DOUBT = 0.01  # chance that independent inputs are called correlated
MOST_DIRECTIONS = 512  # of the state, or of the input: covariances are their square, fits their cube
COLUMNS = 1024  # lags times inputs that states are multiplied with at once
ROWS, GPU_ROWS = 512, 2**16  # states of a product: on a processor, few enough for its cache
MOST_BYTES = 2**28  # of the covariances of all lags together


@dataclass(frozen=True)
class Memory:
    """`capacity` (lag,): mean held-out R^2 over input directions; `total`: its sum over lags and directions.

    `bound` is the size of the state; the sum means something only if `independent_inputs`. Of a wide state only some random
    `directions` are read (None: all): it remembers at least that much.
    """

    lags: tuple[int, ...]
    capacity: Float[np.ndarray, "lag"]
    total: float
    bound: int
    independent_inputs: bool
    directions: int | None = None

    @property
    def note(self) -> str | None:
        """What a reader has to know about how it was measured."""
        if self.directions is None:
            return None
        return (
            f"a state of {self.bound:,} units is wide: its linear memory was measured on {self.directions:,} random "
            "directions of it, so it remembers at least what is said"
        )

    @classmethod
    def unknown(cls, lags: Sequence[int]) -> Memory:
        """Return what stands for a memory that was not measured."""
        return cls(tuple(lags), np.full(len(lags), np.nan), math.nan, 0, True)


def directions_read(size: int, lags: int) -> int:
    """Random directions that stand for `size` of them, so that covariances for so many lags fit and can be solved."""
    return min(size, MOST_DIRECTIONS, int((MOST_BYTES / (2 * 8 * lags)) ** 0.5) - 1)


def memory_bytes(size: int, lags: int) -> int:
    """Bytes of the covariances that are collected."""
    return 2 * 8 * lags * (directions_read(size, lags) + 1) ** 2


class MemorySums:
    """Moments of states and old inputs, for the even blocks (which fit) and the odd ones (which score)."""

    def __init__(self, plan: MeasurementPlan) -> None:
        self.probe = plan.probe
        self.lags = list(plan.bands.lags)
        self.spans = [last - first + 1 for first, last in plan.bands.edges]  # lags that each entry stands for
        self.size = plan.view.template.stack.state_size
        self.width = plan.probe.whitening.shape[1]
        self.of_state = _Sketch(self.size, directions_read(self.size, len(self.lags)))
        self.of_input = _Sketch(self.width, min(self.width, MOST_DIRECTIONS))
        self.halves = [_Moments(self.lags, self.of_state.directions, self.of_input.directions) for _ in range(2)]
        self.related = Autocorrelation(plan.block_plan.count, self.of_input.directions)

    def add(self, piece: PairBatch) -> None:
        """Take in some pairs of sequences."""
        states = self.of_state(piece.part.states.double())
        inputs = self.of_input(self.probe.whiten(piece.part.x.double()))
        inside = valid_steps(piece.part.lengths, inputs.shape[0], inputs.shape[1], inputs.device)
        states, inputs = (torch.where(inside[..., None], v, 0.0) for v in (states, inputs))
        for half in range(2):
            chosen = torch.from_numpy(piece.block % 2 == half).to(states.device)
            if chosen.any():
                self.halves[half].add(states[chosen], inputs[chosen], inside[chosen])
        self.related.add(inputs, inside, torch.from_numpy(piece.block))

    def merge(self, other: MemorySums) -> None:
        """Take in the moments of other sequences."""
        for half, others in zip(self.halves, other.halves, strict=True):
            half.merge(others)
        self.related.merge(other.related)

    def result(self) -> Memory:
        """Fit on the even blocks, score on the odd ones."""
        fitted, held_out = (half.from_each_lag_on() for half in self.halves)
        capacity = np.array([fitted.score(column, held_out) for column in range(len(self.lags))])
        total = float((np.maximum(capacity, 0) * np.array(self.spans)).sum() * self.width)
        directions = self.of_state.directions if self.of_state.directions < self.size else None
        return Memory(tuple(self.lags), capacity, total, self.size, not self.related.detected(), directions)


class MemoryCurve(LagStatistic):
    """Held-out R^2 of the best linear readout of the input l steps ago."""

    place: ClassVar[int] = 6
    name: ClassVar[str] = "memory"
    title: ClassVar[str] = "Linear memory of the input"
    unit: ClassVar[str] = "R^2"
    reads: ClassVar[frozenset[str]] = frozenset({STATES})
    column: ClassVar[str] = ""
    tracked: ClassVar[str] = ""
    look: ClassVar[Look | None] = Look(
        HELD_AND_USED,
        "Memory: share of an input's variance that can be read linearly from the state that many steps later.",
        mark="bar",
        lines={"": "memory"},
    )

    def start(self, plan: MeasurementPlan, dependences: Sequence[int]) -> MemorySums:
        """Collect moments."""
        return MemorySums(plan)

    def curve(self, measured: Measured) -> LagCurve:
        """As the window keeps it."""
        memory: Memory = measured.window.memory
        return self.make(memory.lags, memory.capacity)


class _Sketch:
    """At most so many random directions: coordinates are dealt into groups, and each group is added up with random signs."""

    def __init__(self, size: int, directions: int) -> None:
        self.directions = directions
        generator = torch.Generator().manual_seed(0)
        self._order = torch.randperm(size, generator=generator)
        self._signs = 2.0 * torch.randint(2, (size,), generator=generator) - 1
        self._missing = -size % directions

    def __call__(self, values: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch direction"]:
        if self.directions == values.shape[-1]:
            return values
        dealt = values[..., self._order.to(values.device)] * self._signs.to(values)
        groups = torch.nn.functional.pad(dealt, (0, self._missing)).unflatten(-1, (-1, self.directions))
        return groups.sum(-2)


class Autocorrelation:
    """Autocorrelation of inputs at the first lags, with its sampling error from blocks of sequences."""

    def __init__(self, blocks: int, width: int, lags: int = LAGS_COMPARED) -> None:
        self._products = torch.zeros(blocks, lags + 1, width, dtype=torch.float64)
        self._steps = torch.zeros(blocks, lags + 1, 1, dtype=torch.float64)

    def add(self, inputs: Float[Tensor, "seq time input"], inside: Tensor, block: Tensor) -> None:
        """Add sequences whose inputs are zero where they are not `inside`."""
        time = inputs.shape[1]
        for k in range(min(self._steps.shape[1], time)):
            products = (inputs[:, k:] * inputs[:, : time - k]).sum(1)
            self._products[:, k].index_add_(0, block, products.cpu())
            self._steps[:, k].index_add_(0, block, inside[:, k:].sum(1, keepdim=True).double().cpu())

    def merge(self, other: Autocorrelation) -> None:
        """Take in the products of other sequences."""
        self._products += other._products
        self._steps += other._steps

    def detected(self) -> bool:
        """Whether some input is correlated in time, by more than is negligible and more than chance would give so many."""
        from scipy.special import stdtrit

        measured = self._steps[:, 0, 0] > 0  # an interrupt leaves blocks out
        products, steps = self._products[measured], self._steps[measured]
        without = [total.sum(0) - total for total in (products, steps)]  # each block left out in turn
        if len(steps) < 2 or (reached := without[1].amin((0, 2)) > 0).sum() < 2:
            return False
        whole, left_out = (
            _normalised(p[..., reached, :], s[..., reached, :]) for p, s in ((products.sum(0), steps.sum(0)), without)
        )
        blocks = len(left_out)
        error = (left_out - left_out.mean(0)).square().sum(0).mul((blocks - 1) / blocks).sqrt()
        # At least 1 / sqrt(steps), which independent steps have: the jackknife finds more where sequences repeat each other,
        # and may find too little where blocks are few.
        error = torch.maximum(error, steps.sum(0)[reached][1:].rsqrt())
        chance = float(stdtrit(blocks - 1, 1 - DOUBT / (2 * whole.numel())))
        return bool((whole.abs() > torch.clamp(chance * error, min=NEGLIGIBLE)).any())


def _normalised(products: Float[Tensor, "*batch lag input"], steps: Tensor) -> Float[Tensor, "*batch later input"]:
    """Autocorrelations from sums of products: those of lag zero are variances."""
    mean = products / steps
    return mean[..., 1:, :] / mean[..., :1, :]


def _products(s: Tensor, x: Tensor, lags: list[int]) -> Float[Tensor, "lag state input"]:
    """Sums over (time, seq) of each state times the inputs some lags before: few wide products, not many narrow ones."""
    count, width = x.shape[1:]
    rows, inputs = s.flatten(0, 1), torch.cat((x.new_zeros(lags[-1] * count, width), x.flatten(0, 1)))
    total = x.new_zeros(s.shape[2], len(lags) * width)
    shifts, size = [(lags[-1] - lag) * count for lag in lags], GPU_ROWS if x.is_cuda else ROWS
    for first in range(0, len(rows), size):
        end = min(first + size, len(rows))
        total.addmm_(rows[first:end].T, torch.cat([inputs[first + by : end + by] for by in shifts], dim=1))
    return total.unflatten(1, (len(lags), width)).transpose(0, 1)


class _Moments:
    """Second moments of (1, state) and of the input, for each lag.

    The states' own moments are collected between one lag and the next: from a lag on, they are a sum of such pieces.
    """

    def __init__(self, lags: list[int], size: int, width: int) -> None:
        self.lags = lags
        self.states = torch.zeros(len(lags), size + 1, size + 1, dtype=torch.float64)
        self.cross = torch.zeros(len(lags), size + 1, width, dtype=torch.float64)
        self.inputs = torch.zeros(len(lags), width, dtype=torch.float64)

    def add(self, states: Tensor, inputs: Tensor, inside: Tensor) -> None:
        """Add sequences whose states and inputs are zero where they are not `inside`."""
        time, last = states.shape[1], len(self.lags) - 1
        # time first: from a lag on, and up to a lag before the end, are then contiguous
        s = torch.cat((inside[..., None].to(states), states), dim=2).transpose(0, 1).contiguous()
        x = inputs.transpose(0, 1).contiguous()
        counted, squares = s[..., 0].contiguous(), x.square()
        for i, lag in enumerate(self.lags):
            between = s[lag : time if i == last else self.lags[i + 1]].flatten(0, 1)
            self.states[i] += (between.T @ between).cpu()
            self.inputs[i] += (counted[lag:].flatten() @ squares[: time - lag].flatten(0, 1)).cpu()
        together = max(1, COLUMNS // x.shape[2])
        for first in range(0, len(self.lags), together):
            self.cross[first : first + together] += _products(s, x, self.lags[first : first + together]).cpu()

    def merge(self, other: _Moments) -> None:
        """Add the moments of other sequences."""
        for mine, others in ((self.states, other.states), (self.cross, other.cross), (self.inputs, other.inputs)):
            mine.add_(others)

    def from_each_lag_on(self) -> _Moments:
        """Return the same with the states' moments summed from each lag on."""
        summed = _Moments.__new__(_Moments)
        summed.lags, summed.cross, summed.inputs = self.lags, self.cross, self.inputs
        summed.states = self.states.flip(0).cumsum(0).flip(0)
        return summed

    @property
    def mean(self) -> Tensor:
        """Sums of the inputs."""
        return self.cross[:, 0]

    @property
    def count(self) -> Tensor:
        """Number of steps."""
        return self.states[:, 0, 0]

    def score(self, lag: int, held_out: _Moments) -> float:
        """Held-out R^2 of the least-squares readout of all (whitened) input directions together."""
        values, vectors = torch.linalg.eigh(self.states[lag])
        told = values > torch.finfo(values.dtype).eps * len(values) * values[-1]  # directions that the state has
        readout = vectors[:, told] @ ((vectors[:, told].T @ self.cross[lag]) / values[told, None])
        n = held_out.count[lag]
        variance = held_out.inputs[lag] / n - (held_out.mean[lag] / n).square()
        explained = 2 * (readout * held_out.cross[lag]).sum(0) - torch.einsum(
            "sx,st,tx->x", readout, held_out.states[lag], readout
        )
        residual = (held_out.inputs[lag] - explained) / n
        return (1 - residual.sum() / variance.sum()).item()  # a ratio of sums does not depend on the choice of axes
