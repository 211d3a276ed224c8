"""What the units-first kernels share: tiles of units x sequences, kept in the layout of the tensor cores all along.

A product of weights (units x units) with a state (units x 8 sequences) fills the tensor cores' least tile, where the
other kernels need 16 sequences, so twice as many multiprocessors share a batch. All arithmetic then happens where the
product left its result. For that, loads and stores are written in PTX: a load of Triton's has a layout of its own, and
every tile would be exchanged between the warps to get into it or out of it. Without PTX (Triton's interpreter) they are
ordinary loads and stores.
"""

# mypy: disable-error-code=no-untyped-def
from __future__ import annotations

import triton.language as tl

from lagreach.kernels.gpu.parts import EPS, TAIL, jit

LOG2E = tl.constexpr(1.4426950408889634)


@jit
def fetch(at, keep, EVEN: tl.constexpr, PTX: tl.constexpr):
    """Load a tile that no one writes to, zero where `keep` is false; EVEN says that it is true everywhere."""
    if PTX:
        if EVEN:
            return tl.inline_asm_elementwise(
                "ld.global.f32 $0, [$1];", "=f,l", [at.to(tl.int64)], dtype=tl.float32, is_pure=True, pack=1
            )
        else:
            return tl.inline_asm_elementwise(
                "{ .reg .pred p; setp.ne.s32 p, $2, 0; mov.f32 $0, 0f00000000; @p ld.global.f32 $0, [$1]; }",
                "=&f,l,r",
                [at.to(tl.int64), keep.to(tl.int32)],
                dtype=tl.float32,
                is_pure=True,
                pack=1,
            )
    else:
        return tl.load(at, mask=keep, other=0.0)


