"""Units-first kernels of the LSTM, for networks whose weights stay on the multiprocessor; see `units_first_parts` and `lstm`.

They write and read what the kernels of `lstm` do, so the tangent of those serves both.
"""

# mypy: disable-error-code=no-untyped-def
from __future__ import annotations

import triton.language as tl

from lagreach.kernels.gpu.parts import jit, scaling
from lagreach.kernels.gpu.units_first_parts import (
    BACK,
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
    """States [h; c] after each step, and what the slopes need."""
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    units, rows = tl.arange(0, HP)[:, None], sequences(ROWS, PRECISION)
    real = units < H
    keep = real & (rows < B)
    line = replica * B + rows
    weights += replica * (4 * PLANES * HP * HP)
    U_i, U_f = high_part(weights, 0, HP, ROWS, 1, PRECISION, PTX), high_part(weights, 1, HP, ROWS, 1, PRECISION, PTX)
    U_g, U_o = high_part(weights, 2, HP, ROWS, 1, PRECISION, PTX), high_part(weights, 3, HP, ROWS, 1, PRECISION, PTX)
    b_i, b_f = column(bias, 4 * replica, H, HP), column(bias + H, 4 * replica, H, HP)
    b_g, b_o = column(bias + 2 * H, 4 * replica, H, HP), column(bias + 3 * H, 4 * replica, H, HP)
    if LAYERNORM:
        ln_gain, ln_shift = column(gain, replica, H, HP), column(shift, replica, H, HP)
    at_first = s0 + line * (2 * H) + units
    h, c = fetch(at_first, keep, EVEN, PTX), fetch(at_first + H, keep, EVEN, PTX)
    up, down = scaling(tl.maximum(largest_column(h), 1.0), tl.load(bound + replica), PRECISION)
    at_pre, at_kept = pre + line * T * (4 * H) + units, kept + line * T * (4 * H) + units
    at_h = states + line * T * (2 * H) + units
    next_i, next_f = fetch(at_pre, keep, EVEN, PTX), fetch(at_pre + H, keep, EVEN, PTX)
    next_g, next_o = fetch(at_pre + 2 * H, keep, EVEN, PTX), fetch(at_pre + 3 * H, keep, EVEN, PTX)
    # The high parts are multiplied once before the low parts are loaded: they move to registers, and make room for these.
    nothing = settled(U_i, HP, ROWS, PRECISION) + settled(U_f, HP, ROWS, PRECISION)
    nothing += settled(U_g, HP, ROWS, PRECISION) + settled(U_o, HP, ROWS, PRECISION)
    V_i, V_f = low_part(weights, 0, HP, PRECISION, PTX), low_part(weights, 1, HP, PRECISION, PTX)
    V_g, V_o = low_part(weights, 2, HP, PRECISION, PTX), low_part(weights, 3, HP, PRECISION, PTX)
    c += nothing
    i, f, keeping, o = next_i, next_f, next_g, next_o
    for t in range(T):
        high, low = factor(h, up, HP, ROWS, 1, PRECISION)
        p_i = product(U_i, V_i, high, low, HP, ROWS, PRECISION)
        p_g = product(U_g, V_g, high, low, HP, ROWS, PRECISION)
        p_f = product(U_f, V_f, high, low, HP, ROWS, PRECISION)
        p_o = product(U_o, V_o, high, low, HP, ROWS, PRECISION)
        # While the tensor cores work: store the step before (at first something that is overwritten), fetch the next.
        put_step(at_h, at_kept, h, c, i, f, keeping, o, keep, H, EVEN, PTX)
        at_h += tl.where(t > 0, 2 * H, 0)
        at_kept += tl.where(t > 0, 4 * H, 0)
        a_i, a_f, a_g, a_o = next_i + b_i, next_f + b_f, next_g + b_g, next_o + b_o
        ahead = at_pre + tl.minimum(t + 1, T - 1).to(tl.int64) * (4 * H)
        next_i, next_f = fetch(ahead, keep, EVEN, PTX), fetch(ahead + H, keep, EVEN, PTX)
        next_g, next_o = fetch(ahead + 2 * H, keep, EVEN, PTX), fetch(ahead + 3 * H, keep, EVEN, PTX)
        i = logistic(a_i + down * p_i, PTX)
        a_g += down * p_g
        if LAYERNORM:
            keeping, scale = normalised(a_g, real, H)
            g = hyperbolic(keeping * ln_gain + ln_shift, PTX)
            put_scale(scales, scale, line, t, T, HP, ROWS, PTX, B, rows)
        else:
            g = hyperbolic(a_g, PTX)
            keeping = g
        f = logistic(a_f + down * p_f, PTX)
        o = logistic(a_o + down * p_o, PTX)
        c = f * c + i * g
        h = o * hyperbolic(c, PTX)
    put_step(at_h, at_kept, h, c, i, f, keeping, o, keep, H, EVEN, PTX)


@jit
def put_step(at_h, at_kept, h, c, i, f, g, o, keep, H: tl.constexpr, EVEN: tl.constexpr, PTX: tl.constexpr):
    """Store what a step made."""
    put(at_h, h, keep, EVEN, PTX)
    put(at_h + H, c, keep, EVEN, PTX)
    put(at_kept, i, keep, EVEN, PTX)
    put(at_kept + H, f, keep, EVEN, PTX)
    put(at_kept + 2 * H, g, keep, EVEN, PTX)
    put(at_kept + 3 * H, o, keep, EVEN, PTX)


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
    weights += replica * (4 * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_i, U_f = (
        high_part(weights, 0, HP, ROWS, BACK, PRECISION, PTX, 4),
        high_part(weights, 1, HP, ROWS, BACK, PRECISION, PTX),
    )
    U_g, U_o = (
        high_part(weights, 2, HP, ROWS, BACK, PRECISION, PTX),
        high_part(weights, 3, HP, ROWS, BACK, PRECISION, PTX),
    )
    if LAYERNORM:
        ln_gain, ln_shift = column(gain, replica, H, HP), column(shift, replica, H, HP)
    wide, narrow = line * T * (4 * H) + units, line * T * (2 * H) + units  # offsets of the first step
    at_kept, at_grad = kept + last * (4 * H) + wide, grad + last * (2 * H) + narrow
    next_i, next_f = fetch(at_kept, keep, EVEN, PTX), fetch(at_kept + H, keep, EVEN, PTX)
    next_g, next_o = fetch(at_kept + 2 * H, keep, EVEN, PTX), fetch(at_kept + 3 * H, keep, EVEN, PTX)
    next_dh, next_dc = fetch(at_grad, keep, EVEN, PTX), fetch(at_grad + H, keep, EVEN, PTX)
    old_c = fetch(states + last * (2 * H) + narrow + H, keep, EVEN, PTX)
    next_tanh_c = hyperbolic(old_c, PTX)
    first_c = fetch(s0 + line * (2 * H) + units + H, keep, EVEN, PTX)
    next_c = tl.where(
        last > 0, fetch(states + tl.maximum(last - 1, 0) * (2 * H) + narrow + H, keep, EVEN, PTX), first_c
    )
    dc = tl.zeros([HP, ROWS], next_dh.dtype)
    sum_i, sum_f, sum_g, sum_o, sum_gain, sum_shift = dc, dc, dc, dc, dc, dc
    peak = scale_of(tl.zeros([HP, ROWS], next_dh.dtype), PRECISION)
    # The high parts are multiplied once before the low parts are loaded: they move to registers, and make room for these.
    nothing = settled(U_i, HP, ROWS, PRECISION) + settled(U_f, HP, ROWS, PRECISION)
    nothing += settled(U_g, HP, ROWS, PRECISION) + settled(U_o, HP, ROWS, PRECISION)
    V_i, V_f = low_part(weights, 0, HP, PRECISION, PTX), low_part(weights, 1, HP, PRECISION, PTX)
    V_g, V_o = low_part(weights, 2, HP, PRECISION, PTX), low_part(weights, 3, HP, PRECISION, PTX)
    dh = nothing
    for back in range(T):
        t = last - back
        i, f, g, o = next_i, next_f, next_g, next_o
        if LAYERNORM:
            kept_g = g
            g = hyperbolic(kept_g * ln_gain + ln_shift, PTX)
            scale = fetch_scale(scales, line, t, T, keep, HP, ROWS, EVEN, PTX)
        c, old_c = old_c, next_c
        dh += next_dh
        dc += next_dc
        before = tl.maximum(t - 1, 0)
        at_kept, at_grad = kept + before * (4 * H) + wide, grad + before * (2 * H) + narrow
        next_i, next_f = fetch(at_kept, keep, EVEN, PTX), fetch(at_kept + H, keep, EVEN, PTX)
        next_g, next_o = fetch(at_kept + 2 * H, keep, EVEN, PTX), fetch(at_kept + 3 * H, keep, EVEN, PTX)
        next_dh, next_dc = fetch(at_grad, keep, EVEN, PTX), fetch(at_grad + H, keep, EVEN, PTX)
        at_c = states + tl.maximum(t - 2, 0) * (2 * H) + narrow + H
        next_c = tl.where(t > 1, fetch(at_c, keep, EVEN, PTX), first_c)
        tanh_c = next_tanh_c if PRECISION == "alone" else hyperbolic(c, PTX)
        d_o = dh * tanh_c * o * (1.0 - o)
        dc += dh * o * (1.0 - tanh_c * tanh_c)
        d_i = dc * g * i * (1.0 - i)
        d_f = dc * old_c * f * (1.0 - f)
        d_g = dc * i * (1.0 - g * g)
        if LAYERNORM:
            sum_gain += d_g * kept_g
            sum_shift += d_g
            d_g = normalised_slope(d_g * ln_gain, kept_g, scale, real, H)
        dc = dc * f
        most = tl.maximum(tl.maximum(tl.abs(d_i), tl.abs(d_f)), tl.maximum(tl.abs(d_g), tl.abs(d_o)))
        most = scale_of(most, PRECISION)
        up, down = scaling(most, weights_bound, PRECISION)
        if PRECISION == "alone":
            d = factor_of_four(d_i, d_f, d_g, d_o, HP, ROWS, BACK)
            p = multiplied(U_i, V_i, d, d, HP, ROWS, PRECISION)
            next_tanh_c = hyperbolic(old_c, PTX)  # while the numbers are on their way
        else:
            high_i, low_i = factor(
                d_i, up, HP, ROWS, BACK, PRECISION
            )  # all four before the first product: they share their barriers
            high_f, low_f = factor(d_f, up, HP, ROWS, BACK, PRECISION)
            high_g, low_g = factor(d_g, up, HP, ROWS, BACK, PRECISION)
            high_o, low_o = factor(d_o, up, HP, ROWS, BACK, PRECISION)
            p = multiplied(U_i, V_i, high_i, low_i, HP, ROWS, PRECISION)
            p += multiplied(U_f, V_f, high_f, low_f, HP, ROWS, PRECISION)
            p += multiplied(U_g, V_g, high_g, low_g, HP, ROWS, PRECISION)
            p += multiplied(U_o, V_o, high_o, low_o, HP, ROWS, PRECISION)
        dh = down * whole(p, HP, ROWS, PRECISION)
        at_d = d_all + t * (4 * H) + wide
        put(at_d, d_i, keep, EVEN, PTX)
        put(at_d + H, d_f, keep, EVEN, PTX)
        put(at_d + 2 * H, d_g, keep, EVEN, PTX)
        put(at_d + 3 * H, d_o, keep, EVEN, PTX)
        sum_i += d_i
        sum_f += d_f
        sum_g += d_g
        sum_o += d_o
        peak = tl.maximum(peak, most)
    put(d_s0 + line * (2 * H) + units, dh, keep, EVEN, PTX)
    put(d_s0 + line * (2 * H) + (H + units), dc, keep, EVEN, PTX)
    tl.store(d_bound + program, tl.max(tl.max(peak, axis=1), axis=0))
    unit = tl.arange(0, HP)
    at_bias = d_bias + program * 4 * H + unit
    tl.store(at_bias, over_columns(sum_i, PRECISION), mask=unit < H)
    tl.store(at_bias + H, over_columns(sum_f, PRECISION), mask=unit < H)
    tl.store(at_bias + 2 * H, over_columns(sum_g, PRECISION), mask=unit < H)
    tl.store(at_bias + 3 * H, over_columns(sum_o, PRECISION), mask=unit < H)
    if LAYERNORM:
        tl.store(d_gain + program * H + unit, over_columns(sum_gain, PRECISION), mask=unit < H)
        tl.store(d_shift + program * H + unit, over_columns(sum_shift, PRECISION), mask=unit < H)
