"""TorchGRU: the GRU that `torch.nn.GRU` computes, with its reset gate after the matrix product."""

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
class TorchGRU(Cell):
    """``h' = z h + (1-z) n``, ``n = tanh(W_n x + b_n + r (U_n h + c_n))``: here z retains.

    The diagonal of its Jacobian: retention z; correction
    ``(h-n) z(1-z) u_z + (1-z)(1-n^2) [r u_n + (U_n h + c_n) r(1-r) u_r]``.
    """

    name: ClassVar[str] = "torch_gru"
    equations: ClassVar[str] = "torch.nn.GRU"
    gate_names: ClassVar[tuple[str, ...]] = ("r", "z")
    retention_bias: ClassVar[tuple[str, int] | None] = ("b_z", 1)

    layernorm: bool = False

    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Reset (``_r``), retention (``_z``) and candidate (``_n``) weights; `c_n` is the candidate's hidden bias."""
        D, H = input_size, hidden_size
        weights = {f"{kind}_{k}": shape for k in "rzn" for kind, shape in (("W", (H, D)), ("U", (H, H)), ("b", (H,)))}
        return weights | {"c_n": (H,)} | candidate_shapes(self.layernorm, H)

    def _forward(self, x: Tensor, h: Tensor, p: Params) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        r = torch.sigmoid(linear(x, p["W_r"], p["b_r"]) + linear(h, p["U_r"]))
        z = torch.sigmoid(linear(x, p["W_z"], p["b_z"]) + linear(h, p["U_z"]))
        hidden = linear(h, p["U_n"], p["c_n"])
        return r, z, hidden, linear(x, p["W_n"], p["b_n"]) + r * hidden

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Advance h by one step."""
        _, z, _, a = self._forward(x, s, params)
        return z * s + (1 - z) * candidate(self.layernorm, a, params)

    def gates(self, x: Tensor, s: Tensor, params: Params) -> dict[str, Tensor]:
        """Return the reset gate r and the retention gate z."""
        r, z, _, _ = self._forward(x, s, params)
        return {"r": r, "z": z}

    def retention(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """``z_t`` itself."""
        return self._forward(x, s, params)[1]

    def correction(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Return the diagonal of what is not retention; see the class docstring."""
        r, z, hidden, a = self._forward(x, s, params)
        n, U_n, U_r = candidate(self.layernorm, a, params), params["U_n"], params["U_r"]
        reset_slope = hidden * r * (1 - r)
        diagonal = r * U_n.diagonal() + reset_slope * U_r.diagonal()
        through_candidate = candidate_diagonal(
            self.layernorm, a, params, diagonal, lambda v: (v * r) @ U_n + (v * reset_slope) @ U_r
        )
        return (s - n) * z * (1 - z) * params["U_z"].diagonal() + (1 - z) * through_candidate

    def pullback(self, x: Tensor, s: Tensor, params: Params) -> Pullback:
        """One product with U_z, U_r and U_n, stacked."""
        return _TorchGRUPullback(self, x, s, params)


class _TorchGRUPullback(Pullback):
    """Spread to n and z, and from n to r and to the hidden part of n, which the reset gate weakens."""

    def __init__(self, cell: TorchGRU, x: Tensor, h: Tensor, p: Params) -> None:
        r, z, hidden, a = cell._forward(x, h, p)
        width = h.shape[1]
        weakened = (slice(3 * width, 4 * width),)
        n = candidate(cell.layernorm, a, p)
        slopes, through = h.new_empty(len(h), 2 * width), h.new_empty(len(h), 2 * width)
        self._slope = CandidateSlope(cell.layernorm, a, p, n, 1 - z, out=slopes[:, :width])
        self._update_slope = torch.mul((h - n) * z, 1 - z, out=slopes[:, width:])
        self._reset_slope = torch.mul(hidden * r, 1 - r, out=through[:, :width])
        self._reset = through[:, width:].copy_(r)
        hidden_uses = {"U_n": Use(weakened, "h"), "c_n": Use(weakened, "1")}
        super().__init__(
            {"x": x, "h": h},
            gate_uses("nzr", width) | hidden_uses | self._slope.uses(4 * width),
            width=4 * width + self._slope.extra,
            reads=torch.cat((p["W_n"], p["W_z"], p["W_r"])),
            recurrent=torch.cat((p["U_z"], p["U_r"], p["U_n"])),
            columns=slice(width, 4 * width),
            retained=z,
        )
        self.elementwise(slopes, self._slope.norm, through=through)

    def spread(self, cotangent: Tensor, out: Tensor) -> None:
        width = cotangent.shape[1]
        n, z, r, weakened, extra = out.split([*[width] * 4, self._slope.extra], dim=1)
        self._slope.pull(cotangent, n, extra)
        torch.mul(cotangent, self._update_slope, out=z)
        torch.mul(n, self._reset_slope, out=r)
        torch.mul(n, self._reset, out=weakened)
