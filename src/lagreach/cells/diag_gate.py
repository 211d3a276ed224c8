"""DiagGate: a tanh network in which every unit has its own learned gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear

from lagreach.cells._candidate import CandidateSlope, candidate, candidate_diagonal, candidate_shapes
from lagreach.cells._cell import Cell, Dual, Factors, Params
from lagreach.cells._pullback import Pullback, gate_uses


@dataclass(frozen=True)
class DiagGate(Cell):
    """``s = sigmoid(W_s x + U_s h + b_s)``, ``h' = (1-s) h + s tanh(W_h x + U_h h + b_h)``, (47) and (48)."""

    name: ClassVar[str] = "diag_gate"
    equations: ClassVar[str] = "(47)-(48)"
    gate_names: ClassVar[tuple[str, ...]] = ("s",)
    retention_bias: ClassVar[tuple[str, int] | None] = ("b_s", -1)

    layernorm: bool = False

    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Gate weights (``_s``) and candidate weights (``_h``)."""
        D, H = input_size, hidden_size
        gate = {"W_s": (H, D), "U_s": (H, H), "b_s": (H,)}
        return gate | {"W_h": (H, D), "U_h": (H, H), "b_h": (H,)} | candidate_shapes(self.layernorm, H)

    def _preactivations(self, x: Tensor, h: Tensor, p: Params) -> tuple[Tensor, Tensor]:
        gate = linear(x, p["W_s"], p["b_s"]) + linear(h, p["U_s"])
        return torch.sigmoid(gate), linear(x, p["W_h"], p["b_h"]) + linear(h, p["U_h"])

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Advance h by one step."""
        gate, a = self._preactivations(x, s, params)
        return (1 - gate) * s + gate * candidate(self.layernorm, a, params)

    def gates(self, x: Tensor, s: Tensor, params: Params) -> dict[str, Tensor]:
        """Return the update gate s of every unit."""
        return {"s": self._preactivations(x, s, params)[0]}

    def retention(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """``1 - s_t``."""
        return 1 - self._preactivations(x, s, params)[0]

    def correction(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """``s (1-g^2) diag(U_h) + (g - h) s(1-s) diag(U_s)``."""
        return self.factors(x, s, params).middle.slope

    def factors(self, x: Tensor, s: Tensor, params: Params) -> Factors:
        """Retention and correction from one pass."""
        gate, a = self._preactivations(x, s, params)
        g, U = candidate(self.layernorm, a, params), params["U_h"]
        through_candidate = candidate_diagonal(self.layernorm, a, params, U.diagonal(), lambda v: v @ U, g)
        through_gate = (g - s) * gate * (1 - gate) * params["U_s"].diagonal()
        return Factors.uniform(Dual(1 - gate, gate * through_candidate + through_gate))

    def pullback(self, x: Tensor, s: Tensor, params: Params) -> Pullback:
        """One product with U_h and U_s, stacked."""
        return _DiagGatePullback(self, x, s, params)


class _DiagGatePullback(Pullback):
    """Spread to the candidate and to the gate."""

    def __init__(self, cell: DiagGate, x: Tensor, h: Tensor, p: Params) -> None:
        gate, a = cell._preactivations(x, h, p)
        width = h.shape[1]
        g = candidate(cell.layernorm, a, p)
        slopes = h.new_empty(len(h), 2 * width)
        self._slope = CandidateSlope(cell.layernorm, a, p, g, gate, out=slopes[:, :width])
        self._gate_slope = torch.mul((g - h) * gate, 1 - gate, out=slopes[:, width:])
        super().__init__(
            {"x": x, "h": h},
            gate_uses("hs", width) | self._slope.uses(2 * width),
            width=2 * width + self._slope.extra,
            reads=torch.cat((p["W_h"], p["W_s"])),
            recurrent=torch.cat((p["U_h"], p["U_s"])),
            columns=slice(2 * width),
            retained=1 - gate,
        )
        self.elementwise(slopes, self._slope.norm)

    def spread(self, cotangent: Tensor, out: Tensor) -> None:
        width = cotangent.shape[1]
        self._slope.pull(cotangent, out[:, :width], out[:, 2 * width :])
        torch.mul(cotangent, self._gate_slope, out=out[:, width : 2 * width])
