"""Cells that are linear in their state: all steps at once, in a logarithmic number of rounds instead of a loop over time.

Plain torch operations on any device. ``s_t = a_t s_{t-1} + b_t``: in each round every step takes in the pair (a, b) of the
stretch before it, so that the stretches double (Hillis & Steele 1986).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.cells import Cell, Params
from lagreach.cells.min_gru import MinGRU


def missing(cell: Cell, device: torch.device, dtype: torch.dtype) -> str | None:
    """Say why this kernel cannot run the cell; None if it can."""
    return None if type(cell) is MinGRU else "the cell is not linear in its state"


def scan(cell: Cell, x: Tensor, s0: Tensor, params: Params) -> Tensor:
    """States after each step, with a leading replica axis throughout."""
    assert isinstance(cell, MinGRU)
    keep, add = torch.func.vmap(cell.affine)(x, dict(params))
    return linear_recurrence(keep, add, s0)


def linear_recurrence(
    keep: Float[Tensor, "*batch time unit"], add: Float[Tensor, "*batch time unit"], start: Float[Tensor, "*batch unit"]
) -> Float[Tensor, "*batch time unit"]:
    """All ``s_t = keep_t s_{t-1} + add_t``.

    >>> half, one = torch.full((3, 1), 0.5), torch.ones(3, 1)
    >>> linear_recurrence(half, one, torch.zeros(1)).flatten()
    tensor([1.0000, 1.5000, 1.7500])
    """
    time, reach = keep.shape[-2], 1
    first = add[..., :1, :] + keep[..., :1, :] * start[..., None, :]
    add = torch.cat((first, add[..., 1:, :]), dim=-2)
    while reach < time:
        taken_in = add[..., reach:, :] + keep[..., reach:, :] * add[..., :-reach, :]
        add = torch.cat((add[..., :reach, :], taken_in), dim=-2)
        keep = torch.cat((keep[..., :reach, :], keep[..., reach:, :] * keep[..., :-reach, :]), dim=-2)
        reach *= 2
    return add
