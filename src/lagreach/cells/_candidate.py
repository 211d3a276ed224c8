"""The candidate ``tanh(a)`` shared by the gated cells, with optional LayerNorm on its pre-activation a.

With LayerNorm the candidate is ``tanh(gain * n(a) + shift)``, ``n(a) = (a - mean) / std`` over the units. Its
Jacobian is not diagonal, which is why the diagonal of a correction needs more than the diagonal of dA/dh.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from lagreach.cells._cell import Params
from lagreach.cells._pullback import Norm, Pullback, Use, gate_uses

EPS = 1e-5  # as torch.nn.LayerNorm


def candidate_shapes(layernorm: bool, hidden_size: int) -> dict[str, tuple[int, ...]]:
    """Weights of the LayerNorm, if there is one."""
    return {"ln_gain": (hidden_size,), "ln_shift": (hidden_size,)} if layernorm else {}


def candidate(layernorm: bool, a: Tensor, params: Params) -> Tensor:
    """``tanh(a)``, or ``tanh(LayerNorm(a))``."""
    if layernorm:
        a = layer_norm(a, a.shape[-1:], params["ln_gain"], params["ln_shift"], EPS)
    return torch.tanh(a)


def candidate_diagonal(
    layernorm: bool,
    a: Tensor,
    params: Params,
    diagonal: Tensor,
    times_rows: Callable[[Tensor], Tensor],
    g: Tensor | None = None,
) -> Tensor:
    """Diagonal of ``d candidate / dh`` given the matrix ``A = da/dh``.

    Parameters
    ----------
    diagonal
        Diagonal of A.
    times_rows
        Maps row vectors v to ``v A``; only used with LayerNorm, which mixes the rows of A.
    g
        The candidate, if it is known already.
    """
    g = candidate(layernorm, a, params) if g is None else g
    if not layernorm:
        return (1 - g * g) * diagonal
    centred = a - a.mean(-1, keepdim=True)
    std = (centred.square().mean(-1, keepdim=True) + EPS).sqrt()
    n = centred / std
    units = a.shape[-1]
    mean_row = times_rows(torch.ones_like(a)) / units
    along_n = times_rows(n) / units
    return (1 - g * g) * params["ln_gain"] / std * (diagonal - mean_row - n * along_n)


class CandidateSlope:
    """Pulls gradients at ``factor * g``, ``g = candidate(a)``, back to the pre-activation a, row by row.

    `elementwise` leads to the argument of the tanh, and may be written to `out`; without LayerNorm that is all. With one, the
    spread has columns for its weights, as many as `extra`.
    """

    def __init__(
        self,
        layernorm: bool,
        a: Tensor,
        params: Params,
        g: Tensor,
        factor: Tensor | float,
        out: Tensor | None = None,
    ) -> None:
        self.elementwise = torch.mul(1 - g * g, factor, out=out)
        self.norm, self.extra = Norm.none(a), 0
        if layernorm:
            centred = a - a.mean(-1, keepdim=True)
            inverse = (centred.square().mean(-1, keepdim=True) + EPS).rsqrt()
            self.norm, self.extra = Norm(centred * inverse, inverse, params["ln_gain"][None]), 2 * a.shape[1]

    def uses(self, first: int) -> dict[str, Use]:
        """Where the gradients of the LayerNorm's weights are found, in columns from the `first` on."""
        units = self.extra // 2
        shift, gain = slice(first, first + units), slice(first + units, first + 2 * units)
        return {"ln_shift": Use((shift,), "1"), "ln_gain": Use((gain,), "1")} if units else {}

    def pull(self, cotangent: Tensor, out: Tensor, extra: Tensor) -> None:
        """Write the gradient at a, and those of the LayerNorm's weights in every row."""
        torch.mul(cotangent, self.elementwise, out=out)
        if self.extra:
            normalised_back(out, self.norm, extra)


def normalised_back(gradient: Tensor, norm: Norm, extra: Tensor) -> None:
    """Turn the gradient of a LayerNorm's result into that of its argument, and write those of shift and gain in every row."""
    shift, gain = extra.chunk(2, dim=-1)
    shift.copy_(gradient)
    torch.mul(gradient, norm.normal, out=gain)
    gradient.mul_(norm.gain)
    along = (gradient * norm.normal).mean(-1, keepdim=True)
    gradient.sub_(gradient.mean(-1, keepdim=True)).addcmul_(norm.normal, along, value=-1).mul_(norm.inverse)


class CandidatePullback(Pullback):
    """``J^T`` of a cell whose only learned part is the candidate of W_h, U_h and b_h."""

    def __init__(self, x: Tensor, h: Tensor, p: Params, slope: CandidateSlope, retained: Tensor | None) -> None:
        width = h.shape[1]
        super().__init__(
            {"x": x, "h": h},
            gate_uses("h", width) | slope.uses(width),
            width=width + slope.extra,
            reads=p["W_h"],
            recurrent=p["U_h"],
            columns=slice(width),
            retained=retained,
        )
        self._slope = slope
        self.elementwise(slope.elementwise, slope.norm)

    def spread(self, cotangent: Tensor, out: Tensor) -> None:
        """To the candidate alone."""
        width = cotangent.shape[1]
        self._slope.pull(cotangent, out[:, :width], out[:, width:])
