"""Elman: the plain dense tanh network, the cell without a retention path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import linear

from lagreach.cells._candidate import CandidatePullback, CandidateSlope, candidate, candidate_diagonal, candidate_shapes
from lagreach.cells._cell import Cell, Params
from lagreach.cells._pullback import Pullback


@dataclass(frozen=True)
class Elman(Cell):
    """``h' = tanh(W_h x + U_h h + b_h)``.

    Nothing is retained, so the first-order expansion is the diagonal at lag 1 and zero beyond: only exact
    transport says anything about this cell.
    """

    name: ClassVar[str] = "elman"
    equations: ClassVar[str] = "torch.nn.RNN"
    first_order: ClassVar[str] = "vanishes"

    layernorm: bool = False

    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """W_h, U_h, b_h (and the LayerNorm)."""
        H = hidden_size
        return {"W_h": (H, input_size), "U_h": (H, H), "b_h": (H,)} | candidate_shapes(self.layernorm, H)

    def _preactivation(self, x: Tensor, h: Tensor, p: Params) -> Tensor:
        return linear(x, p["W_h"], p["b_h"]) + linear(h, p["U_h"])

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Advance h by one step."""
        return candidate(self.layernorm, self._preactivation(x, s, params), params)

    def correction(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Return the whole diagonal, ``(1-h'^2) diag(U_h)``."""
        U, a = params["U_h"], self._preactivation(x, s, params)
        return candidate_diagonal(self.layernorm, a, params, U.diagonal(), lambda v: v @ U)

    def pullback(self, x: Tensor, s: Tensor, params: Params) -> Pullback:
        """One product with U_h."""
        a = self._preactivation(x, s, params)
        slope = CandidateSlope(self.layernorm, a, params, candidate(self.layernorm, a, params), 1.0)
        return CandidatePullback(x, s, params, slope, None)
