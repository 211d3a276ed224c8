"""Kernels of DiagElman, ``h' = f(a + u h)``: units see only themselves, so there is no product in the loop.

Kept from the forward pass: the slope f'.
"""

# mypy: disable-error-code=no-untyped-def
from __future__ import annotations

import triton.language as tl

from lagreach.kernels.gpu.parts import jit, load, sigmoid, store, tanh


@jit
def activate(a, ACTIVATION: tl.constexpr):
    """Value and slope of an activation of `lagreach.cells.activations`."""
    if ACTIVATION == "tanh":
        f = tanh(a)
        slope = 1.0 - f * f
    elif ACTIVATION == "logistic":
        f = sigmoid(a)
        slope = f * (1.0 - f)
    elif ACTIVATION == "gaussian":
        f = tl.exp(-0.5 * a * a)
        slope = -a * f
    elif ACTIVATION == "erf":
        f = tl.erf(a)
        slope = 1.1283791670955126 * tl.exp(-a * a)
    else:
        f = tl.sin(a)
        slope = tl.cos(a)
    return f, slope


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
    ACTIVATION: tl.constexpr,
    RESIDENT: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
):
    """States after each step, and the slopes."""
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, HP)
    keep = (rows < B)[:, None] & (cols < H)[None, :]
    line = (replica * B + rows)[:, None]
    places = line * T * H + cols[None, :]
    u = tl.load(weights + replica * H + cols, mask=cols < H, other=0.0)[None, :]
    b = tl.load(bias + replica * H + cols, mask=cols < H, other=0.0)[None, :]
    h = load(s0 + line * H + cols[None, :], keep, EVEN)
    ahead = load(pre + places, keep, EVEN)
    for t in range(T):
        a = ahead + b
        ahead = load(pre + places + tl.minimum(t + 1, T - 1).to(tl.int64) * H, keep, EVEN)
        h, slope = activate(a + u * h, ACTIVATION)
        store(states + places, h, keep, EVEN)
        store(kept + places, slope, keep, EVEN)
        states += H
        kept += H


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
    ACTIVATION: tl.constexpr,
    RESIDENT: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Gradients of the pre-activations, of the first state and of the bias (a share of each program)."""
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, HP)
    keep = (rows < B)[:, None] & (cols < H)[None, :]
    line = (replica * B + rows)[:, None]
    places = line * T * H + cols[None, :]
    u = tl.load(weights + replica * H + cols, mask=cols < H, other=0.0)[None, :]
    dh = tl.zeros([ROWS, HP], u.dtype)
    sum_h = dh
    for back in range(T):
        at = places + (T - 1 - back).to(tl.int64) * H
        d = (dh + load(grad + at, keep, EVEN)) * load(kept + at, keep, EVEN)
        store(d_all + at, d, keep, EVEN)
        sum_h += d
        dh = d * u
    store(d_s0 + line * H + cols[None, :], dh, keep, EVEN)
    program = replica * tl.num_programs(0) + tl.program_id(0)
    tl.store(d_bias + program * H + cols, tl.sum(sum_h, axis=0), mask=cols < H)


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
    ACTIVATION: tl.constexpr,
    RESIDENT: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Tangents of the states; `known` holds everything that is known before the loop."""
    replica = tl.program_id(1).to(tl.int64)
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, HP)
    keep = (rows < B)[:, None] & (cols < H)[None, :]
    line = (replica * B + rows)[:, None]
    places = line * T * H + cols[None, :]
    u = tl.load(weights + replica * H + cols, mask=cols < H, other=0.0)[None, :]
    h_dot = load(s0_dot + line * H + cols[None, :], keep, EVEN)
    for _ in range(T):
        h_dot = load(kept + places, keep, EVEN) * (load(known + places, keep, EVEN) + u * h_dot)
        store(states_dot + places, h_dot, keep, EVEN)
        places += H
