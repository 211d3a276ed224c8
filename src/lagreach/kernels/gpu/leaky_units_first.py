"""Units-first kernels of the leaky cells, whose weights stay on the multiprocessor; see `units_first_parts` and `leaky`.

They write and read what the kernels of `leaky` do, so the tangent of those serves both.
"""

# mypy: disable-error-code=no-untyped-def
from __future__ import annotations

import triton.language as tl

from lagreach.kernels.gpu.parts import jit, scaling
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
    GATED: tl.constexpr,
    LAYERNORM: tl.constexpr,
    RESIDENT: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
    PTX: tl.constexpr,
):
    """States after each step, and what the slopes need."""
    N: tl.constexpr = 2 if GATED else 1
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    units, rows = tl.arange(0, HP)[:, None], sequences(ROWS, PRECISION)
    real = units < H
    keep = real & (rows < B)
    line = replica * B + rows
    weights += replica * (N * PLANES * HP * HP)
    U_h = high_part(weights, N - 1, HP, ROWS, 1, PRECISION, PTX)
    b_h = column(bias + (N - 1) * H, N * replica, H, HP)
    if GATED:
        U_s = high_part(weights, 0, HP, ROWS, 1, PRECISION, PTX)
        b_s = column(bias, N * replica, H, HP)
    if LAYERNORM:
        ln_gain, ln_shift = column(gain, replica, H, HP), column(shift, replica, H, HP)
    h = fetch(s0 + line * H + units, keep, EVEN, PTX)
    up, down = scaling(tl.maximum(largest_column(h), 1.0), tl.load(bound + replica), PRECISION)
    at_pre, at_kept = pre + line * T * (N * H) + units, kept + line * T * (N * H) + units
    at_h = states + line * T * H + units
    next_h = fetch(at_pre + (N - 1) * H, keep, EVEN, PTX)
    if GATED:
        next_s = fetch(at_pre, keep, EVEN, PTX)
    # The high parts are multiplied once before the low parts are loaded: they move to registers, and make room for these.
    nothing = settled(U_h, HP, ROWS, PRECISION)
    if GATED:
        nothing += settled(U_s, HP, ROWS, PRECISION)
        V_s = low_part(weights, 0, HP, PRECISION, PTX)
    V_h = low_part(weights, N - 1, HP, PRECISION, PTX)
    h += nothing
    for t in range(T):
        a_h = next_h + b_h
        ahead = at_pre + tl.minimum(t + 1, T - 1).to(tl.int64) * (N * H)
        next_h = fetch(ahead + (N - 1) * H, keep, EVEN, PTX)
        high, low = factor(h, up, HP, ROWS, 1, PRECISION)
        if GATED:
            a_s = next_s + b_s
            next_s = fetch(ahead, keep, EVEN, PTX)
            s = logistic(a_s + down * product(U_s, V_s, high, low, HP, ROWS, PRECISION), PTX)
            put(at_kept, s, keep, EVEN, PTX)
        else:
            s = fixed
        a_h += down * product(U_h, V_h, high, low, HP, ROWS, PRECISION)
        if LAYERNORM:
            keeping, scale = normalised(a_h, real, H)
            g = hyperbolic(keeping * ln_gain + ln_shift, PTX)
            put_scale(scales, scale, line, t, T, HP, ROWS, PTX, B, rows)
        else:
            g = hyperbolic(a_h, PTX)
            keeping = g
        h = (1.0 - s) * h + s * g
        put(at_h, h, keep, EVEN, PTX)
        put(at_kept + (N - 1) * H, keeping, keep, EVEN, PTX)
        at_h += H
        at_kept += N * H


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
    GATED: tl.constexpr,
    LAYERNORM: tl.constexpr,
    RESIDENT: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
    PTX: tl.constexpr,
):
    """Gradients of the blocks, of the first state and of the biases (a share of each program), from those of the states."""
    N: tl.constexpr = 2 if GATED else 1
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    units, rows = tl.arange(0, HP)[:, None], sequences(ROWS, PRECISION)
    real = units < H
    keep = real & (rows < B)
    line = replica * B + rows
    program = replica * tl.num_programs(0) + tl.program_id(0)
    last = (T - 1).to(tl.int64)
    weights += replica * (N * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_h = high_part(weights, N - 1, HP, ROWS, BACK, PRECISION, PTX)
    if GATED:
        U_s = high_part(weights, 0, HP, ROWS, BACK, PRECISION, PTX, N)
    if LAYERNORM:
        ln_gain, ln_shift = column(gain, replica, H, HP), column(shift, replica, H, HP)
    wide, narrow = line * T * (N * H) + units, line * T * H + units  # offsets of the first step
    at_kept = kept + last * (N * H) + wide
    next_g = fetch(at_kept + (N - 1) * H, keep, EVEN, PTX)
    if GATED:
        next_s = fetch(at_kept, keep, EVEN, PTX)
    next_d = fetch(grad + last * H + narrow, keep, EVEN, PTX)
    first_h = fetch(s0 + line * H + units, keep, EVEN, PTX)
    next_h = tl.where(last > 0, fetch(states + tl.maximum(last - 1, 0) * H + narrow, keep, EVEN, PTX), first_h)
    sum_s = tl.zeros([HP, ROWS], next_d.dtype)
    sum_h, sum_gain, sum_shift = sum_s, sum_s, sum_s
    peak = scale_of(tl.zeros([HP, ROWS], next_d.dtype), PRECISION)
    # The high parts are multiplied once before the low parts are loaded: they move to registers, and make room for these.
    nothing = settled(U_h, HP, ROWS, PRECISION)
    if GATED:
        nothing += settled(U_s, HP, ROWS, PRECISION)
        V_s = low_part(weights, 0, HP, PRECISION, PTX)
    V_h = low_part(weights, N - 1, HP, PRECISION, PTX)
    dh = nothing
    for back in range(T):
        t = last - back
        before = tl.maximum(t - 1, 0)
        g, h = next_g, next_h
        if LAYERNORM:
            kept_g = g
            g = hyperbolic(kept_g * ln_gain + ln_shift, PTX)
            scale = fetch_scale(scales, line, t, T, keep, HP, ROWS, EVEN, PTX)
        dh += next_d
        at_kept = kept + before * (N * H) + wide
        next_g = fetch(at_kept + (N - 1) * H, keep, EVEN, PTX)
        next_d = fetch(grad + before * H + narrow, keep, EVEN, PTX)
        next_h = tl.where(t > 1, fetch(states + tl.maximum(t - 2, 0) * H + narrow, keep, EVEN, PTX), first_h)
        if GATED:
            s = next_s
            next_s = fetch(at_kept, keep, EVEN, PTX)
        else:
            s = fixed
        d_h = dh * s * (1.0 - g * g)
        if LAYERNORM:
            sum_gain += d_h * kept_g
            sum_shift += d_h
            d_h = normalised_slope(d_h * ln_gain, kept_g, scale, real, H)
        at_d = d_all + t * (N * H) + wide
        if GATED:
            d_s = dh * (g - h) * s * (1.0 - s)
            most = scale_of(tl.maximum(tl.abs(d_h), tl.abs(d_s)), PRECISION)
            up, down = scaling(most, weights_bound, PRECISION)
            if PRECISION == "alone":
                d = factor_of_two(d_s, d_h, HP, ROWS, BACK)
                p = multiplied(U_s, V_s, d, d, HP, ROWS, PRECISION)
            else:
                high_h, low_h = factor(
                    d_h, up, HP, ROWS, BACK, PRECISION
                )  # both before the first product: they share their barriers
                high_s, low_s = factor(d_s, up, HP, ROWS, BACK, PRECISION)
                p = multiplied(U_h, V_h, high_h, low_h, HP, ROWS, PRECISION)
                p += multiplied(U_s, V_s, high_s, low_s, HP, ROWS, PRECISION)
            put(at_d, d_s, keep, EVEN, PTX)
            sum_s += d_s
        else:
            most = scale_of(d_h, PRECISION)
            up, down = scaling(most, weights_bound, PRECISION)
            high_h, low_h = factor(d_h, up, HP, ROWS, BACK, PRECISION)
            p = multiplied(U_h, V_h, high_h, low_h, HP, ROWS, PRECISION)
        put(at_d + (N - 1) * H, d_h, keep, EVEN, PTX)
        sum_h += d_h
        peak = tl.maximum(peak, most)
        dh = dh * (1.0 - s) + down * whole(p, HP, ROWS, PRECISION)
    put(d_s0 + line * H + units, dh, keep, EVEN, PTX)
    tl.store(d_bound + program, tl.max(tl.max(peak, axis=1), axis=0))
    unit = tl.arange(0, HP)
    tl.store(d_bias + (program * N + N - 1) * H + unit, over_columns(sum_h, PRECISION), mask=unit < H)
    if GATED:
        tl.store(d_bias + program * N * H + unit, over_columns(sum_s, PRECISION), mask=unit < H)
    if LAYERNORM:
        tl.store(d_gain + program * H + unit, over_columns(sum_gain, PRECISION), mask=unit < H)
        tl.store(d_shift + program * H + unit, over_columns(sum_shift, PRECISION), mask=unit < H)
