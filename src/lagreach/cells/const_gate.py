"""ConstGate: a leaky tanh network with one fixed gate, where everything is known in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear

from lagreach.cells._candidate import CandidatePullback, CandidateSlope, candidate, candidate_diagonal, candidate_shapes
from lagreach.cells._cell import Cell, Params
from lagreach.cells._pullback import Pullback
from lagreach.errors import InputError


@dataclass(frozen=True)
class ConstGate(Cell):
    """``h' = (1-s) h + s tanh(W_h x + U_h h + b_h)`` with a constant s in [0, 1], (51) and (52).

    Retention is ``1-s`` and the correction ``s (1-g^2) diag(U_h)``. With ``U_h = 0`` transport over lag l is
    exactly ``(1-s)^l``:

    >>> import torch
    >>> cell = ConstGate(gate=0.25)
    >>> x, h = torch.zeros(1, 2), torch.zeros(1, 3)
    >>> p = {k: torch.zeros(v) for k, v in cell.shapes(2, 3).items()}
    >>> cell.retention(x, h, p)
    tensor([[0.7500, 0.7500, 0.7500]])
    """

    name: ClassVar[str] = "const_gate"
    equations: ClassVar[str] = "(51)-(52)"
    gate_names: ClassVar[tuple[str, ...]] = ("s",)
    gate_option: ClassVar[str | None] = "gate"

    gate: float = 0.5
    layernorm: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.gate <= 1.0:
            raise InputError("the constant gate must lie in [0, 1]", got=self.gate, fix="pass gate=0.5, say")

    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """W_h, U_h, b_h (and the LayerNorm); the gate is not learned."""
        H = hidden_size
        return {"W_h": (H, input_size), "U_h": (H, H), "b_h": (H,)} | candidate_shapes(self.layernorm, H)

    def _preactivation(self, x: Tensor, h: Tensor, p: Params) -> Tensor:
        return linear(x, p["W_h"], p["b_h"]) + linear(h, p["U_h"])

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Advance h by one step."""
        g = candidate(self.layernorm, self._preactivation(x, s, params), params)
        return (1 - self.gate) * s + self.gate * g

    def gates(self, x: Tensor, s: Tensor, params: Params) -> dict[str, Tensor]:
        """Return the constant s, shaped like the state."""
        return {"s": torch.full_like(s, self.gate)}

    def retention(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """``1 - s``."""
        return torch.full_like(s, 1 - self.gate)

    def correction(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """``s (1-g^2) diag(U_h)``, through the LayerNorm where there is one."""
        U, a = params["U_h"], self._preactivation(x, s, params)
        return self.gate * candidate_diagonal(self.layernorm, a, params, U.diagonal(), lambda v: v @ U)

    def pullback(self, x: Tensor, s: Tensor, params: Params) -> Pullback:
        """One product with U_h."""
        a = self._preactivation(x, s, params)
        slope = CandidateSlope(self.layernorm, a, params, candidate(self.layernorm, a, params), self.gate)
        return CandidatePullback(x, s, params, slope, s.new_full((len(s), 1), 1 - self.gate))
