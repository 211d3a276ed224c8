"""Units-first kernels of the paper's GRU, whose weights stay on the multiprocessor; see `units_first_parts` and `gru`.

They write and read what the kernels of `gru` do, so the tangent of those serves both.
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
    """States after each step, and what the slopes need."""
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    units, rows = tl.arange(0, HP)[:, None], sequences(ROWS, PRECISION)
    real = units < H
    keep = real & (rows < B)
    line = replica * B + rows
    weights += replica * (3 * PLANES * HP * HP)
    U_z, U_r = high_part(weights, 0, HP, ROWS, 1, PRECISION, PTX), high_part(weights, 1, HP, ROWS, 1, PRECISION, PTX)
    U_h = high_part(weights, 2, HP, ROWS, 1, PRECISION, PTX)
    b_z, b_r = column(bias, 3 * replica, H, HP), column(bias + H, 3 * replica, H, HP)
    b_h = column(bias + 2 * H, 3 * replica, H, HP)
    if LAYERNORM:
        ln_gain, ln_shift = column(gain, replica, H, HP), column(shift, replica, H, HP)
    h = fetch(s0 + line * H + units, keep, EVEN, PTX)
    up, down = scaling(tl.maximum(largest_column(h), 1.0), tl.load(bound + replica), PRECISION)
    at_pre, at_kept = pre + line * T * (3 * H) + units, kept + line * T * (3 * H) + units
    at_h = states + line * T * H + units
    next_z, next_r = fetch(at_pre, keep, EVEN, PTX), fetch(at_pre + H, keep, EVEN, PTX)
    next_h = fetch(at_pre + 2 * H, keep, EVEN, PTX)
    # The high parts are multiplied once before the low parts are loaded: they move to registers, and make room for these.
    nothing = settled(U_z, HP, ROWS, PRECISION) + settled(U_r, HP, ROWS, PRECISION) + settled(U_h, HP, ROWS, PRECISION)
    V_z, V_r = low_part(weights, 0, HP, PRECISION, PTX), low_part(weights, 1, HP, PRECISION, PTX)
    V_h = low_part(weights, 2, HP, PRECISION, PTX)
    h += nothing
    for t in range(T):
        a_z, a_r, a_h = next_z + b_z, next_r + b_r, next_h + b_h
        ahead = at_pre + tl.minimum(t + 1, T - 1).to(tl.int64) * (3 * H)
        next_z, next_r = fetch(ahead, keep, EVEN, PTX), fetch(ahead + H, keep, EVEN, PTX)
        next_h = fetch(ahead + 2 * H, keep, EVEN, PTX)
        high, low = factor(h, up, HP, ROWS, 1, PRECISION)
        r = logistic(a_r + down * product(U_r, V_r, high, low, HP, ROWS, PRECISION), PTX)
        z = logistic(a_z + down * product(U_z, V_z, high, low, HP, ROWS, PRECISION), PTX)
        high, low = factor(r * h, up, HP, ROWS, 1, PRECISION)
        a_h += down * product(U_h, V_h, high, low, HP, ROWS, PRECISION)
        if LAYERNORM:
            keeping, scale = normalised(a_h, real, H)
            g = hyperbolic(keeping * ln_gain + ln_shift, PTX)
            put_scale(scales, scale, line, t, T, HP, ROWS, PTX, B, rows)
        else:
            g = hyperbolic(a_h, PTX)
            keeping = g
        h = (1.0 - z) * h + z * g
        put(at_h, h, keep, EVEN, PTX)
        put(at_kept, z, keep, EVEN, PTX)
        put(at_kept + H, r, keep, EVEN, PTX)
        put(at_kept + 2 * H, keeping, keep, EVEN, PTX)
        at_h += H
        at_kept += 3 * H


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
    U_z, U_r = (
        high_part(weights, 0, HP, ROWS, BACK, PRECISION, PTX, 2),
        high_part(weights, 1, HP, ROWS, BACK, PRECISION, PTX),
    )
    U_h = high_part(weights, 2, HP, ROWS, BACK, PRECISION, PTX)
    if LAYERNORM:
        ln_gain, ln_shift = column(gain, replica, H, HP), column(shift, replica, H, HP)
    wide, narrow = line * T * (3 * H) + units, line * T * H + units  # offsets of the first step
    at_kept = kept + last * (3 * H) + wide
    next_z, next_r = fetch(at_kept, keep, EVEN, PTX), fetch(at_kept + H, keep, EVEN, PTX)
    next_g = fetch(at_kept + 2 * H, keep, EVEN, PTX)
    next_d = fetch(grad + last * H + narrow, keep, EVEN, PTX)
    first_h = fetch(s0 + line * H + units, keep, EVEN, PTX)
    next_h = tl.where(last > 0, fetch(states + tl.maximum(last - 1, 0) * H + narrow, keep, EVEN, PTX), first_h)
    sum_z = tl.zeros([HP, ROWS], next_d.dtype)
    sum_r, sum_h, sum_gain, sum_shift = sum_z, sum_z, sum_z, sum_z
    peak = scale_of(tl.zeros([HP, ROWS], next_d.dtype), PRECISION)
    # The high parts are multiplied once before the low parts are loaded: they move to registers, and make room for these.
    nothing = settled(U_z, HP, ROWS, PRECISION) + settled(U_r, HP, ROWS, PRECISION) + settled(U_h, HP, ROWS, PRECISION)
    V_z, V_r = low_part(weights, 0, HP, PRECISION, PTX), low_part(weights, 1, HP, PRECISION, PTX)
    V_h = low_part(weights, 2, HP, PRECISION, PTX)
    dh = nothing
    for back in range(T):
        t = last - back
        before = tl.maximum(t - 1, 0)
        z, r, g, h = next_z, next_r, next_g, next_h
        if LAYERNORM:
            kept_g = g
            g = hyperbolic(kept_g * ln_gain + ln_shift, PTX)
            scale = fetch_scale(scales, line, t, T, keep, HP, ROWS, EVEN, PTX)
        dh += next_d
        at_kept = kept + before * (3 * H) + wide
        next_z, next_r = fetch(at_kept, keep, EVEN, PTX), fetch(at_kept + H, keep, EVEN, PTX)
        next_g = fetch(at_kept + 2 * H, keep, EVEN, PTX)
        next_d = fetch(grad + before * H + narrow, keep, EVEN, PTX)
        next_h = tl.where(t > 1, fetch(states + tl.maximum(t - 2, 0) * H + narrow, keep, EVEN, PTX), first_h)
        d_z = dh * (g - h) * z * (1.0 - z)
        d_h = dh * z * (1.0 - g * g)
        if LAYERNORM:
            sum_gain += d_h * kept_g
            sum_shift += d_h
            d_h = normalised_slope(d_h * ln_gain, kept_g, scale, real, H)
        if PRECISION == "alone":
            d, _ = factor(d_h, 1.0, HP, ROWS, BACK, PRECISION)
            d_reset = product(U_h, V_h, d, d, HP, ROWS, PRECISION)
            d_r = d_reset * h * r * (1.0 - r)
            d = factor_of_two(d_z, d_r, HP, ROWS, BACK)
            p = product(U_z, V_z, d, d, HP, ROWS, PRECISION)
            dh = dh * (1.0 - z) + d_reset * r + p
            most = tl.maximum(tl.maximum(tl.abs(d_h), tl.abs(d_z)), tl.abs(d_r))
        else:
            most = largest_column(tl.maximum(tl.abs(d_h), tl.abs(d_z)))
            up, down = scaling(most, weights_bound, PRECISION)
            high_h, low_h = split(d_h, up, PRECISION)  # both before the first product: they share their barriers
            high_z, low_z = split(d_z, up, PRECISION)
            d_reset = down * multiplied(U_h, V_h, high_h, low_h, HP, ROWS, PRECISION)
            dh = dh * (1.0 - z) + d_reset * r + down * multiplied(U_z, V_z, high_z, low_z, HP, ROWS, PRECISION)
            d_r = d_reset * h * r * (1.0 - r)
            most_r = largest_column(d_r)
            up, down = scaling(most_r, weights_bound, PRECISION)
            high_r, low_r = split(d_r, up, PRECISION)
            dh += down * multiplied(U_r, V_r, high_r, low_r, HP, ROWS, PRECISION)
            most = tl.maximum(most, most_r)
        at_d = d_all + t * (3 * H) + wide
        put(at_d, d_z, keep, EVEN, PTX)
        put(at_d + H, d_r, keep, EVEN, PTX)
        put(at_d + 2 * H, d_h, keep, EVEN, PTX)
        sum_z += d_z
        sum_r += d_r
        sum_h += d_h
        peak = tl.maximum(peak, most)
    put(d_s0 + line * H + units, dh, keep, EVEN, PTX)
    tl.store(d_bound + program, tl.max(tl.max(peak, axis=1), axis=0))
    unit = tl.arange(0, HP)
    at_bias = d_bias + program * 3 * H + unit
    tl.store(at_bias, over_columns(sum_z, PRECISION), mask=unit < H)
    tl.store(at_bias + H, over_columns(sum_r, PRECISION), mask=unit < H)
    tl.store(at_bias + 2 * H, over_columns(sum_h, PRECISION), mask=unit < H)
    if LAYERNORM:
        tl.store(d_gain + program * H + unit, over_columns(sum_gain, PRECISION), mask=unit < H)
        tl.store(d_shift + program * H + unit, over_columns(sum_shift, PRECISION), mask=unit < H)
