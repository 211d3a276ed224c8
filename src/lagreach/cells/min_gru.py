"""minGRU: a gated recurrence that is linear in its state, so that whole sequences need no loop over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear

from lagreach.cells._cell import Cell, Params
from lagreach.cells._pullback import Pullback, gate_uses


@dataclass(frozen=True)
class MinGRU(Cell):
    """``z = sigmoid(W_z x + b_z)``, ``h' = (1-z) h + z (W_h x + b_h)`` (Feng et al. 2024).

    Gate and candidate see the input alone. The Jacobian is the diagonal ``1 - z``, so first order is exact.
    """

    name: ClassVar[str] = "min_gru"
    equations: ClassVar[str] = "Feng et al. (2024)"
    gate_names: ClassVar[tuple[str, ...]] = ("z",)
    first_order: ClassVar[str] = "exact"
    retention_bias: ClassVar[tuple[str, int] | None] = ("b_z", -1)

    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Gate weights (``_z``) and candidate weights (``_h``), none of them recurrent."""
        D, H = input_size, hidden_size
        return {"W_z": (H, D), "b_z": (H,), "W_h": (H, D), "b_h": (H,)}

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Advance h by one step."""
        keep, add = self.affine(x, params)
        return keep * s + add

    def affine(self, x: Tensor, params: Params) -> tuple[Tensor, Tensor]:
        """Return what a step multiplies the state by and what it adds to it; neither depends on the state."""
        gate = linear(x, params["W_z"], params["b_z"])
        return torch.sigmoid(-gate), torch.sigmoid(gate) * linear(x, params["W_h"], params["b_h"])

    def gates(self, x: Tensor, s: Tensor, params: Params) -> dict[str, Tensor]:
        """Return the update gate z of every unit."""
        return {"z": torch.sigmoid(linear(x, params["W_z"], params["b_z"]))}

    def retention(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """``1 - z_t``."""
        return self.affine(x, params)[0]

    def correction(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Zero: nothing is left out."""
        return torch.zeros_like(s)

    def pullback(self, x: Tensor, s: Tensor, params: Params) -> Pullback:
        """Elementwise throughout."""
        return _MinGRUPullback(x, s, params)


class _MinGRUPullback(Pullback):
    """Spread to the gate and to the candidate; no unit sees another."""

    def __init__(self, x: Tensor, h: Tensor, p: Params) -> None:
        width = h.shape[1]
        uses = {name: use for name, use in gate_uses("zh", width).items() if not name.startswith("U_")}
        super().__init__({"x": x, "h": h}, uses, width=2 * width, reads=torch.cat((p["W_z"], p["W_h"])), recurrent=None)
        gate = torch.sigmoid(linear(x, p["W_z"], p["b_z"]))
        self._gate, self._keep = gate, 1 - gate
        self._gate_slope = (linear(x, p["W_h"], p["b_h"]) - h) * gate * self._keep

    def spread(self, cotangent: Tensor, out: Tensor) -> None:
        width = cotangent.shape[1]
        torch.mul(cotangent, self._gate_slope, out=out[:, :width])
        torch.mul(cotangent, self._gate, out=out[:, width:])

    def state(self, cotangent: Tensor, spread: Tensor, out: Tensor) -> None:
        torch.mul(cotangent, self._keep, out=out)
