"""A run whose gradients can be led back to its first state from any of its steps, each in one launch."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.cells import Cell, Params
from lagreach.kernels.entry import check_arrays, check_scan
from lagreach.kernels.gpu import plan_of, vectors_of
from lagreach.kernels.gpu.function import Pullback, Recurrence
from lagreach.kernels.gpu.packing import stacked


class KeptRun:
    """A run of a cell that these kernels know, with what its slopes need."""

    def __init__(
        self, cell: Cell, x: Float[Tensor, "row step input"], s0: Float[Tensor, "row state"], params: Params
    ) -> None:
        weights = {name: weight.detach()[None] for name, weight in params.items()}
        self._x, self._s0 = x[None], s0[None]
        check_scan(cell, self._x, self._s0, weights)
        self._plan, self._vectors, (W, b, self._U) = (
            plan_of(cell, self._s0),
            vectors_of(weights),
            stacked(cell, weights),
        )
        with torch.no_grad():
            self._kept = Recurrence.forward(self._plan, self._x, W, b, self._U, self._s0, *self._vectors)

    def back(self, steps: int, gradient: Float[Tensor, "row state"]) -> Float[Tensor, "row state"]:
        """Gradient at the first state, from that at the states after so many steps."""
        check_arrays("a walk back", {"the gradient": (gradient, self._s0.shape[1:])}, dtype=self._s0.dtype)
        states, kept, scales = (v[:, :, :steps].contiguous() if v.numel() else v for v in self._kept)
        given = torch.zeros_like(states)
        given[0, :, -1] = gradient
        with torch.no_grad():
            tile = self._plan.tile(self._x[:, :, :steps], self._U)
            led_back: Tensor = Pullback.forward(
                self._plan, tile, given, self._U, self._s0, *self._vectors, states, kept, scales
            )[1]
        return led_back[0]
