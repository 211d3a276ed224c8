"""Units-first kernels of the LSTM, for networks whose weights stay on the multiprocessor; see `units_first_parts` and `lstm`.

They write and read what the kernels of `lstm` do, so the tangent of those serves both.
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
    factor_of_four,
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
    """States [h; c] after each step, and what the slopes need."""
    replica, units, rows, real, keep, line, _program = whereabouts(B, K)
    weights += replica * (4 * K.PLANES * K.HP * K.HP)
    U_i, U_f = high_part(weights, 0, 1, K), high_part(weights, 1, 1, K)
    U_g, U_o = high_part(weights, 2, 1, K), high_part(weights, 3, 1, K)
    b_i, b_f = column(bias, 4 * replica, K), column(bias + K.H, 4 * replica, K)
    b_g, b_o = column(bias + 2 * K.H, 4 * replica, K), column(bias + 3 * K.H, 4 * replica, K)
    if K.LAYERNORM:
        ln_gain, ln_shift = column(gain, replica, K), column(shift, replica, K)
    at_first = s0 + line * (2 * K.H) + units
    h, c = fetch(at_first, keep, K), fetch(at_first + K.H, keep, K)
    up, down = scaling(tl.maximum(largest_column(h), 1.0), tl.load(bound + replica), K)
    at_pre, at_kept = pre + line * T * (4 * K.H) + units, kept + line * T * (4 * K.H) + units
    at_h = states + line * T * (2 * K.H) + units
    next_i, next_f, next_g, next_o = fetch_blocks(at_pre, keep, K)
    # The high parts are multiplied once before the low parts are loaded: they move to registers, and make room for these.
    nothing = settled(U_i, K) + settled(U_f, K)
    nothing += settled(U_g, K) + settled(U_o, K)
    V_i, V_f = low_part(weights, 0, K), low_part(weights, 1, K)
    V_g, V_o = low_part(weights, 2, K), low_part(weights, 3, K)
    c += nothing
    i, f, keeping, o = next_i, next_f, next_g, next_o
    for t in range(T):
        ahead = at_pre + tl.minimum(t + 1, T - 1).to(tl.int64) * (4 * K.H)
        if K.PRECISION == "alone":
            a_i, a_f, a_g, a_o = next_i + b_i, next_f + b_f, next_g + b_g, next_o + b_o
            call_for(pre, line, t + AHEAD, T, 4 * K.H, K)
            next_i, next_f, next_g, next_o = fetch_blocks(ahead, keep, K)
        high, low = factor(h, up, 1, K)
        p_i = product(U_i, V_i, high, low, K)
        p_g = product(U_g, V_g, high, low, K)
        p_f = product(U_f, V_f, high, low, K)
        p_o = product(U_o, V_o, high, low, K)
        if K.PRECISION != "alone":
            # While the tensor cores work: store the step before (at first something that is overwritten), fetch the next.
            put_step(at_h, at_kept, h, c, i, f, keeping, o, keep, K)
            at_h += tl.where(t > 0, 2 * K.H, 0)
            at_kept += tl.where(t > 0, 4 * K.H, 0)
            a_i, a_f, a_g, a_o = next_i + b_i, next_f + b_f, next_g + b_g, next_o + b_o
            next_i, next_f, next_g, next_o = fetch_blocks(ahead, keep, K)
        i = logistic(a_i + down * p_i, K)
        a_g += down * p_g
        if K.LAYERNORM:
            keeping, scale = normalised(a_g, real, K)
            g = hyperbolic(keeping * ln_gain + ln_shift, K)
            put_scale(scales, scale, line, t, T, B, rows, K)
        else:
            g = hyperbolic(a_g, K)
            keeping = g
        f = logistic(a_f + down * p_f, K)
        o = logistic(a_o + down * p_o, K)
        c = f * c + i * g
        h = o * hyperbolic(c, K)
        if K.PRECISION == "alone":
            put_step(at_h, at_kept, h, c, i, f, keeping, o, keep, K)
            at_h += 2 * K.H
            at_kept += 4 * K.H
    if K.PRECISION != "alone":
        put_step(at_h, at_kept, h, c, i, f, keeping, o, keep, K)


@jit
def fetch_blocks(at, keep, K: tl.constexpr):
    """Load the four blocks of a step."""
    return (
        fetch(at, keep, K),
        fetch(at + K.H, keep, K),
        fetch(at + 2 * K.H, keep, K),
        fetch(at + 3 * K.H, keep, K),
    )


@jit
def put_step(at_h, at_kept, h, c, i, f, g, o, keep, K: tl.constexpr):
    """Store what a step made."""
    put(at_h, h, keep, K)
    put(at_h + K.H, c, keep, K)
    put(at_kept, i, keep, K)
    put(at_kept + K.H, f, keep, K)
    put(at_kept + 2 * K.H, g, keep, K)
    put(at_kept + 3 * K.H, o, keep, K)


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
    weights += replica * (4 * K.PLANES * K.HP * K.HP)
    weights_bound = tl.load(bound + replica)
    U_i, U_f = (
        high_part(weights, 0, BACK, K, 4),
        high_part(weights, 1, BACK, K),
    )
    U_g, U_o = (
        high_part(weights, 2, BACK, K),
        high_part(weights, 3, BACK, K),
    )
    if K.LAYERNORM:
        ln_gain, ln_shift = column(gain, replica, K), column(shift, replica, K)
    wide, narrow = line * T * (4 * K.H) + units, line * T * (2 * K.H) + units  # offsets of the first step
    at_kept, at_grad = kept + last * (4 * K.H) + wide, grad + last * (2 * K.H) + narrow
    next_i, next_f, next_g, next_o = fetch_blocks(at_kept, keep, K)
    next_dh, next_dc = fetch(at_grad, keep, K), fetch(at_grad + K.H, keep, K)
    old_c = fetch(states + last * (2 * K.H) + narrow + K.H, keep, K)
    next_tanh_c = hyperbolic(old_c, K)
    first_c = fetch(s0 + line * (2 * K.H) + units + K.H, keep, K)
    next_c = tl.where(last > 0, fetch(states + tl.maximum(last - 1, 0) * (2 * K.H) + narrow + K.H, keep, K), first_c)
    dc = tl.full([K.HP, K.ROWS], 0, next_dh.dtype)
    sum_i, sum_f, sum_g, sum_o, sum_gain, sum_shift = dc, dc, dc, dc, dc, dc
    peak = scale_of(tl.full([K.HP, K.ROWS], 0, next_dh.dtype), K)
    # The high parts are multiplied once before the low parts are loaded: they move to registers, and make room for these.
    nothing = settled(U_i, K) + settled(U_f, K)
    nothing += settled(U_g, K) + settled(U_o, K)
    V_i, V_f = low_part(weights, 0, K), low_part(weights, 1, K)
    V_g, V_o = low_part(weights, 2, K), low_part(weights, 3, K)
    dh = nothing
    for back in range(T):
        t = last - back
        i, f, g, o = next_i, next_f, next_g, next_o
        if K.LAYERNORM:
            kept_g = g
            g = hyperbolic(kept_g * ln_gain + ln_shift, K)
            scale = fetch_scale(scales, line, t, T, keep, K)
        c, old_c = old_c, next_c
        dh += next_dh
        dc += next_dc
        before = tl.maximum(t - 1, 0)
        at_kept, at_grad = kept + before * (4 * K.H) + wide, grad + before * (2 * K.H) + narrow
        next_i, next_f, next_g, next_o = fetch_blocks(at_kept, keep, K)
        next_dh, next_dc = fetch(at_grad, keep, K), fetch(at_grad + K.H, keep, K)
        at_c = states + tl.maximum(t - 2, 0) * (2 * K.H) + narrow + K.H
        next_c = tl.where(t > 1, fetch(at_c, keep, K), first_c)
        call_for(kept, line, t - AHEAD, T, 4 * K.H, K)
        call_for(states, line, t - AHEAD, T, 2 * K.H, K)
        call_for(grad, line, t - AHEAD, T, 2 * K.H, K)
        tanh_c = next_tanh_c if K.PRECISION == "alone" else hyperbolic(c, K)
        d_o = dh * tanh_c * o * (1.0 - o)
        dc += dh * o * (1.0 - tanh_c * tanh_c)
        d_i = dc * g * i * (1.0 - i)
        d_f = dc * old_c * f * (1.0 - f)
        d_g = dc * i * (1.0 - g * g)
        if K.LAYERNORM:
            sum_gain += d_g * kept_g
            sum_shift += d_g
            d_g = normalised_slope(d_g * ln_gain, kept_g, scale, real, K)
        dc = dc * f
        most = tl.maximum(tl.maximum(tl.abs(d_i), tl.abs(d_f)), tl.maximum(tl.abs(d_g), tl.abs(d_o)))
        most = scale_of(most, K)
        up, down = scaling(most, weights_bound, K)
        if K.PRECISION == "alone":
            d = factor_of_four(d_i, d_f, d_g, d_o, BACK, K)
            p = multiplied(U_i, V_i, d, d, K)
            next_tanh_c = hyperbolic(old_c, K)  # while the numbers are on their way
        else:
            high_i, low_i = factor(d_i, up, BACK, K)  # all four before the first product: they share their barriers
            high_f, low_f = factor(d_f, up, BACK, K)
            high_g, low_g = factor(d_g, up, BACK, K)
            high_o, low_o = factor(d_o, up, BACK, K)
            p = multiplied(U_i, V_i, high_i, low_i, K)
            p += multiplied(U_f, V_f, high_f, low_f, K)
            p += multiplied(U_g, V_g, high_g, low_g, K)
            p += multiplied(U_o, V_o, high_o, low_o, K)
        dh = down * whole(p, K)
        at_d = d_all + t * (4 * K.H) + wide
        put(at_d, d_i, keep, K)
        put(at_d + K.H, d_f, keep, K)
        put(at_d + 2 * K.H, d_g, keep, K)
        put(at_d + 3 * K.H, d_o, keep, K)
        sum_i += d_i
        sum_f += d_f
        sum_g += d_g
        sum_o += d_o
        peak = tl.maximum(peak, most)
    put(d_s0 + line * (2 * K.H) + units, dh, keep, K)
    put(d_s0 + line * (2 * K.H) + (K.H + units), dc, keep, K)
    tl.store(d_bound + program, tl.max(tl.max(peak, axis=1), axis=0))
    unit = tl.arange(0, K.HP)
    at_bias = d_bias + program * 4 * K.H + unit
    tl.store(at_bias, over_columns(sum_i, K), mask=unit < K.H)
    tl.store(at_bias + K.H, over_columns(sum_f, K), mask=unit < K.H)
    tl.store(at_bias + 2 * K.H, over_columns(sum_g, K), mask=unit < K.H)
    tl.store(at_bias + 3 * K.H, over_columns(sum_o, K), mask=unit < K.H)
    if K.LAYERNORM:
        tl.store(d_gain + program * K.H + unit, over_columns(sum_gain, K), mask=unit < K.H)
        tl.store(d_shift + program * K.H + unit, over_columns(sum_shift, K), mask=unit < K.H)
