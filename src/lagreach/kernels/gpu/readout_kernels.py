"""Kernels of a readout of one number: each a single pass over the states."""

# mypy: disable-error-code=no-untyped-def
from __future__ import annotations

import triton.language as tl

from lagreach.kernels.gpu.parts import jit


@jit
def read(states, weight, bias, out, ROWS, FIRST, LAST, SIZE: tl.constexpr, SP: tl.constexpr, TALL: tl.constexpr):
    """``states w + b`` over columns FIRST to LAST: states (replica, ROWS, SIZE), w (replica, SIZE), out (replica, ROWS)."""
    replica = tl.program_id(1).to(tl.int64)
    rows, columns = tl.program_id(0) * TALL + tl.arange(0, TALL), tl.arange(0, SP)[None, :]
    keep = (columns >= FIRST) & (columns < LAST)
    w = tl.load(weight + replica * SIZE + columns, mask=keep, other=0.0)
    at = states + (replica * ROWS + rows[:, None]) * SIZE + columns
    s = tl.load(at, mask=(rows[:, None] < ROWS) & keep, other=0.0)
    tl.store(out + replica * ROWS + rows, tl.sum(s * w, axis=1) + tl.load(bias + replica), mask=rows < ROWS)


@jit
def read_back(
    grad, states, weight, d_states, d_weight, d_bias, ROWS, SHARES, FIRST, LAST, SIZE: tl.constexpr, SP: tl.constexpr,
    TALL: tl.constexpr,
):  # fmt: skip
    """Gradients of `read`: of the states, and each program's share of those of columns FIRST to LAST of w, and of b."""
    share, replica = tl.program_id(0), tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, SP)[None, :]
    w = tl.load(weight + replica * SIZE + columns, mask=columns < SIZE, other=0.0)
    sums = tl.full([TALL, SP], 0, d_weight.dtype.element_ty)
    of_bias = tl.full([TALL], 0, d_weight.dtype.element_ty)
    for block in range(share, tl.cdiv(ROWS, TALL), SHARES):
        rows = block * TALL + tl.arange(0, TALL)
        line = replica * ROWS + rows
        keep = (rows[:, None] < ROWS) & (columns < SIZE)
        g = tl.load(grad + line, mask=rows < ROWS, other=0.0)
        at = line[:, None] * SIZE + columns
        s = tl.load(states + at, mask=keep & (columns >= FIRST) & (columns < LAST), other=0.0)
        tl.store(d_states + at, g[:, None] * w, mask=keep)
        sums += g[:, None] * s
        of_bias += g
    at_share = replica * SHARES + share
    column = tl.arange(0, SP)
    tl.store(d_weight + at_share * SIZE + column, tl.sum(sums, axis=0), mask=column < SIZE)
    tl.store(d_bias + at_share, tl.sum(of_bias, axis=0))
