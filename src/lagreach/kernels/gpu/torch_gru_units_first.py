"""Units-first kernels of torch's GRU, whose weights stay on the multiprocessor; see `units_first_parts` and `torch_gru`.

They write and read what the kernels of `torch_gru` do, so the tangent of those serves both.
"""

# mypy: disable-error-code=no-untyped-def
from __future__ import annotations

import triton.language as tl

from lagreach.kernels.gpu.parts import jit, scaling, split
from lagreach.kernels.gpu.units_first_parts import (
    AHEAD,
    BACK,
    call_for,
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
    settled,
    whereabouts,
    whole,
)


@jit
def forward(
    pre, bias, weights, bound, s0, gain, shift, extra, states, kept, scales, staging, fixed, B, T, K: tl.constexpr
):
    """States after each step, and what the slopes need; `extra` is c_n."""
    replica, units, rows, real, keep, line, _program = whereabouts(B, K)
    weights += replica * (3 * K.PLANES * K.HP * K.HP)
    U_r, U_z = high_part(weights, 0, 1, K), high_part(weights, 1, 1, K)
    U_n = high_part(weights, 2, 1, K)
    b_r, b_z = column(bias, 3 * replica, K), column(bias + K.H, 3 * replica, K)
    b_n, c_n = column(bias + 2 * K.H, 3 * replica, K), column(extra, replica, K)
    if K.LAYERNORM:
        ln_gain, ln_shift = column(gain, replica, K), column(shift, replica, K)
    h = fetch(s0 + line * K.H + units, keep, K)
    up, down = scaling(tl.maximum(largest_column(h), 1.0), tl.load(bound + replica), K)
    at_pre, at_kept = pre + line * T * (3 * K.H) + units, kept + line * T * (4 * K.H) + units
    at_h = states + line * T * K.H + units
    next_r, next_z = fetch(at_pre, keep, K), fetch(at_pre + K.H, keep, K)
    next_n = fetch(at_pre + 2 * K.H, keep, K)
    # The high parts are multiplied once before the low parts are loaded: they move to registers, and make room for these.
    nothing = settled(U_r, K) + settled(U_z, K) + settled(U_n, K)
    V_r, V_z = low_part(weights, 0, K), low_part(weights, 1, K)
    V_n = low_part(weights, 2, K)
    h += nothing
    for t in range(T):
        a_r, a_z, a_n = next_r + b_r, next_z + b_z, next_n + b_n
        ahead = at_pre + tl.minimum(t + 1, T - 1).to(tl.int64) * (3 * K.H)
        next_r, next_z = fetch(ahead, keep, K), fetch(ahead + K.H, keep, K)
        next_n = fetch(ahead + 2 * K.H, keep, K)
        call_for(pre, line, t + AHEAD, T, 3 * K.H, K)
        high, low = factor(h, up, 1, K)
        r = logistic(a_r + down * product(U_r, V_r, high, low, K), K)
        v = c_n + down * product(U_n, V_n, high, low, K)
        z = logistic(a_z + down * product(U_z, V_z, high, low, K), K)
        a_n += r * v
        if K.LAYERNORM:
            keeping, scale = normalised(a_n, real, K)
            n = hyperbolic(keeping * ln_gain + ln_shift, K)
            put_scale(scales, scale, line, t, T, B, rows, K)
        else:
            n = hyperbolic(a_n, K)
            keeping = n
        h = z * h + (1.0 - z) * n
        put(at_h, h, keep, K)
        put(at_kept, r, keep, K)
        put(at_kept + K.H, z, keep, K)
        put(at_kept + 2 * K.H, keeping, keep, K)
        put(at_kept + 3 * K.H, v, keep, K)
        at_h += K.H
        at_kept += 4 * K.H


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
    K: tl.constexpr,
):
    """Gradients of the blocks, of the first state and of the biases (a share of each program), from those of the states."""
    replica, units, _rows, real, keep, line, program = whereabouts(B, K)
    last = (T - 1).to(tl.int64)
    weights_bound = tl.load(bound + replica)
    weights += replica * (3 * K.PLANES * K.HP * K.HP)
    U_r, U_z = (
        high_part(weights, 0, BACK, K, 2),
        high_part(weights, 1, BACK, K),
    )
    U_n = high_part(weights, 2, BACK, K)
    if K.LAYERNORM:
        ln_gain, ln_shift = column(gain, replica, K), column(shift, replica, K)
    wide, narrow = line * T * (4 * K.H) + units, line * T * K.H + units  # offsets of the first step
    at_kept = kept + last * (4 * K.H) + wide
    next_r, next_z = fetch(at_kept, keep, K), fetch(at_kept + K.H, keep, K)
    next_n, next_v = fetch(at_kept + 2 * K.H, keep, K), fetch(at_kept + 3 * K.H, keep, K)
    next_d = fetch(grad + last * K.H + narrow, keep, K)
    first_h = fetch(s0 + line * K.H + units, keep, K)
    next_h = tl.where(last > 0, fetch(states + tl.maximum(last - 1, 0) * K.H + narrow, keep, K), first_h)
    sum_r = tl.full([K.HP, K.ROWS], 0, next_d.dtype)
    sum_z, sum_n, sum_v, sum_gain, sum_shift = sum_r, sum_r, sum_r, sum_r, sum_r
    peak = scale_of(tl.full([K.HP, K.ROWS], 0, next_d.dtype), K)
    # The high parts are multiplied once before the low parts are loaded: they move to registers, and make room for these.
    nothing = settled(U_r, K) + settled(U_z, K) + settled(U_n, K)
    V_r, V_z = low_part(weights, 0, K), low_part(weights, 1, K)
    V_n = low_part(weights, 2, K)
    dh = nothing
    for back in range(T):
        t = last - back
        before = tl.maximum(t - 1, 0)
        r, z, n, v, h = next_r, next_z, next_n, next_v, next_h
        if K.LAYERNORM:
            kept_n = n
            n = hyperbolic(kept_n * ln_gain + ln_shift, K)
            scale = fetch_scale(scales, line, t, T, keep, K)
        dh += next_d
        at_kept = kept + before * (4 * K.H) + wide
        next_r, next_z = fetch(at_kept, keep, K), fetch(at_kept + K.H, keep, K)
        next_n, next_v = fetch(at_kept + 2 * K.H, keep, K), fetch(at_kept + 3 * K.H, keep, K)
        next_d = fetch(grad + before * K.H + narrow, keep, K)
        next_h = tl.where(t > 1, fetch(states + tl.maximum(t - 2, 0) * K.H + narrow, keep, K), first_h)
        call_for(kept, line, t - AHEAD, T, 4 * K.H, K)
        call_for(states, line, t - AHEAD, T, K.H, K)
        call_for(grad, line, t - AHEAD, T, K.H, K)
        d_z = dh * ((h - n) * (z * (1.0 - z)))
        d_n = dh * ((1.0 - z) * (1.0 - n * n))
        if K.LAYERNORM:
            sum_gain += d_n * kept_n
            sum_shift += d_n
            d_n = normalised_slope(d_n * ln_gain, kept_n, scale, real, K)
        d_r, d_v = d_n * (v * (r * (1.0 - r))), d_n * r
        most = tl.maximum(tl.maximum(tl.abs(d_r), tl.abs(d_z)), tl.maximum(tl.abs(d_n), tl.abs(d_v)))
        most = scale_of(most, K)
        up, down = scaling(most, weights_bound, K)
        high_n, low_n = factor(d_v, up, BACK, K)  # all before the first product: they share barriers
        if K.PRECISION == "alone":
            d = factor_of_two(d_r, d_z, BACK, K)
            p = multiplied(U_r, V_r, d, d, K)
        else:
            high_r, low_r = split(d_r, up, K)
            high_z, low_z = split(d_z, up, K)
            p = multiplied(U_r, V_r, high_r, low_r, K)
            p += multiplied(U_z, V_z, high_z, low_z, K)
        p += multiplied(U_n, V_n, high_n, low_n, K)
        dh = dh * z + down * whole(p, K)
        at_d = d_all + t * (4 * K.H) + wide
        put(at_d, d_r, keep, K)
        put(at_d + K.H, d_z, keep, K)
        put(at_d + 2 * K.H, d_n, keep, K)
        put(at_d + 3 * K.H, d_v, keep, K)
        sum_r += d_r
        sum_z += d_z
        sum_n += d_n
        sum_v += d_v
        peak = tl.maximum(peak, most)
    put(d_s0 + line * K.H + units, dh, keep, K)
    tl.store(d_bound + program, tl.max(tl.max(peak, axis=1), axis=0))
    unit = tl.arange(0, K.HP)
    at_bias = d_bias + program * 4 * K.H + unit
    tl.store(at_bias, over_columns(sum_r, K), mask=unit < K.H)
    tl.store(at_bias + K.H, over_columns(sum_z, K), mask=unit < K.H)
    tl.store(at_bias + 2 * K.H, over_columns(sum_n, K), mask=unit < K.H)
    tl.store(at_bias + 3 * K.H, over_columns(sum_v, K), mask=unit < K.H)
    if K.LAYERNORM:
        tl.store(d_gain + program * K.H + unit, over_columns(sum_gain, K), mask=unit < K.H)
        tl.store(d_shift + program * K.H + unit, over_columns(sum_shift, K), mask=unit < K.H)
