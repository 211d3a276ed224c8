"""Kernels of the GRU in the paper's form: ``h' = (1-z) h + z g``, ``g = tanh(U_h (r h) + ...)``.

Blocks: z, r, h. Kept from the forward pass for the slopes: z, r, g (with LayerNorm its normalised argument).
"""

from __future__ import annotations

import triton.language as tl

from lagreach.kernels.gpu.parts import (
    candidate,
    jit,
    largest,
    load,
    normalise_slope,
    recall,
    recur,
    resident,
    scaling,
    sigmoid,
    stage,
    staged,
    store,
)


@jit
def forward(
    pre,
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
    """States after each step, and what the slopes need."""
    STAGED: tl.constexpr = RESIDENT < 3
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, HP)
    real = (cols < H)[None, :]
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    program = replica * tl.num_programs(0) + tl.program_id(0)
    at_pre, at_kept = pre + line * T * (3 * H) + cols[None, :], kept + line * T * (3 * H) + cols[None, :]
    at_h = states + line * T * H + cols[None, :]
    slot = staging + program * (4 * ROWS * HP)
    weights += replica * (3 * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_z, V_z = resident(weights, 0, HP, RESIDENT, PRECISION)
    U_r, V_r = resident(weights, 1, HP, RESIDENT, PRECISION)
    U_h, V_h = resident(weights, 2, HP, RESIDENT, PRECISION)
    ln_gain, ln_shift = 0.0, 0.0
    if LAYERNORM:
        ln_gain = tl.load(gain + replica * H + cols, mask=cols < H, other=0.0)[None, :]
        ln_shift = tl.load(shift + replica * H + cols, mask=cols < H, other=0.0)[None, :]
    h = load(s0 + line * H + cols[None, :], keep, EVEN)
    up, down = scaling(tl.maximum(largest(h), 1.0), weights_bound, PRECISION)
    next_z = load(at_pre, keep, EVEN)
    next_r = load(at_pre + H, keep, EVEN)
    next_h = load(at_pre + 2 * H, keep, EVEN)
    for t in range(T):
        a_z, a_r, a_h = next_z, next_r, next_h
        ahead = at_pre + tl.minimum(t + 1, T - 1).to(tl.int64) * (3 * H)
        next_z = load(ahead, keep, EVEN)
        next_r = load(ahead + H, keep, EVEN)
        next_h = load(ahead + 2 * H, keep, EVEN)
        now = slot + (t % 2) * (2 * ROWS * HP)
        stage(now, h, ROWS, HP, STAGED)
        staged(STAGED)
        r = sigmoid(recur(a_r, h, up, down, U_r, V_r, now, weights, 1, ROWS, HP, BK, RESIDENT, PRECISION))
        reset = r * h
        stage(now + ROWS * HP, reset, ROWS, HP, STAGED)
        z = sigmoid(recur(a_z, h, up, down, U_z, V_z, now, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION))
        staged(STAGED)
        a_h = recur(a_h, reset, up, down, U_h, V_h, now + ROWS * HP, weights, 2, ROWS, HP, BK, RESIDENT, PRECISION)
        g, keeping, scale = candidate(a_h, ln_gain, ln_shift, real, H, LAYERNORM)
        h = (1.0 - z) * h + z * g
        store(at_h, h, keep, EVEN)
        store(at_kept, z, keep, EVEN)
        store(at_kept + H, r, keep, EVEN)
        store(at_kept + 2 * H, keeping, keep, EVEN)
        if LAYERNORM:
            tl.store(scales + (replica * B + rows) * T + t, scale, mask=rows < B)
        at_h += H
        at_kept += 3 * H


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
    d_pre,
    d_s0,
    d_gain,
    d_shift,
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
    """Gradients of the pre-activations and of the first state, from those of the states."""
    STAGED: tl.constexpr = RESIDENT < 3
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, HP)
    real = (cols < H)[None, :]
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    program = replica * tl.num_programs(0) + tl.program_id(0)
    last = (T - 1).to(tl.int64)
    at_kept, at_pre = kept + line * T * (3 * H) + cols[None, :], d_pre + line * T * (3 * H) + cols[None, :]
    at_h, at_grad = states + line * T * H + cols[None, :], grad + line * T * H + cols[None, :]
    at_first = s0 + line * H + cols[None, :]
    slot = staging + program * (6 * ROWS * HP)
    weights += replica * (3 * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_z, V_z = resident(weights, 0, HP, RESIDENT, PRECISION)
    U_r, V_r = resident(weights, 1, HP, RESIDENT, PRECISION)
    U_h, V_h = resident(weights, 2, HP, RESIDENT, PRECISION)
    ln_gain, ln_shift = 0.0, 0.0
    if LAYERNORM:
        ln_gain = tl.load(gain + replica * H + cols, mask=cols < H, other=0.0)[None, :]
        ln_shift = tl.load(shift + replica * H + cols, mask=cols < H, other=0.0)[None, :]
    next_z = load(at_kept + last * (3 * H), keep, EVEN)
    next_r = load(at_kept + last * (3 * H) + H, keep, EVEN)
    next_g = load(at_kept + last * (3 * H) + 2 * H, keep, EVEN)
    next_d = load(at_grad + last * H, keep, EVEN)
    next_h = load(at_first, keep, EVEN)
    if T > 1:
        next_h = load(at_h + (last - 1) * H, keep, EVEN)
    dh = tl.zeros([ROWS, HP], next_d.dtype)
    sum_gain, sum_shift = dh, dh
    for back in range(T):
        t = last - back
        before, earlier = tl.maximum(t - 1, 0), tl.maximum(t - 2, 0)
        z, r, kept_g, h = next_z, next_r, next_g, next_h
        dh += next_d
        next_z = load(at_kept + before * (3 * H), keep, EVEN)
        next_r = load(at_kept + before * (3 * H) + H, keep, EVEN)
        next_g = load(at_kept + before * (3 * H) + 2 * H, keep, EVEN)
        next_d = load(at_grad + before * H, keep, EVEN)
        if t > 1:
            next_h = load(at_h + earlier * H, keep, EVEN)
        else:
            next_h = load(at_first, keep, EVEN)
        g = recall(kept_g, ln_gain, ln_shift, LAYERNORM)
        d_z = dh * (g - h) * z * (1.0 - z)
        d_h = dh * z * (1.0 - g * g)
        if LAYERNORM:
            sum_gain += d_h * kept_g
            sum_shift += d_h
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            d_h = normalise_slope(d_h * ln_gain, kept_g, scale, real, H)
        now = slot + (t % 2) * (3 * ROWS * HP)
        stage(now, d_h, ROWS, HP, STAGED)
        stage(now + ROWS * HP, d_z, ROWS, HP, STAGED)
        staged(STAGED)
        up, down = scaling(largest(tl.maximum(tl.abs(d_h), tl.abs(d_z))), weights_bound, PRECISION)
        d_reset = recur(
            tl.zeros([ROWS, HP], dh.dtype), d_h, up, down, U_h, V_h, now, weights, 2, ROWS, HP, BK, RESIDENT, PRECISION
        )
        d_r = d_reset * h * r * (1.0 - r)
        stage(now + 2 * ROWS * HP, d_r, ROWS, HP, STAGED)
        at = at_pre + t * (3 * H)
        store(at, d_z, keep, EVEN)
        store(at + H, d_r, keep, EVEN)
        store(at + 2 * H, d_h, keep, EVEN)
        dh = dh * (1.0 - z) + d_reset * r
        dh = recur(dh, d_z, up, down, U_z, V_z, now + ROWS * HP, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION)
        staged(STAGED)
        up, down = scaling(largest(d_r), weights_bound, PRECISION)
        dh = recur(dh, d_r, up, down, U_r, V_r, now + 2 * ROWS * HP, weights, 1, ROWS, HP, BK, RESIDENT, PRECISION)
    store(d_s0 + line * H + cols[None, :], dh, keep, EVEN)
    if LAYERNORM:
        tl.store(d_gain + program * H + cols, tl.sum(sum_gain, axis=0), mask=cols < H)
        tl.store(d_shift + program * H + cols, tl.sum(sum_shift, axis=0), mask=cols < H)


@jit
def tangent(
    pre_dot,
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
    """Tangents of the states; `pre_dot` holds everything that is known before the loop."""
    STAGED: tl.constexpr = RESIDENT < 3
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, HP)
    real = (cols < H)[None, :]
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    program = replica * tl.num_programs(0) + tl.program_id(0)
    at_pre, at_kept = pre_dot + line * T * (3 * H) + cols[None, :], kept + line * T * (3 * H) + cols[None, :]
    at_h, at_dot = states + line * T * H + cols[None, :], states_dot + line * T * H + cols[None, :]
    slot = staging + program * (4 * ROWS * HP)
    weights += replica * (3 * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_z, V_z = resident(weights, 0, HP, RESIDENT, PRECISION)
    U_r, V_r = resident(weights, 1, HP, RESIDENT, PRECISION)
    U_h, V_h = resident(weights, 2, HP, RESIDENT, PRECISION)
    ln_gain, ln_shift, ln_gain_dot, ln_shift_dot = 0.0, 0.0, 0.0, 0.0
    if LAYERNORM:
        ln_gain = tl.load(gain + replica * H + cols, mask=cols < H, other=0.0)[None, :]
        ln_shift = tl.load(shift + replica * H + cols, mask=cols < H, other=0.0)[None, :]
        ln_gain_dot = tl.load(gain_dot + replica * H + cols, mask=cols < H, other=0.0)[None, :]
        ln_shift_dot = tl.load(shift_dot + replica * H + cols, mask=cols < H, other=0.0)[None, :]
    h, h_dot = load(s0 + line * H + cols[None, :], keep, EVEN), load(s0_dot + line * H + cols[None, :], keep, EVEN)
    for t in range(T):
        z, r, kept_g = load(at_kept, keep, EVEN), load(at_kept + H, keep, EVEN), load(at_kept + 2 * H, keep, EVEN)
        z_dot, r_dot, a_dot = load(at_pre, keep, EVEN), load(at_pre + H, keep, EVEN), load(at_pre + 2 * H, keep, EVEN)
        now = slot + (t % 2) * (2 * ROWS * HP)
        stage(now, h_dot, ROWS, HP, STAGED)
        up, down = scaling(largest(h_dot), weights_bound, PRECISION)
        staged(STAGED)
        r_dot = recur(r_dot, h_dot, up, down, U_r, V_r, now, weights, 1, ROWS, HP, BK, RESIDENT, PRECISION)
        reset_dot = h * r * (1.0 - r) * r_dot + r * h_dot
        stage(now + ROWS * HP, reset_dot, ROWS, HP, STAGED)
        z_dot = recur(z_dot, h_dot, up, down, U_z, V_z, now, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION)
        staged(STAGED)
        up, down = scaling(largest(reset_dot), weights_bound, PRECISION)
        a_dot = recur(
            a_dot, reset_dot, up, down, U_h, V_h, now + ROWS * HP, weights, 2, ROWS, HP, BK, RESIDENT, PRECISION
        )
        g = recall(kept_g, ln_gain, ln_shift, LAYERNORM)
        if LAYERNORM:
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            a_dot = normalise_slope(a_dot, kept_g, scale, real, H) * ln_gain + kept_g * ln_gain_dot + ln_shift_dot
        h_dot = (1.0 - z) * h_dot + z * (1.0 - g * g) * a_dot + (g - h) * z * (1.0 - z) * z_dot
        h = load(at_h, keep, EVEN)
        store(at_dot, h_dot, keep, EVEN)
        at_h += H
        at_dot += H
        at_kept += 3 * H
        at_pre += 3 * H
