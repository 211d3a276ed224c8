"""SharedGate: a tanh network with one learned gate for all units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear

from lagreach.cells._candidate import CandidateSlope, candidate, candidate_diagonal, candidate_shapes
from lagreach.cells._cell import Cell, Params
from lagreach.cells._pullback import Pullback, Use, gate_uses


@dataclass(frozen=True)
class SharedGate(Cell):
    """``s = sigmoid(w_s.x + u_s.h + b_s)``, a scalar; ``h' = (1-s) h + s tanh(W_h x + U_h h + b_h)``, (49), (50).

    `W_s` and `U_s` are row vectors of shape (1, D) and (1, H).
    """

    name: ClassVar[str] = "shared_gate"
    equations: ClassVar[str] = "(49)-(50)"
    gate_names: ClassVar[tuple[str, ...]] = ("s",)
    retention_bias: ClassVar[tuple[str, int] | None] = ("b_s", -1)

    layernorm: bool = False

    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Gate rows (``_s``) and candidate weights (``_h``)."""
        D, H = input_size, hidden_size
        gate = {"W_s": (1, D), "U_s": (1, H), "b_s": (1,)}
        return gate | {"W_h": (H, D), "U_h": (H, H), "b_h": (H,)} | candidate_shapes(self.layernorm, H)

    def _preactivations(self, x: Tensor, h: Tensor, p: Params) -> tuple[Tensor, Tensor]:
        gate = linear(x, p["W_s"], p["b_s"]) + linear(h, p["U_s"])
        return torch.sigmoid(gate), linear(x, p["W_h"], p["b_h"]) + linear(h, p["U_h"])

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Advance h by one step."""
        gate, a = self._preactivations(x, s, params)
        return (1 - gate) * s + gate * candidate(self.layernorm, a, params)

    def gates(self, x: Tensor, s: Tensor, params: Params) -> dict[str, Tensor]:
        """Return the shared gate, with a last axis of length 1."""
        return {"s": self._preactivations(x, s, params)[0]}

    def retention(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """``1 - s_t``, the same for all units."""
        return (1 - self._preactivations(x, s, params)[0]).expand_as(s)

    def correction(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """``s (1-g^2) diag(U_h) + s(1-s) (g - h) u_s``: the diagonal of the rank-one gate term."""
        gate, a = self._preactivations(x, s, params)
        g, U = candidate(self.layernorm, a, params), params["U_h"]
        through_candidate = candidate_diagonal(self.layernorm, a, params, U.diagonal(), lambda v: v @ U)
        return gate * through_candidate + gate * (1 - gate) * (g - s) * params["U_s"][0]

    def pullback(self, x: Tensor, s: Tensor, params: Params) -> Pullback:
        """One product with U_h and the row U_s, stacked."""
        return _SharedGatePullback(self, x, s, params)


class _SharedGatePullback(Pullback):
    """Spread to the candidate and, in one column behind it, to the gate that all units share."""

    def __init__(self, cell: SharedGate, x: Tensor, h: Tensor, p: Params) -> None:
        gate, a = cell._preactivations(x, h, p)
        width = h.shape[1]
        column = (slice(width, width + 1),)
        g = candidate(cell.layernorm, a, p)
        self._gate_slope = (g - h) * (gate * (1 - gate))
        self._slope = CandidateSlope(cell.layernorm, a, p, g, gate)
        shared = {"W_s": Use(column, "x"), "U_s": Use(column, "h"), "b_s": Use(column, "1")}
        super().__init__(
            {"x": x, "h": h},
            gate_uses("h", width) | shared | self._slope.uses(width + 1),
            width=width + 1 + self._slope.extra,
            reads=torch.cat((p["W_h"], p["W_s"])),
            recurrent=torch.cat((p["U_h"], p["U_s"])),
            columns=slice(width + 1),
            retained=1 - gate,
        )
        self.elementwise(self._slope.elementwise, self._slope.norm, shared=self._gate_slope)

    def spread(self, cotangent: Tensor, out: Tensor) -> None:
        width = cotangent.shape[1]
        self._slope.pull(cotangent, out[:, :width], out[:, width + 1 :])
        torch.sum(cotangent * self._gate_slope, 1, out=out[:, width])
