"""Kernels of the LSTM: ``c' = f c + i g``, ``h' = o tanh(c')``.

Blocks: i, f, g, o. Kept from the forward pass for the slopes: the same (of g, with LayerNorm, its normalised argument).
"""

# mypy: disable-error-code=no-untyped-def
from __future__ import annotations

import triton.language as tl

from lagreach.kernels.gpu.parts import (
    candidate,
    columns,
    jit,
    largest,
    load,
    normalise_slope,
    product,
    recall,
    resident,
    row,
    scaling,
    settle,
    settle_four,
    sigmoid,
    stage,
    staged,
    store,
    tanh,
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
):
    """States [h; c] after each step, and what the slopes need."""
    STAGED: tl.constexpr = RESIDENT < 4
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), columns(HP)[None, :]
    real = cols < H
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    program = replica * tl.num_programs(0) + tl.program_id(0)
    at_kept, at_h = kept + line * T * (4 * H) + cols, states + line * T * (2 * H) + cols
    slot = staging + program * (2 * ROWS * HP)
    weights += replica * (4 * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_i, V_i = resident(weights, 0, HP, RESIDENT, PRECISION)
    U_f, V_f = resident(weights, 1, HP, RESIDENT, PRECISION)
    U_g, V_g = resident(weights, 2, HP, RESIDENT, PRECISION)
    U_o, V_o = resident(weights, 3, HP, RESIDENT, PRECISION)
    ln_gain, ln_shift = 0.0, 0.0
    if LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, H, HP), row(shift, replica, H, HP)
    h = load(s0 + line * (2 * H) + cols, keep, EVEN)
    c = load(s0 + line * (2 * H) + H + cols, keep, EVEN)
    up, down = scaling(tl.maximum(largest(h), 1.0), weights_bound, PRECISION)
    b_i = row(bias, 4 * replica, H, HP)
    b_f = row(bias + H, 4 * replica, H, HP)
    b_g = row(bias + 2 * H, 4 * replica, H, HP)
    b_o = row(bias + 3 * H, 4 * replica, H, HP)
    at_pre = pre + line * T * (4 * H) + cols
    next_i = load(at_pre, keep, EVEN)
    next_f = load(at_pre + H, keep, EVEN)
    next_g = load(at_pre + 2 * H, keep, EVEN)
    next_o = load(at_pre + 3 * H, keep, EVEN)
    for t in range(T):
        a_i, a_f, a_g, a_o = next_i + b_i, next_f + b_f, next_g + b_g, next_o + b_o
        ahead = at_pre + tl.minimum(t + 1, T - 1).to(tl.int64) * (4 * H)
        next_i = load(ahead, keep, EVEN)
        next_f = load(ahead + H, keep, EVEN)
        next_g = load(ahead + 2 * H, keep, EVEN)
        next_o = load(ahead + 3 * H, keep, EVEN)
        now = slot + (t % 2) * (ROWS * HP)
        stage(now, h, ROWS, HP, STAGED)
        staged(STAGED)
        p_i = product(h, up, U_i, V_i, now, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION)
        p_f = product(h, up, U_f, V_f, now, weights, 1, ROWS, HP, BK, RESIDENT, PRECISION)
        p_g = product(h, up, U_g, V_g, now, weights, 2, ROWS, HP, BK, RESIDENT, PRECISION)
        p_o = product(h, up, U_o, V_o, now, weights, 3, ROWS, HP, BK, RESIDENT, PRECISION)
        p_i, p_f, p_g, p_o = settle_four(p_i, p_f, p_g, p_o, ROWS, HP)
        i, f, o = sigmoid(a_i + down * p_i), sigmoid(a_f + down * p_f), sigmoid(a_o + down * p_o)
        g, keeping, scale = candidate(a_g + down * p_g, ln_gain, ln_shift, real, H, LAYERNORM)
        c = f * c + i * g
        h = o * tanh(c)
        store(at_h, h, keep, EVEN)
        store(at_h + H, c, keep, EVEN)
        store(at_kept, i, keep, EVEN)
        store(at_kept + H, f, keep, EVEN)
        store(at_kept + 2 * H, keeping, keep, EVEN)
        store(at_kept + 3 * H, o, keep, EVEN)
        if LAYERNORM:
            tl.store(scales + (replica * B + rows) * T + t, scale, mask=rows < B)
        at_h += 2 * H
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
):
    """Gradients of the blocks, of the first state and of the biases (a share of each program), from those of the states."""
    STAGED: tl.constexpr = RESIDENT < 4
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), columns(HP)[None, :]
    real = cols < H
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    program = replica * tl.num_programs(0) + tl.program_id(0)
    last = (T - 1).to(tl.int64)
    at_kept, at_d = kept + line * T * (4 * H) + cols, d_all + line * T * (4 * H) + cols
    at_c, at_grad = states + line * T * (2 * H) + H + cols, grad + line * T * (2 * H) + cols
    at_first = s0 + line * (2 * H) + H + cols
    slot = staging + program * (8 * ROWS * HP)
    weights += replica * (4 * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_i, V_i = resident(weights, 0, HP, RESIDENT, PRECISION)
    U_f, V_f = resident(weights, 1, HP, RESIDENT, PRECISION)
    U_g, V_g = resident(weights, 2, HP, RESIDENT, PRECISION)
    U_o, V_o = resident(weights, 3, HP, RESIDENT, PRECISION)
    ln_gain, ln_shift = 0.0, 0.0
    if LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, H, HP), row(shift, replica, H, HP)
    next_i = load(at_kept + last * (4 * H), keep, EVEN)
    next_f = load(at_kept + last * (4 * H) + H, keep, EVEN)
    next_g = load(at_kept + last * (4 * H) + 2 * H, keep, EVEN)
    next_o = load(at_kept + last * (4 * H) + 3 * H, keep, EVEN)
    next_dh, next_dc = load(at_grad + last * (2 * H), keep, EVEN), load(at_grad + last * (2 * H) + H, keep, EVEN)
    old_c = load(at_c + last * (2 * H), keep, EVEN)
    next_c = load(at_first, keep, EVEN)
    if T > 1:
        next_c = load(at_c + (last - 1) * (2 * H), keep, EVEN)
    dh = tl.zeros([ROWS, HP], next_dh.dtype)
    dc, sum_i, sum_f, sum_g, sum_o, sum_gain, sum_shift = dh, dh, dh, dh, dh, dh, dh
    for back in range(T):
        t = last - back
        before, earlier = tl.maximum(t - 1, 0), tl.maximum(t - 2, 0)
        i, f, kept_g, o = next_i, next_f, next_g, next_o
        c, old_c = old_c, next_c
        dh += next_dh
        dc += next_dc
        next_i = load(at_kept + before * (4 * H), keep, EVEN)
        next_f = load(at_kept + before * (4 * H) + H, keep, EVEN)
        next_g = load(at_kept + before * (4 * H) + 2 * H, keep, EVEN)
        next_o = load(at_kept + before * (4 * H) + 3 * H, keep, EVEN)
        next_dh = load(at_grad + before * (2 * H), keep, EVEN)
        next_dc = load(at_grad + before * (2 * H) + H, keep, EVEN)
        next_c = load(at_c + earlier * (2 * H) if t > 1 else at_first, keep, EVEN)
        g, tanh_c = recall(kept_g, ln_gain, ln_shift, LAYERNORM), tanh(c)
        d_o = dh * tanh_c * o * (1.0 - o)
        dc += dh * o * (1.0 - tanh_c * tanh_c)
        d_i = dc * g * i * (1.0 - i)
        d_f = dc * old_c * f * (1.0 - f)
        d_g = dc * i * (1.0 - g * g)
        if LAYERNORM:
            sum_gain += d_g * kept_g
            sum_shift += d_g
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            d_g = normalise_slope(d_g * ln_gain, kept_g, scale, real, H)
        dc = dc * f
        at = at_d + t * (4 * H)
        now = slot + (t % 2) * (4 * ROWS * HP)
        sum_i += d_i
        store(at, d_i, keep, EVEN)
        stage(now, d_i, ROWS, HP, STAGED)
        sum_f += d_f
        store(at + H, d_f, keep, EVEN)
        stage(now + ROWS * HP, d_f, ROWS, HP, STAGED)
        sum_g += d_g
        store(at + 2 * H, d_g, keep, EVEN)
        stage(now + 2 * ROWS * HP, d_g, ROWS, HP, STAGED)
        sum_o += d_o
        store(at + 3 * H, d_o, keep, EVEN)
        stage(now + 3 * ROWS * HP, d_o, ROWS, HP, STAGED)
        staged(STAGED)
        most = tl.maximum(tl.maximum(tl.abs(d_i), tl.abs(d_f)), tl.maximum(tl.abs(d_g), tl.abs(d_o)))
        up, down = scaling(largest(most), weights_bound, PRECISION)
        p = product(d_i, up, U_i, V_i, now, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION)
        p += product(d_f, up, U_f, V_f, now + ROWS * HP, weights, 1, ROWS, HP, BK, RESIDENT, PRECISION)
        p += product(d_g, up, U_g, V_g, now + 2 * ROWS * HP, weights, 2, ROWS, HP, BK, RESIDENT, PRECISION)
        p += product(d_o, up, U_o, V_o, now + 3 * ROWS * HP, weights, 3, ROWS, HP, BK, RESIDENT, PRECISION)
        dh = down * settle(p, ROWS, HP)
    store(d_s0 + line * (2 * H) + cols, dh, keep, EVEN)
    store(d_s0 + line * (2 * H) + H + cols, dc, keep, EVEN)
    units = tl.arange(0, HP)
    tl.store(d_bias + (program * 4 + 0) * H + units, tl.sum(sum_i, axis=0), mask=units < H)
    tl.store(d_bias + (program * 4 + 1) * H + units, tl.sum(sum_f, axis=0), mask=units < H)
    tl.store(d_bias + (program * 4 + 2) * H + units, tl.sum(sum_g, axis=0), mask=units < H)
    tl.store(d_bias + (program * 4 + 3) * H + units, tl.sum(sum_o, axis=0), mask=units < H)
    if LAYERNORM:
        tl.store(d_gain + program * H + units, tl.sum(sum_gain, axis=0), mask=units < H)
        tl.store(d_shift + program * H + units, tl.sum(sum_shift, axis=0), mask=units < H)


