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
    layernorm: bool, a: Tensor, params: Params, diagonal: Tensor, times_rows: Callable[[Tensor], Tensor]
) -> Tensor:
    """Diagonal of ``d candidate / dh`` given the matrix ``A = da/dh``.

    Parameters
    ----------
    diagonal
        Diagonal of A.
    times_rows
        Maps row vectors v to ``v A``; only used with LayerNorm, which mixes the rows of A.
    """
    g = candidate(layernorm, a, params)
    if not layernorm:
        return (1 - g * g) * diagonal
    centred = a - a.mean(-1, keepdim=True)
    std = (centred.square().mean(-1, keepdim=True) + EPS).sqrt()
    n = centred / std
    units = a.shape[-1]
    mean_row = times_rows(torch.ones_like(a)) / units
    along_n = times_rows(n) / units
    return (1 - g * g) * params["ln_gain"] / std * (diagonal - mean_row - n * along_n)
