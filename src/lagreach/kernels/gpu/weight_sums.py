"""Gradients of all weights in one pass: ``sum d^T [h, x]`` over sequences and times, on tensor cores at float32 accuracy.

One program sums some rows of the gradients (those of BM units) over a share of the sequences; the shares are added later,
in a fixed order. Both factors are split into two float16 numbers, scaled by the largest of each tile.
"""

# mypy: disable-error-code=no-untyped-def
from __future__ import annotations

import triton.language as tl

from lagreach.kernels.gpu.parts import SCALE, TAIL, halves, jit, power_of_two


@jit
def scaled(a, PRECISION: tl.constexpr):
    """High and low parts of a tile, and the factor that takes its scaling back."""
    if PRECISION == "ieee":
        return a, a, 1.0
    else:
        unit, inverse = power_of_two(tl.max(tl.max(tl.abs(a), axis=1), axis=0))
        high, low = halves(a, inverse * SCALE)
        return high, low, unit / SCALE


@jit
def add_product(total, d_high, d_low, d_unit, a, BM: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr):
    """Add the product of split gradients (times x units) with a tile (times x WIDTH)."""
    high, low, unit = scaled(a, PRECISION)
    if PRECISION == "ieee":
        return total + tl.dot(tl.trans(d_high), high, input_precision="ieee")
    else:
        d_high = tl.trans(d_high)
        product = tl.dot(d_high, high, tl.zeros([BM, WIDTH], tl.float32))
        if PRECISION == "float32":
            cross = tl.dot(d_high, low, tl.zeros([BM, WIDTH], tl.float32))
            cross = tl.dot(tl.trans(d_low), high, cross)
            product += cross * (1.0 / TAIL)
        return total + product * (d_unit * unit)


@jit
def sums(
    d,
    states,
    s0,
    kept,
    x,
    d_U,
    d_W,
    B,
    T,
    SHARES,
    G: tl.constexpr,
    STATE: tl.constexpr,
    H: tl.constexpr,
    HP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    RESET_FROM: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Shares of d_U (replica, SHARES, G, H) and d_W (replica, SHARES, G, D).

    `states` (replica, B, T, STATE) begin with the outputs h. From row RESET_FROM of the gradients on the factor is r h,
    with r in the second block of `kept` (replica, B, T, 3 H): the candidate of the GRU.
    """
    FIRST_PARTS: tl.constexpr = (RESET_FROM + BM - 1) // BM  # no program has rows on both sides of RESET_FROM
    part, share, replica = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    first, end = part * BM, RESET_FROM
    if part >= FIRST_PARTS:
        first, end = RESET_FROM + (part - FIRST_PARTS) * BM, G
    units, cols, inputs = (first + tl.arange(0, BM))[None, :], tl.arange(0, HP)[None, :], tl.arange(0, DP)[None, :]
    total_U = tl.zeros([BM, HP], d.dtype.element_ty)
    total_W = tl.zeros([BM, DP], d.dtype.element_ty)
    for b in range(share, B, SHARES):
        line = replica * B + b
        for begin in range(0, T, BK):
            t = (begin + tl.arange(0, BK))[:, None]
            row = line * T + t
            d_tile = tl.load(d + row * G + units, mask=(t < T) & (units < end), other=0.0)
            d_high, d_low, d_unit = scaled(d_tile, PRECISION)
            before = tl.where(t > 0, states + (row - 1) * STATE, s0 + (line + tl.zeros([BK, 1], tl.int64)) * STATE)
            h = tl.load(before + cols, mask=(t < T) & (cols < H), other=0.0)
            if part >= FIRST_PARTS:
                h *= tl.load(kept + row * (3 * H) + H + cols, mask=(t < T) & (cols < H), other=0.0)
            total_U = add_product(total_U, d_high, d_low, d_unit, h, BM, HP, PRECISION)
            if D > 0:
                u = tl.load(x + row * D + inputs, mask=(t < T) & (inputs < D), other=0.0)
                total_W = add_product(total_W, d_high, d_low, d_unit, u, BM, DP, PRECISION)
    units = (first + tl.arange(0, BM))[:, None]
    at = (replica * SHARES + share) * G + units
    tl.store(d_U + at * H + cols, total_U, mask=(units < end) & (cols < H))
    if D > 0:
        tl.store(d_W + at * D + inputs, total_W, mask=(units < end) & (inputs < D))
