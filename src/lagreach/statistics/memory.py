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

from lagreach.gradients.subject import Piece, Subject
from lagreach.statistics._statistic import STATES, LagCurve, LagStatistic, Measured
from lagreach.transport.objective import valid_steps

INDEPENDENT_BELOW = 0.05  # largest autocorrelation of inputs at lags 1..4 that still counts as independent


@dataclass(frozen=True)
class Memory:
    """`capacity` (lag,): mean held-out R^2 over input directions; `total`: its sum over lags and directions.

    `bound` is the size of the state; the sum means something only if `independent_inputs`.
    """

    lags: tuple[int, ...]
    capacity: Float[np.ndarray, "lag"]
    total: float
    bound: int
    independent_inputs: bool

    @classmethod
    def unknown(cls, lags: Sequence[int]) -> Memory:
        """Return what stands for a memory that was not measured."""
        return cls(tuple(lags), np.full(len(lags), np.nan), math.nan, 0, True)


class MemorySums:
    """Moments of states and old inputs, for the even blocks (which fit) and the odd ones (which score)."""

    def __init__(self, subject: Subject) -> None:
        self.probe = subject.probe
        self.lags = list(subject.bands.lags)
        self.spans = [last - first + 1 for first, last in subject.bands.edges]  # lags that each entry stands for
        self.size = subject.view.template.stack.state_size
        self.width = subject.probe.whitening.shape[1]
        self.halves = [_Moments(self.lags, self.size, self.width) for _ in range(2)]
        self.correlation = torch.zeros(5, self.width, dtype=torch.float64)
        self.steps = torch.zeros(5, 1, dtype=torch.float64)

    def add(self, piece: Piece) -> None:
        """Take in some pairs of sequences."""
        states, inputs = piece.part.states.double(), self.probe.whiten(piece.part.x.double())
        time = inputs.shape[1]
        inside = valid_steps(piece.part.lengths, len(inputs), time, inputs.device)
        states, inputs = (torch.where(inside[..., None], v, 0.0) for v in (states, inputs))
        for half in range(2):
            chosen = torch.from_numpy(piece.block % 2 == half).to(states.device)
            if chosen.any():
                self.halves[half].add(states[chosen], inputs[chosen], inside[chosen])
        for k in range(min(5, time)):
            self.correlation[k] += (inputs[:, k:] * inputs[:, : time - k] * inside[:, k:, None]).sum((0, 1)).cpu()
            self.steps[k] += inside[:, k:].sum().cpu()

    def merge(self, other: MemorySums) -> None:
        """Take in the moments of other sequences."""
        for half, others in zip(self.halves, other.halves, strict=True):
            half.merge(others)
        self.correlation += other.correlation
        self.steps += other.steps

    def result(self) -> Memory:
        """Fit on the even blocks, score on the odd ones."""
        fitted, held_out = (half.from_each_lag_on() for half in self.halves)
        capacity = np.array([fitted.score(column, held_out) for column in range(len(self.lags))])
        seen = (self.correlation / self.steps)[self.steps[:, 0] > 0]
        related = (seen[1:] / seen[0]).abs().max().item() if len(seen) > 1 else 0.0
        total = float((np.maximum(capacity, 0) * np.array(self.spans)).sum() * self.width)
        return Memory(tuple(self.lags), capacity, total, self.size, related < INDEPENDENT_BELOW)


class MemoryCurve(LagStatistic):
    """Held-out R^2 of the best linear readout of the input l steps ago."""

    place: ClassVar[int] = 6
    name: ClassVar[str] = "memory"
    title: ClassVar[str] = "Linear memory of the input"
    unit: ClassVar[str] = "R^2"
    reads: ClassVar[frozenset[str]] = frozenset({STATES})

    def start(self, subject: Subject, dependences: Sequence[int]) -> MemorySums:
        """Collect moments."""
        return MemorySums(subject)

    def curve(self, measured: Measured) -> LagCurve:
        """As the window keeps it."""
        memory: Memory = measured.window.memory
        return self.make(memory.lags, memory.capacity)


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
        squares = x.square()
        for i, lag in enumerate(self.lags):
            between = s[lag : time if i == last else self.lags[i + 1]].flatten(0, 1)
            self.states[i] += (between.T @ between).cpu()
            behind, before = s[lag:].flatten(0, 1), slice(0, time - lag)
            self.cross[i] += (behind.T @ x[before].flatten(0, 1)).cpu()
            self.inputs[i] += (behind[:, 0] @ squares[before].flatten(0, 1)).cpu()

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
        readout = torch.linalg.lstsq(self.states[lag], self.cross[lag], driver="gelsd").solution
        n = held_out.count[lag]
        variance = held_out.inputs[lag] / n - (held_out.mean[lag] / n).square()
        explained = 2 * (readout * held_out.cross[lag]).sum(0) - torch.einsum(
            "sx,st,tx->x", readout, held_out.states[lag], readout
        )
        residual = (held_out.inputs[lag] - explained) / n
        return (1 - residual.sum() / variance.sum()).item()  # a ratio of sums does not depend on the choice of axes
