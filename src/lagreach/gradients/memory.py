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


def memory(task: Task, lags: Sequence[int], widths: Sequence[int]) -> Memory:
    """Fit on the even blocks, score on the odd ones; `widths` says how many lags each entry stands for."""
    size = task.view.template.stack.state_size
    width = task.probe.whitening.shape[1]
    moments = [_Moments(len(lags), size, width) for _ in range(2)]
    correlation, steps = torch.zeros(5, width, dtype=torch.float64), torch.zeros(5, 1, dtype=torch.float64)
    for piece in task.pieces(range(task.plan.count)):
        states, inputs = piece.part.states.double().cpu(), task.probe.whiten(piece.part.x.double().cpu())
        time = inputs.shape[1]
        inside = valid_steps(piece.part.lengths, len(inputs), time, inputs.device)
        for half in range(2):
            kept = inside & torch.from_numpy(piece.block % 2 == half)[:, None].to(inside.device)
            for column, lag in enumerate(lags):
                rows = kept[:, lag:]
                moments[half].add(column, states[:, lag:][rows], inputs[:, : time - lag][rows])
        for k in range(min(5, time)):
            correlation[k] += (inputs[:, k:] * inputs[:, : time - k])[inside[:, k:]].sum(0)
            steps[k] += inside[:, k:].sum()
    capacity = np.array([moments[0].score(column, moments[1]) for column in range(len(lags))])
    seen = (correlation / steps)[steps[:, 0] > 0]
    related = (seen[1:] / seen[0]).abs().max().item() if len(seen) > 1 else 0.0
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
        s, x = torch.cat((torch.ones(len(states), 1, dtype=states.dtype), states), dim=1), inputs
        self.states[lag] += s.T @ s
        self.cross[lag] += s.T @ x
        self.inputs[lag] += x.square().sum(0)
        self.mean[lag] += x.sum(0)
        self.count[lag] += len(s)

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
