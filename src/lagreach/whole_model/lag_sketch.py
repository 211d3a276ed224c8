"""Every lag inside the bands of a whole model on its own, in random coordinates (see `lagreach.gradients.lag_sketch`).

One way back through the model passes all inputs, so single lags cost no run of their own. A gradient from one output is the
outer product of what arrives and of what was read; a coordinate is the product of two random projections, one of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.gradients.lag_sketch import coordinates_of, inside_lags
from lagreach.whole_model.measurement_plan import PairBatch, WholeModelPlan

MOST = 128  # coordinates
KINDS = 4096  # tokens that have coordinates of their own; others share them


@dataclass(frozen=True)
class ModelLagSketch:
    """Random coordinates of the gradients at lags that share a band with others."""

    lags: tuple[int, ...]
    size: int
    seed: int

    @classmethod
    def of(cls, plan: WholeModelPlan) -> ModelLagSketch | None:
        """How the lags inside a plan's bands are looked at; None if there are none."""
        lags = inside_lags(plan.bands)
        if not lags:
            return None
        return cls(lags, min(MOST, coordinates_of(plan.block_plan.count * plan.pairings, len(lags))), plan.seed)

    def __call__(
        self, piece: PairBatch, stand: Tensor, weight: Tensor, gradient: Float[Tensor, "seq time width"]
    ) -> Float[Tensor, "seq lag coordinate"]:
        """Coordinates of what arrives from one anchor of each sequence, which stands at `stand` and counts `weight` times."""
        inputs, inside = piece.reading.inputs, piece.inside
        step = stand[:, None] - torch.tensor(self.lags, device=stand.device)
        row = torch.arange(len(stand), device=stand.device)[:, None]
        reached = step.clamp(min=0)
        seen = (step >= 0) & inside[row, reached]
        arrived = gradient @ self._signs(gradient.shape[-1], "arrived").to(gradient)
        values = arrived[row, reached].double() * self._of_inputs(inputs)[row, reached]
        return values * (weight[:, None] * seen)[..., None]

    def _of_inputs(self, inputs: Tensor) -> Float[Tensor, "seq time coordinate"]:
        if not inputs.is_floating_point():
            return self._signs(KINDS, "read").to(inputs.device)[inputs % KINDS]
        signs = self._signs(inputs.shape[-1], "read").to(inputs.device)
        # beyond the ends there may be anything
        numbers = torch.nan_to_num(inputs.double(), nan=0.0, posinf=0.0, neginf=0.0)
        return numbers @ signs

    def _signs(self, rows: int, of: str) -> Float[Tensor, "row coordinate"]:
        generator = torch.Generator().manual_seed(2 * self.seed + (of == "read"))
        return torch.randint(2, (rows, self.size), generator=generator).mul(2).sub(1).double()
