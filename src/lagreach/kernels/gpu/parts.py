"""What the Triton kernels share: products at float32 accuracy, accurate sigmoid and tanh, LayerNorm, staging.

One program runs some rows (sequences) of one replica through all of time. Its tiles are ROWS x HP, HP being the hidden
size padded to a power of two; padded units have zero weights and inputs, so they stay zero.

Weights come as (replica, block, plane, HP, HP) with the summed axis first. The first RESIDENT blocks are loaded once and
stay in shared memory. The others are *streamed*: at every step the left factor is written to a small staging buffer, and
the weights come in slices of BK from the L2 cache.

Products run on tensor cores in float16 with float32 sums. For float32 accuracy both factors are split into two float16
numbers, after scaling by powers of two: the weights by their largest, the left factor row by row.
"""

# mypy: disable-error-code=no-untyped-def
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

EPS = tl.constexpr(1e-5)  # of the LayerNorm, as in lagreach.cells._candidate
SCALE = tl.constexpr(2.0**14)  # where scaled factors lie in the range of float16, up to a factor of 2
TAIL = tl.constexpr(2.0**11)  # by which the low part of a split number is scaled up


def jit(function: Callable[..., Any]) -> Any:
    """`triton.jit` of the function itself: the tests wrap functions to check types, and Triton reads the source."""
    return triton.jit(inspect.unwrap(function), do_not_specialize=("B", "T", "SHARES", "STRETCHES"))


@jit
def load(pointers, keep, K: tl.constexpr):
    """Load a tile, zero where `keep` is false; EVEN says that it is true everywhere."""
    if K.EVEN:
        return tl.load(pointers)
    else:  # Triton wants one return for each branch
        return tl.load(pointers, mask=keep, other=0.0)


@jit
def store(pointers, value, keep, K: tl.constexpr):
    """Store a tile where `keep` is true."""
    if K.EVEN:
        tl.store(pointers, value)
    else:
        tl.store(pointers, value, mask=keep)


@jit
def power_of_two(bound):
    """The power of two in (bound / 2, bound], and its inverse, kept away from the ends of the float32 range."""
    bits = tl.minimum(tl.maximum(bound.to(tl.int32, bitcast=True) & 0x7F800000, 27 << 23), 227 << 23)
    return bits.to(tl.float32, bitcast=True), ((254 << 23) - bits).to(tl.float32, bitcast=True)


@jit
def largest(a):
    """Largest size in each row."""
    return tl.max(tl.abs(a), axis=1)[:, None]


@jit
def scaling(bound, weights_bound, K: tl.constexpr):
    """Factors that bring rows of at most `bound` into the range of float16, and products back from it."""
    if K.PRECISION == "ieee" or K.PRECISION == "alone":  # noqa: PLR1714 (Triton has no "in")
        return 1.0, 1.0
    else:
        unit, inverse = power_of_two(bound)
        weights_unit, _ = power_of_two(weights_bound)
        return inverse * SCALE, (unit / SCALE) * (weights_unit / SCALE)


@jit
def halves(a, up):
    """Split ``a * up`` into two float16 numbers, ``high + low / TAIL``, which hold 22 bits of it."""
    scaled = a * up
    high = scaled.to(tl.float16)
    return high, ((scaled - high.to(tl.float32)) * TAIL).to(tl.float16)


@jit
def split(a, up, K: tl.constexpr):
    """High and low parts of ``a * up``, as far as the precision has them."""
    if K.PRECISION == "float32":
        return halves(a, up)
    elif K.PRECISION == "float16":
        high = (a * up).to(tl.float16)
        return high, high
    else:
        return a, a


@jit
def products(main, cross, a, up, high, low, K: tl.constexpr):
    """Add ``(a * up) @ (high + low / TAIL)`` to ``main + cross / TAIL``, without the product of the two tails (2^-22)."""
    if K.PRECISION == "float32":
        a_high, a_low = halves(a, up)
        main = tl.dot(a_high, high, main)
        cross = tl.dot(a_low, high, tl.dot(a_high, low, cross))
    elif K.PRECISION == "float16":
        main = tl.dot((a * up).to(tl.float16), high, main)
    else:
        main = tl.dot(a, high, main, input_precision="ieee")
    return main, cross


@jit
def resident(weights, BLOCK: tl.constexpr, K: tl.constexpr):
    """Load one block of the weights (high and low parts) for the whole kernel, or nothing where it is streamed."""
    if BLOCK < K.RESIDENT:
        at = weights + BLOCK * K.PLANES * K.HP * K.HP + tl.arange(0, K.HP)[:, None] * K.HP + tl.arange(0, K.HP)[None, :]
        return tl.load(at), tl.load(at + (K.PLANES - 1) * K.HP * K.HP)
    else:
        return 0.0, 0.0


@jit
def stage(slot, value, STAGED: tl.constexpr, K: tl.constexpr):
    """Make a left factor readable by all threads of the program, if some weights are streamed.

    Slots are used in turn at even and odd steps: one barrier a step then keeps writers from overtaking readers.
    """
    if STAGED:
        tl.store(slot + tl.arange(0, K.ROWS)[:, None] * K.HP + tl.arange(0, K.HP)[None, :], value)


@jit
def staged(STAGED: tl.constexpr):
    """Wait until what was staged can be read."""
    if STAGED:
        tl.debug_barrier()