@jit
def put(at, value, keep, EVEN: tl.constexpr, PTX: tl.constexpr):
    """Store a tile where `keep` is true."""
    if PTX:
        if EVEN:
            tl.inline_asm_elementwise(
                "st.global.f32 [$1], $2; mov.b32 $0, 0;",
                "=r,l,f",
                [at.to(tl.int64), value],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
        else:
            tl.inline_asm_elementwise(
                "{ .reg .pred p; setp.ne.s32 p, $3, 0; @p st.global.f32 [$1], $2; mov.b32 $0, 0; }",
                "=r,l,f,r",
                [at.to(tl.int64), value, keep.to(tl.int32)],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
    else:
        tl.store(at, value, mask=keep)


@jit
def high_part(weights, BLOCK: tl.constexpr, HP: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr):
    """High part of one block of the weights; loaded as here, the compiler keeps what is used twice in registers."""
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    at = weights + BLOCK * PLANES * HP * HP + tl.arange(0, HP)[:, None] * HP + tl.arange(0, HP)[None, :]
    if PTX:
        return tl.inline_asm_elementwise(
            "ld.global.b16 $0, [$1];", "=h,l", [at.to(tl.int64)], dtype=tl.float16, is_pure=True, pack=1
        )
    else:
        return tl.load(at)


@jit
def low_part(weights, BLOCK: tl.constexpr, HP: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr):
    """Low part of one block of the weights, where they have one; the load stays in the loop where it is written."""
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    at = weights + (BLOCK * PLANES + PLANES - 1) * HP * HP
    at += tl.arange(0, HP)[:, None] * HP + tl.arange(0, HP)[None, :]
    if PTX:
        return tl.inline_asm_elementwise(
            "ld.global.b16 $0, [$1];", "=h,l", [at.to(tl.int64)], dtype=tl.float16, is_pure=False, pack=1
        )
    else:
        return tl.load(at)


@jit
def multiplied(U, V, high, low, HP: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """``(U + V / TAIL) @ (high + low / TAIL)``, without the product of the two tails (2^-22)."""
    if PRECISION == "float32":
        zero = tl.zeros([HP, ROWS], tl.float32)
        cross = tl.dot(U, low, zero) - tl.dot(V, high, zero) * -1.0  # a sum would be folded into one long chain
        return tl.dot(U, high, zero) - cross * (-1.0 / TAIL)
    elif PRECISION == "float16":
        return tl.dot(U, high, tl.zeros([HP, ROWS], tl.float32))
    else:
        return tl.dot(U, high, tl.zeros([HP, ROWS], high.dtype), input_precision="ieee")


@jit
def settled(U, HP: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """Zeros, as a product with the weights."""
    if PRECISION == "ieee":
        return tl.zeros([HP, ROWS], U.dtype)
    else:
        return tl.dot(U, tl.zeros([HP, ROWS], tl.float16), tl.zeros([HP, ROWS], tl.float32))


@jit
def largest_column(a):
    """Largest size in each column."""
    return tl.max(tl.abs(a), axis=0)[None, :]


@jit
def normalised(a, real, H: tl.constexpr):
    """``(a - mean) / std`` over the units of each column, and 1 / std; padded units (not `real`) stay zero."""
    centred = tl.where(real, a - (tl.sum(a, axis=0) / H)[None, :], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / H + EPS)[None, :]
    return centred * scale, scale


@jit
def add_both(a, b, c, d):
    """Sum of pairs."""
    return a + c, b + d


@jit
def normalised_slope(d, n, scale, real, H: tl.constexpr):
    """Transpose of the derivative of `normalised`, which is symmetric, applied to `d`."""
    mean, along = tl.reduce((d, d * n), 0, add_both)  # both in one exchange between the warps
    return tl.where(real, (d - (mean / H)[None, :] - n * (along / H)[None, :]) * scale, 0.0)


@jit
def put_scale(scales, scale, line, t, T, HP: tl.constexpr, ROWS: tl.constexpr, PTX: tl.constexpr, B, rows):
    """Store 1 / std of each column, (replica, seq, time)."""
    units = tl.arange(0, HP)[:, None]
    at = scales + line * T + t + tl.zeros([HP, ROWS], tl.int64)
    put(at, scale + tl.zeros([HP, ROWS], scale.dtype), (units == 0) & (rows < B), False, PTX)


@jit
def fetch_scale(scales, line, t, T, keep, HP: tl.constexpr, ROWS: tl.constexpr, EVEN: tl.constexpr, PTX: tl.constexpr):
    """Load what `put_scale` stored."""
    return fetch(scales + line * T + t + tl.zeros([HP, ROWS], tl.int64), keep, EVEN, PTX)


@jit
def column(vector, replica, H: tl.constexpr, HP: tl.constexpr):
    """A vector (replica, H) as a column."""
    units = tl.arange(0, HP)
    return tl.load(vector + replica * H + units, mask=units < H, other=0.0)[:, None]


@jit
def exp2(a, PTX: tl.constexpr):
    """Two to the power of `a`; without PTX's handling of subnormal numbers, which costs as much as all else in it."""
    if PTX:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [a], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(a)


@jit
def inverse(a, PTX: tl.constexpr):
    """``1 / a`` to one unit in the last place."""
    if PTX:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [a], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / a


@jit
def logistic(a, PTX: tl.constexpr):
    """Logistic function in the exp form, which keeps the relative accuracy of small gates."""
    return inverse(1.0 + exp2(a * -LOG2E, PTX), PTX)


@jit
def hyperbolic(a, PTX: tl.constexpr):
    """Hyperbolic tangent, accurate relative to itself: a polynomial near zero, the exp form elsewhere."""
    size = tl.abs(a)
    value = 1.0 - 2.0 * inverse(1.0 + exp2(size * (2.0 * LOG2E), PTX), PTX)
    value = tl.where(a < 0, -value, value)
    if a.dtype == tl.float32:
        y = a * a
        p = -0.00627260751
        p = p * y + 0.0210702536
        p = p * y - 0.0538518654
        p = p * y + 0.133325804
        p = p * y - 0.333333173
        value = tl.where(size < 0.55, a + a * (y * p), value)
    return value
