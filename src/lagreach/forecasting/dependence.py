"""Do the targets depend on the input at a lag at all? For tokens and classes, in many coordinates of both.

A dependency that is planted lies along a few random directions of inputs and outputs. One in the data need not: of forty tokens
that are copied, little shows along four directions. So the test looks at the covariances of all codes of an old token with
several random numbers that stand for the target.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.data.batch import Batch
from lagreach.forecasting.plan import BLOCKS, ForecastPlan, InputCoding, wide_coding
from lagreach.transport.losses import Loss
from lagreach.transport.objective import Objective

TARGETS = 8  # random numbers that stand for a class, or combinations of many outputs


class Dependence:
    """Sums by block and lag: of values of old inputs, of targets, of their products, and of weights."""

    def __init__(self, plan: ForecastPlan, loss: str, outputs: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed + 2)
        self._lags: Sequence[int] = plan.lags
        self._coding: InputCoding = wide_coding(plan, seed)
        self._codes = self._coding.project.shape[1]
        self._classes = loss == "cross_entropy"
        few = not self._classes and outputs <= TARGETS
        self._table = (
            torch.eye(outputs, dtype=torch.float64)
            if few
            else torch.randn(outputs, TARGETS, generator=generator, dtype=torch.float64)
        )
        shape = (BLOCKS, len(plan.lags))
        self._weight = torch.zeros(*shape, dtype=torch.float64)
        self._old = torch.zeros(*shape, self._codes, dtype=torch.float64)
        self._target = torch.zeros(*shape, self._table.shape[1], dtype=torch.float64)
        self._product = torch.zeros(*shape, self._codes, self._table.shape[1], dtype=torch.float64)

    def add(self, batch: Batch, objective: Objective, times: Tensor, block: Tensor) -> None:
        """Add some sequences."""
        planted, single = self._coding.planted_and_single(batch)
        whole = planted.double()[..., -self._codes :]
        weights = (objective.weights / objective.weights.sum(1, keepdim=True)).double().cpu()
        y, times = objective.y.detach().cpu(), times.cpu()
        targets = (
            self._table[y.clamp(min=0)]
            if self._classes
            else torch.where(weights[..., None] > 0, y.double(), 0.0) @ self._table
        )
        for place, lag in enumerate(self._lags):
            then = times - lag
            old = whole if single is None or lag >= single.order else single.up_to(lag)
            share = torch.where(then >= 0, weights, 0.0)
            seen = old.gather(1, then.clamp(min=0)[..., None].expand(-1, -1, self._codes)) * share[..., None]
            for sums, values in (
                (self._weight, share.sum(1)),
                (self._old, seen.sum(1)),
                (self._target, (targets * share[..., None]).sum(1)),
                (self._product, seen.mT @ targets),
            ):
                sums[:, place].index_add_(0, block, values)

    def by_block(self) -> Float[np.ndarray, "block lag coordinate"]:
        """Covariances of targets and old inputs; blocks without sequences are left out."""
        weight = self._weight.sum(0).clamp(min=1e-300)
        old, target = self._old.sum(0) / weight[:, None], self._target.sum(0) / weight[:, None]
        centred = (
            self._product
            - torch.einsum("blc,lt->blct", self._old, target)
            - torch.einsum("lc,blt->blct", old, self._target)
            + self._weight[..., None, None] * torch.einsum("lc,lt->lct", old, target)
        )
        filled = self._weight.sum(1) > 0
        return (centred[filled] / self._weight[filled].clamp(min=1e-300)[..., None, None]).flatten(2).numpy()


def dependence_of(plan: ForecastPlan, loss: Loss, outputs: int, seed: int) -> Dependence | None:
    """Sums for tokens or classes; None for numbers, of which the planted directions show enough."""
    return Dependence(plan, str(loss), outputs, seed) if plan.coding.tokens or loss == "cross_entropy" else None
