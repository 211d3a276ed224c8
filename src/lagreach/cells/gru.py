"""GRU in the paper's form: z updates (it does not retain) and the reset gate acts before the matrix product."""

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
class GRU(Cell):
    """``h' = (1-z) h + z tanh(W_h x + U_h (r h) + b_h)``, (15)-(22).

    `torch.nn.GRU` is another cell (`TorchGRU`): its z retains and its reset gate acts after the product.
    The paper's reset and mixed products (25) are offered as named channels.
    """

    name: ClassVar[str] = "gru"
    equations: ClassVar[str] = "(15)-(26)"
    gate_names: ClassVar[tuple[str, ...]] = ("z", "r")
    retention_bias: ClassVar[tuple[str, int] | None] = ("b_z", -1)

    layernorm: bool = False

    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Update (``_z``), reset (``_r``) and candidate (``_h``) weights."""
        D, H = input_size, hidden_size
        weights = {f"{kind}_{k}": shape for k in "zrh" for kind, shape in (("W", (H, D)), ("U", (H, H)), ("b", (H,)))}
        return weights | candidate_shapes(self.layernorm, H)

    def _forward(self, x: Tensor, h: Tensor, p: Params) -> tuple[Tensor, Tensor, Tensor]:
        z = torch.sigmoid(linear(x, p["W_z"], p["b_z"]) + linear(h, p["U_z"]))
        r = torch.sigmoid(linear(x, p["W_r"], p["b_r"]) + linear(h, p["U_r"]))
        return z, r, linear(x, p["W_h"], p["b_h"]) + linear(r * h, p["U_h"])

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Advance h by one step."""
        z, _, a = self._forward(x, s, params)
        return (1 - z) * s + z * candidate(self.layernorm, a, params)

    def gates(self, x: Tensor, s: Tensor, params: Params) -> dict[str, Tensor]:
        """Return the update gate z and the reset gate r."""
        z, r, _ = self._forward(x, s, params)
        return {"z": z, "r": r}

    def retention(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """``1 - z_t``."""
        return 1 - self._forward(x, s, params)[0]

    def correction(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """``(g-h) z(1-z) u_z + z (1-g^2) [u_h r + (U_h o U_r^T)(h r(1-r))]``.

        The bracket is the diagonal of ``U_h (D(r) + D(h r(1-r)) U_r)`` in (20), whole: the reset gate of any unit
        reaches unit q through U_h, so keeping only ``u_h u_r`` would lose most of it.
        """
        z, r, a = self._forward(x, s, params)
        g, U_h, U_r = candidate(self.layernorm, a, params), params["U_h"], params["U_r"]
        reset_slope = s * r * (1 - r)
        diagonal = U_h.diagonal() * r + linear(reset_slope, U_h * U_r.T)

        def times_rows(v: Tensor) -> Tensor:
            through_h = v @ U_h
            return through_h * r + (through_h * reset_slope) @ U_r

        through_candidate = candidate_diagonal(self.layernorm, a, params, diagonal, times_rows)
        return (g - s) * z * (1 - z) * params["U_z"].diagonal() + z * through_candidate

    def channels(self, x: Tensor, s: Tensor, params: Params) -> dict[str, Tensor]:
        """Reset ``r`` and mixed ``(1-z) r`` factors of (25)."""
        z, r, _ = self._forward(x, s, params)
        return {"reset": r, "mixed": (1 - z) * r}

    def pullback(self, x: Tensor, s: Tensor, params: Params) -> Pullback:
        """One product with U_h, then one with U_z and U_r, stacked."""
        return _GRUPullback(self, x, s, params)


class _GRUPullback(Pullback):
    """Spread to the candidate, from there to ``r h`` (the last columns), to the gates z and r, and to a LayerNorm's weights."""

    def __init__(self, cell: GRU, x: Tensor, h: Tensor, p: Params) -> None:
        z, r, a = cell._forward(x, h, p)
        width = h.shape[1]
        gates = torch.cat((p["U_z"], p["U_r"]))
        retained = 1 - z
        g = candidate(cell.layernorm, a, p)
        self._slope = CandidateSlope(cell.layernorm, a, p, g, z)
        super().__init__(
            {"x": x, "h": h, "rh": r * h},
            gate_uses("hzr", width) | {"U_h": Use((slice(width),), "rh")} | self._slope.uses(3 * width),
            width=4 * width + self._slope.extra,
            reads=torch.cat((p["W_h"], p["W_z"], p["W_r"])),
            recurrent=gates,
            columns=slice(width, 3 * width),
            retained=retained,
        )
        self._U_h, self._reset, self._reset_slope = p["U_h"], r, h * r * (1 - r)
        self._update_slope = (g - h) * z * (1 - z)
        slopes = (self._slope.elementwise, self._update_slope, self._reset_slope)
        self.known("gru", (*slopes, r, retained), (p["U_h"], gates), self._slope.norm)

    def spread(self, cotangent: Tensor, out: Tensor) -> None:
        width = cotangent.shape[1]
        a, z, r, extra, through = out.split([width, width, width, self._slope.extra, width], dim=1)
        self._slope.pull(cotangent, a, extra)
        torch.mm(a, self._U_h, out=through)
        torch.mul(cotangent, self._update_slope, out=z)
        torch.mul(through, self._reset_slope, out=r)

    def state(self, cotangent: Tensor, spread: Tensor, out: Tensor) -> None:
        super().state(cotangent, spread, out)
        out.addcmul_(spread[:, -out.shape[1] :], self._reset)
