"""Units-first kernels of torch's GRU, whose weights stay on the multiprocessor; see `units_first_parts` and `torch_gru`.

They write and read what the kernels of `torch_gru` do, so the tangent of those serves both.
"""

# mypy: disable-error-code=no-untyped-def
from __future__ import annotations

import triton.language as tl

from lagreach.kernels.gpu.parts import jit, scaling, split
from lagreach.kernels.gpu.units_first_parts import (
    BACK,
    column,
    factor,
    factor_of_two,
    fetch,
    fetch_scale,
    high_part,
    hyperbolic,
    largest_column,
    logistic,
    low_part,
    multiplied,
    normalised,
    normalised_slope,
    over_columns,
    product,
    put,
    put_scale,
    scale_of,
    sequences,
    settled,
    whole,
)


@jit
def forward(
    pre,
    bias,
    weights,
    bound,
    s0,
    gain,
    shift,
    extra,
    states,
    kept,
    scales,
    staging,
    fixed,
    B,
    T,
    H: tl.constexpr,
    HP: tl.constexpr,
    ROWS: tl.constexpr,
    BK: tl.constexpr,
    LAYERNORM: tl.constexpr,
    RESIDENT: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
    PTX: tl.constexpr,
):
    """States after each step, and what the slopes need; `extra` is c_n."""
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    units, rows = tl.arange(0, HP)[:, None], sequences(ROWS, PRECISION)
    real = units < H
    keep = real & (rows < B)
    line = replica * B + rows
    weights += replica * (3 * PLANES * HP * HP)
    U_r, U_z = high_part(weights, 0, HP, ROWS, 1, PRECISION, PTX), high_part(weights, 1, HP, ROWS, 1, PRECISION, PTX)
    U_n = high_part(weights, 2, HP, ROWS, 1, PRECISION, PTX)
    b_r, b_z = column(bias, 3 * replica, H, HP), column(bias + H, 3 * replica, H, HP)
    b_n, c_n = column(bias + 2 * H, 3 * replica, H, HP), column(extra, replica, H, HP)
    if LAYERNORM:
        ln_gain, ln_shift = column(gain, replica, H, HP), column(shift, replica, H, HP)
    h = fetch(s0 + line * H + units, keep, EVEN, PTX)
    up, down = scaling(tl.maximum(largest_column(h), 1.0), tl.load(bound + replica), PRECISION)
    at_pre, at_kept = pre + line * T * (3 * H) + units, kept + line * T * (4 * H) + units
    at_h = states + line * T * H + units
    next_r, next_z = fetch(at_pre, keep, EVEN, PTX), fetch(at_pre + H, keep, EVEN, PTX)
    next_n = fetch(at_pre + 2 * H, keep, EVEN, PTX)
    # The high parts are multiplied once before the low parts are loaded: they move to registers, and make room for these.
    nothing = settled(U_r, HP, ROWS, PRECISION) + settled(U_z, HP, ROWS, PRECISION) + settled(U_n, HP, ROWS, PRECISION)
    V_r, V_z = low_part(weights, 0, HP, PRECISION, PTX), low_part(weights, 1, HP, PRECISION, PTX)
    V_n = low_part(weights, 2, HP, PRECISION, PTX)
    h += nothing
    for t in range(T):
        a_r, a_z, a_n = next_r + b_r, next_z + b_z, next_n + b_n
        ahead = at_pre + tl.minimum(t + 1, T - 1).to(tl.int64) * (3 * H)
        next_r, next_z = fetch(ahead, keep, EVEN, PTX), fetch(ahead + H, keep, EVEN, PTX)
        next_n = fetch(ahead + 2 * H, keep, EVEN, PTX)
        high, low = factor(h, up, HP, ROWS, 1, PRECISION)
        r = logistic(a_r + down * product(U_r, V_r, high, low, HP, ROWS, PRECISION), PTX)
        v = c_n + down * product(U_n, V_n, high, low, HP, ROWS, PRECISION)
        z = logistic(a_z + down * product(U_z, V_z, high, low, HP, ROWS, PRECISION), PTX)
        a_n += r * v
        if LAYERNORM:
            keeping, scale = normalised(a_n, real, H)
            n = hyperbolic(keeping * ln_gain + ln_shift, PTX)
            put_scale(scales, scale, line, t, T, HP, ROWS, PTX, B, rows)
        else:
            n = hyperbolic(a_n, PTX)
            keeping = n
        h = z * h + (1.0 - z) * n
        put(at_h, h, keep, EVEN, PTX)
        put(at_kept, r, keep, EVEN, PTX)
        put(at_kept + H, z, keep, EVEN, PTX)
        put(at_kept + 2 * H, keeping, keep, EVEN, PTX)
        put(at_kept + 3 * H, v, keep, EVEN, PTX)
        at_h += H
        at_kept += 4 * H


