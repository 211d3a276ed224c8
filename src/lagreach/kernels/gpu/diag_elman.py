"""Kernels of DiagElman, ``h' = f(a + u h)``: units see only themselves, so there is no product in the loop.

Kept from the forward pass: the slope f'.
"""

# mypy: disable-error-code=no-untyped-def
from __future__ import annotations

import triton.language as tl

from lagreach.kernels.gpu.parts import jit, load, sigmoid, store, tanh


@jit
def activate(a, K: tl.constexpr):
    """Value and slope of an activation of `lagreach.cells.activations`."""
    if K.ACTIVATION == "tanh":
        f = tanh(a)
        slope = 1.0 - f * f
    elif K.ACTIVATION == "logistic":
        f = sigmoid(a)
        slope = f * (1.0 - f)
    elif K.ACTIVATION == "gaussian":
        f = tl.exp(-0.5 * a * a)
        slope = -a * f
    elif K.ACTIVATION == "erf":
        f = tl.erf(a)
        slope = 1.1283791670955126 * tl.exp(-a * a)
    else:
        f = tl.sin(a)
        slope = tl.cos(a)
    return f, slope


@jit
def forward(
    pre, bias, weights, bound, s0, gain, shift, extra, states, kept, scales, staging, fixed, B, T, K: tl.constexpr
):
    """States after each step, and the slopes."""
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * K.ROWS + tl.arange(0, K.ROWS), tl.arange(0, K.HP)
    keep = (rows < B)[:, None] & (cols < K.H)[None, :]
    line = (replica * B + rows)[:, None]
    places = line * T * K.H + cols[None, :]
    u = tl.load(weights + replica * K.H + cols, mask=cols < K.H, other=0.0)[None, :]
    b = tl.load(bias + replica * K.H + cols, mask=cols < K.H, other=0.0)[None, :]
    h = load(s0 + line * K.H + cols[None, :], keep, K)
    ahead = load(pre + places, keep, K)
    for t in range(T):
        a = ahead + b
        ahead = load(pre + places + tl.minimum(t + 1, T - 1).to(tl.int64) * K.H, keep, K)
        h, slope = activate(a + u * h, K)
        store(states + places, h, keep, K)
        store(kept + places, slope, keep, K)
        states += K.H
        kept += K.H


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
    """Gradients of the pre-activations, of the first state and of the bias (a share of each program)."""
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * K.ROWS + tl.arange(0, K.ROWS), tl.arange(0, K.HP)
    keep = (rows < B)[:, None] & (cols < K.H)[None, :]
    line = (replica * B + rows)[:, None]
    places = line * T * K.H + cols[None, :]
    u = tl.load(weights + replica * K.H + cols, mask=cols < K.H, other=0.0)[None, :]
    dh = tl.full([K.ROWS, K.HP], 0, u.dtype)
    sum_h = dh
    for back in range(T):
        at = places + (T - 1 - back).to(tl.int64) * K.H
        d = (dh + load(grad + at, keep, K)) * load(kept + at, keep, K)
        store(d_all + at, d, keep, K)
        sum_h += d
        dh = d * u
    store(d_s0 + line * K.H + cols[None, :], dh, keep, K)
    program = replica * tl.num_programs(0) + tl.program_id(0)
    tl.store(d_bias + program * K.H + cols, tl.sum(sum_h, axis=0), mask=cols < K.H)


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
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * K.ROWS + tl.arange(0, K.ROWS), tl.arange(0, K.HP)
    keep = (rows < B)[:, None] & (cols < K.H)[None, :]
    line = (replica * B + rows)[:, None]
    places = line * T * K.H + cols[None, :]
    u = tl.load(weights + replica * K.H + cols, mask=cols < K.H, other=0.0)[None, :]
    h_dot = load(s0_dot + line * K.H + cols[None, :], keep, K)
    for _ in range(T):
        h_dot = load(kept + places, keep, K) * (load(known + places, keep, K) + u * h_dot)
        store(states_dot + places, h_dot, keep, K)
        places += K.H
