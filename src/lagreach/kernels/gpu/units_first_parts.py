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
AHEAD = tl.constexpr(8)  # steps of a sequence alone from the call for its numbers to their use
LINE = tl.constexpr(32)  # numbers in a line of the cache
LOG2E = tl.constexpr(1.4426950408889634)


@jit
def fetch(at, keep, K: tl.constexpr):
    """Load a tile that no one writes to, zero where `keep` is false; EVEN says that it is true everywhere."""
    if K.PTX:
        if K.EVEN:
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
def call_for(numbers, line, t, T, WIDTH: tl.constexpr, K: tl.constexpr):
    """Ask for what step `t` of a sequence alone needs, WIDTH numbers of (replica, seq, time, WIDTH): one thread a cache line.

    A step takes less time than to load from memory, so numbers are called from there into the cache AHEAD steps early.
    """
    if K.PRECISION == "alone" and K.PTX:
        each = tl.arange(0, K.HP)[:, None] * K.ROWS + tl.arange(0, K.ROWS)[None, :]
        each *= (WIDTH + K.HP * K.ROWS - 1) // (K.HP * K.ROWS)
        at = numbers + (line * T + tl.minimum(tl.maximum(t, 0), T - 1)) * WIDTH + each
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.b32 $0, 0; }",
            "=r,l,r",
            [at.to(tl.int64), ((each < WIDTH) & (each % LINE == 0)).to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@jit
def put(at, value, keep, K: tl.constexpr):
    """Store a tile where `keep` is true; EVEN says that it is true everywhere."""
    if K.PTX and K.EVEN:
        tl.inline_asm_elementwise(
            "st.global.f32 [$1], $2; mov.b32 $0, 0;",
            "=r,l,f",
            [at.to(tl.int64), value],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        put_where(at, value, keep, K)


@jit
def put_where(at, value, keep, K: tl.constexpr):
    """Store some numbers of a tile."""
    if K.PTX:
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
def sequences(K: tl.constexpr):
    """Sequences of the columns of a tile."""
    if K.PRECISION == "alone":
        return tl.program_id(0) + tl.full([1, K.ROWS], 0, tl.int32)
    else:
        return tl.program_id(0) * K.ROWS + tl.arange(0, K.ROWS)[None, :]


@jit
def whereabouts(B, K: tl.constexpr):
    """What a program works on: its replica, units and sequences of its tiles, which exist, lines of the tensors; its number."""
    replica = tl.program_id(1).to(tl.int64)
    units, rows = tl.arange(0, K.HP)[:, None], sequences(K)
    real = units < K.H
    keep, line = real & (rows < B), replica * B + rows
    return replica, units, rows, real, keep, line, replica * tl.num_programs(0) + tl.program_id(0)


@jit
def first_of(a, b):
    """The first of two."""
    return a


@jit
def over_columns(a, K: tl.constexpr):
    """Sum over the sequences of a tile."""
    if K.PRECISION == "alone":
        return tl.reduce(a, 1, first_of)  # they are copies; no one waits for the others
    else:
        return tl.sum(a, axis=1)


@jit
def high_part(weights, BLOCK: tl.constexpr, R: tl.constexpr, K: tl.constexpr, N: tl.constexpr = 1):
    """High part of one block of the weights; loaded as here, the compiler keeps what is used twice in registers.

    Alone, all of N blocks: as (R, C N, units / R, S), from (unit, summed unit), or transposed if R > 1, on the way back.
    """
    if K.PRECISION == "alone":
        S: tl.constexpr = K.ROWS * R
        unit = tl.arange(0, R)[:, None, None, None] * (K.HP // R) + tl.arange(0, K.HP // R)[None, None, :, None]
        inner = tl.arange(0, K.HP * N // S)[None, :, None, None] * S + tl.arange(0, S)[None, None, None, :]
        summed = inner // N
        at = weights + (BLOCK + inner % N) * (K.HP * K.HP) + (unit * K.HP + summed if R == 1 else summed * K.HP + unit)
        return fetch(at, unit < K.HP, K)
    else:
        at = weights + BLOCK * K.PLANES * K.HP * K.HP + tl.arange(0, K.HP)[:, None] * K.HP + tl.arange(0, K.HP)[None, :]
        if K.PTX:
            return tl.inline_asm_elementwise(
                "ld.global.b16 $0, [$1];", "=h,l", [at.to(tl.int64)], dtype=tl.float16, is_pure=True, pack=1
            )
        else:
            return tl.load(at)


@jit
def low_part(weights, BLOCK: tl.constexpr, K: tl.constexpr):
    """Low part of one block of the weights, where they have one; the load stays in the loop where it is written."""
    if K.PRECISION == "alone":
        return 0.0
    else:
        at = weights + (BLOCK * K.PLANES + K.PLANES - 1) * K.HP * K.HP
        at += tl.arange(0, K.HP)[:, None] * K.HP + tl.arange(0, K.HP)[None, :]
        if K.PTX:
            return tl.inline_asm_elementwise(
                "ld.global.b16 $0, [$1];", "=h,l", [at.to(tl.int64)], dtype=tl.float16, is_pure=False, pack=1
            )
        else:
            return tl.load(at)


@jit
def factor(a, up, R: tl.constexpr, K: tl.constexpr):
    """High and low parts of ``a * up`` as factors of weights; alone, every thread gets the numbers that it multiplies."""
    if K.PRECISION == "alone":
        spread = spread_out(over_columns(a, K), R, 1, K)
        return spread, spread
    else:
        return split(a, up, K)


@jit
def factor_of_two(a, b, R: tl.constexpr, K: tl.constexpr):
    """Alone, the numbers of two blocks, in one exchange between the threads."""
    return spread_out(tl.where(tl.arange(0, 2)[None, :] == 0, a, b), R, 2, K)


@jit
def factor_of_four(a, b, c, d, R: tl.constexpr, K: tl.constexpr):
    """Alone, the numbers of four blocks, in one exchange between the threads."""
    pair, column = tl.arange(0, 2)[:, None, None] == 0, tl.arange(0, 2)[None, None, :] == 0
    each = tl.where(pair, tl.where(column, a[None], b[None]), tl.where(column, c[None], d[None]))
    return spread_out(tl.permute(each, [1, 0, 2]), R, 4, K)


@jit
def spread_out(a, R: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Numbers of units x N blocks where `high_part` has their weights."""
    S: tl.constexpr = K.ROWS * R
    return tl.reshape(a, [K.HP * N // S, S])[None, :, None, :]


@jit
def multiplied(U, V, high, low, K: tl.constexpr):
    """``(U + V / TAIL) @ (high + low / TAIL)``, without the product of the two tails (2^-22); alone, each thread's share."""
    if K.PRECISION == "float32":
        zero = tl.full([K.HP, K.ROWS], 0, tl.float32)
        cross = tl.dot(U, low, zero) - tl.dot(V, high, zero) * -1.0  # a sum would be folded into one long chain
        return tl.dot(U, high, zero) - cross * (-1.0 / TAIL)
    elif K.PRECISION == "float16":
        return tl.dot(U, high, tl.full([K.HP, K.ROWS], 0, tl.float32))
    elif K.PRECISION == "alone":
        return tl.sum(U * high, axis=1)
    else:
        return tl.dot(U, high, tl.full([K.HP, K.ROWS], 0, high.dtype), input_precision="ieee")


@jit
def whole(p, K: tl.constexpr):
    """A tile from what `multiplied` made, or a sum of such."""
    if K.PRECISION == "alone":
        R: tl.constexpr = p.shape[0]
        S: tl.constexpr = p.shape[2]
        if R == 1:
            return tl.broadcast_to(tl.reshape(tl.sum(p, axis=2), [K.HP])[:, None], [K.HP, K.ROWS])
        else:  # one exchange between the threads, which also leaves each unit with the threads that need it
            shares = tl.reshape(tl.permute(p, [2, 0, 1]), [S, K.HP])
            return tl.sum(tl.broadcast_to(shares[:, :, None], [S, K.HP, K.ROWS]), axis=0)
    else:
        return p


@jit
def product(U, V, high, low, K: tl.constexpr):
    """One product, as a tile."""
    return whole(multiplied(U, V, high, low, K), K)


@jit
def settled(U, K: tl.constexpr):
    """Zeros, as a product with the weights."""
    if K.PRECISION == "ieee" or K.PRECISION == "alone":  # noqa: PLR1714 (Triton has no "in")
        return tl.full([K.HP, K.ROWS], 0, U.dtype)
    else:
        return tl.dot(U, tl.full([K.HP, K.ROWS], 0, tl.float16), tl.full([K.HP, K.ROWS], 0, tl.float32))


@jit
def largest_column(a):
    """Largest size in each column."""
    return tl.max(tl.abs(a), axis=0)[None, :]


@jit
def scale_of(a, K: tl.constexpr):
    """What says how large a factor is: the largest size in each column; alone, where none is scaled, all sizes."""
    return tl.abs(a) if K.PRECISION == "alone" else largest_column(a)


@jit
def normalised(a, real, K: tl.constexpr):
    """``(a - mean) / std`` over the units of each column, and 1 / std; padded units (not `real`) stay zero."""
    centred = tl.where(real, a - (tl.sum(a, axis=0) / K.H)[None, :], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / K.H + EPS)[None, :]
    return centred * scale, scale


@jit
def add_both(a, b, c, d):
    """Sum of pairs."""
    return a + c, b + d


@jit
def normalised_slope(d, n, scale, real, K: tl.constexpr):
    """Transpose of the derivative of `normalised`, which is symmetric, applied to `d`."""
    mean, along = tl.reduce((d, d * n), 0, add_both)  # both in one exchange between the warps
    return tl.where(real, (d - (mean / K.H)[None, :] - n * (along / K.H)[None, :]) * scale, 0.0)


@jit
def put_scale(scales, scale, line, t, T, B, rows, K: tl.constexpr):
    """Store 1 / std of each column, (replica, seq, time)."""
    units = tl.arange(0, K.HP)[:, None]
    at = scales + line * T + t + tl.full([K.HP, K.ROWS], 0, tl.int64)
    put_where(at, scale + tl.full([K.HP, K.ROWS], 0, scale.dtype), (units == 0) & (rows < B), K)


@jit
def fetch_scale(scales, line, t, T, keep, K: tl.constexpr):
    """Load what `put_scale` stored."""
    return fetch(scales + line * T + t + tl.full([K.HP, K.ROWS], 0, tl.int64), keep, K)


@jit
def column(vector, replica, K: tl.constexpr):
    """A vector (replica, H) as a column."""
    units = tl.arange(0, K.HP)
    return tl.load(vector + replica * K.H + units, mask=units < K.H, other=0.0)[:, None]


@jit
def exp2(a, K: tl.constexpr):
    """Two to the power of `a`; without PTX's handling of subnormal numbers, which costs as much as all else in it."""
    if K.PTX:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [a], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(a)


@jit
def inverse(a, K: tl.constexpr):
    """``1 / a`` to one unit in the last place."""
    if K.PTX:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [a], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / a


@jit
def logistic(a, K: tl.constexpr):
    """Logistic function in the exp form, which keeps the relative accuracy of small gates."""
    return inverse(1.0 + exp2(a * -LOG2E, K), K)


@jit
def hyperbolic(a, K: tl.constexpr):
    """Hyperbolic tangent, accurate relative to itself: a polynomial near zero, the exp form elsewhere."""
    size = tl.abs(a)
    value = 1.0 - 2.0 * inverse(1.0 + exp2(size * (2.0 * LOG2E), K), K)
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