@jit
def backward(
    grad,
    weights,
    bound,
    s0,
    gain,
    shift,
    extra,
    states,
    kept,
    scales,
    staging,
    d_all,
    d_s0,
    d_gain,
    d_shift,
    d_bias,
    d_bound,
    fixed,
    B,
    T,
    H: tl.constexpr,
    HP: tl.constexpr,
    ROWS: tl.constexpr,
    BK: tl.constexpr,
    LAYERNORM: tl.constexpr,
    RESIDENT: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
    PTX: tl.constexpr,
):
    """Gradients of the blocks, of the first state and of the biases (a share of each program), from those of the states."""
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    units, rows = tl.arange(0, HP)[:, None], sequences(ROWS, PRECISION)
    real = units < H
    keep = real & (rows < B)
    line = replica * B + rows
    program = replica * tl.num_programs(0) + tl.program_id(0)
    last = (T - 1).to(tl.int64)
    weights_bound = tl.load(bound + replica)
    weights += replica * (3 * PLANES * HP * HP)
    U_r, U_z = (
        high_part(weights, 0, HP, ROWS, BACK, PRECISION, PTX, 2),
        high_part(weights, 1, HP, ROWS, BACK, PRECISION, PTX),
    )
    U_n = high_part(weights, 2, HP, ROWS, BACK, PRECISION, PTX)
    if LAYERNORM:
        ln_gain, ln_shift = column(gain, replica, H, HP), column(shift, replica, H, HP)
    wide, narrow = line * T * (4 * H) + units, line * T * H + units  # offsets of the first step
    at_kept = kept + last * (4 * H) + wide
    next_r, next_z = fetch(at_kept, keep, EVEN, PTX), fetch(at_kept + H, keep, EVEN, PTX)
    next_n, next_v = fetch(at_kept + 2 * H, keep, EVEN, PTX), fetch(at_kept + 3 * H, keep, EVEN, PTX)
    next_d = fetch(grad + last * H + narrow, keep, EVEN, PTX)
    first_h = fetch(s0 + line * H + units, keep, EVEN, PTX)
    next_h = tl.where(last > 0, fetch(states + tl.maximum(last - 1, 0) * H + narrow, keep, EVEN, PTX), first_h)
    sum_r = tl.zeros([HP, ROWS], next_d.dtype)
    sum_z, sum_n, sum_v, sum_gain, sum_shift = sum_r, sum_r, sum_r, sum_r, sum_r
    peak = scale_of(tl.zeros([HP, ROWS], next_d.dtype), PRECISION)
    # The high parts are multiplied once before the low parts are loaded: they move to registers, and make room for these.
    nothing = settled(U_r, HP, ROWS, PRECISION) + settled(U_z, HP, ROWS, PRECISION) + settled(U_n, HP, ROWS, PRECISION)
    V_r, V_z = low_part(weights, 0, HP, PRECISION, PTX), low_part(weights, 1, HP, PRECISION, PTX)
    V_n = low_part(weights, 2, HP, PRECISION, PTX)
    dh = nothing
    for back in range(T):
        t = last - back
        before = tl.maximum(t - 1, 0)
        r, z, n, v, h = next_r, next_z, next_n, next_v, next_h
        if LAYERNORM:
            kept_n = n
            n = hyperbolic(kept_n * ln_gain + ln_shift, PTX)
            scale = fetch_scale(scales, line, t, T, keep, HP, ROWS, EVEN, PTX)
        dh += next_d
        at_kept = kept + before * (4 * H) + wide
        next_r, next_z = fetch(at_kept, keep, EVEN, PTX), fetch(at_kept + H, keep, EVEN, PTX)
        next_n, next_v = fetch(at_kept + 2 * H, keep, EVEN, PTX), fetch(at_kept + 3 * H, keep, EVEN, PTX)
        next_d = fetch(grad + before * H + narrow, keep, EVEN, PTX)
        next_h = tl.where(t > 1, fetch(states + tl.maximum(t - 2, 0) * H + narrow, keep, EVEN, PTX), first_h)
        d_z = dh * ((h - n) * (z * (1.0 - z)))
        d_n = dh * ((1.0 - z) * (1.0 - n * n))
        if LAYERNORM:
            sum_gain += d_n * kept_n
            sum_shift += d_n
            d_n = normalised_slope(d_n * ln_gain, kept_n, scale, real, H)
        d_r, d_v = d_n * (v * (r * (1.0 - r))), d_n * r
        most = tl.maximum(tl.maximum(tl.abs(d_r), tl.abs(d_z)), tl.maximum(tl.abs(d_n), tl.abs(d_v)))
        most = scale_of(most, PRECISION)
        up, down = scaling(most, weights_bound, PRECISION)
        high_n, low_n = factor(d_v, up, HP, ROWS, BACK, PRECISION)  # all before the first product: they share barriers
        if PRECISION == "alone":
            d = factor_of_two(d_r, d_z, HP, ROWS, BACK)
            p = multiplied(U_r, V_r, d, d, HP, ROWS, PRECISION)
        else:
            high_r, low_r = split(d_r, up, PRECISION)
            high_z, low_z = split(d_z, up, PRECISION)
            p = multiplied(U_r, V_r, high_r, low_r, HP, ROWS, PRECISION)
            p += multiplied(U_z, V_z, high_z, low_z, HP, ROWS, PRECISION)
        p += multiplied(U_n, V_n, high_n, low_n, HP, ROWS, PRECISION)
        dh = dh * z + down * whole(p, HP, ROWS, PRECISION)
        at_d = d_all + t * (4 * H) + wide
        put(at_d, d_r, keep, EVEN, PTX)
        put(at_d + H, d_z, keep, EVEN, PTX)
        put(at_d + 2 * H, d_n, keep, EVEN, PTX)
        put(at_d + 3 * H, d_v, keep, EVEN, PTX)
        sum_r += d_r
        sum_z += d_z
        sum_n += d_n
        sum_v += d_v
        peak = tl.maximum(peak, most)
    put(d_s0 + line * H + units, dh, keep, EVEN, PTX)
    tl.store(d_bound + program, tl.max(tl.max(peak, axis=1), axis=0))
    unit = tl.arange(0, HP)
    at_bias = d_bias + program * 4 * H + unit
    tl.store(at_bias, over_columns(sum_r, PRECISION), mask=unit < H)
    tl.store(at_bias + H, over_columns(sum_z, PRECISION), mask=unit < H)
    tl.store(at_bias + 2 * H, over_columns(sum_n, PRECISION), mask=unit < H)
    tl.store(at_bias + 3 * H, over_columns(sum_v, PRECISION), mask=unit < H)
    if LAYERNORM:
        tl.store(d_gain + program * H + unit, over_columns(sum_gain, PRECISION), mask=unit < H)
        tl.store(d_shift + program * H + unit, over_columns(sum_shift, PRECISION), mask=unit < H)
