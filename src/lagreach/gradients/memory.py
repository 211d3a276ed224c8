"""What the state still holds: linear memory of old inputs.

``MC_l`` is the held-out R^2 of the best linear readout of the input l steps ago from the state. For inputs that are
independent in time, its sum over lags and input directions cannot exceed the size of the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.gradients.task import Task

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


def memory(task: Task, lags: Sequence[int], widths: Sequence[int]) -> Memory:
    """Fit on the even blocks, score on the odd ones; `widths` says how many lags each entry stands for."""
    size = task.view.template.stack.state_size
    width = task.probe.whitening.shape[1]
    moments = [_Moments(len(lags), size, width) for _ in range(2)]
    correlation = torch.zeros(5, width, dtype=torch.float64)
    for piece in task.pieces(range(task.plan.count)):
        states, inputs = piece.part.states.double(), task.probe.whiten(piece.part.x.double())
        for half in range(2):
            mine = torch.from_numpy(piece.block % 2 == half)
            for column, lag in enumerate(lags):
                moments[half].add(column, states[mine, lag:], inputs[mine, : inputs.shape[1] - lag])
        for k in range(min(5, inputs.shape[1])):
            correlation[k] += (inputs[:, k:] * inputs[:, : inputs.shape[1] - k]).mean(1).sum(0)
    capacity = np.array([moments[0].score(column, moments[1]) for column in range(len(lags))])
    related = (correlation[1:] / correlation[0]).abs().max().item()
    return Memory(
        tuple(lags),
        capacity,
        float((np.maximum(capacity, 0) * np.array(widths)).sum() * width),
        size,
        related < INDEPENDENT_BELOW,
    )


class _Moments:
    """Second moments of (1, state) and of the input, for each lag."""

    def __init__(self, lags: int, size: int, width: int) -> None:
        self.states = torch.zeros(lags, size + 1, size + 1, dtype=torch.float64)
        self.cross = torch.zeros(lags, size + 1, width, dtype=torch.float64)
        self.inputs = torch.zeros(lags, width, dtype=torch.float64)
        self.mean = torch.zeros(lags, width, dtype=torch.float64)
        self.count = torch.zeros(lags, dtype=torch.float64)

    def add(self, lag: int, states: Tensor, inputs: Tensor) -> None:
        s = states.flatten(0, 1)
        s = torch.cat((torch.ones(len(s), 1, dtype=s.dtype), s), dim=1)
        x = inputs.flatten(0, 1)
        self.states[lag] += s.T @ s
        self.cross[lag] += s.T @ x
        self.inputs[lag] += x.square().sum(0)
        self.mean[lag] += x.sum(0)
        self.count[lag] += len(s)

    def score(self, lag: int, held_out: _Moments) -> float:
        """Mean over input directions of the held-out R^2 of the least-squares readout."""
        readout = torch.linalg.lstsq(self.states[lag], self.cross[lag], driver="gelsd").solution
        n = held_out.count[lag]
        variance = held_out.inputs[lag] / n - (held_out.mean[lag] / n).square()
        explained = 2 * (readout * held_out.cross[lag]).sum(0) - torch.einsum(
            "sx,st,tx->x", readout, held_out.states[lag], readout
        )
        residual = (held_out.inputs[lag] - explained) / n
        return (1 - residual / variance).mean().item()
