"""Kernels of torch's GRU: ``h' = z h + (1-z) n``, ``n = tanh(r v + ...)`` with the hidden part ``v = U_n h + c_n``.

Blocks: r, z, n. Kept from the forward pass for the slopes: r, z, n (with LayerNorm its normalised argument), v. The input
part and the hidden part of the candidate have different gradients, so there is a fourth block of those, for v.
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
    """States after each step, and what the slopes need; `extra` is c_n."""
    STAGED: tl.constexpr = RESIDENT < 3
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), columns(HP)[None, :]
    real = cols < H
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    program = replica * tl.num_programs(0) + tl.program_id(0)
    at_kept, at_h = kept + line * T * (4 * H) + cols, states + line * T * H + cols
    slot = staging + program * (2 * ROWS * HP)
    weights += replica * (3 * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_r, V_r = resident(weights, 0, HP, RESIDENT, PRECISION)
    U_z, V_z = resident(weights, 1, HP, RESIDENT, PRECISION)
    U_n, V_n = resident(weights, 2, HP, RESIDENT, PRECISION)
    ln_gain, ln_shift = 0.0, 0.0
    if LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, H, HP), row(shift, replica, H, HP)
    h, c_n = load(s0 + line * H + cols, keep, EVEN), row(extra, replica, H, HP)
    up, down = scaling(tl.maximum(largest(h), 1.0), weights_bound, PRECISION)
    b_r = row(bias, 3 * replica, H, HP)
    b_z = row(bias + H, 3 * replica, H, HP)
    b_n = row(bias + 2 * H, 3 * replica, H, HP)
    at_pre = pre + line * T * (3 * H) + cols
    next_r = load(at_pre, keep, EVEN)
    next_z = load(at_pre + H, keep, EVEN)
    next_n = load(at_pre + 2 * H, keep, EVEN)
    for t in range(T):
        a_r, a_z, a_n = next_r + b_r, next_z + b_z, next_n + b_n
        ahead = at_pre + tl.minimum(t + 1, T - 1).to(tl.int64) * (3 * H)
        next_r = load(ahead, keep, EVEN)
        next_z = load(ahead + H, keep, EVEN)
        next_n = load(ahead + 2 * H, keep, EVEN)
        now = slot + (t % 2) * (ROWS * HP)
        stage(now, h, ROWS, HP, STAGED)
        staged(STAGED)
        p_r = product(h, up, U_r, V_r, now, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION)
        p_z = product(h, up, U_z, V_z, now, weights, 1, ROWS, HP, BK, RESIDENT, PRECISION)
        p_v = product(h, up, U_n, V_n, now, weights, 2, ROWS, HP, BK, RESIDENT, PRECISION)
        p_r, p_z, p_v, _ = settle_four(p_r, p_z, p_v, p_v, ROWS, HP)
        r, z, v = sigmoid(a_r + down * p_r), sigmoid(a_z + down * p_z), c_n + down * p_v
        n, keeping, scale = candidate(a_n + r * v, ln_gain, ln_shift, real, H, LAYERNORM)
        h = z * h + (1.0 - z) * n
        store(at_h, h, keep, EVEN)
        store(at_kept, r, keep, EVEN)
        store(at_kept + H, z, keep, EVEN)
        store(at_kept + 2 * H, keeping, keep, EVEN)
        store(at_kept + 3 * H, v, keep, EVEN)
        if LAYERNORM:
            tl.store(scales + (replica * B + rows) * T + t, scale, mask=rows < B)
        at_h += H
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
    STAGED: tl.constexpr = RESIDENT < 3
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), columns(HP)[None, :]
    real = cols < H
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    program = replica * tl.num_programs(0) + tl.program_id(0)
    last = (T - 1).to(tl.int64)
    at_kept, at_d = kept + line * T * (4 * H) + cols, d_all + line * T * (4 * H) + cols
    at_h, at_grad = states + line * T * H + cols, grad + line * T * H + cols
    at_first = s0 + line * H + cols
    slot = staging + program * (6 * ROWS * HP)
    weights += replica * (3 * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_r, V_r = resident(weights, 0, HP, RESIDENT, PRECISION)
    U_z, V_z = resident(weights, 1, HP, RESIDENT, PRECISION)
    U_n, V_n = resident(weights, 2, HP, RESIDENT, PRECISION)
    ln_gain, ln_shift = 0.0, 0.0
    if LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, H, HP), row(shift, replica, H, HP)
    next_r = load(at_kept + last * (4 * H), keep, EVEN)
    next_z = load(at_kept + last * (4 * H) + H, keep, EVEN)
    next_n = load(at_kept + last * (4 * H) + 2 * H, keep, EVEN)
    next_v = load(at_kept + last * (4 * H) + 3 * H, keep, EVEN)
    next_d = load(at_grad + last * H, keep, EVEN)
    next_h = load(at_first, keep, EVEN)
    if T > 1:
        next_h = load(at_h + (last - 1) * H, keep, EVEN)
    dh = tl.zeros([ROWS, HP], next_d.dtype)
    sum_r, sum_z, sum_n, sum_v, sum_gain, sum_shift = dh, dh, dh, dh, dh, dh
    for back in range(T):
        t = last - back
        before, earlier = tl.maximum(t - 1, 0), tl.maximum(t - 2, 0)
        r, z, kept_n, v, h = next_r, next_z, next_n, next_v, next_h
        dh += next_d
        next_r = load(at_kept + before * (4 * H), keep, EVEN)
        next_z = load(at_kept + before * (4 * H) + H, keep, EVEN)
        next_n = load(at_kept + before * (4 * H) + 2 * H, keep, EVEN)
        next_v = load(at_kept + before * (4 * H) + 3 * H, keep, EVEN)
        next_d = load(at_grad + before * H, keep, EVEN)
        next_h = load(at_h + earlier * H if t > 1 else at_first, keep, EVEN)
        n = recall(kept_n, ln_gain, ln_shift, LAYERNORM)
        d_z = dh * (h - n) * z * (1.0 - z)
        d_n = dh * (1.0 - z) * (1.0 - n * n)
        if LAYERNORM:
            sum_gain += d_n * kept_n
            sum_shift += d_n
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            d_n = normalise_slope(d_n * ln_gain, kept_n, scale, real, H)
        d_r = d_n * v * r * (1.0 - r)
        d_v = d_n * r
        sum_r += d_r
        sum_z += d_z
        sum_n += d_n
        sum_v += d_v
        at = at_d + t * (4 * H)
        store(at, d_r, keep, EVEN)
        store(at + H, d_z, keep, EVEN)
        store(at + 2 * H, d_n, keep, EVEN)
        store(at + 3 * H, d_v, keep, EVEN)
        now = slot + (t % 2) * (3 * ROWS * HP)
        stage(now, d_r, ROWS, HP, STAGED)
        stage(now + ROWS * HP, d_z, ROWS, HP, STAGED)
        stage(now + 2 * ROWS * HP, d_v, ROWS, HP, STAGED)
        staged(STAGED)
        most = tl.maximum(tl.maximum(tl.abs(d_r), tl.abs(d_z)), tl.abs(d_v))
        up, down = scaling(largest(most), weights_bound, PRECISION)
        p = product(d_r, up, U_r, V_r, now, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION)
        p += product(d_z, up, U_z, V_z, now + ROWS * HP, weights, 1, ROWS, HP, BK, RESIDENT, PRECISION)
        p += product(d_v, up, U_n, V_n, now + 2 * ROWS * HP, weights, 2, ROWS, HP, BK, RESIDENT, PRECISION)
        dh = dh * z + down * settle(p, ROWS, HP)
    store(d_s0 + line * H + cols, dh, keep, EVEN)
    units = tl.arange(0, HP)
    tl.store(d_bias + (program * 4 + 0) * H + units, tl.sum(sum_r, axis=0), mask=units < H)
    tl.store(d_bias + (program * 4 + 1) * H + units, tl.sum(sum_z, axis=0), mask=units < H)
    tl.store(d_bias + (program * 4 + 2) * H + units, tl.sum(sum_n, axis=0), mask=units < H)
    tl.store(d_bias + (program * 4 + 3) * H + units, tl.sum(sum_v, axis=0), mask=units < H)
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
    """Tangents of the states; `known` (r, z, n, v) holds everything that is known before the loop."""
    STAGED: tl.constexpr = RESIDENT < 3
    PLANES: tl.constexpr = 2 if PRECISION == "float32" else 1
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), columns(HP)[None, :]
    real = cols < H
    keep = (rows < B)[:, None] & real
    line = (replica * B + rows)[:, None]
    program = replica * tl.num_programs(0) + tl.program_id(0)
    at_known, at_kept = known + line * T * (4 * H) + cols, kept + line * T * (4 * H) + cols
    at_h, at_dot = states + line * T * H + cols, states_dot + line * T * H + cols
    slot = staging + program * (2 * ROWS * HP)
    weights += replica * (3 * PLANES * HP * HP)
    weights_bound = tl.load(bound + replica)
    U_r, V_r = resident(weights, 0, HP, RESIDENT, PRECISION)
    U_z, V_z = resident(weights, 1, HP, RESIDENT, PRECISION)
    U_n, V_n = resident(weights, 2, HP, RESIDENT, PRECISION)
    ln_gain, ln_shift, ln_gain_dot, ln_shift_dot = 0.0, 0.0, 0.0, 0.0
    if LAYERNORM:
        ln_gain, ln_shift = row(gain, replica, H, HP), row(shift, replica, H, HP)
        ln_gain_dot, ln_shift_dot = row(gain_dot, replica, H, HP), row(shift_dot, replica, H, HP)
    h, h_dot = load(s0 + line * H + cols, keep, EVEN), load(s0_dot + line * H + cols, keep, EVEN)
    for t in range(T):
        r, z = load(at_kept, keep, EVEN), load(at_kept + H, keep, EVEN)
        kept_n, v = load(at_kept + 2 * H, keep, EVEN), load(at_kept + 3 * H, keep, EVEN)
        now = slot + (t % 2) * (ROWS * HP)
        stage(now, h_dot, ROWS, HP, STAGED)
        up, down = scaling(largest(h_dot), weights_bound, PRECISION)
        staged(STAGED)
        p_r = product(h_dot, up, U_r, V_r, now, weights, 0, ROWS, HP, BK, RESIDENT, PRECISION)
        p_z = product(h_dot, up, U_z, V_z, now, weights, 1, ROWS, HP, BK, RESIDENT, PRECISION)
        p_v = product(h_dot, up, U_n, V_n, now, weights, 2, ROWS, HP, BK, RESIDENT, PRECISION)
        p_r, p_z, p_v, _ = settle_four(p_r, p_z, p_v, p_v, ROWS, HP)
        r_dot, z_dot = load(at_known, keep, EVEN) + down * p_r, load(at_known + H, keep, EVEN) + down * p_z
        v_dot = load(at_known + 3 * H, keep, EVEN) + down * p_v
        n = recall(kept_n, ln_gain, ln_shift, LAYERNORM)
        a_dot = load(at_known + 2 * H, keep, EVEN) + v * r * (1.0 - r) * r_dot + r * v_dot
        if LAYERNORM:
            scale = tl.load(scales + (replica * B + rows) * T + t, mask=rows < B, other=0.0)
            a_dot = normalise_slope(a_dot, kept_n, scale, real, H) * ln_gain + kept_n * ln_gain_dot + ln_shift_dot
        h_dot = z * h_dot + (1.0 - z) * (1.0 - n * n) * a_dot + (h - n) * z * (1.0 - z) * z_dot
        h = load(at_h, keep, EVEN)
        store(at_dot, h_dot, keep, EVEN)
        at_h += H
        at_dot += H
        at_kept += 4 * H
        at_known += 4 * H
