"""The weights of a diagonal network, and the symmetric random start at which its output is exactly zero."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.arrays import Number
from lagreach._util.generators import seeded
from lagreach.errors import InputError


class Weights(NamedTuple):
    """Recurrent weights W (one a unit), input weights U and the fixed readout c of a diagonal network."""

    W: Float[Tensor, "unit"]
    U: Float[Tensor, "unit input"]
    c: Float[Tensor, "unit"]


def symmetric_init(m: int, d: int, alpha: Number, seed: int | torch.Generator = 0) -> Weights:
    """Draw the symmetric random initialisation (CE Definition 1).

    The first half is free: c is +-1, W is +-alpha, U is standard normal. The second half repeats W and U and
    turns the sign of c, so the two halves cancel in the output.

    Parameters
    ----------
    m
        Width, an even number.
    d
        Width of the input.
    alpha
        Size of the recurrent weights: how much of the state is handed on.
    seed
        A number, or a generator.

    Examples
    --------
    >>> W, U, c = symmetric_init(6, 2, alpha=0.5, seed=0)
    >>> U.shape, W.abs().unique().tolist(), (c[:3] + c[3:]).tolist()
    (torch.Size([6, 2]), [0.5], [0.0, 0.0, 0.0])
    """
    if m < 2 or m % 2:
        raise InputError(
            "the symmetric initialisation pairs the units, so the width must be even",
            got=m,
            expected="2, 4, 6, ...",
            fix=f"use m={max(2, m + m % 2)}",
        )
    if d < 1:
        raise InputError("the input needs at least one coordinate", got=f"d={d}")
    if not alpha >= 0:
        raise InputError("alpha is a size and cannot be negative", got=alpha)
    generator = seeded(seed)
    half = m // 2
    signs = 2.0 * torch.randint(0, 2, (2, half), generator=generator, dtype=torch.float64) - 1.0
    U = torch.randn(half, d, generator=generator, dtype=torch.float64)
    W, c = float(alpha) * signs[0], signs[1]
    return Weights(torch.cat((W, W)), torch.cat((U, U)), torch.cat((c, -c)))
