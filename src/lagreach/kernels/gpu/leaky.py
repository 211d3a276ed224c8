"""Kernels of the leaky cells ``h' = (1-s) h + s g`` with the candidate ``g = tanh(U_h h + ...)``.

The gate s is learned (DiagGate, SharedGate) or fixed (ConstGate, and Elman with s = 1). Blocks: [s,] h. Kept from the
forward pass for the slopes: [s,] g (with LayerNorm its normalised argument).
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
    settle_two,
    sigmoid,
    stage,
    staged,
    store,
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
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), columns(HP)[None, :]
    real = cols < H
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    program = replica * tl.num_programs(0) + tl.program_id(0)
    at_pre, at_kept = pre + line * T * (N * H) + cols, kept + line * T * (N * H) + cols
    at_h = states + line * T * H + cols
    slot = staging + program * (2 * ROWS * HP)
    weights += replica * (N * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_h, V_h = resident(weights, N - 1, HP, RESIDENT, PRECISION)
    if GATED:
        U_s, V_s = resident(weights, 0, HP, RESIDENT, PRECISION)
    ln_gain, ln_shift = 0.0, 0.0
    if LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, H, HP), row(shift, replica, H, HP)
    h = load(s0 + line * H + cols, keep, EVEN)
    up, down = scaling(tl.maximum(largest(h), 1.0), weights_bound, PRECISION)
    b_h, next_h = row(bias + (N - 1) * H, N * replica, H, HP), load(at_pre + (N - 1) * H, keep, EVEN)
    if GATED:
        b_s, next_s = row(bias, N * replica, H, HP), load(at_pre, keep, EVEN)
    for t in range(T):
        a_h = next_h + b_h
        ahead = at_pre + tl.minimum(t + 1, T - 1).to(tl.int64) * (N * H)
        next_h = load(ahead + (N - 1) * H, keep, EVEN)
        now = slot + (t % 2) * (ROWS * HP)
        stage(now, h, ROWS, HP, STAGED)
        staged(STAGED)
        p_h = product(h, up, U_h, V_h, now, weights, N - 1, ROWS, HP, BK, RESIDENT, PRECISION)
        if GATED:
            a_s = next_s + b_s
            next_s = load(ahead, keep, EVEN)
            p_s = product(h, up, U_s, V_s, now, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION)
            p_s, p_h = settle_two(p_s, p_h, ROWS, HP)
            s = sigmoid(a_s + down * p_s)
            store(at_kept, s, keep, EVEN)
        else:
            p_h = settle(p_h, ROWS, HP)
            s = fixed
        g, keeping, scale = candidate(a_h + down * p_h, ln_gain, ln_shift, real, H, LAYERNORM)
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
    GATED: tl.constexpr,
    LAYERNORM: tl.constexpr,
    RESIDENT: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Gradients of the blocks, of the first state and of the biases (a share of each program), from those of the states."""
    N: tl.constexpr = 2 if GATED else 1
    STAGED: tl.constexpr = RESIDENT < N
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), columns(HP)[None, :]
    real = cols < H
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    program = replica * tl.num_programs(0) + tl.program_id(0)
    last = (T - 1).to(tl.int64)
    at_kept, at_d = kept + line * T * (N * H) + cols, d_all + line * T * (N * H) + cols
    at_h, at_grad = states + line * T * H + cols, grad + line * T * H + cols
    at_first = s0 + line * H + cols
    slot = staging + program * (2 * N * ROWS * HP)
    weights += replica * (N * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_h, V_h = resident(weights, N - 1, HP, RESIDENT, PRECISION)
    if GATED:
        U_s, V_s = resident(weights, 0, HP, RESIDENT, PRECISION)
    ln_gain, ln_shift = 0.0, 0.0
    if LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, H, HP), row(shift, replica, H, HP)
    next_g = load(at_kept + last * (N * H) + (N - 1) * H, keep, EVEN)
    if GATED:
        next_s = load(at_kept + last * (N * H), keep, EVEN)
    next_d = load(at_grad + last * H, keep, EVEN)
    next_h = load(at_first, keep, EVEN)
    if T > 1:
        next_h = load(at_h + (last - 1) * H, keep, EVEN)
    dh = tl.zeros([ROWS, HP], next_d.dtype)
    sum_s, sum_h, sum_gain, sum_shift = dh, dh, dh, dh
    for back in range(T):
        t = last - back
        before, earlier = tl.maximum(t - 1, 0), tl.maximum(t - 2, 0)
        kept_g, h = next_g, next_h
        dh += next_d
        next_g = load(at_kept + before * (N * H) + (N - 1) * H, keep, EVEN)
        next_d = load(at_grad + before * H, keep, EVEN)
        next_h = load(at_h + earlier * H if t > 1 else at_first, keep, EVEN)
        if GATED:
            s = next_s
            next_s = load(at_kept + before * (N * H), keep, EVEN)
        else:
            s = fixed
        g = recall(kept_g, ln_gain, ln_shift, LAYERNORM)
        d_h = dh * s * (1.0 - g * g)
        if LAYERNORM:
            sum_gain += d_h * kept_g
            sum_shift += d_h
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            d_h = normalise_slope(d_h * ln_gain, kept_g, scale, real, H)
        sum_h += d_h
        store(at_d + t * (N * H) + (N - 1) * H, d_h, keep, EVEN)
        now = slot + (t % 2) * (N * ROWS * HP)
        stage(now, d_h, ROWS, HP, STAGED)
        if GATED:
            d_s = dh * (g - h) * s * (1.0 - s)
            sum_s += d_s
            store(at_d + t * (N * H), d_s, keep, EVEN)
            stage(now + ROWS * HP, d_s, ROWS, HP, STAGED)
            up, down = scaling(largest(tl.maximum(tl.abs(d_h), tl.abs(d_s))), weights_bound, PRECISION)
        else:
            up, down = scaling(largest(d_h), weights_bound, PRECISION)
        staged(STAGED)
        p = product(d_h, up, U_h, V_h, now, weights, N - 1, ROWS, HP, BK, RESIDENT, PRECISION)
        if GATED:
            p += product(d_s, up, U_s, V_s, now + ROWS * HP, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION)
        dh = dh * (1.0 - s) + down * settle(p, ROWS, HP)
    store(d_s0 + line * H + cols, dh, keep, EVEN)
    units = tl.arange(0, HP)
    tl.store(d_bias + (program * N + N - 1) * H + units, tl.sum(sum_h, axis=0), mask=units < H)
    if GATED:
        tl.store(d_bias + program * N * H + units, tl.sum(sum_s, axis=0), mask=units < H)
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
    GATED: tl.constexpr,
    LAYERNORM: tl.constexpr,
    RESIDENT: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Tangents of the states; `known` holds everything that is known before the loop."""
    N: tl.constexpr = 2 if GATED else 1
    STAGED: tl.constexpr = RESIDENT < N
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), columns(HP)[None, :]
    real = cols < H
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    program = replica * tl.num_programs(0) + tl.program_id(0)
    at_known, at_kept = known + line * T * (N * H) + cols, kept + line * T * (N * H) + cols
    at_h, at_dot = states + line * T * H + cols, states_dot + line * T * H + cols
    slot = staging + program * (2 * ROWS * HP)
    weights += replica * (N * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_h, V_h = resident(weights, N - 1, HP, RESIDENT, PRECISION)
    if GATED:
        U_s, V_s = resident(weights, 0, HP, RESIDENT, PRECISION)
    ln_gain, ln_shift, ln_gain_dot, ln_shift_dot = 0.0, 0.0, 0.0, 0.0
    if LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, H, HP), row(shift, replica, H, HP)
        ln_gain_dot, ln_shift_dot = row(gain_dot, replica, H, HP), row(shift_dot, replica, H, HP)
    h, h_dot = load(s0 + line * H + cols, keep, EVEN), load(s0_dot + line * H + cols, keep, EVEN)
    for t in range(T):
        kept_g = load(at_kept + (N - 1) * H, keep, EVEN)
        a_dot = load(at_known + (N - 1) * H, keep, EVEN)
        now = slot + (t % 2) * (ROWS * HP)
        stage(now, h_dot, ROWS, HP, STAGED)
        up, down = scaling(largest(h_dot), weights_bound, PRECISION)
        staged(STAGED)
        g = recall(kept_g, ln_gain, ln_shift, LAYERNORM)
        a_dot += down * settle(
            product(h_dot, up, U_h, V_h, now, weights, N - 1, ROWS, HP, BK, RESIDENT, PRECISION), ROWS, HP
        )
        if LAYERNORM:
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            a_dot = normalise_slope(a_dot, kept_g, scale, real, H) * ln_gain + kept_g * ln_gain_dot + ln_shift_dot
        if GATED:
            s, s_dot = load(at_kept, keep, EVEN), load(at_known, keep, EVEN)
            s_dot += down * settle(
                product(h_dot, up, U_s, V_s, now, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION), ROWS, HP
            )
            h_dot = (1.0 - s) * h_dot + s * (1.0 - g * g) * a_dot + (g - h) * s * (1.0 - s) * s_dot
            h = load(at_h, keep, EVEN)
        else:
            h_dot = (1.0 - fixed) * h_dot + fixed * (1.0 - g * g) * a_dot
        store(at_dot, h_dot, keep, EVEN)
        at_h += H
        at_dot += H
        at_kept += N * H
        at_known += N * H
