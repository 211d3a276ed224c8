"""Kernels of the GRU in the paper's form: ``h' = (1-z) h + z g``, ``g = tanh(U_h (r h) + ...)``.

Blocks: z, r, h. Kept from the forward pass for the slopes: z, r, g (with LayerNorm its normalised argument).
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
    settle_two,
    sigmoid,
    stage,
    staged,
    store,
    whereabouts,
)


@jit
def forward(
    pre, bias, weights, bound, s0, gain, shift, extra, states, kept, scales, staging, fixed, B, T, K: tl.constexpr
):
    """States after each step, and what the slopes need."""
    STAGED: tl.constexpr = K.RESIDENT < 3
    replica, rows, cols, real, keep, line, program = whereabouts(B, K)
    at_kept, at_h = kept + line * T * (3 * K.H) + cols, states + line * T * K.H + cols
    slot = staging + program * (4 * K.ROWS * K.HP)
    weights += replica * (3 * K.PLANES * K.HP * K.HP)
    weights_bound = tl.load(bound + replica)
    U_z, V_z = resident(weights, 0, K)
    U_r, V_r = resident(weights, 1, K)
    U_h, V_h = resident(weights, 2, K)
    ln_gain, ln_shift = 0.0, 0.0
    if K.LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, K), row(shift, replica, K)
    h = load(s0 + line * K.H + cols, keep, K)
    up, down = scaling(tl.maximum(largest(h), 1.0), weights_bound, K)
    b_z = row(bias, 3 * replica, K)
    b_r = row(bias + K.H, 3 * replica, K)
    b_h = row(bias + 2 * K.H, 3 * replica, K)
    at_pre = pre + line * T * (3 * K.H) + cols
    next_z = load(at_pre, keep, K)
    next_r = load(at_pre + K.H, keep, K)
    next_h = load(at_pre + 2 * K.H, keep, K)
    for t in range(T):
        a_z, a_r, a_h = next_z + b_z, next_r + b_r, next_h + b_h
        ahead = at_pre + tl.minimum(t + 1, T - 1).to(tl.int64) * (3 * K.H)
        next_z = load(ahead, keep, K)
        next_r = load(ahead + K.H, keep, K)
        next_h = load(ahead + 2 * K.H, keep, K)
        now = slot + (t % 2) * (2 * K.ROWS * K.HP)
        stage(now, h, STAGED, K)
        staged(STAGED)
        p_z = product(h, up, U_z, V_z, now, weights, 0, K)
        p_r = product(h, up, U_r, V_r, now, weights, 1, K)
        p_z, p_r = settle_two(p_z, p_r, K)
        z, r = sigmoid(a_z + down * p_z), sigmoid(a_r + down * p_r)
        reset = r * h
        stage(now + K.ROWS * K.HP, reset, STAGED, K)
        staged(STAGED)
        p_h = product(reset, up, U_h, V_h, now + K.ROWS * K.HP, weights, 2, K)
        a_h += down * settle(p_h, K.HP, K)
        g, keeping, scale = candidate(a_h, ln_gain, ln_shift, real, K)
        h = (1.0 - z) * h + z * g
        store(at_h, h, keep, K)
        store(at_kept, z, keep, K)
        store(at_kept + K.H, r, keep, K)
        store(at_kept + 2 * K.H, keeping, keep, K)
        if K.LAYERNORM:
            tl.store(scales + (replica * B + rows) * T + t, scale, mask=rows < B)
        at_h += K.H
        at_kept += 3 * K.H


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
    STAGED: tl.constexpr = K.RESIDENT < 3
    replica, rows, cols, real, keep, line, program = whereabouts(B, K)
    last = (T - 1).to(tl.int64)
    at_kept, at_d = kept + line * T * (3 * K.H) + cols, d_all + line * T * (3 * K.H) + cols
    at_h, at_grad = states + line * T * K.H + cols, grad + line * T * K.H + cols
    at_first = s0 + line * K.H + cols
    slot = staging + program * (6 * K.ROWS * K.HP)
    weights += replica * (3 * K.PLANES * K.HP * K.HP)
    weights_bound = tl.load(bound + replica)
    U_z, V_z = resident(weights, 0, K)
    U_r, V_r = resident(weights, 1, K)
    U_h, V_h = resident(weights, 2, K)
    ln_gain, ln_shift = 0.0, 0.0
    if K.LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, K), row(shift, replica, K)
    next_z = load(at_kept + last * (3 * K.H), keep, K)
    next_r = load(at_kept + last * (3 * K.H) + K.H, keep, K)
    next_g = load(at_kept + last * (3 * K.H) + 2 * K.H, keep, K)
    next_d = load(at_grad + last * K.H, keep, K)
    next_h = load(at_first, keep, K)
    if T > 1:
        next_h = load(at_h + (last - 1) * K.H, keep, K)
    dh = tl.full([K.ROWS, K.HP], 0, next_d.dtype)
    sum_z, sum_r, sum_h, sum_gain, sum_shift = dh, dh, dh, dh, dh
    for back in range(T):
        t = last - back
        before, earlier = tl.maximum(t - 1, 0), tl.maximum(t - 2, 0)
        z, r, kept_g, h = next_z, next_r, next_g, next_h
        dh += next_d
        next_z = load(at_kept + before * (3 * K.H), keep, K)
        next_r = load(at_kept + before * (3 * K.H) + K.H, keep, K)
        next_g = load(at_kept + before * (3 * K.H) + 2 * K.H, keep, K)
        next_d = load(at_grad + before * K.H, keep, K)
        next_h = load(at_h + earlier * K.H if t > 1 else at_first, keep, K)
        g = recall(kept_g, ln_gain, ln_shift, K)
        d_z = dh * (g - h) * z * (1.0 - z)
        d_h = dh * z * (1.0 - g * g)
        if K.LAYERNORM:
            sum_gain += d_h * kept_g
            sum_shift += d_h
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            d_h = normalise_slope(d_h * ln_gain, kept_g, scale, real, K)
        now = slot + (t % 2) * (3 * K.ROWS * K.HP)
        stage(now, d_h, STAGED, K)
        stage(now + K.ROWS * K.HP, d_z, STAGED, K)
        staged(STAGED)
        up, down = scaling(largest(tl.maximum(tl.abs(d_h), tl.abs(d_z))), weights_bound, K)
        p_reset = product(d_h, up, U_h, V_h, now, weights, 2, K)
        p_h = product(d_z, up, U_z, V_z, now + K.ROWS * K.HP, weights, 0, K)
        p_reset, p_h = settle_two(p_reset, p_h, K)
        d_reset = down * p_reset
        dh = dh * (1.0 - z) + d_reset * r + down * p_h
        d_r = d_reset * h * r * (1.0 - r)
        at = at_d + t * (3 * K.H)
        store(at, d_z, keep, K)
        store(at + K.H, d_r, keep, K)
        store(at + 2 * K.H, d_h, keep, K)
        sum_z += d_z
        sum_r += d_r
        sum_h += d_h
        stage(now + 2 * K.ROWS * K.HP, d_r, STAGED, K)
        staged(STAGED)
        up, down = scaling(largest(d_r), weights_bound, K)
        dh += down * settle(product(d_r, up, U_r, V_r, now + 2 * K.ROWS * K.HP, weights, 1, K), K.HP, K)
    store(d_s0 + line * K.H + cols, dh, keep, K)
    units = tl.arange(0, K.HP)
    tl.store(d_bias + (program * 3 + 0) * K.H + units, tl.sum(sum_z, axis=0), mask=units < K.H)
    tl.store(d_bias + (program * 3 + 1) * K.H + units, tl.sum(sum_r, axis=0), mask=units < K.H)
    tl.store(d_bias + (program * 3 + 2) * K.H + units, tl.sum(sum_h, axis=0), mask=units < K.H)
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
    STAGED: tl.constexpr = K.RESIDENT < 3
    replica, rows, cols, real, keep, line, program = whereabouts(B, K)
    at_known, at_kept = known + line * T * (3 * K.H) + cols, kept + line * T * (3 * K.H) + cols
    at_h, at_dot = states + line * T * K.H + cols, states_dot + line * T * K.H + cols
    slot = staging + program * (4 * K.ROWS * K.HP)
    weights += replica * (3 * K.PLANES * K.HP * K.HP)
    weights_bound = tl.load(bound + replica)
    U_z, V_z = resident(weights, 0, K)
    U_r, V_r = resident(weights, 1, K)
    U_h, V_h = resident(weights, 2, K)
    ln_gain, ln_shift, ln_gain_dot, ln_shift_dot = 0.0, 0.0, 0.0, 0.0
    if K.LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, K), row(shift, replica, K)
        ln_gain_dot, ln_shift_dot = row(gain_dot, replica, K), row(shift_dot, replica, K)
    h, h_dot = load(s0 + line * K.H + cols, keep, K), load(s0_dot + line * K.H + cols, keep, K)
    for t in range(T):
        z, r, kept_g = load(at_kept, keep, K), load(at_kept + K.H, keep, K), load(at_kept + 2 * K.H, keep, K)
        now = slot + (t % 2) * (2 * K.ROWS * K.HP)
        stage(now, h_dot, STAGED, K)
        up, down = scaling(largest(h_dot), weights_bound, K)
        staged(STAGED)
        p_z = product(h_dot, up, U_z, V_z, now, weights, 0, K)
        p_r = product(h_dot, up, U_r, V_r, now, weights, 1, K)
        p_z, p_r = settle_two(p_z, p_r, K)
        z_dot, r_dot = load(at_known, keep, K) + down * p_z, load(at_known + K.H, keep, K) + down * p_r
        reset_dot = h * r * (1.0 - r) * r_dot + r * h_dot
        stage(now + K.ROWS * K.HP, reset_dot, STAGED, K)
        staged(STAGED)
        up, down = scaling(largest(reset_dot), weights_bound, K)
        p_h = product(reset_dot, up, U_h, V_h, now + K.ROWS * K.HP, weights, 2, K)
        a_dot = load(at_known + 2 * K.H, keep, K) + down * settle(p_h, K.HP, K)
        g = recall(kept_g, ln_gain, ln_shift, K)
        if K.LAYERNORM:
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            a_dot = normalise_slope(a_dot, kept_g, scale, real, K) * ln_gain + kept_g * ln_gain_dot + ln_shift_dot
        h_dot = (1.0 - z) * h_dot + z * (1.0 - g * g) * a_dot + (g - h) * z * (1.0 - z) * z_dot
        h = load(at_h, keep, K)
        store(at_dot, h_dot, keep, K)
        at_h += K.H
        at_dot += K.H
        at_kept += 3 * K.H
        at_known += 3 * K.H
