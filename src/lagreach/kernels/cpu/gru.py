"""GRU in the paper's form: blocks z, r, h; the reset gate acts before the product with U_h."""

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
    """``h' = (1-z) h + z g``, where g sees ``r h``."""
    use_whole_registers()
    units = h0.shape[1]
    n = np.uint64(units)
    for t in range(x.shape[0]):
        k = min(t, run.act.shape[0] - 1)
        before = run.h[t - 1, lo:hi] if t > 0 else h0[lo:hi]
        now, act = run.h[t, lo:hi], run.act[k, lo:hi]
        prefetch = step_of(run.act, k + 1, lo, hi), step_of(run.h, t + 1, lo, hi), step_of(run.rh, k + 1, lo, hi)
        sum_of_products(act, w.b, ((x[t, lo:hi], w.Wt), (before, w.Ut)), 0, 2 * units, prefetch)
        activate_gates(act, 0, 2 * units)
        reset = run.rh[k, lo:hi]
        for i in range(hi - lo):
            for j in range(n):
                reset[i, j] = sigmoid_of(act[i, n + j]) * before[i, j]
        sum_of_products(act, w.b, ((x[t, lo:hi], w.Wt), (reset, w.Ut)), 2 * units, 3 * units, prefetch)
        if w.gain.size:
            normalise(act, 2 * units, w.gain, w.shift, run.normal[k, lo:hi], run.inverse[k, lo:hi])
        activate(act, 2 * units, 3 * units)
        for i in range(hi - lo):
            for j in range(n):
                z, g = act[i, j], act[i, n + n + j]
                now[i, j] = one_minus_sigmoid_of(z) * before[i, j] + sigmoid_of(z) * g
        read_out(now, w, run.read, t, lo, hi)


@compiled
@no_type_check
def summed(x, w, h, c, run, turned, pull, near, target, share, index, read, sums, picked):
    """See `sum_along`."""
    sum_along(forward, x, w, h, c, run, turned, pull, near, target, share, index, read, sums, picked)


@compiled
@no_type_check
def backward(x, w, h0, c0, run, dh_out, dc_out, into, room, dh0, dc0, dx, lo, hi):
    """``da_z = dh (g-h) z(1-z)``, ``da_h = dh z (1-g^2)``, and with ``q = U_h^T da_h``: ``da_r = q h r(1-r)``."""
    use_whole_registers()
    units = h0.shape[1]
    n = np.uint64(units)
    one = h0.dtype.type(1)
    dh = dh0[lo:hi]
    recent = some_steps(room, hi - lo, w.b.size)
    through_reset, nothing = aligned(hi - lo, units, h0), np.zeros(units, h0.dtype)
    for t in range(x.shape[0] - 1, -1, -1):
        d = recent[t % recent.shape[0]]
        before = run.h[t - 1, lo:hi] if t > 0 else h0[lo:hi]
        act = run.act[t, lo:hi]
        if into is not None and w.read.size:
            add_read(dh, dh_out, run.h, w, into, t, lo, hi)
        else:
            add_arriving(dh, dh_out, t, lo, hi)
        for i in range(hi - lo):
            for j in range(n):  # two loops, because the compiler does not make vectors of one
                z, g, total = act[i, j], act[i, n + n + j], dh[i, j]
                d[i, n + n + j] = total * sigmoid_of(z) * (one - g * g)
            for j in range(n):
                z, g, total = act[i, j], act[i, n + n + j], dh[i, j]
                d[i, j] = total * sigmoid_of(z) * one_minus_sigmoid_of(z) * (g - before[i, j])
                dh[i, j] = total * one_minus_sigmoid_of(z)
        if into is not None and w.gain.size:
            normalise_backward(d, 2 * units, w.gain, run.normal[t, lo:hi], run.inverse[t, lo:hi], into.gain, into.shift)
        prefetch = (
            step_of(run.act, t - 1, lo, hi),
            step_of(run.h, t - 2, lo, hi),
            step_of(run.rh, t - 1, lo, hi),
            step_of(dh_out, t - 1, lo, hi),
        )
        sum_of_products(through_reset, nothing, ((d[:, 2 * units :], w.U[2 * units :]),), 0, units, prefetch)
        for i in range(hi - lo):
            for j in range(n):
                r, q = act[i, n + j], through_reset[i, j]
                d[i, n + j] = q * before[i, j] * sigmoid_of(r) * one_minus_sigmoid_of(r)
                dh[i, j] += q * sigmoid_of(r)
        sum_of_products(dh, dh, ((d[:, : 2 * units], w.U[: 2 * units]),), 0, units, prefetch)
        if into is not None and t % recent.shape[0] == 0:
            steps = min(recent.shape[0], x.shape[0] - t)
            add_state_gradients(run.h, h0, recent, t, lo, hi, into.Ut, 0, 2 * units)
            sum_of_products(into.Ut, into.Ut, ((run.rh[t : t + steps, lo:hi], recent[:steps]),), 2 * units, 3 * units)
            add_input_gradients(x, recent, t, lo, hi, w.W, into.Wt, into.b, dx)


@compiled
@no_type_check
def tangent(x, w, dot, h0, c0, run, h_dot, c_dot, lo, hi):
    """``dh' = (1-z) dh + z dg + (g-h) dz``, where dg sees ``r dh + h dr``."""
    use_whole_registers()
    units = h0.shape[1]
    n = np.uint64(units)
    one = h0.dtype.type(1)
    da = aligned(hi - lo, w.b.size, h0)
    still = np.zeros((hi - lo, units), h0.dtype)
    reset_dot = aligned(hi - lo, units, h0)
    for t in range(x.shape[0]):
        before = run.h[t - 1, lo:hi] if t > 0 else h0[lo:hi]
        before_dot = h_dot[t - 1, lo:hi] if t > 0 else still
        now_dot, act = h_dot[t, lo:hi], run.act[t, lo:hi]
        sum_of_products(da, dot.b, ((x[t, lo:hi], dot.Wt), (before, dot.Ut)), 0, 2 * units)
        if t > 0:
            sum_of_products(da, da, ((before_dot, w.Ut),), 0, 2 * units)
        for i in range(hi - lo):
            for j in range(n):
                r = act[i, n + j]
                reset_dot[i, j] = sigmoid_of(r) * (
                    before_dot[i, j] + one_minus_sigmoid_of(r) * da[i, n + j] * before[i, j]
                )
        sum_of_products(da, dot.b, ((x[t, lo:hi], dot.Wt), (run.rh[t, lo:hi], dot.Ut)), 2 * units, 3 * units)
        sum_of_products(da, da, ((reset_dot, w.Ut),), 2 * units, 3 * units)
        if w.gain.size:
            normalise_tangent(da, 2 * units, w.gain, run.normal[t, lo:hi], run.inverse[t, lo:hi], dot.gain, dot.shift)
        for i in range(hi - lo):
            for j in range(n):
                z, g = act[i, j], act[i, n + n + j]
                g_dot, z_dot = (one - g * g) * da[i, n + n + j], sigmoid_of(z) * one_minus_sigmoid_of(z) * da[i, j]
                now_dot[i, j] = (
                    one_minus_sigmoid_of(z) * before_dot[i, j] + sigmoid_of(z) * g_dot + (g - before[i, j]) * z_dot
                )