@jit
def tangent(
    known,
    weights,
    bound,
    s0,
    s0_dot,
    gain,
    shift,
    gain_dot,
    shift_dot,
    extra,
    states,
    kept,
    scales,
    staging,
    states_dot,
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
):
    """Tangents of the states; `known` holds everything that is known before the loop."""
    STAGED: tl.constexpr = RESIDENT < 4
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), columns(HP)[None, :]
    real = cols < H
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    program = replica * tl.num_programs(0) + tl.program_id(0)
    at_known, at_kept = known + line * T * (4 * H) + cols, kept + line * T * (4 * H) + cols
    at_c, at_dot = states + line * T * (2 * H) + H + cols, states_dot + line * T * (2 * H) + cols
    slot = staging + program * (2 * ROWS * HP)
    weights += replica * (4 * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_i, V_i = resident(weights, 0, HP, RESIDENT, PRECISION)
    U_f, V_f = resident(weights, 1, HP, RESIDENT, PRECISION)
    U_g, V_g = resident(weights, 2, HP, RESIDENT, PRECISION)
    U_o, V_o = resident(weights, 3, HP, RESIDENT, PRECISION)
    ln_gain, ln_shift, ln_gain_dot, ln_shift_dot = 0.0, 0.0, 0.0, 0.0
    if LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, H, HP), row(shift, replica, H, HP)
        ln_gain_dot, ln_shift_dot = row(gain_dot, replica, H, HP), row(shift_dot, replica, H, HP)
    at_first, at_first_dot = s0 + line * (2 * H) + cols, s0_dot + line * (2 * H) + cols
    c = load(at_first + H, keep, EVEN)
    h_dot, c_dot = load(at_first_dot, keep, EVEN), load(at_first_dot + H, keep, EVEN)
    for t in range(T):
        i, f = load(at_kept, keep, EVEN), load(at_kept + H, keep, EVEN)
        kept_g, o = load(at_kept + 2 * H, keep, EVEN), load(at_kept + 3 * H, keep, EVEN)
        now = slot + (t % 2) * (ROWS * HP)
        stage(now, h_dot, ROWS, HP, STAGED)
        up, down = scaling(largest(h_dot), weights_bound, PRECISION)
        staged(STAGED)
        p_i = product(h_dot, up, U_i, V_i, now, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION)
        p_f = product(h_dot, up, U_f, V_f, now, weights, 1, ROWS, HP, BK, RESIDENT, PRECISION)
        p_g = product(h_dot, up, U_g, V_g, now, weights, 2, ROWS, HP, BK, RESIDENT, PRECISION)
        p_o = product(h_dot, up, U_o, V_o, now, weights, 3, ROWS, HP, BK, RESIDENT, PRECISION)
        p_i, p_f, p_g, p_o = settle_four(p_i, p_f, p_g, p_o, ROWS, HP)
        i_dot, f_dot = load(at_known, keep, EVEN) + down * p_i, load(at_known + H, keep, EVEN) + down * p_f
        g_dot, o_dot = load(at_known + 2 * H, keep, EVEN) + down * p_g, load(at_known + 3 * H, keep, EVEN) + down * p_o
        g = recall(kept_g, ln_gain, ln_shift, LAYERNORM)
        if LAYERNORM:
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            g_dot = normalise_slope(g_dot, kept_g, scale, real, H) * ln_gain + kept_g * ln_gain_dot + ln_shift_dot
        c_dot = f * c_dot + c * f * (1.0 - f) * f_dot + g * i * (1.0 - i) * i_dot + i * (1.0 - g * g) * g_dot
        c = load(at_c, keep, EVEN)
        tanh_c = tanh(c)
        h_dot = tanh_c * o * (1.0 - o) * o_dot + o * (1.0 - tanh_c * tanh_c) * c_dot
        store(at_dot, h_dot, keep, EVEN)
        store(at_dot + H, c_dot, keep, EVEN)
        at_c += 2 * H
        at_dot += 2 * H
        at_kept += 4 * H
        at_known += 4 * H
