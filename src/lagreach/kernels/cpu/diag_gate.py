"""DiagGate: blocks s, h."""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from lagreach.kernels.cpu.compiled import aligned, compiled, use_whole_registers
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


@compiled
@no_type_check
def forward(x, w, h0, c0, run, lo, hi):
    """``h' = (1-s) h + s g``."""
    use_whole_registers()
    units = h0.shape[1]
    n = np.uint64(units)
    for t in range(x.shape[0]):
        k = min(t, run.act.shape[0] - 1)
        before = run.h[t - 1, lo:hi] if t > 0 else h0[lo:hi]
        now, act = run.h[t, lo:hi], run.act[k, lo:hi]
        prefetch = step_of(run.act, k + 1, lo, hi), step_of(run.h, t + 1, lo, hi)
        sum_of_products(act, w.b, ((x[t, lo:hi], w.Wt), (before, w.Ut)), 0, 2 * units, prefetch)
        if w.gain.size:
            normalise(act, units, w.gain, w.shift, run.normal[k, lo:hi], run.inverse[k, lo:hi])
        activate_gates(act, 0, units)
        activate(act, units, 2 * units)
        for i in range(hi - lo):
            for j in range(n):
                s, g = act[i, j], act[i, n + j]
                now[i, j] = one_minus_sigmoid_of(s) * before[i, j] + sigmoid_of(s) * g
        read_out(now, w, run.read, t, lo, hi)


@compiled
@no_type_check
def summed(x, w, h, c, run, turned, pull, near, target, share, index, read, sums, picked):
    """See `sum_along`."""
    sum_along(forward, x, w, h, c, run, turned, pull, near, target, share, index, read, sums, picked)


@compiled
@no_type_check
def backward(x, w, h0, c0, run, dh_out, dc_out, into, room, dh0, dc0, dx, lo, hi):
    """``da_s = dh (g-h) s(1-s)``, ``da_h = dh s (1-g^2)``."""
    use_whole_registers()
    units = h0.shape[1]
    n = np.uint64(units)
    one = h0.dtype.type(1)
    dh = dh0[lo:hi]
    recent = some_steps(room, hi - lo, w.b.size)
    for t in range(x.shape[0] - 1, -1, -1):
        d = recent[t % recent.shape[0]]
        before = run.h[t - 1, lo:hi] if t > 0 else h0[lo:hi]
        act = run.act[t, lo:hi]
        if into is not None and w.read.size:
            add_read(dh, dh_out, run.h, w, into, t, lo, hi)
        else:
            add_arriving(dh, dh_out, t, lo, hi)
        for i in range(hi - lo):
            for j in range(n):
                s, g, total = act[i, j], act[i, n + j], dh[i, j]
                d[i, j] = total * sigmoid_of(s) * one_minus_sigmoid_of(s) * (g - before[i, j])
                d[i, n + j] = total * sigmoid_of(s) * (one - g * g)
                dh[i, j] = total * one_minus_sigmoid_of(s)
        if into is not None and w.gain.size:
            normalise_backward(d, units, w.gain, run.normal[t, lo:hi], run.inverse[t, lo:hi], into.gain, into.shift)
        prefetch = step_of(run.act, t - 1, lo, hi), step_of(run.h, t - 2, lo, hi), step_of(dh_out, t - 1, lo, hi)
        sum_of_products(dh, dh, ((d[:, : 2 * units], w.U),), 0, units, prefetch)
        if into is not None and t % recent.shape[0] == 0:
            add_state_gradients(run.h, h0, recent, t, lo, hi, into.Ut, 0, 2 * units)
            add_input_gradients(x, recent, t, lo, hi, w.W, into.Wt, into.b, dx)


@compiled
@no_type_check
def tangent(x, w, dot, h0, c0, run, h_dot, c_dot, lo, hi):
    """``dh' = (1-s) dh + s (1-g^2) da_h + (g-h) s(1-s) da_s``."""
    use_whole_registers()
    units = h0.shape[1]
    n = np.uint64(units)
    one = h0.dtype.type(1)
    da = aligned(hi - lo, w.b.size, h0)
    still = np.zeros((hi - lo, units), h0.dtype)
    for t in range(x.shape[0]):
        before = run.h[t - 1, lo:hi] if t > 0 else h0[lo:hi]
        before_dot = h_dot[t - 1, lo:hi] if t > 0 else still
        now_dot, act = h_dot[t, lo:hi], run.act[t, lo:hi]
        sum_of_products(da, dot.b, ((x[t, lo:hi], dot.Wt), (before, dot.Ut)), 0, 2 * units)
        if t > 0:
            sum_of_products(da, da, ((before_dot, w.Ut),), 0, 2 * units)
        if w.gain.size:
            normalise_tangent(da, units, w.gain, run.normal[t, lo:hi], run.inverse[t, lo:hi], dot.gain, dot.shift)
        for i in range(hi - lo):
            for j in range(n):
                s, g = act[i, j], act[i, n + j]
                g_dot, s_dot = (one - g * g) * da[i, n + j], sigmoid_of(s) * one_minus_sigmoid_of(s) * da[i, j]
                now_dot[i, j] = (
                    one_minus_sigmoid_of(s) * before_dot[i, j] + sigmoid_of(s) * g_dot + (g - before[i, j]) * s_dot
                )
