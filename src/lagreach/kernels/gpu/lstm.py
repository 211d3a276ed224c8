"""Kernels of the LSTM: ``c' = f c + i g``, ``h' = o tanh(c')``.

Blocks: i, f, g, o. Kept from the forward pass for the slopes: the same (of g, with LayerNorm, its normalised argument).
"""

# mypy: disable-error-code=no-untyped-def
from __future__ import annotations

import triton.language as tl

from lagreach.kernels.gpu.parts import (
    candidate,
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
    whereabouts,
)


@jit
def forward(
    pre, bias, weights, bound, s0, gain, shift, extra, states, kept, scales, staging, fixed, B, T, K: tl.constexpr
):
    """States [h; c] after each step, and what the slopes need."""
    STAGED: tl.constexpr = K.RESIDENT < 4
    replica, rows, cols, real, keep, line, program = whereabouts(B, K)
    at_kept, at_h = kept + line * T * (4 * K.H) + cols, states + line * T * (2 * K.H) + cols
    slot = staging + program * (2 * K.ROWS * K.HP)
    weights += replica * (4 * K.PLANES * K.HP * K.HP)
    weights_bound = tl.load(bound + replica)
    U_i, V_i = resident(weights, 0, K)
    U_f, V_f = resident(weights, 1, K)
    U_g, V_g = resident(weights, 2, K)
    U_o, V_o = resident(weights, 3, K)
    ln_gain, ln_shift = 0.0, 0.0
    if K.LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, K), row(shift, replica, K)
    h = load(s0 + line * (2 * K.H) + cols, keep, K)
    c = load(s0 + line * (2 * K.H) + K.H + cols, keep, K)
    up, down = scaling(tl.maximum(largest(h), 1.0), weights_bound, K)
    b_i = row(bias, 4 * replica, K)
    b_f = row(bias + K.H, 4 * replica, K)
    b_g = row(bias + 2 * K.H, 4 * replica, K)
    b_o = row(bias + 3 * K.H, 4 * replica, K)
    at_pre = pre + line * T * (4 * K.H) + cols
    next_i = load(at_pre, keep, K)
    next_f = load(at_pre + K.H, keep, K)
    next_g = load(at_pre + 2 * K.H, keep, K)
    next_o = load(at_pre + 3 * K.H, keep, K)
    for t in range(T):
        a_i, a_f, a_g, a_o = next_i + b_i, next_f + b_f, next_g + b_g, next_o + b_o
        ahead = at_pre + tl.minimum(t + 1, T - 1).to(tl.int64) * (4 * K.H)
        next_i = load(ahead, keep, K)
        next_f = load(ahead + K.H, keep, K)
        next_g = load(ahead + 2 * K.H, keep, K)
        next_o = load(ahead + 3 * K.H, keep, K)
        now = slot + (t % 2) * (K.ROWS * K.HP)
        stage(now, h, STAGED, K)
        staged(STAGED)
        p_i = product(h, up, U_i, V_i, now, weights, 0, K)
        p_f = product(h, up, U_f, V_f, now, weights, 1, K)
        p_g = product(h, up, U_g, V_g, now, weights, 2, K)
        p_o = product(h, up, U_o, V_o, now, weights, 3, K)
        p_i, p_f, p_g, p_o = settle_four(p_i, p_f, p_g, p_o, K)
        i, f, o = sigmoid(a_i + down * p_i), sigmoid(a_f + down * p_f), sigmoid(a_o + down * p_o)
        g, keeping, scale = candidate(a_g + down * p_g, ln_gain, ln_shift, real, K)
        c = f * c + i * g
        h = o * tanh(c)
        store(at_h, h, keep, K)
        store(at_h + K.H, c, keep, K)
        store(at_kept, i, keep, K)
        store(at_kept + K.H, f, keep, K)
        store(at_kept + 2 * K.H, keeping, keep, K)
        store(at_kept + 3 * K.H, o, keep, K)
        if K.LAYERNORM:
            tl.store(scales + (replica * B + rows) * T + t, scale, mask=rows < B)
        at_h += 2 * K.H
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
    fixed,
    B,
    T,
    K: tl.constexpr,
):
    """Gradients of the blocks, of the first state and of the biases (a share of each program), from those of the states."""
    STAGED: tl.constexpr = K.RESIDENT < 4
    replica, rows, cols, real, keep, line, program = whereabouts(B, K)
    last = (T - 1).to(tl.int64)
    at_kept, at_d = kept + line * T * (4 * K.H) + cols, d_all + line * T * (4 * K.H) + cols
    at_c, at_grad = states + line * T * (2 * K.H) + K.H + cols, grad + line * T * (2 * K.H) + cols
    at_first = s0 + line * (2 * K.H) + K.H + cols
    slot = staging + program * (8 * K.ROWS * K.HP)
    weights += replica * (4 * K.PLANES * K.HP * K.HP)
    weights_bound = tl.load(bound + replica)
    U_i, V_i = resident(weights, 0, K)
    U_f, V_f = resident(weights, 1, K)
    U_g, V_g = resident(weights, 2, K)
    U_o, V_o = resident(weights, 3, K)
    ln_gain, ln_shift = 0.0, 0.0
    if K.LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, K), row(shift, replica, K)
    next_i = load(at_kept + last * (4 * K.H), keep, K)
    next_f = load(at_kept + last * (4 * K.H) + K.H, keep, K)
    next_g = load(at_kept + last * (4 * K.H) + 2 * K.H, keep, K)
    next_o = load(at_kept + last * (4 * K.H) + 3 * K.H, keep, K)
    next_dh, next_dc = load(at_grad + last * (2 * K.H), keep, K), load(at_grad + last * (2 * K.H) + K.H, keep, K)
    old_c = load(at_c + last * (2 * K.H), keep, K)
    next_c = load(at_first, keep, K)
    if T > 1:
        next_c = load(at_c + (last - 1) * (2 * K.H), keep, K)
    dh = tl.full([K.ROWS, K.HP], 0, next_dh.dtype)
    dc, sum_i, sum_f, sum_g, sum_o, sum_gain, sum_shift = dh, dh, dh, dh, dh, dh, dh
    for back in range(T):
        t = last - back
        before, earlier = tl.maximum(t - 1, 0), tl.maximum(t - 2, 0)
        i, f, kept_g, o = next_i, next_f, next_g, next_o
        c, old_c = old_c, next_c
        dh += next_dh
        dc += next_dc
        next_i = load(at_kept + before * (4 * K.H), keep, K)
        next_f = load(at_kept + before * (4 * K.H) + K.H, keep, K)
        next_g = load(at_kept + before * (4 * K.H) + 2 * K.H, keep, K)
        next_o = load(at_kept + before * (4 * K.H) + 3 * K.H, keep, K)
        next_dh = load(at_grad + before * (2 * K.H), keep, K)
        next_dc = load(at_grad + before * (2 * K.H) + K.H, keep, K)
        next_c = load(at_c + earlier * (2 * K.H) if t > 1 else at_first, keep, K)
        g, tanh_c = recall(kept_g, ln_gain, ln_shift, K), tanh(c)
        d_o = dh * tanh_c * o * (1.0 - o)
        dc += dh * o * (1.0 - tanh_c * tanh_c)
        d_i = dc * g * i * (1.0 - i)
        d_f = dc * old_c * f * (1.0 - f)
        d_g = dc * i * (1.0 - g * g)
        if K.LAYERNORM:
            sum_gain += d_g * kept_g
            sum_shift += d_g
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            d_g = normalise_slope(d_g * ln_gain, kept_g, scale, real, K)
        dc = dc * f
        at = at_d + t * (4 * K.H)
        now = slot + (t % 2) * (4 * K.ROWS * K.HP)
        sum_i += d_i
        store(at, d_i, keep, K)
        stage(now, d_i, STAGED, K)
        sum_f += d_f
        store(at + K.H, d_f, keep, K)
        stage(now + K.ROWS * K.HP, d_f, STAGED, K)
        sum_g += d_g
        store(at + 2 * K.H, d_g, keep, K)
        stage(now + 2 * K.ROWS * K.HP, d_g, STAGED, K)
        sum_o += d_o
        store(at + 3 * K.H, d_o, keep, K)
        stage(now + 3 * K.ROWS * K.HP, d_o, STAGED, K)
        staged(STAGED)
        most = tl.maximum(tl.maximum(tl.abs(d_i), tl.abs(d_f)), tl.maximum(tl.abs(d_g), tl.abs(d_o)))
        up, down = scaling(largest(most), weights_bound, K)
        p = product(d_i, up, U_i, V_i, now, weights, 0, K)
        p += product(d_f, up, U_f, V_f, now + K.ROWS * K.HP, weights, 1, K)
        p += product(d_g, up, U_g, V_g, now + 2 * K.ROWS * K.HP, weights, 2, K)
        p += product(d_o, up, U_o, V_o, now + 3 * K.ROWS * K.HP, weights, 3, K)
        dh = down * settle(p, K.HP, K)
    store(d_s0 + line * (2 * K.H) + cols, dh, keep, K)
    store(d_s0 + line * (2 * K.H) + K.H + cols, dc, keep, K)
    units = tl.arange(0, K.HP)
    tl.store(d_bias + (program * 4 + 0) * K.H + units, tl.sum(sum_i, axis=0), mask=units < K.H)
    tl.store(d_bias + (program * 4 + 1) * K.H + units, tl.sum(sum_f, axis=0), mask=units < K.H)
    tl.store(d_bias + (program * 4 + 2) * K.H + units, tl.sum(sum_g, axis=0), mask=units < K.H)
    tl.store(d_bias + (program * 4 + 3) * K.H + units, tl.sum(sum_o, axis=0), mask=units < K.H)
    if K.LAYERNORM:
        tl.store(d_gain + program * K.H + units, tl.sum(sum_gain, axis=0), mask=units < K.H)
        tl.store(d_shift + program * K.H + units, tl.sum(sum_shift, axis=0), mask=units < K.H)


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
    K: tl.constexpr,
):
    """Tangents of the states; `known` holds everything that is known before the loop."""
    STAGED: tl.constexpr = K.RESIDENT < 4
    replica, rows, cols, real, keep, line, program = whereabouts(B, K)
    at_known, at_kept = known + line * T * (4 * K.H) + cols, kept + line * T * (4 * K.H) + cols
    at_c, at_dot = states + line * T * (2 * K.H) + K.H + cols, states_dot + line * T * (2 * K.H) + cols
    slot = staging + program * (2 * K.ROWS * K.HP)
    weights += replica * (4 * K.PLANES * K.HP * K.HP)
    weights_bound = tl.load(bound + replica)
    U_i, V_i = resident(weights, 0, K)
    U_f, V_f = resident(weights, 1, K)
    U_g, V_g = resident(weights, 2, K)
    U_o, V_o = resident(weights, 3, K)
    ln_gain, ln_shift, ln_gain_dot, ln_shift_dot = 0.0, 0.0, 0.0, 0.0
    if K.LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, K), row(shift, replica, K)
        ln_gain_dot, ln_shift_dot = row(gain_dot, replica, K), row(shift_dot, replica, K)
    at_first, at_first_dot = s0 + line * (2 * K.H) + cols, s0_dot + line * (2 * K.H) + cols
    c = load(at_first + K.H, keep, K)
    h_dot, c_dot = load(at_first_dot, keep, K), load(at_first_dot + K.H, keep, K)
    for t in range(T):
        i, f = load(at_kept, keep, K), load(at_kept + K.H, keep, K)
        kept_g, o = load(at_kept + 2 * K.H, keep, K), load(at_kept + 3 * K.H, keep, K)
        now = slot + (t % 2) * (K.ROWS * K.HP)
        stage(now, h_dot, STAGED, K)
        up, down = scaling(largest(h_dot), weights_bound, K)
        staged(STAGED)
        p_i = product(h_dot, up, U_i, V_i, now, weights, 0, K)
        p_f = product(h_dot, up, U_f, V_f, now, weights, 1, K)
        p_g = product(h_dot, up, U_g, V_g, now, weights, 2, K)
        p_o = product(h_dot, up, U_o, V_o, now, weights, 3, K)
        p_i, p_f, p_g, p_o = settle_four(p_i, p_f, p_g, p_o, K)
        i_dot, f_dot = load(at_known, keep, K) + down * p_i, load(at_known + K.H, keep, K) + down * p_f
        g_dot, o_dot = load(at_known + 2 * K.H, keep, K) + down * p_g, load(at_known + 3 * K.H, keep, K) + down * p_o
        g = recall(kept_g, ln_gain, ln_shift, K)
        if K.LAYERNORM:
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            g_dot = normalise_slope(g_dot, kept_g, scale, real, K) * ln_gain + kept_g * ln_gain_dot + ln_shift_dot
        c_dot = f * c_dot + c * f * (1.0 - f) * f_dot + g * i * (1.0 - i) * i_dot + i * (1.0 - g * g) * g_dot
        c = load(at_c, keep, K)
        tanh_c = tanh(c)
        h_dot = tanh_c * o * (1.0 - o) * o_dot + o * (1.0 - tanh_c * tanh_c) * c_dot
        store(at_dot, h_dot, keep, K)
        store(at_dot + K.H, c_dot, keep, K)
        at_c += 2 * K.H
        at_dot += 2 * K.H
        at_kept += 4 * K.H
        at_known += 4 * K.H
