"""Kernels of the GRU in the paper's form: ``h' = (1-z) h + z g``, ``g = tanh(U_h (r h) + ...)``.

Blocks: z, r, h. Kept from the forward pass for the slopes: z, r, g (with LayerNorm its normalised argument).
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
    LAYERNORM: tl.constexpr,
    RESIDENT: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
):
    """States after each step, and what the slopes need."""
    STAGED: tl.constexpr = RESIDENT < 3
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), columns(HP)[None, :]
    real = cols < H
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    program = replica * tl.num_programs(0) + tl.program_id(0)
    at_kept, at_h = kept + line * T * (3 * H) + cols, states + line * T * H + cols
    slot = staging + program * (4 * ROWS * HP)
    weights += replica * (3 * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_z, V_z = resident(weights, 0, HP, RESIDENT, PRECISION)
    U_r, V_r = resident(weights, 1, HP, RESIDENT, PRECISION)
    U_h, V_h = resident(weights, 2, HP, RESIDENT, PRECISION)
    ln_gain, ln_shift = 0.0, 0.0
    if LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, H, HP), row(shift, replica, H, HP)
    h = load(s0 + line * H + cols, keep, EVEN)
    up, down = scaling(tl.maximum(largest(h), 1.0), weights_bound, PRECISION)
    b_z = row(bias, 3 * replica, H, HP)
    b_r = row(bias + H, 3 * replica, H, HP)
    b_h = row(bias + 2 * H, 3 * replica, H, HP)
    at_pre = pre + line * T * (3 * H) + cols
    next_z = load(at_pre, keep, EVEN)
    next_r = load(at_pre + H, keep, EVEN)
    next_h = load(at_pre + 2 * H, keep, EVEN)
    for t in range(T):
        a_z, a_r, a_h = next_z + b_z, next_r + b_r, next_h + b_h
        ahead = at_pre + tl.minimum(t + 1, T - 1).to(tl.int64) * (3 * H)
        next_z = load(ahead, keep, EVEN)
        next_r = load(ahead + H, keep, EVEN)
        next_h = load(ahead + 2 * H, keep, EVEN)
        now = slot + (t % 2) * (2 * ROWS * HP)
        stage(now, h, ROWS, HP, STAGED)
        staged(STAGED)
        p_z = product(h, up, U_z, V_z, now, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION)
        p_r = product(h, up, U_r, V_r, now, weights, 1, ROWS, HP, BK, RESIDENT, PRECISION)
        p_z, p_r = settle_two(p_z, p_r, ROWS, HP)
        z, r = sigmoid(a_z + down * p_z), sigmoid(a_r + down * p_r)
        reset = r * h
        stage(now + ROWS * HP, reset, ROWS, HP, STAGED)
        staged(STAGED)
        p_h = product(reset, up, U_h, V_h, now + ROWS * HP, weights, 2, ROWS, HP, BK, RESIDENT, PRECISION)
        a_h += down * settle(p_h, ROWS, HP)
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
    STAGED: tl.constexpr = RESIDENT < 3
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), columns(HP)[None, :]
    real = cols < H
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    program = replica * tl.num_programs(0) + tl.program_id(0)
    last = (T - 1).to(tl.int64)
    at_kept, at_d = kept + line * T * (3 * H) + cols, d_all + line * T * (3 * H) + cols
    at_h, at_grad = states + line * T * H + cols, grad + line * T * H + cols
    at_first = s0 + line * H + cols
    slot = staging + program * (6 * ROWS * HP)
    weights += replica * (3 * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_z, V_z = resident(weights, 0, HP, RESIDENT, PRECISION)
    U_r, V_r = resident(weights, 1, HP, RESIDENT, PRECISION)
    U_h, V_h = resident(weights, 2, HP, RESIDENT, PRECISION)
    ln_gain, ln_shift = 0.0, 0.0
    if LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, H, HP), row(shift, replica, H, HP)
    next_z = load(at_kept + last * (3 * H), keep, EVEN)
    next_r = load(at_kept + last * (3 * H) + H, keep, EVEN)
    next_g = load(at_kept + last * (3 * H) + 2 * H, keep, EVEN)
    next_d = load(at_grad + last * H, keep, EVEN)
    next_h = load(at_first, keep, EVEN)
    if T > 1:
        next_h = load(at_h + (last - 1) * H, keep, EVEN)
    dh = tl.zeros([ROWS, HP], next_d.dtype)
    sum_z, sum_r, sum_h, sum_gain, sum_shift = dh, dh, dh, dh, dh
    for back in range(T):
        t = last - back
        before, earlier = tl.maximum(t - 1, 0), tl.maximum(t - 2, 0)
        z, r, kept_g, h = next_z, next_r, next_g, next_h
        dh += next_d
        next_z = load(at_kept + before * (3 * H), keep, EVEN)
        next_r = load(at_kept + before * (3 * H) + H, keep, EVEN)
        next_g = load(at_kept + before * (3 * H) + 2 * H, keep, EVEN)
        next_d = load(at_grad + before * H, keep, EVEN)
        next_h = load(at_h + earlier * H if t > 1 else at_first, keep, EVEN)
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
        p_reset = product(d_h, up, U_h, V_h, now, weights, 2, ROWS, HP, BK, RESIDENT, PRECISION)
        p_h = product(d_z, up, U_z, V_z, now + ROWS * HP, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION)
        p_reset, p_h = settle_two(p_reset, p_h, ROWS, HP)
        d_reset = down * p_reset
        dh = dh * (1.0 - z) + d_reset * r + down * p_h
        d_r = d_reset * h * r * (1.0 - r)
        at = at_d + t * (3 * H)
        store(at, d_z, keep, EVEN)
        store(at + H, d_r, keep, EVEN)
        store(at + 2 * H, d_h, keep, EVEN)
        sum_z += d_z
        sum_r += d_r
        sum_h += d_h
        stage(now + 2 * ROWS * HP, d_r, ROWS, HP, STAGED)
        staged(STAGED)
        up, down = scaling(largest(d_r), weights_bound, PRECISION)
        dh += down * settle(
            product(d_r, up, U_r, V_r, now + 2 * ROWS * HP, weights, 1, ROWS, HP, BK, RESIDENT, PRECISION), ROWS, HP
        )
    store(d_s0 + line * H + cols, dh, keep, EVEN)
    units = tl.arange(0, HP)
    tl.store(d_bias + (program * 3 + 0) * H + units, tl.sum(sum_z, axis=0), mask=units < H)
    tl.store(d_bias + (program * 3 + 1) * H + units, tl.sum(sum_r, axis=0), mask=units < H)
    tl.store(d_bias + (program * 3 + 2) * H + units, tl.sum(sum_h, axis=0), mask=units < H)
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
    STAGED: tl.constexpr = RESIDENT < 3
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), columns(HP)[None, :]
    real = cols < H
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    program = replica * tl.num_programs(0) + tl.program_id(0)
    at_known, at_kept = known + line * T * (3 * H) + cols, kept + line * T * (3 * H) + cols
    at_h, at_dot = states + line * T * H + cols, states_dot + line * T * H + cols
    slot = staging + program * (4 * ROWS * HP)
    weights += replica * (3 * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_z, V_z = resident(weights, 0, HP, RESIDENT, PRECISION)
    U_r, V_r = resident(weights, 1, HP, RESIDENT, PRECISION)
    U_h, V_h = resident(weights, 2, HP, RESIDENT, PRECISION)
    ln_gain, ln_shift, ln_gain_dot, ln_shift_dot = 0.0, 0.0, 0.0, 0.0
    if LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, H, HP), row(shift, replica, H, HP)
        ln_gain_dot, ln_shift_dot = row(gain_dot, replica, H, HP), row(shift_dot, replica, H, HP)
    h, h_dot = load(s0 + line * H + cols, keep, EVEN), load(s0_dot + line * H + cols, keep, EVEN)
    for t in range(T):
        z, r, kept_g = load(at_kept, keep, EVEN), load(at_kept + H, keep, EVEN), load(at_kept + 2 * H, keep, EVEN)
        now = slot + (t % 2) * (2 * ROWS * HP)
        stage(now, h_dot, ROWS, HP, STAGED)
        up, down = scaling(largest(h_dot), weights_bound, PRECISION)
        staged(STAGED)
        p_z = product(h_dot, up, U_z, V_z, now, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION)
        p_r = product(h_dot, up, U_r, V_r, now, weights, 1, ROWS, HP, BK, RESIDENT, PRECISION)
        p_z, p_r = settle_two(p_z, p_r, ROWS, HP)
        z_dot, r_dot = load(at_known, keep, EVEN) + down * p_z, load(at_known + H, keep, EVEN) + down * p_r
        reset_dot = h * r * (1.0 - r) * r_dot + r * h_dot
        stage(now + ROWS * HP, reset_dot, ROWS, HP, STAGED)
        staged(STAGED)
        up, down = scaling(largest(reset_dot), weights_bound, PRECISION)
        p_h = product(reset_dot, up, U_h, V_h, now + ROWS * HP, weights, 2, ROWS, HP, BK, RESIDENT, PRECISION)
        a_dot = load(at_known + 2 * H, keep, EVEN) + down * settle(p_h, ROWS, HP)
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
        at_known += 3 * H
