"""TorchGRU: blocks r, z, n and a fourth, ``c = U_n h + c_n``, which the reset gate multiplies."""

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
    """``h' = z h + (1-z) n``, ``n = tanh(W_n x + b_n + r c)``."""
    use_whole_registers()
    units = h0.shape[1]
    n = np.uint64(units)
    for t in range(x.shape[0]):
        k = min(t, run.act.shape[0] - 1)
        before = run.h[t - 1, lo:hi] if t > 0 else h0[lo:hi]
        now, act = run.h[t, lo:hi], run.act[k, lo:hi]
        prefetch = step_of(run.act, k + 1, lo, hi), step_of(run.h, t + 1, lo, hi)
        sum_of_products(act, w.b, ((x[t, lo:hi], w.Wt), (before, w.Ut)), 0, 2 * units, prefetch)
        sum_of_products(act, w.b, ((x[t, lo:hi], w.Wt),), 2 * units, 3 * units)
        sum_of_products(act, w.b, ((before, w.Ut),), 3 * units, 4 * units)
        activate_gates(act, 0, 2 * units)
        for i in range(hi - lo):
            for j in range(n):
                act[i, n + n + j] += sigmoid_of(act[i, j]) * act[i, n + n + n + j]
        if w.gain.size:
            normalise(act, 2 * units, w.gain, w.shift, run.normal[k, lo:hi], run.inverse[k, lo:hi])
        activate(act, 2 * units, 3 * units)
        for i in range(hi - lo):
            for j in range(n):
                z, g = act[i, n + j], act[i, n + n + j]
                now[i, j] = sigmoid_of(z) * before[i, j] + one_minus_sigmoid_of(z) * g
        read_out(now, w, run.read, t, lo, hi)


@compiled
@no_type_check
def summed(x, w, h, c, run, turned, pull, near, target, share, index, read, sums, picked):
    """See `sum_along`."""
    sum_along(forward, x, w, h, c, run, turned, pull, near, target, share, index, read, sums, picked)


@compiled
@no_type_check
def backward(x, w, h0, c0, run, dh_out, dc_out, into, room, dh0, dc0, dx, lo, hi):
    """``da_z = dh (h-n) z(1-z)``, ``da_n = dh (1-z)(1-n^2)``, ``da_r = da_n c r(1-r)``, ``dc = da_n r``."""
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
                z, g, total = act[i, n + j], act[i, n + n + j], dh[i, j]
                d[i, n + j] = total * sigmoid_of(z) * one_minus_sigmoid_of(z) * (before[i, j] - g)
                d[i, n + n + j] = total * one_minus_sigmoid_of(z) * (one - g * g)
                dh[i, j] = total * sigmoid_of(z)
        if into is not None and w.gain.size:
            normalise_backward(d, 2 * units, w.gain, run.normal[t, lo:hi], run.inverse[t, lo:hi], into.gain, into.shift)
        for i in range(hi - lo):
            for j in range(n):
                r, da_n = act[i, j], d[i, n + n + j]
                d[i, j] = da_n * act[i, n + n + n + j] * sigmoid_of(r) * one_minus_sigmoid_of(r)
            for j in range(n):
                d[i, n + n + n + j] = d[i, n + n + j] * sigmoid_of(act[i, j])
        prefetch = step_of(run.act, t - 1, lo, hi), step_of(run.h, t - 2, lo, hi), step_of(dh_out, t - 1, lo, hi)
        sum_of_products(dh, dh, ((d[:, : 2 * units], w.U[: 2 * units]),), 0, units, prefetch)
        sum_of_products(dh, dh, ((d[:, 3 * units :], w.U[3 * units :]),), 0, units, prefetch)
        if into is not None and t % recent.shape[0] == 0:
            add_state_gradients(run.h, h0, recent, t, lo, hi, into.Ut, 0, 2 * units)
            add_state_gradients(run.h, h0, recent, t, lo, hi, into.Ut, 3 * units, 4 * units)
            add_input_gradients(x, recent, t, lo, hi, w.W, into.Wt, into.b, dx)


@compiled
@no_type_check
def tangent(x, w, dot, h0, c0, run, h_dot, c_dot, lo, hi):
    """``dh' = z dh + (1-z) dn + (h-n) dz``."""
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
        sum_of_products(da, dot.b, ((x[t, lo:hi], dot.Wt),), 2 * units, 3 * units)
        sum_of_products(da, dot.b, ((before, dot.Ut),), 3 * units, 4 * units)
        if t > 0:
            sum_of_products(da, da, ((before_dot, w.Ut),), 0, 2 * units)
            sum_of_products(da, da, ((before_dot, w.Ut),), 3 * units, 4 * units)
        for i in range(hi - lo):
            for j in range(n):
                r, c = act[i, j], act[i, n + n + n + j]
                da[i, n + n + j] += sigmoid_of(r) * (da[i, n + n + n + j] + one_minus_sigmoid_of(r) * da[i, j] * c)
        if w.gain.size:
            normalise_tangent(da, 2 * units, w.gain, run.normal[t, lo:hi], run.inverse[t, lo:hi], dot.gain, dot.shift)
        for i in range(hi - lo):
            for j in range(n):
                z, g = act[i, n + j], act[i, n + n + j]
                g_dot, z_dot = (one - g * g) * da[i, n + n + j], sigmoid_of(z) * one_minus_sigmoid_of(z) * da[i, n + j]
                now_dot[i, j] = (
                    sigmoid_of(z) * before_dot[i, j] + one_minus_sigmoid_of(z) * g_dot + (before[i, j] - g) * z_dot
                )


@compiled
@no_type_check
def slopes(act, before, into, retained, through):
    """What `pullback.elementwise` takes, of steps that have been run: slopes of n and z, and from n to r and its hidden part."""
    use_whole_registers()
    n = np.uint64(before.shape[1])
    one = before.dtype.type(1)
    for row in range(before.shape[0]):
        for j in range(n):
            r, z, g, hidden = act[row, j], act[row, n + j], act[row, n + n + j], act[row, n + n + n + j]
            into[row, j] = one_minus_sigmoid_of(z) * (one - g * g)
            into[row, n + j] = (before[row, j] - g) * sigmoid_of(z) * one_minus_sigmoid_of(z)
            through[row, j] = hidden * sigmoid_of(r) * one_minus_sigmoid_of(r)
            through[row, n + j] = sigmoid_of(r)
            retained[row, j] = sigmoid_of(z)
