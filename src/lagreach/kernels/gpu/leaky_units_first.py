"""Units-first kernels of the leaky cells, whose weights stay on the multiprocessor; see `units_first_parts` and `leaky`.

They write and read what the kernels of `leaky` do, so the tangent of those serves both.
"""

# mypy: disable-error-code=no-untyped-def
from __future__ import annotations

import triton.language as tl

from lagreach.kernels.gpu.parts import jit, scaling
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
    """States after each step, and what the slopes need."""
    N: tl.constexpr = 2 if K.GATED else 1
    replica, units, rows, real, keep, line, _program = whereabouts(B, K)
    weights += replica * (N * K.PLANES * K.HP * K.HP)
    U_h = high_part(weights, N - 1, 1, K)
    b_h = column(bias + (N - 1) * K.H, N * replica, K)
    if K.GATED:
        U_s = high_part(weights, 0, 1, K)
        b_s = column(bias, N * replica, K)
    if K.LAYERNORM:
        ln_gain, ln_shift = column(gain, replica, K), column(shift, replica, K)
    h = fetch(s0 + line * K.H + units, keep, K)
    up, down = scaling(tl.maximum(largest_column(h), 1.0), tl.load(bound + replica), K)
    at_pre, at_kept = pre + line * T * (N * K.H) + units, kept + line * T * (N * K.H) + units
    at_h = states + line * T * K.H + units
    next_h = fetch(at_pre + (N - 1) * K.H, keep, K)
    if K.GATED:
        next_s = fetch(at_pre, keep, K)
    # The high parts are multiplied once before the low parts are loaded: they move to registers, and make room for these.
    nothing = settled(U_h, K)
    if K.GATED:
        nothing += settled(U_s, K)
        V_s = low_part(weights, 0, K)
    V_h = low_part(weights, N - 1, K)
    h += nothing
    for t in range(T):
        a_h = next_h + b_h
        ahead = at_pre + tl.minimum(t + 1, T - 1).to(tl.int64) * (N * K.H)
        next_h = fetch(ahead + (N - 1) * K.H, keep, K)
        call_for(pre, line, t + AHEAD, T, N * K.H, K)
        high, low = factor(h, up, 1, K)
        if K.GATED:
            a_s = next_s + b_s
            next_s = fetch(ahead, keep, K)
            s = logistic(a_s + down * product(U_s, V_s, high, low, K), K)
            put(at_kept, s, keep, K)
        else:
            s = fixed
        a_h += down * product(U_h, V_h, high, low, K)
        if K.LAYERNORM:
            keeping, scale = normalised(a_h, real, K)
            g = hyperbolic(keeping * ln_gain + ln_shift, K)
            put_scale(scales, scale, line, t, T, B, rows, K)
        else:
            g = hyperbolic(a_h, K)
            keeping = g
        h = (1.0 - s) * h + s * g
        put(at_h, h, keep, K)
        put(at_kept + (N - 1) * K.H, keeping, keep, K)
        at_h += K.H
        at_kept += N * K.H


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
    N: tl.constexpr = 2 if K.GATED else 1
    replica, units, _rows, real, keep, line, program = whereabouts(B, K)
    last = (T - 1).to(tl.int64)
    weights += replica * (N * K.PLANES * K.HP * K.HP)
    weights_bound = tl.load(bound + replica)
    U_h = high_part(weights, N - 1, BACK, K)
    if K.GATED:
        U_s = high_part(weights, 0, BACK, K, N)
    if K.LAYERNORM:
        ln_gain, ln_shift = column(gain, replica, K), column(shift, replica, K)
    wide, narrow = line * T * (N * K.H) + units, line * T * K.H + units  # offsets of the first step
    at_kept = kept + last * (N * K.H) + wide
    next_g = fetch(at_kept + (N - 1) * K.H, keep, K)
    if K.GATED:
        next_s = fetch(at_kept, keep, K)
    next_d = fetch(grad + last * K.H + narrow, keep, K)
    first_h = fetch(s0 + line * K.H + units, keep, K)
    next_h = tl.where(last > 0, fetch(states + tl.maximum(last - 1, 0) * K.H + narrow, keep, K), first_h)
    sum_s = tl.full([K.HP, K.ROWS], 0, next_d.dtype)
    sum_h, sum_gain, sum_shift = sum_s, sum_s, sum_s
    peak = scale_of(tl.full([K.HP, K.ROWS], 0, next_d.dtype), K)
    # The high parts are multiplied once before the low parts are loaded: they move to registers, and make room for these.
    nothing = settled(U_h, K)
    if K.GATED:
        nothing += settled(U_s, K)
        V_s = low_part(weights, 0, K)
    V_h = low_part(weights, N - 1, K)
    dh = nothing
    for back in range(T):
        t = last - back
        before = tl.maximum(t - 1, 0)
        g, h = next_g, next_h
        if K.LAYERNORM:
            kept_g = g
            g = hyperbolic(kept_g * ln_gain + ln_shift, K)
            scale = fetch_scale(scales, line, t, T, keep, K)
        dh += next_d
        at_kept = kept + before * (N * K.H) + wide
        next_g = fetch(at_kept + (N - 1) * K.H, keep, K)
        next_d = fetch(grad + before * K.H + narrow, keep, K)
        next_h = tl.where(t > 1, fetch(states + tl.maximum(t - 2, 0) * K.H + narrow, keep, K), first_h)
        if K.GATED:
            s = next_s
            next_s = fetch(at_kept, keep, K)
        else:
            s = fixed
        call_for(kept, line, t - AHEAD, T, N * K.H, K)
        call_for(states, line, t - AHEAD, T, K.H, K)
        call_for(grad, line, t - AHEAD, T, K.H, K)
        d_h = dh * s * (1.0 - g * g)
        if K.LAYERNORM:
            sum_gain += d_h * kept_g
            sum_shift += d_h
            d_h = normalised_slope(d_h * ln_gain, kept_g, scale, real, K)
        at_d = d_all + t * (N * K.H) + wide
        if K.GATED:
            d_s = dh * (g - h) * s * (1.0 - s)
            most = scale_of(tl.maximum(tl.abs(d_h), tl.abs(d_s)), K)
            up, down = scaling(most, weights_bound, K)
            if K.PRECISION == "alone":
                d = factor_of_two(d_s, d_h, BACK, K)
                p = multiplied(U_s, V_s, d, d, K)
            else:
                high_h, low_h = factor(d_h, up, BACK, K)  # both before the first product: they share their barriers
                high_s, low_s = factor(d_s, up, BACK, K)
                p = multiplied(U_h, V_h, high_h, low_h, K)
                p += multiplied(U_s, V_s, high_s, low_s, K)
            put(at_d, d_s, keep, K)
            sum_s += d_s
        else:
            most = scale_of(d_h, K)
            up, down = scaling(most, weights_bound, K)
            high_h, low_h = factor(d_h, up, BACK, K)
            p = multiplied(U_h, V_h, high_h, low_h, K)
        put(at_d + (N - 1) * K.H, d_h, keep, K)
        sum_h += d_h
        peak = tl.maximum(peak, most)
        dh = dh * (1.0 - s) + down * whole(p, K)
    put(d_s0 + line * K.H + units, dh, keep, K)
    tl.store(d_bound + program, tl.max(tl.max(peak, axis=1), axis=0))
    unit = tl.arange(0, K.HP)
    tl.store(d_bias + (program * N + N - 1) * K.H + unit, over_columns(sum_h, K), mask=unit < K.H)
    if K.GATED:
        tl.store(d_bias + program * N * K.H + unit, over_columns(sum_s, K), mask=unit < K.H)
    if K.LAYERNORM:
        tl.store(d_gain + program * K.H + unit, over_columns(sum_gain, K), mask=unit < K.H)
        tl.store(d_shift + program * K.H + unit, over_columns(sum_shift, K), mask=unit < K.H)
