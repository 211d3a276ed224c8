"""LSTM, with the state [h; c] and first-order rates along the block from c to h."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from lagreach.cells._candidate import CandidateSlope, candidate, candidate_diagonal, candidate_shapes
from lagreach.cells._cell import Cell, Dual, Factors, Params
from lagreach.cells._pullback import Pullback, gate_uses


class Advanced(NamedTuple):
    """What one step of an LSTM computes."""

    i: Tensor
    f: Tensor
    o: Tensor
    a: Tensor  # candidate pre-activation
    h: Tensor  # state before the step
    c: Tensor
    c_after: Tensor


@dataclass(frozen=True)
class LSTM(Cell):
    """``c' = f c + i g``, ``h' = o tanh(c')``, gates and candidate from x and h, (4)-(14).

    First order follows the block of M = J_t ... J_{t-l+1} that leads from c to h (the loss sees h, the cell
    retains c). With ``e = o (1 - tanh^2 c)`` (the slope dh/dc within a step), ``c1 = diag(dc_t/dh_{t-1})`` and
    ``h1 = diag(dh_t/dh_{t-1})``, its diagonal is the dual product

        (e_t f_t + E h1_t e_{t-1}) * prod_{p=t-l+2}^{t-1} (f_p + E c1_p e_{p-1}) * f_{t-l+1}

    (E the dual unit) for l >= 2 and ``e_t f_t`` for l = 1: the oldest step has no first-order part because a
    correction there would start from h, not from c. (13) as printed sums ``e_m prod f`` over m instead, which
    is not that block; it is kept as ``form="paper-eq13"``.
    """

    name: ClassVar[str] = "lstm"
    equations: ClassVar[str] = "(4)-(14)"
    gate_names: ClassVar[tuple[str, ...]] = ("i", "f", "o")
    blocks: ClassVar[tuple[str, ...]] = ("h", "c")
    rate_block: ClassVar[str] = "c"
    retention_bias: ClassVar[tuple[str, int] | None] = ("b_f", 1)

    layernorm: bool = False

    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Input (``_i``), forget (``_f``), candidate (``_g``) and output (``_o``) weights."""
        D, H = input_size, hidden_size
        weights = {f"{kind}_{k}": shape for k in "ifgo" for kind, shape in (("W", (H, D)), ("U", (H, H)), ("b", (H,)))}
        return weights | candidate_shapes(self.layernorm, H)

    def _forward(self, x: Tensor, s: Tensor, p: Params) -> Advanced:
        h, c = s.chunk(2, dim=-1)
        return self.advance(x, h, c, p)

    def advance(self, x: Tensor, h: Tensor, c: Tensor, p: Params) -> Advanced:
        """Gates, candidate and new cell state; h may have another width than c."""
        W, U, b = (torch.cat([p[f"{kind}_{k}"] for k in "ifog"]) for kind in "WUb")
        *gates, a = (linear(x, W, b) + linear(h, U)).chunk(4, dim=-1)
        i, f, o = (torch.sigmoid(gate) for gate in gates)
        return Advanced(i, f, o, a, h, c, f * c + i * candidate(self.layernorm, a, p))

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Advance [h; c] by one step."""
        v = self._forward(x, s, params)
        return torch.cat((v.o * torch.tanh(v.c_after), v.c_after), dim=-1)

    def gates(self, x: Tensor, s: Tensor, params: Params) -> dict[str, Tensor]:
        """Return input, forget and output gates."""
        v = self._forward(x, s, params)
        return {"i": v.i, "f": v.f, "o": v.o}

    def retention(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Diagonal of dc_t/dc_{t-1}: the forget gate, in the block of c; zero in the block of h."""
        f = self._forward(x, s, params).f
        return torch.cat((torch.zeros_like(f), f), dim=-1)

    def correction(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Diagonal of the rest: dh_t/dh_{t-1} in the block of h, zero in the block of c."""
        _, _, h1 = self._slopes(self._forward(x, s, params), params)
        return torch.cat((h1, torch.zeros_like(h1)), dim=-1)

    def _slopes(self, v: Advanced, p: Params) -> tuple[Tensor, Tensor, Tensor]:
        """Return e_t, the diagonal c1 of (9) and the diagonal h1 of the upper left block of (11)."""
        U = p["U_g"]
        g = candidate(self.layernorm, v.a, p)
        through_candidate = candidate_diagonal(self.layernorm, v.a, p, U.diagonal(), lambda w: w @ U)
        c1 = (
            v.c * v.f * (1 - v.f) * p["U_f"].diagonal()
            + v.i * through_candidate
            + g * v.i * (1 - v.i) * p["U_i"].diagonal()
        )
        tanh_c = torch.tanh(v.c_after)
        e = v.o * (1 - tanh_c * tanh_c)
        return e, c1, tanh_c * v.o * (1 - v.o) * p["U_o"].diagonal() + e * c1

    def expression(self, x: Tensor, s: Tensor, params: Params) -> tuple[Tensor, Tensor]:
        """Return e_t and f_t, the ingredients of (13) as printed."""
        v = self._forward(x, s, params)
        return self._slopes(v, params)[0], v.f

    def factors(self, x: Tensor, s: Tensor, params: Params) -> Factors:
        """Return the three kinds of factor in the class docstring."""
        v = self._forward(x, s, params)
        e, c1, h1 = self._slopes(v, params)
        # e_{t-1}; its value at the first step is never used, since a window's middle starts at its second step.
        e_before = torch.cat((torch.zeros_like(e[:, :1]), e[:, :-1]), dim=1)
        zero = torch.zeros_like(e)
        return Factors(
            newest=Dual(e * v.f, h1 * e_before),
            middle=Dual(v.f, c1 * e_before),
            oldest=Dual(v.f, zero),
            single=Dual(e * v.f, zero),
        )

    def pullback(self, x: Tensor, s: Tensor, params: Params) -> Pullback:
        """One product with the four recurrent matrices, stacked."""
        return _LSTMPullback(self, x, s, params)


class _LSTMPullback(Pullback):
    """Spread to the gates i, f, g, o, to a LayerNorm's weights, and to the new c (the last columns)."""

    def __init__(self, cell: LSTM, x: Tensor, s: Tensor, p: Params) -> None:
        v = cell._forward(x, s, p)
        width = v.c.shape[1]
        recurrent = torch.cat([p[f"U_{k}"] for k in "ifgo"])
        g = candidate(cell.layernorm, v.a, p)
        self._slope = CandidateSlope(cell.layernorm, v.a, p, g, v.i)
        super().__init__(
            {"x": x, "h": v.h},
            gate_uses("ifgo", width) | self._slope.uses(4 * width),
            width=5 * width + self._slope.extra,
            reads=torch.cat([p[f"W_{k}"] for k in "ifgo"]),
            recurrent=recurrent,
            columns=slice(4 * width),
        )
        tanh_c = torch.tanh(v.c_after)
        self._f, self._e = v.f, v.o * (1 - tanh_c * tanh_c)
        self._i_slope = g * v.i * (1 - v.i)
        self._f_slope = v.c * v.f * (1 - v.f)
        self._o_slope = tanh_c * v.o * (1 - v.o)
        slopes = (self._i_slope, self._f_slope, self._slope.elementwise, self._o_slope)
        self.known("lstm", (self._e, *slopes, v.f), (recurrent,), self._slope.norm)

    def spread(self, cotangent: Tensor, out: Tensor) -> None:
        h, c = cotangent.chunk(2, dim=1)
        i, f, g, o, extra, new_c = out.split([*[c.shape[1]] * 4, self._slope.extra, c.shape[1]], dim=1)
        torch.addcmul(c, h, self._e, out=new_c)
        torch.mul(new_c, self._i_slope, out=i)
        torch.mul(new_c, self._f_slope, out=f)
        self._slope.pull(new_c, g, extra)
        torch.mul(h, self._o_slope, out=o)

    def state(self, cotangent: Tensor, spread: Tensor, out: Tensor) -> None:
        h, c = out.chunk(2, dim=1)
        super().state(cotangent, spread, h)
        torch.mul(spread[:, -c.shape[1] :], self._f, out=c)
