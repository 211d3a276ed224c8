"""SharedGate: blocks h, s, and columns of zeros up to a multiple of 16, so that rows start at a cache line.

The gate is a single column: its share in the products with the state is done row by row.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from lagreach.kernels.cpu.compiled import aligned, compiled, inlined, use_whole_registers
from lagreach.kernels.cpu.nonlinear import activate, activate_gates, one_minus_sigmoid_of, sigmoid_of
from lagreach.kernels.cpu.parts import (
    add_arriving,
    add_input_gradients,
    add_read,
    add_state_gradients,
    normalise,
    normalise_backward,
    normalise_tangent,
    read_out,
    some_steps,
    step_of,
)
from lagreach.kernels.cpu.summed import sum_along
from lagreach.kernels.cpu.tiles import sum_of_products


@inlined
@no_type_check
def _gate(x, h, w, a, column):
    """``a[:, column] = b + W x + U h`` for the gate."""
    W, U = w.W[column], w.U[column]
    for i in range(a.shape[0]):
        total = w.b[column]
        for j in range(W.size):
            total += x[i, j] * W[j]
        for j in range(U.size):
            total += h[i, j] * U[j]
        a[i, column] = total


@compiled
@no_type_check
def forward(x, w, h0, c0, run, lo, hi):
    """``h' = (1-s) h + s g`` with one s for all units."""
    use_whole_registers()
    units = h0.shape[1]
    for t in range(x.shape[0]):
        k = min(t, run.act.shape[0] - 1)
        before = run.h[t - 1, lo:hi] if t > 0 else h0[lo:hi]
        now, act = run.h[t, lo:hi], run.act[k, lo:hi]
        prefetch = step_of(run.act, k + 1, lo, hi), step_of(run.h, t + 1, lo, hi)
        sum_of_products(act, w.b, ((x[t, lo:hi], w.Wt), (before, w.Ut)), 0, units, prefetch)
        _gate(x[t, lo:hi], before, w, act, units)
        if w.gain.size:
            normalise(act, 0, w.gain, w.shift, run.normal[k, lo:hi], run.inverse[k, lo:hi])
        activate(act, 0, units)
        activate_gates(act, units, units + 1)
        for i in range(hi - lo):
            s, kept = sigmoid_of(act[i, units]), one_minus_sigmoid_of(act[i, units])
            for j in range(units):
                now[i, j] = kept * before[i, j] + s * act[i, j]
        read_out(now, w, run.read, t, lo, hi)


@compiled
@no_type_check
def summed(x, w, h, c, run, turned, pull, near, target, share, index, read, sums, picked):
    """See `sum_along`."""
    sum_along(forward, x, w, h, c, run, turned, pull, near, target, share, index, read, sums, picked)


@compiled
@no_type_check
def backward(x, w, h0, c0, run, dh_out, dc_out, into, room, dh0, dc0, dx, lo, hi):
    """``da_s = s(1-s) sum_j dh_j (g_j - h_j)``, ``da_h = dh s (1-g^2)``."""
    use_whole_registers()
    units = h0.shape[1]
    zero, one = h0.dtype.type(0), h0.dtype.type(1)
    dh = dh0[lo:hi]
    recent = some_steps(room, hi - lo, w.b.size)
    recent[:] = 0  # what fills the rows up stays zero
    d_row = np.zeros(units, h0.dtype)  # of the gate's U
    for t in range(x.shape[0] - 1, -1, -1):
        d = recent[t % recent.shape[0]]
        before = run.h[t - 1, lo:hi] if t > 0 else h0[lo:hi]
        act = run.act[t, lo:hi]
        if into is not None and w.read.size:
            add_read(dh, dh_out, run.h, w, into, t, lo, hi)
        else:
            add_arriving(dh, dh_out, t, lo, hi)
        for i in range(hi - lo):
            s, kept = sigmoid_of(act[i, units]), one_minus_sigmoid_of(act[i, units])
            toward_gate = zero
            for j in range(units):
                g, total = act[i, j], dh[i, j]
                toward_gate += total * (g - before[i, j])
                d[i, j] = total * s * (one - g * g)
                dh[i, j] = total * kept
            d[i, units] = toward_gate * s * kept
        if into is not None and w.gain.size:
            normalise_backward(d, 0, w.gain, run.normal[t, lo:hi], run.inverse[t, lo:hi], into.gain, into.shift)
        prefetch = step_of(run.act, t - 1, lo, hi), step_of(run.h, t - 2, lo, hi), step_of(dh_out, t - 1, lo, hi)
        sum_of_products(dh, dh, ((d[:, : units + 1], w.U[: units + 1]),), 0, units, prefetch)
        if into is not None:
            for i in range(hi - lo):
                for j in range(units):
                    d_row[j] += d[i, units] * before[i, j]
        if into is not None and t % recent.shape[0] == 0:
            add_state_gradients(run.h, h0, recent, t, lo, hi, into.Ut, 0, units)
            add_input_gradients(x, recent, t, lo, hi, w.W, into.Wt, into.b, dx)
    if into is not None:
        for j in range(units):
            into.Ut[j, units] += d_row[j]


@compiled
@no_type_check
def tangent(x, w, dot, h0, c0, run, h_dot, c_dot, lo, hi):
    """``dh' = (1-s) dh + s (1-g^2) da_h + (g-h) s(1-s) da_s``."""
    use_whole_registers()
    units = h0.shape[1]
    one = h0.dtype.type(1)
    da = aligned(hi - lo, w.b.size, h0)
    still = np.zeros((hi - lo, units), h0.dtype)
    for t in range(x.shape[0]):
        before = run.h[t - 1, lo:hi] if t > 0 else h0[lo:hi]
        before_dot = h_dot[t - 1, lo:hi] if t > 0 else still
        now_dot, act = h_dot[t, lo:hi], run.act[t, lo:hi]
        sum_of_products(da, dot.b, ((x[t, lo:hi], dot.Wt), (before, dot.Ut)), 0, units + 1)
        if t > 0:
            sum_of_products(da, da, ((before_dot, w.Ut),), 0, units + 1)
        if w.gain.size:
            normalise_tangent(da, 0, w.gain, run.normal[t, lo:hi], run.inverse[t, lo:hi], dot.gain, dot.shift)
        for i in range(hi - lo):
            s, kept = sigmoid_of(act[i, units]), one_minus_sigmoid_of(act[i, units])
            s_dot = s * kept * da[i, units]
            for j in range(units):
                g = act[i, j]
                g_dot = (one - g * g) * da[i, j]
                now_dot[i, j] = kept * before_dot[i, j] + s * g_dot + (g - before[i, j]) * s_dot
