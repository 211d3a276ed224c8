"""Gradients of all weights in one pass: ``sum d^T [h, x]`` over sequences and times, on tensor cores at float32 accuracy.

One program sums some rows of the gradients (those of BM units) over a share of the sequences; the shares are added later,
in a fixed order. Both factors are split into two float16 numbers, scaled by the largest of the replica: what is 2^-40 of it
or less is lost.
"""

# mypy: disable-error-code=no-untyped-def
from __future__ import annotations

import triton.language as tl

from lagreach.kernels.gpu.parts import TAIL, jit, load, scaling, split


@jit
def add_product(main, cross, d_high, d_low, a, up, K: tl.constexpr):
    """Add the product of split gradients (units x times) with a tile (times x columns) to ``main + cross / TAIL``."""
    high, low = split(a, up, K)
    if K.PRECISION == "ieee":
        main = tl.dot(d_high, high, main, input_precision="ieee")
    else:
        # Tensor cores cut their sums off, which would add up over time: only the small part stays with them.
        main -= tl.dot(d_high, high, tl.zeros_like(main)) * -1.0
        if K.PRECISION == "float32":
            cross = tl.dot(d_low, high, tl.dot(d_high, low, cross))
    return main, cross


@jit
def joined(main, cross, down, K: tl.constexpr):
    """The sum of both parts, on the scale it belongs to."""
    if K.PRECISION == "float32":
        main += cross * (1.0 / TAIL)
    return main * down


@jit
def sums(d, states, kept, x, d_bound, h_bound, x_bound, d_U, d_W, B, T, SHARES, STRETCHES, K: tl.constexpr):
    """Shares of d_U (replica, SHARES, G, H), without the first step, and of d_W (replica, SHARES, G, D).

    Each sequence comes as STRETCHES stretches of T steps, of which there are B in all.

    `states` (replica, B, T, STATE) begin with the outputs h. From row RESET_FROM of the gradients on the factor is r h,
    with r in the second block of `kept` (replica, B, T, 3 H): the candidate of the GRU. The bounds are the largest sizes of
    d, h and x in each replica. EVEN says that no tile reaches beyond its tensor.
    """
    FIRST_PARTS: tl.constexpr = (K.RESET_FROM + K.BM - 1) // K.BM  # no program has rows on both sides of RESET_FROM
    part, share, replica = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    first, end = part * K.BM, K.RESET_FROM
    if part >= FIRST_PARTS:
        first, end = K.RESET_FROM + (part - FIRST_PARTS) * K.BM, K.G
    step = tl.arange(0, K.BK)[:, None]
    units, cols, inputs = (
        (first + tl.arange(0, K.BM))[None, :],
        tl.arange(0, K.HP)[None, :],
        tl.arange(0, K.DP)[None, :],
    )
    largest_d, largest_h = tl.load(d_bound + replica), tl.load(h_bound + replica)
    d_up, h_down = scaling(largest_d, largest_h, K)
    h_up, _ = scaling(largest_h, largest_d, K)
    x_up, x_down = scaling(tl.load(x_bound + replica), largest_d, K)
    main_U, main_W = tl.full([K.BM, K.HP], 0, d.dtype.element_ty), tl.full([K.BM, K.DP], 0, d.dtype.element_ty)
    cross_U, cross_W = main_U, main_W
    for b in range(share, B, SHARES):
        row, earliest = (replica * B + b) * T, tl.where(b % STRETCHES == 0, 0, -1)
        at_d, at_x = d + (row + step) * K.G + units, x + (row + step) * K.D + inputs
        at_r = kept + (row + step) * (3 * K.H) + (K.H + cols)
        for begin in range(0, T, K.BK):
            t = begin + step
            d_high, d_low = split(load(at_d, (t < T) & (units < end), K), d_up, K)
            d_high, d_low = tl.trans(d_high), tl.trans(d_low)
            # the state before a sequence is masked below, but its address must not lie in front of the tensor either
            at_h = states + (row + tl.maximum(t - 1, earliest)) * K.STATE + cols
            h = tl.load(at_h, mask=(t > earliest) & (t < T) & (cols < K.H), other=0.0)
            if K.RESET_FROM < K.G:  # noqa: SIM102 (known when compiling; the next is not)
                if part >= FIRST_PARTS:
                    h *= load(at_r, (t < T) & (cols < K.H), K)
            main_U, cross_U = add_product(main_U, cross_U, d_high, d_low, h, h_up, K)
            if K.D > 0:
                u = load(at_x, (t < T) & (inputs < K.D), K)
                main_W, cross_W = add_product(main_W, cross_W, d_high, d_low, u, x_up, K)
            at_d += K.BK * K.G
            at_r += K.BK * (3 * K.H)
            at_x += K.BK * K.D
    units = (first + tl.arange(0, K.BM))[:, None]
    at = (replica * SHARES + share) * K.G + units
    tl.store(d_U + at * K.H + cols, joined(main_U, cross_U, h_down, K), mask=(units < end) & (cols < K.H))
    if K.D > 0:
        tl.store(d_W + at * K.D + inputs, joined(main_W, cross_W, x_down, K), mask=(units < end) & (inputs < K.D))
