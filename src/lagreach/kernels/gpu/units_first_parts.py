"""What the units-first kernels share: tiles of units x sequences, kept in the layout of the tensor cores all along.

A product of weights (units x units) with a state (units x 8 sequences) fills the tensor cores' least tile, where the
other kernels need 16 sequences, so twice as many multiprocessors share a batch. All arithmetic then happens where the
product left its result. For that, loads and stores are written in PTX: a load of Triton's has a layout of its own, and
every tile would be exchanged between the warps to get into it or out of it. Without PTX (Triton's interpreter) they are
ordinary loads and stores.

PRECISION "alone" is for few sequences, where only the length of one step counts: a program takes a single sequence, the ROWS
columns of its tiles are copies of it, and products are plain multiplications and additions. For those the weights are
spread over all threads and stay in registers: R x C of them in a thread, whose sums go to R units; S threads share a unit.
"""

# mypy: disable-error-code=no-untyped-def
from __future__ import annotations

import triton.language as tl

from lagreach.kernels.gpu.parts import EPS, TAIL, jit, split

BACK = tl.constexpr(4)  # R of the way back, where every unit needs all blocks; R is 1 on the way there, for each block
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
def sequences(ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """Sequences of the columns of a tile."""
    if PRECISION == "alone":
        return tl.program_id(0) + tl.zeros([1, ROWS], tl.int32)
    else:
        return tl.program_id(0) * ROWS + tl.arange(0, ROWS)[None, :]


@jit
def first_of(a, b):
    """The first of two."""
    return a


@jit
def over_columns(a, PRECISION: tl.constexpr):
    """Sum over the sequences of a tile."""
    if PRECISION == "alone":
        return tl.reduce(a, 1, first_of)  # they are copies; no one waits for the others
    else:
        return tl.sum(a, axis=1)


@jit
def high_part(
    weights,
    BLOCK: tl.constexpr,
    HP: tl.constexpr,
    ROWS: tl.constexpr,
    R: tl.constexpr,
    PRECISION: tl.constexpr,
    PTX: tl.constexpr,
    N: tl.constexpr = 1,
):
    """High part of one block of the weights; loaded as here, the compiler keeps what is used twice in registers.

    Alone, all of N blocks: as (R, C N, units / R, S), from (unit, summed unit), or transposed if R > 1, on the way back.
    """
    if PRECISION == "alone":
        S: tl.constexpr = ROWS * R
        unit = tl.arange(0, R)[:, None, None, None] * (HP // R) + tl.arange(0, HP // R)[None, None, :, None]
        inner = tl.arange(0, HP * N // S)[None, :, None, None] * S + tl.arange(0, S)[None, None, None, :]
        summed = inner // N
        at = weights + (BLOCK + inner % N) * (HP * HP) + (unit * HP + summed if R == 1 else summed * HP + unit)
        return fetch(at, unit < HP, True, PTX)
    else:
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
    if PRECISION == "alone":
        return 0.0
    else:
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
def factor(a, up, HP: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr):
    """High and low parts of ``a * up`` as factors of weights; alone, every thread gets the numbers that it multiplies."""
    if PRECISION == "alone":
        spread = spread_out(over_columns(a, PRECISION), HP, ROWS, R, 1)
        return spread, spread
    else:
        return split(a, up, PRECISION)


@jit
def factor_of_two(a, b, HP: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr):
    """Alone, the numbers of two blocks, in one exchange between the threads."""
    return spread_out(tl.where(tl.arange(0, 2)[None, :] == 0, a, b), HP, ROWS, R, 2)


@jit
def factor_of_four(a, b, c, d, HP: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr):
    """Alone, the numbers of four blocks, in one exchange between the threads."""
    pair, column = tl.arange(0, 2)[:, None, None] == 0, tl.arange(0, 2)[None, None, :] == 0
    each = tl.where(pair, tl.where(column, a[None], b[None]), tl.where(column, c[None], d[None]))
    return spread_out(tl.permute(each, [1, 0, 2]), HP, ROWS, R, 4)


@jit
def spread_out(a, HP: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr, N: tl.constexpr):
    """Numbers of units x N blocks where `high_part` has their weights."""
    S: tl.constexpr = ROWS * R
    return tl.reshape(a, [HP * N // S, S])[None, :, None, :]


@jit
def multiplied(U, V, high, low, HP: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """``(U + V / TAIL) @ (high + low / TAIL)``, without the product of the two tails (2^-22); alone, each thread's share."""
    if PRECISION == "float32":
        zero = tl.zeros([HP, ROWS], tl.float32)
        cross = tl.dot(U, low, zero) - tl.dot(V, high, zero) * -1.0  # a sum would be folded into one long chain
        return tl.dot(U, high, zero) - cross * (-1.0 / TAIL)
    elif PRECISION == "float16":
        return tl.dot(U, high, tl.zeros([HP, ROWS], tl.float32))
    elif PRECISION == "alone":
        return tl.sum(U * high, axis=1)
    else:
        return tl.dot(U, high, tl.zeros([HP, ROWS], high.dtype), input_precision="ieee")


@jit
def whole(p, HP: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """A tile from what `multiplied` made, or a sum of such."""
    if PRECISION == "alone":
        R: tl.constexpr = p.shape[0]
        S: tl.constexpr = p.shape[2]
        if R == 1:
            return tl.broadcast_to(tl.reshape(tl.sum(p, axis=2), [HP])[:, None], [HP, ROWS])
        else:  # one exchange between the threads, which also leaves each unit with the threads that need it
            shares = tl.reshape(tl.permute(p, [2, 0, 1]), [S, HP])
            return tl.sum(tl.broadcast_to(shares[:, :, None], [S, HP, ROWS]), axis=0)
    else:
        return p


@jit
def product(U, V, high, low, HP: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """One product, as a tile."""
    return whole(multiplied(U, V, high, low, HP, ROWS, PRECISION), HP, ROWS, PRECISION)


@jit
def settled(U, HP: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """Zeros, as a product with the weights."""
    if PRECISION == "ieee" or PRECISION == "alone":  # noqa: PLR1714 (Triton has no "in")
        return tl.zeros([HP, ROWS], U.dtype)
    else:
        return tl.dot(U, tl.zeros([HP, ROWS], tl.float16), tl.zeros([HP, ROWS], tl.float32))


@jit
def largest_column(a):
    """Largest size in each column."""
    return tl.max(tl.abs(a), axis=0)[None, :]


@jit
def scale_of(a, PRECISION: tl.constexpr):
    """What says how large a factor is: the largest size in each column; alone, where none is scaled, all sizes."""
    return tl.abs(a) if PRECISION == "alone" else largest_column(a)


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