@jit
def product(a, up, high, low, slot, weights, BLOCK: tl.constexpr, K: tl.constexpr):
    """``a @ U``, scaled up, with the resident weights `high` and `low`, or with staged rows and streamed weights."""
    main = tl.full([K.ROWS, K.HP], 0, a.dtype)
    cross = main
    if BLOCK < K.RESIDENT:
        main, cross = products(main, cross, a, up, high, low, K)
    else:
        rows, inner, cols = tl.arange(0, K.ROWS), tl.arange(0, K.BK), tl.arange(0, K.HP)
        at = weights + BLOCK * K.PLANES * K.HP * K.HP + inner[:, None] * K.HP + cols[None, :]
        for k in tl.range(0, K.HP, K.BK, num_stages=3):
            part = tl.load(slot + rows[:, None] * K.HP + (k + inner)[None, :])
            tile_high, tile_low = tl.load(at + k * K.HP), tl.load(at + k * K.HP + (K.PLANES - 1) * K.HP * K.HP)
            main, cross = products(main, cross, part, up, tile_high, tile_low, K)
    if K.PRECISION == "float32":
        main -= cross * (-1.0 / TAIL)  # a sum would be folded into the dot, which then waits for the cross terms
    return main


@jit
def columns(K: tl.constexpr):
    """Column numbers, with a hint that makes loads and stores share the layout of `settle`: one row to a warp."""
    return tl.max_contiguous(tl.arange(0, K.HP), max(K.HP // 32, 1) if K.HP <= 128 else 4)


@jit
def whereabouts(B, K: tl.constexpr):
    """What a program works on: its replica, sequences and units of its tiles, which exist, lines of the tensors; its number."""
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * K.ROWS + tl.arange(0, K.ROWS), columns(K)[None, :]
    real = cols < K.H
    keep, line = (rows < B)[:, None] & real, (replica * B + rows)[:, None]
    return replica, rows, cols, real, keep, line, replica * tl.num_programs(0) + tl.program_id(0)


@jit
def settle(a, WIDTH: tl.constexpr, K: tl.constexpr):
    """Leave the layout of the tensor cores for that of loads and stores.

    The values stay as they are. Without it the compiler stays with the tensor cores' layout and exchanges every tile
    that is loaded or stored between the warps, which costs more than all the arithmetic.
    """
    return tl.gather(a, tl.arange(0, WIDTH)[None, :] + tl.full([K.ROWS, 1], 0, tl.int32), 1)


@jit
def settle_two(a, b, K: tl.constexpr):
    """`settle` two tiles in one exchange."""
    return tl.split(tl.reshape(settle(tl.interleave(a, b), 2 * K.HP, K), [K.ROWS, K.HP, 2]))


@jit
def settle_four(a, b, c, d, K: tl.constexpr):
    """`settle` four tiles in one exchange."""
    wide = settle(tl.interleave(tl.interleave(a, c), tl.interleave(b, d)), 4 * K.HP, K)
    even, odd = tl.split(tl.reshape(wide, [K.ROWS, 2 * K.HP, 2]))
    first, third = tl.split(tl.reshape(even, [K.ROWS, K.HP, 2]))
    second, fourth = tl.split(tl.reshape(odd, [K.ROWS, K.HP, 2]))
    return first, second, third, fourth


@jit
def row(vector, replica, K: tl.constexpr):
    """A vector (replica, H) as a row."""
    cols = tl.arange(0, K.HP)
    return tl.load(vector + replica * K.H + cols, mask=cols < K.H, other=0.0)[None, :]


@jit
def sigmoid(a):
    """Logistic function in the exp form, which keeps the relative accuracy of small gates."""
    return 1.0 / (1.0 + tl.exp(-a))


@jit
def tanh(a):
    """Hyperbolic tangent, accurate relative to itself: a polynomial near zero, the exp form elsewhere."""
    size = tl.abs(a)
    value = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
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


@jit
def normalise(a, real, K: tl.constexpr):
    """``(a - mean) / std`` over the units of each row, and 1 / std; padded units (not `real`) stay zero."""
    centred = tl.where(real, a - (tl.sum(a, axis=1) / K.H)[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / K.H + EPS)
    return centred * scale[:, None], scale


@jit
def normalise_slope(v, n, scale, real, K: tl.constexpr):
    """Jacobian of `normalise` times v; it is symmetric, so this serves tangents and gradients alike."""
    along = (tl.sum(v * n, axis=1) / K.H)[:, None]
    return tl.where(real, scale[:, None] * (v - (tl.sum(v, axis=1) / K.H)[:, None] - n * along), 0.0)


@jit
def candidate(a, gain, shift, real, K: tl.constexpr):
    """``tanh(a)`` or ``tanh(LayerNorm(a))``: the candidate, what to keep of it for the slopes, and 1 / std."""
    if K.LAYERNORM:
        n, scale = normalise(a, real, K)
        return tanh(n * gain + shift), n, scale
    else:
        g = tanh(a)
        return g, g, 0.0


@jit
def recall(kept, gain, shift, K: tl.constexpr):
    """Get the candidate back from what `candidate` kept."""
    if K.LAYERNORM:
        return tanh(kept * gain + shift)
    else:
        return kept


@jit
def pack(
    U,
    bound,
    packed,
    H: tl.constexpr,
    HP: tl.constexpr,
    ROWS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Scale, split and pad recurrent weights (replica, block, H, H) for the kernels, ROWS rows of a block in a program."""
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    block, replica = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    index = replica * tl.num_programs(1) + block
    rows, cols = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None], tl.arange(0, HP)[None, :]
    source = cols * H + rows if TRANSPOSED else rows * H + cols
    weights = tl.load(U + index * (H * H) + source, mask=(rows < H) & (cols < H), other=0.0)
    _, inverse = power_of_two(tl.load(bound + replica))
    high, low = halves(weights, inverse * SCALE)
    target = packed + index * (PLANES * HP * HP) + rows * HP + cols
    tl.store(target, high)
    if PRECISION == "float32":
        tl.store(target + HP * HP, low)
