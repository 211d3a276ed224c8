"""DiagElman: units that see only themselves, the network of the convergence paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear

from lagreach.cells._cell import Cell, Params
from lagreach.cells._pullback import Pullback, gate_uses
from lagreach.cells.activations import Activation, get_activation


@dataclass(frozen=True)
class DiagElman(Cell):
    """``h' = f(W_h x + u_h h + b_h)`` with an elementwise ``u_h`` (Cayci & Eryilmaz 2024; their W is our u_h).

    The Jacobian is diagonal, so the first order *is* exact: transport over a window is ``prod u_h f'(a)``.
    """

    name: ClassVar[str] = "diag_elman"
    equations: ClassVar[str] = "Cayci & Eryilmaz (1)"
    first_order: ClassVar[str] = "exact"

    activation: str | Activation = "tanh"

    def __post_init__(self) -> None:
        get_activation(self.activation)

    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """W_h, the diagonal u_h, and b_h."""
        return {"W_h": (hidden_size, input_size), "u_h": (hidden_size,), "b_h": (hidden_size,)}

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Advance h by one step."""
        return get_activation(self.activation)(linear(x, params["W_h"], params["b_h"]) + params["u_h"] * s)

    def retention(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """``u_h f'(a)``."""
        a = linear(x, params["W_h"], params["b_h"]) + params["u_h"] * s
        return params["u_h"] * get_activation(self.activation).slope(a)

    def correction(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Zero: nothing is left out."""
        return torch.zeros_like(s)

    def pullback(self, x: Tensor, s: Tensor, params: Params) -> Pullback:
        """Elementwise throughout."""
        return _DiagElmanPullback(self, x, s, params)


class _DiagElmanPullback(Pullback):
    """No unit sees another, so there is no matrix product."""

    def __init__(self, cell: DiagElman, x: Tensor, h: Tensor, p: Params) -> None:
        width = h.shape[1]
        uses = gate_uses("h", width)
        del uses["U_h"]  # the gradient of the diagonal u_h is not an outer product
        super().__init__({"x": x, "h": h}, uses, width=width, reads=p["W_h"], recurrent=None)
        a = linear(x, p["W_h"], p["b_h"]) + p["u_h"] * h
        self._diagonal, self._slope = p["u_h"], get_activation(cell.activation).slope(a)

    def spread(self, cotangent: Tensor, out: Tensor) -> None:
        torch.mul(cotangent, self._slope, out=out)

    def state(self, cotangent: Tensor, spread: Tensor, out: Tensor) -> None:
        torch.mul(spread, self._diagonal, out=out)
