"""Kernels of the leaky cells ``h' = (1-s) h + s g``: the gate s is learned (DiagGate, SharedGate) or fixed (ConstGate,
and Elman with s = 1), the candidate is ``g = tanh(U_h h + ...)``.

Blocks: [s,] h. Kept from the forward pass for the slopes: [s,] g (with LayerNorm its normalised argument).
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
    GATED: tl.constexpr,
    LAYERNORM: tl.constexpr,
    RESIDENT: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
):
    """States after each step, and what the slopes need."""
    N: tl.constexpr = 2 if GATED else 1
    STAGED: tl.constexpr = RESIDENT < N
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, HP)
    real = (cols < H)[None, :]
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    at_pre, at_kept = pre + line * T * (N * H) + cols[None, :], kept + line * T * (N * H) + cols[None, :]
    at_h = states + line * T * H + cols[None, :]
    slot = staging + (replica * tl.num_programs(0) + tl.program_id(0)) * (2 * ROWS * HP)
    weights += replica * (N * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_h, V_h = resident(weights, N - 1, HP, RESIDENT, PRECISION)
    h = load(s0 + line * H + cols[None, :], keep, EVEN)
    up, down = scaling(tl.maximum(largest(h), 1.0), weights_bound, PRECISION)
    ln_gain, ln_shift = 0.0, 0.0
    if GATED:
        U_s, V_s = resident(weights, 0, HP, RESIDENT, PRECISION)
        next_s = load(at_pre, keep, EVEN)
    if LAYERNORM:
        ln_gain = tl.load(gain + replica * H + cols, mask=cols < H, other=0.0)[None, :]
        ln_shift = tl.load(shift + replica * H + cols, mask=cols < H, other=0.0)[None, :]
    next_h = load(at_pre + (N - 1) * H, keep, EVEN)
    for t in range(T):
        a_h = next_h
        ahead = tl.minimum(t + 1, T - 1).to(tl.int64) * (N * H)
        next_h = load(at_pre + ahead + (N - 1) * H, keep, EVEN)
        now = slot + (t % 2) * (ROWS * HP)
        stage(now, h, ROWS, HP, STAGED)
        staged(STAGED)
        if GATED:
            a_s = next_s
            next_s = load(at_pre + ahead, keep, EVEN)
            s = sigmoid(recur(a_s, h, up, down, U_s, V_s, now, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION))
            store(at_kept, s, keep, EVEN)
        else:
            s = fixed
        a_h = recur(a_h, h, up, down, U_h, V_h, now, weights, N - 1, ROWS, HP, BK, RESIDENT, PRECISION)
        g, keeping, scale = candidate(a_h, ln_gain, ln_shift, real, H, LAYERNORM)
        h = (1.0 - s) * h + s * g
        store(at_h, h, keep, EVEN)
        store(at_kept + (N - 1) * H, keeping, keep, EVEN)
        if LAYERNORM:
            tl.store(scales + (replica * B + rows) * T + t, scale, mask=rows < B)
        at_h += H
        at_kept += N * H


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
    GATED: tl.constexpr,
    LAYERNORM: tl.constexpr,
    RESIDENT: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Gradients of the pre-activations and of the first state, from those of the states."""
    N: tl.constexpr = 2 if GATED else 1
    STAGED: tl.constexpr = RESIDENT < N
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, HP)
    real = (cols < H)[None, :]
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    last = (T - 1).to(tl.int64)
    at_kept, at_pre = kept + line * T * (N * H) + cols[None, :], d_pre + line * T * (N * H) + cols[None, :]
    at_h, at_grad = states + line * T * H + cols[None, :], grad + line * T * H + cols[None, :]
    at_first = s0 + line * H + cols[None, :]
    program = replica * tl.num_programs(0) + tl.program_id(0)
    slot = staging + program * (2 * N * ROWS * HP)
    weights += replica * (N * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_h, V_h = resident(weights, N - 1, HP, RESIDENT, PRECISION)
    ln_gain, ln_shift = 0.0, 0.0
    if GATED:
        U_s, V_s = resident(weights, 0, HP, RESIDENT, PRECISION)
        next_s = load(at_kept + last * (N * H), keep, EVEN)
    if LAYERNORM:
        ln_gain = tl.load(gain + replica * H + cols, mask=cols < H, other=0.0)[None, :]
        ln_shift = tl.load(shift + replica * H + cols, mask=cols < H, other=0.0)[None, :]
    next_g = load(at_kept + last * (N * H) + (N - 1) * H, keep, EVEN)
    next_d = load(at_grad + last * H, keep, EVEN)
    next_h = load(at_first, keep, EVEN)
    if T > 1:
        next_h = load(at_h + (last - 1) * H, keep, EVEN)
    dh = tl.zeros([ROWS, HP], next_d.dtype)
    sum_gain, sum_shift = dh, dh
    for back in range(T):
        t = last - back
        before, earlier = tl.maximum(t - 1, 0), tl.maximum(t - 2, 0)
        kept_g, d_out, h = next_g, next_d, next_h
        next_g = load(at_kept + before * (N * H) + (N - 1) * H, keep, EVEN)
        next_d = load(at_grad + before * H, keep, EVEN)
        if t > 1:
            next_h = load(at_h + earlier * H, keep, EVEN)
        else:
            next_h = load(at_first, keep, EVEN)
        if GATED:
            s = next_s
            next_s = load(at_kept + before * (N * H), keep, EVEN)
        else:
            s = fixed
        dh += d_out
        g = recall(kept_g, ln_gain, ln_shift, LAYERNORM)
        d_h = dh * s * (1.0 - g * g)
        if LAYERNORM:
            sum_gain += d_h * kept_g
            sum_shift += d_h
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            d_h = normalise_slope(d_h * ln_gain, kept_g, scale, real, H)
        store(at_pre + t * (N * H) + (N - 1) * H, d_h, keep, EVEN)
        now = slot + (t % 2) * (N * ROWS * HP)
        stage(now, d_h, ROWS, HP, STAGED)
        if GATED:
            d_s = dh * (g - h) * s * (1.0 - s)
            store(at_pre + t * (N * H), d_s, keep, EVEN)
            stage(now + ROWS * HP, d_s, ROWS, HP, STAGED)
            up, down = scaling(largest(tl.maximum(tl.abs(d_h), tl.abs(d_s))), weights_bound, PRECISION)
        else:
            up, down = scaling(largest(d_h), weights_bound, PRECISION)
        staged(STAGED)
        dh = dh * (1.0 - s)
        dh = recur(dh, d_h, up, down, U_h, V_h, now, weights, N - 1, ROWS, HP, BK, RESIDENT, PRECISION)
        if GATED:
            dh = recur(dh, d_s, up, down, U_s, V_s, now + ROWS * HP, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION)
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
    GATED: tl.constexpr,
    LAYERNORM: tl.constexpr,
    RESIDENT: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Tangents of the states, from those of the first state, the LayerNorm and the pre-activations.

    `pre_dot` holds everything that is known before the loop: tangents of the inputs, and of U times the old states.
    """
    N: tl.constexpr = 2 if GATED else 1
    STAGED: tl.constexpr = RESIDENT < N
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, HP)
    real = (cols < H)[None, :]
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    at_pre, at_kept = pre_dot + line * T * (N * H) + cols[None, :], kept + line * T * (N * H) + cols[None, :]
    at_h, at_dot = states + line * T * H + cols[None, :], states_dot + line * T * H + cols[None, :]
    slot = staging + (replica * tl.num_programs(0) + tl.program_id(0)) * (2 * ROWS * HP)
    weights += replica * (N * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_h, V_h = resident(weights, N - 1, HP, RESIDENT, PRECISION)
    h, h_dot = load(s0 + line * H + cols[None, :], keep, EVEN), load(s0_dot + line * H + cols[None, :], keep, EVEN)
    ln_gain, ln_shift, ln_gain_dot, ln_shift_dot = 0.0, 0.0, 0.0, 0.0
    if GATED:
        U_s, V_s = resident(weights, 0, HP, RESIDENT, PRECISION)
    if LAYERNORM:
        ln_gain = tl.load(gain + replica * H + cols, mask=cols < H, other=0.0)[None, :]
        ln_shift = tl.load(shift + replica * H + cols, mask=cols < H, other=0.0)[None, :]
        ln_gain_dot = tl.load(gain_dot + replica * H + cols, mask=cols < H, other=0.0)[None, :]
        ln_shift_dot = tl.load(shift_dot + replica * H + cols, mask=cols < H, other=0.0)[None, :]
    for t in range(T):
        kept_g = load(at_kept + (N - 1) * H, keep, EVEN)
        a_dot = load(at_pre + (N - 1) * H, keep, EVEN)
        now = slot + (t % 2) * (ROWS * HP)
        stage(now, h_dot, ROWS, HP, STAGED)
        up, down = scaling(largest(h_dot), weights_bound, PRECISION)
        staged(STAGED)
        g = recall(kept_g, ln_gain, ln_shift, LAYERNORM)
        a_dot = recur(a_dot, h_dot, up, down, U_h, V_h, now, weights, N - 1, ROWS, HP, BK, RESIDENT, PRECISION)
        if LAYERNORM:
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            a_dot = normalise_slope(a_dot, kept_g, scale, real, H) * ln_gain + kept_g * ln_gain_dot + ln_shift_dot
        if GATED:
            s = load(at_kept, keep, EVEN)
            gate_dot = load(at_pre, keep, EVEN)
            gate_dot = recur(gate_dot, h_dot, up, down, U_s, V_s, now, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION)
            h_dot = (1.0 - s) * h_dot + s * (1.0 - g * g) * a_dot + (g - h) * s * (1.0 - s) * gate_dot
            h = load(at_h, keep, EVEN)
        else:
            h_dot = (1.0 - fixed) * h_dot + fixed * (1.0 - g * g) * a_dot
        store(at_dot, h_dot, keep, EVEN)
        at_h += H
        at_dot += H
        at_kept += N * H
        at_pre += N * H
