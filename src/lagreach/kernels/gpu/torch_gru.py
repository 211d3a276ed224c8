"""Kernels of torch's GRU: ``h' = z h + (1-z) n``, ``n = tanh(r v + ...)`` with the hidden part ``v = U_n h + c_n``.

Blocks: r, z, n. Kept from the forward pass for the slopes: r, z, n (with LayerNorm its normalised argument), v. The input
part and the hidden part of the candidate have different gradients, so there is a fourth block of those, for v.
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
    whereabouts,
)


@jit
def forward(
    pre, bias, weights, bound, s0, gain, shift, extra, states, kept, scales, staging, fixed, B, T, K: tl.constexpr
):
    """States after each step, and what the slopes need; `extra` is c_n."""
    STAGED: tl.constexpr = K.RESIDENT < 3
    replica, rows, cols, real, keep, line, program = whereabouts(B, K)
    at_kept, at_h = kept + line * T * (4 * K.H) + cols, states + line * T * K.H + cols
    slot = staging + program * (2 * K.ROWS * K.HP)
    weights += replica * (3 * K.PLANES * K.HP * K.HP)
    weights_bound = tl.load(bound + replica)
    U_r, V_r = resident(weights, 0, K)
    U_z, V_z = resident(weights, 1, K)
    U_n, V_n = resident(weights, 2, K)
    ln_gain, ln_shift = 0.0, 0.0
    if K.LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, K), row(shift, replica, K)
    h, c_n = load(s0 + line * K.H + cols, keep, K), row(extra, replica, K)
    up, down = scaling(tl.maximum(largest(h), 1.0), weights_bound, K)
    b_r = row(bias, 3 * replica, K)
    b_z = row(bias + K.H, 3 * replica, K)
    b_n = row(bias + 2 * K.H, 3 * replica, K)
    at_pre = pre + line * T * (3 * K.H) + cols
    next_r = load(at_pre, keep, K)
    next_z = load(at_pre + K.H, keep, K)
    next_n = load(at_pre + 2 * K.H, keep, K)
    for t in range(T):
        a_r, a_z, a_n = next_r + b_r, next_z + b_z, next_n + b_n
        ahead = at_pre + tl.minimum(t + 1, T - 1).to(tl.int64) * (3 * K.H)
        next_r = load(ahead, keep, K)
        next_z = load(ahead + K.H, keep, K)
        next_n = load(ahead + 2 * K.H, keep, K)
        now = slot + (t % 2) * (K.ROWS * K.HP)
        stage(now, h, STAGED, K)
        staged(STAGED)
        p_r = product(h, up, U_r, V_r, now, weights, 0, K)
        p_z = product(h, up, U_z, V_z, now, weights, 1, K)
        p_v = product(h, up, U_n, V_n, now, weights, 2, K)
        p_r, p_z, p_v, _ = settle_four(p_r, p_z, p_v, p_v, K)
        r, z, v = sigmoid(a_r + down * p_r), sigmoid(a_z + down * p_z), c_n + down * p_v
        n, keeping, scale = candidate(a_n + r * v, ln_gain, ln_shift, real, K)
        h = z * h + (1.0 - z) * n
        store(at_h, h, keep, K)
        store(at_kept, r, keep, K)
        store(at_kept + K.H, z, keep, K)
        store(at_kept + 2 * K.H, keeping, keep, K)
        store(at_kept + 3 * K.H, v, keep, K)
        if K.LAYERNORM:
            tl.store(scales + (replica * B + rows) * T + t, scale, mask=rows < B)
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
    fixed,
    B,
    T,
    K: tl.constexpr,
):
    """Gradients of the blocks, of the first state and of the biases (a share of each program), from those of the states."""
    STAGED: tl.constexpr = K.RESIDENT < 3
    replica, rows, cols, real, keep, line, program = whereabouts(B, K)
    last = (T - 1).to(tl.int64)
    at_kept, at_d = kept + line * T * (4 * K.H) + cols, d_all + line * T * (4 * K.H) + cols
    at_h, at_grad = states + line * T * K.H + cols, grad + line * T * K.H + cols
    at_first = s0 + line * K.H + cols
    slot = staging + program * (6 * K.ROWS * K.HP)
    weights += replica * (3 * K.PLANES * K.HP * K.HP)
    weights_bound = tl.load(bound + replica)
    U_r, V_r = resident(weights, 0, K)
    U_z, V_z = resident(weights, 1, K)
    U_n, V_n = resident(weights, 2, K)
    ln_gain, ln_shift = 0.0, 0.0
    if K.LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, K), row(shift, replica, K)
    next_r = load(at_kept + last * (4 * K.H), keep, K)
    next_z = load(at_kept + last * (4 * K.H) + K.H, keep, K)
    next_n = load(at_kept + last * (4 * K.H) + 2 * K.H, keep, K)
    next_v = load(at_kept + last * (4 * K.H) + 3 * K.H, keep, K)
    next_d = load(at_grad + last * K.H, keep, K)
    next_h = load(at_first, keep, K)
    if T > 1:
        next_h = load(at_h + (last - 1) * K.H, keep, K)
    dh = tl.full([K.ROWS, K.HP], 0, next_d.dtype)
    sum_r, sum_z, sum_n, sum_v, sum_gain, sum_shift = dh, dh, dh, dh, dh, dh
    for back in range(T):
        t = last - back
        before, earlier = tl.maximum(t - 1, 0), tl.maximum(t - 2, 0)
        r, z, kept_n, v, h = next_r, next_z, next_n, next_v, next_h
        dh += next_d
        next_r = load(at_kept + before * (4 * K.H), keep, K)
        next_z = load(at_kept + before * (4 * K.H) + K.H, keep, K)
        next_n = load(at_kept + before * (4 * K.H) + 2 * K.H, keep, K)
        next_v = load(at_kept + before * (4 * K.H) + 3 * K.H, keep, K)
        next_d = load(at_grad + before * K.H, keep, K)
        next_h = load(at_h + earlier * K.H if t > 1 else at_first, keep, K)
        n = recall(kept_n, ln_gain, ln_shift, K)
        d_z = dh * (h - n) * z * (1.0 - z)
        d_n = dh * (1.0 - z) * (1.0 - n * n)
        if K.LAYERNORM:
            sum_gain += d_n * kept_n
            sum_shift += d_n
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            d_n = normalise_slope(d_n * ln_gain, kept_n, scale, real, K)
        d_r = d_n * v * r * (1.0 - r)
        d_v = d_n * r
        sum_r += d_r
        sum_z += d_z
        sum_n += d_n
        sum_v += d_v
        at = at_d + t * (4 * K.H)
        store(at, d_r, keep, K)
        store(at + K.H, d_z, keep, K)
        store(at + 2 * K.H, d_n, keep, K)
        store(at + 3 * K.H, d_v, keep, K)
        now = slot + (t % 2) * (3 * K.ROWS * K.HP)
        stage(now, d_r, STAGED, K)
        stage(now + K.ROWS * K.HP, d_z, STAGED, K)
        stage(now + 2 * K.ROWS * K.HP, d_v, STAGED, K)
        staged(STAGED)
        most = tl.maximum(tl.maximum(tl.abs(d_r), tl.abs(d_z)), tl.abs(d_v))
        up, down = scaling(largest(most), weights_bound, K)
        p = product(d_r, up, U_r, V_r, now, weights, 0, K)
        p += product(d_z, up, U_z, V_z, now + K.ROWS * K.HP, weights, 1, K)
        p += product(d_v, up, U_n, V_n, now + 2 * K.ROWS * K.HP, weights, 2, K)
        dh = dh * z + down * settle(p, K.HP, K)
    store(d_s0 + line * K.H + cols, dh, keep, K)
    units = tl.arange(0, K.HP)
    tl.store(d_bias + (program * 4 + 0) * K.H + units, tl.sum(sum_r, axis=0), mask=units < K.H)
    tl.store(d_bias + (program * 4 + 1) * K.H + units, tl.sum(sum_z, axis=0), mask=units < K.H)
    tl.store(d_bias + (program * 4 + 2) * K.H + units, tl.sum(sum_n, axis=0), mask=units < K.H)
    tl.store(d_bias + (program * 4 + 3) * K.H + units, tl.sum(sum_v, axis=0), mask=units < K.H)
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
    """Tangents of the states; `known` (r, z, n, v) holds everything that is known before the loop."""
    STAGED: tl.constexpr = K.RESIDENT < 3
    replica, rows, cols, real, keep, line, program = whereabouts(B, K)
    at_known, at_kept = known + line * T * (4 * K.H) + cols, kept + line * T * (4 * K.H) + cols
    at_h, at_dot = states + line * T * K.H + cols, states_dot + line * T * K.H + cols
    slot = staging + program * (2 * K.ROWS * K.HP)
    weights += replica * (3 * K.PLANES * K.HP * K.HP)
    weights_bound = tl.load(bound + replica)
    U_r, V_r = resident(weights, 0, K)
    U_z, V_z = resident(weights, 1, K)
    U_n, V_n = resident(weights, 2, K)
    ln_gain, ln_shift, ln_gain_dot, ln_shift_dot = 0.0, 0.0, 0.0, 0.0
    if K.LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, K), row(shift, replica, K)
        ln_gain_dot, ln_shift_dot = row(gain_dot, replica, K), row(shift_dot, replica, K)
    h, h_dot = load(s0 + line * K.H + cols, keep, K), load(s0_dot + line * K.H + cols, keep, K)
    for t in range(T):
        r, z = load(at_kept, keep, K), load(at_kept + K.H, keep, K)
        kept_n, v = load(at_kept + 2 * K.H, keep, K), load(at_kept + 3 * K.H, keep, K)
        now = slot + (t % 2) * (K.ROWS * K.HP)
        stage(now, h_dot, STAGED, K)
        up, down = scaling(largest(h_dot), weights_bound, K)
        staged(STAGED)
        p_r = product(h_dot, up, U_r, V_r, now, weights, 0, K)
        p_z = product(h_dot, up, U_z, V_z, now, weights, 1, K)
        p_v = product(h_dot, up, U_n, V_n, now, weights, 2, K)
        p_r, p_z, p_v, _ = settle_four(p_r, p_z, p_v, p_v, K)
        r_dot, z_dot = load(at_known, keep, K) + down * p_r, load(at_known + K.H, keep, K) + down * p_z
        v_dot = load(at_known + 3 * K.H, keep, K) + down * p_v
        n = recall(kept_n, ln_gain, ln_shift, K)
        a_dot = load(at_known + 2 * K.H, keep, K) + v * r * (1.0 - r) * r_dot + r * v_dot
        if K.LAYERNORM:
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            a_dot = normalise_slope(a_dot, kept_n, scale, real, K) * ln_gain + kept_n * ln_gain_dot + ln_shift_dot
        h_dot = z * h_dot + (1.0 - z) * (1.0 - n * n) * a_dot + (h - n) * z * (1.0 - z) * z_dot
        h = load(at_h, keep, K)
        store(at_dot, h_dot, keep, K)
        at_h += K.H
        at_dot += K.H
        at_kept += 4 * K.H
        at_known += 4 * K.H
