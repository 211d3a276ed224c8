"""SharedGate: blocks h, s, and columns of zeros up to a multiple of 16, so that rows start at a cache line.

The gate is a single column: its share in the products with the state is done row by row.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from lagreach.kernels.cpu.compiled import compiled
from lagreach.kernels.cpu.nonlinear import activate, activate_gates, closed, opened
from lagreach.kernels.cpu.products import (
    add_product,
    normalise,
    normalise_backward,
    normalise_tangent,
    project,
    pull_to_input,
    pull_to_state,
)


@compiled
@no_type_check
def _add_dots(A, row, a, column):
    """``a[:, column] += A @ row``."""
    for i in range(A.shape[0]):
        total = a[i, column]
        for j in range(row.size):
            total += A[i, j] * row[j]
        a[i, column] = total


@compiled
@no_type_check
def forward(x, w, h0, c0, run, lo, hi):
    """``h' = (1-s) h + s g`` with one s for all units."""
    units = h0.shape[1]
    for t in range(x.shape[0]):
        k = min(t, run.act.shape[0] - 1)
        before = run.h[t - 1, lo:hi] if t > 0 else h0[lo:hi]
        now, act = run.h[t, lo:hi], run.act[k, lo:hi]
        project(x[t, lo:hi], w.Wt, w.b, act)
        add_product(before, w.Ut, act, 0, units)
        _add_dots(before, w.U[units], act, units)
        if w.gain.size:
            normalise(act, 0, w.gain, w.shift, run.normal[k, lo:hi], run.inverse[k, lo:hi])
        activate(act, 0, units)
        activate_gates(act, units, units + 1)
        for i in range(hi - lo):
            s, kept = opened(act[i, units]), closed(act[i, units])
            for j in range(units):
                now[i, j] = kept * before[i, j] + s * act[i, j]


@compiled
@no_type_check
def backward(x, w, h0, c0, run, dh_out, dc_out, into, dh0, dc0, dx, lo, hi):
    """``da_s = s(1-s) sum_j dh_j (g_j - h_j)``, ``da_h = dh s (1-g^2)``."""
    units = h0.shape[1]
    zero, one = h0.dtype.type(0), h0.dtype.type(1)
    dh = dh0[lo:hi]
    d = np.zeros((hi - lo, w.b.size), h0.dtype)
    row, d_row = w.U[units], np.zeros(units, h0.dtype)
    for t in range(x.shape[0] - 1, -1, -1):
        before = run.h[t - 1, lo:hi] if t > 0 else h0[lo:hi]
        act, out = run.act[t, lo:hi], dh_out[t, lo:hi]
        for i in range(hi - lo):
            s, kept = opened(act[i, units]), closed(act[i, units])
            toward_gate = zero
            for j in range(units):
                g, total = act[i, j], dh[i, j] + out[i, j]
                toward_gate += total * (g - before[i, j])
                d[i, j] = total * s * (one - g * g)
                dh[i, j] = total * kept
            d[i, units] = toward_gate * s * kept
        if w.gain.size:
            normalise_backward(d, 0, w.gain, run.normal[t, lo:hi], run.inverse[t, lo:hi], into.gain, into.shift)
        pull_to_state(before, d, w.U, dh, into.Ut, 0, units)
        for i in range(hi - lo):
            da_s = d[i, units]
            for j in range(units):
                dh[i, j] += da_s * row[j]
                d_row[j] += da_s * before[i, j]
        pull_to_input(x[t, lo:hi], d, w.W, into.Wt, into.b, dx[min(t, dx.shape[0] - 1), lo:hi])
    for j in range(units):
        into.Ut[j, units] += d_row[j]


@compiled
@no_type_check
def tangent(x, w, dot, h0, c0, run, h_dot, c_dot, lo, hi):
    """``dh' = (1-s) dh + s (1-g^2) da_h + (g-h) s(1-s) da_s``."""
    units = h0.shape[1]
    one = h0.dtype.type(1)
    da = np.empty((hi - lo, w.b.size), h0.dtype)
    still = np.zeros((hi - lo, units), h0.dtype)
    for t in range(x.shape[0]):
        before = run.h[t - 1, lo:hi] if t > 0 else h0[lo:hi]
        before_dot = h_dot[t - 1, lo:hi] if t > 0 else still
        now_dot, act = h_dot[t, lo:hi], run.act[t, lo:hi]
        project(x[t, lo:hi], dot.Wt, dot.b, da)
        add_product(before, dot.Ut, da, 0, units + 1)
        if t > 0:
            add_product(before_dot, w.Ut, da, 0, units + 1)
        if w.gain.size:
            normalise_tangent(da, 0, w.gain, run.normal[t, lo:hi], run.inverse[t, lo:hi], dot.gain, dot.shift)
        for i in range(hi - lo):
            s, kept = opened(act[i, units]), closed(act[i, units])
            s_dot = s * kept * da[i, units]
            for j in range(units):
                g = act[i, j]
                g_dot = (one - g * g) * da[i, j]
                now_dot[i, j] = kept * before_dot[i, j] + s * g_dot + (g - before[i, j]) * s_dot
