"""Kernels of the leaky cells ``h' = (1-s) h + s g`` with the candidate ``g = tanh(U_h h + ...)``.

The gate s is learned (DiagGate, SharedGate) or fixed (ConstGate, and Elman with s = 1). Blocks: [s,] h. Kept from the
forward pass for the slopes: [s,] g (with LayerNorm its normalised argument).
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
    N: tl.constexpr = 2 if K.GATED else 1
    STAGED: tl.constexpr = K.RESIDENT < N
    replica, rows, cols, real, keep, line, program = whereabouts(B, K)
    at_pre, at_kept = pre + line * T * (N * K.H) + cols, kept + line * T * (N * K.H) + cols
    at_h = states + line * T * K.H + cols
    slot = staging + program * (2 * K.ROWS * K.HP)
    weights += replica * (N * K.PLANES * K.HP * K.HP)
    weights_bound = tl.load(bound + replica)
    U_h, V_h = resident(weights, N - 1, K)
    if K.GATED:
        U_s, V_s = resident(weights, 0, K)
    ln_gain, ln_shift = 0.0, 0.0
    if K.LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, K), row(shift, replica, K)
    h = load(s0 + line * K.H + cols, keep, K)
    up, down = scaling(tl.maximum(largest(h), 1.0), weights_bound, K)
    b_h, next_h = row(bias + (N - 1) * K.H, N * replica, K), load(at_pre + (N - 1) * K.H, keep, K)
    if K.GATED:
        b_s, next_s = row(bias, N * replica, K), load(at_pre, keep, K)
    for t in range(T):
        a_h = next_h + b_h
        ahead = at_pre + tl.minimum(t + 1, T - 1).to(tl.int64) * (N * K.H)
        next_h = load(ahead + (N - 1) * K.H, keep, K)
        now = slot + (t % 2) * (K.ROWS * K.HP)
        stage(now, h, STAGED, K)
        staged(STAGED)
        p_h = product(h, up, U_h, V_h, now, weights, N - 1, K)
        if K.GATED:
            a_s = next_s + b_s
            next_s = load(ahead, keep, K)
            p_s = product(h, up, U_s, V_s, now, weights, 0, K)
            p_s, p_h = settle_two(p_s, p_h, K)
            s = sigmoid(a_s + down * p_s)
            store(at_kept, s, keep, K)
        else:
            p_h = settle(p_h, K.HP, K)
            s = fixed
        g, keeping, scale = candidate(a_h + down * p_h, ln_gain, ln_shift, real, K)
        h = (1.0 - s) * h + s * g
        store(at_h, h, keep, K)
        store(at_kept + (N - 1) * K.H, keeping, keep, K)
        if K.LAYERNORM:
            tl.store(scales + (replica * B + rows) * T + t, scale, mask=rows < B)
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
    fixed,
    B,
    T,
    K: tl.constexpr,
):
    """Gradients of the blocks, of the first state and of the biases (a share of each program), from those of the states."""
    N: tl.constexpr = 2 if K.GATED else 1
    STAGED: tl.constexpr = K.RESIDENT < N
    replica, rows, cols, real, keep, line, program = whereabouts(B, K)
    last = (T - 1).to(tl.int64)
    at_kept, at_d = kept + line * T * (N * K.H) + cols, d_all + line * T * (N * K.H) + cols
    at_h, at_grad = states + line * T * K.H + cols, grad + line * T * K.H + cols
    at_first = s0 + line * K.H + cols
    slot = staging + program * (2 * N * K.ROWS * K.HP)
    weights += replica * (N * K.PLANES * K.HP * K.HP)
    weights_bound = tl.load(bound + replica)
    U_h, V_h = resident(weights, N - 1, K)
    if K.GATED:
        U_s, V_s = resident(weights, 0, K)
    ln_gain, ln_shift = 0.0, 0.0
    if K.LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, K), row(shift, replica, K)
    next_g = load(at_kept + last * (N * K.H) + (N - 1) * K.H, keep, K)
    if K.GATED:
        next_s = load(at_kept + last * (N * K.H), keep, K)
    next_d = load(at_grad + last * K.H, keep, K)
    next_h = load(at_first, keep, K)
    if T > 1:
        next_h = load(at_h + (last - 1) * K.H, keep, K)
    dh = tl.full([K.ROWS, K.HP], 0, next_d.dtype)
    sum_s, sum_h, sum_gain, sum_shift = dh, dh, dh, dh
    for back in range(T):
        t = last - back
        before, earlier = tl.maximum(t - 1, 0), tl.maximum(t - 2, 0)
        kept_g, h = next_g, next_h
        dh += next_d
        next_g = load(at_kept + before * (N * K.H) + (N - 1) * K.H, keep, K)
        next_d = load(at_grad + before * K.H, keep, K)
        next_h = load(at_h + earlier * K.H if t > 1 else at_first, keep, K)
        if K.GATED:
            s = next_s
            next_s = load(at_kept + before * (N * K.H), keep, K)
        else:
            s = fixed
        g = recall(kept_g, ln_gain, ln_shift, K)
        d_h = dh * s * (1.0 - g * g)
        if K.LAYERNORM:
            sum_gain += d_h * kept_g
            sum_shift += d_h
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            d_h = normalise_slope(d_h * ln_gain, kept_g, scale, real, K)
        sum_h += d_h
        store(at_d + t * (N * K.H) + (N - 1) * K.H, d_h, keep, K)
        now = slot + (t % 2) * (N * K.ROWS * K.HP)
        stage(now, d_h, STAGED, K)
        if K.GATED:
            d_s = dh * (g - h) * s * (1.0 - s)
            sum_s += d_s
            store(at_d + t * (N * K.H), d_s, keep, K)
            stage(now + K.ROWS * K.HP, d_s, STAGED, K)
            up, down = scaling(largest(tl.maximum(tl.abs(d_h), tl.abs(d_s))), weights_bound, K)
        else:
            up, down = scaling(largest(d_h), weights_bound, K)
        staged(STAGED)
        p = product(d_h, up, U_h, V_h, now, weights, N - 1, K)
        if K.GATED:
            p += product(d_s, up, U_s, V_s, now + K.ROWS * K.HP, weights, 0, K)
        dh = dh * (1.0 - s) + down * settle(p, K.HP, K)
    store(d_s0 + line * K.H + cols, dh, keep, K)
    units = tl.arange(0, K.HP)
    tl.store(d_bias + (program * N + N - 1) * K.H + units, tl.sum(sum_h, axis=0), mask=units < K.H)
    if K.GATED:
        tl.store(d_bias + program * N * K.H + units, tl.sum(sum_s, axis=0), mask=units < K.H)
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
    N: tl.constexpr = 2 if K.GATED else 1
    STAGED: tl.constexpr = K.RESIDENT < N
    replica, rows, cols, real, keep, line, program = whereabouts(B, K)
    at_known, at_kept = known + line * T * (N * K.H) + cols, kept + line * T * (N * K.H) + cols
    at_h, at_dot = states + line * T * K.H + cols, states_dot + line * T * K.H + cols
    slot = staging + program * (2 * K.ROWS * K.HP)
    weights += replica * (N * K.PLANES * K.HP * K.HP)
    weights_bound = tl.load(bound + replica)
    U_h, V_h = resident(weights, N - 1, K)
    if K.GATED:
        U_s, V_s = resident(weights, 0, K)
    ln_gain, ln_shift, ln_gain_dot, ln_shift_dot = 0.0, 0.0, 0.0, 0.0
    if K.LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, K), row(shift, replica, K)
        ln_gain_dot, ln_shift_dot = row(gain_dot, replica, K), row(shift_dot, replica, K)
    h, h_dot = load(s0 + line * K.H + cols, keep, K), load(s0_dot + line * K.H + cols, keep, K)
    for t in range(T):
        kept_g = load(at_kept + (N - 1) * K.H, keep, K)
        a_dot = load(at_known + (N - 1) * K.H, keep, K)
        now = slot + (t % 2) * (K.ROWS * K.HP)
        stage(now, h_dot, STAGED, K)
        up, down = scaling(largest(h_dot), weights_bound, K)
        staged(STAGED)
        g = recall(kept_g, ln_gain, ln_shift, K)
        a_dot += down * settle(product(h_dot, up, U_h, V_h, now, weights, N - 1, K), K.HP, K)
        if K.LAYERNORM:
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            a_dot = normalise_slope(a_dot, kept_g, scale, real, K) * ln_gain + kept_g * ln_gain_dot + ln_shift_dot
        if K.GATED:
            s, s_dot = load(at_kept, keep, K), load(at_known, keep, K)
            s_dot += down * settle(product(h_dot, up, U_s, V_s, now, weights, 0, K), K.HP, K)
            h_dot = (1.0 - s) * h_dot + s * (1.0 - g * g) * a_dot + (g - h) * s * (1.0 - s) * s_dot
            h = load(at_h, keep, K)
        else:
            h_dot = (1.0 - fixed) * h_dot + fixed * (1.0 - g * g) * a_dot
        store(at_dot, h_dot, keep, K)
        at_h += K.H
        at_dot += K.H
        at_kept += N * K.H
        at_known += N * K.H
