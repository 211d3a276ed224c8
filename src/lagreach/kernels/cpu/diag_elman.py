"""DiagElman with tanh: block h, and a U that is one row: what unit j sees of itself."""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from lagreach.kernels.cpu.compiled import compiled, use_whole_registers
from lagreach.kernels.cpu.nonlinear import activate
from lagreach.kernels.cpu.parts import add_arriving, add_input_gradients, add_read, read_out, some_steps
from lagreach.kernels.cpu.summed import sum_along
from lagreach.kernels.cpu.tiles import sum_of_products


@compiled
@no_type_check
def forward(x, w, h0, c0, run, lo, hi):
    """``h' = tanh(W x + b + u h)``."""
    use_whole_registers()
    units = h0.shape[1]
    for t in range(x.shape[0]):
        before, now = run.h[t - 1, lo:hi] if t > 0 else h0[lo:hi], run.h[t, lo:hi]
        sum_of_products(now, w.b, ((x[t, lo:hi], w.Wt),), 0, units)
        for i in range(hi - lo):
            for j in range(units):
                now[i, j] += w.U[0, j] * before[i, j]
        activate(now, 0, units)
        read_out(now, w, run.read, t, lo, hi)


@compiled
@no_type_check
def summed(x, w, h, c, run, turned, pull, near, target, share, index, read, sums, picked):
    """See `sum_along`."""
    sum_along(forward, x, w, h, c, run, turned, pull, near, target, share, index, read, sums, picked)


@compiled
@no_type_check
def backward(x, w, h0, c0, run, dh_out, dc_out, into, room, dh0, dc0, dx, lo, hi):
    """``da = dh (1 - h'^2)``, ``du = da h``."""
    use_whole_registers()
    units = h0.shape[1]
    one = h0.dtype.type(1)
    dh = dh0[lo:hi]
    recent = some_steps(room, hi - lo, w.b.size)
    for t in range(x.shape[0] - 1, -1, -1):
        d = recent[t % recent.shape[0]]
        before, now = run.h[t - 1, lo:hi] if t > 0 else h0[lo:hi], run.h[t, lo:hi]
        if into is not None and w.read.size:
            add_read(dh, dh_out, run.h, w, into, t, lo, hi)
        else:
            add_arriving(dh, dh_out, t, lo, hi)
        for i in range(hi - lo):
            for j in range(units):
                d[i, j] = dh[i, j] * (one - now[i, j] * now[i, j])
                dh[i, j] = d[i, j] * w.U[0, j]
        if into is not None:
            for i in range(hi - lo):
                for j in range(units):
                    into.Ut[0, j] += d[i, j] * before[i, j]
        if into is not None and t % recent.shape[0] == 0:
            add_input_gradients(x, recent, t, lo, hi, w.W, into.Wt, into.b, dx)


@compiled
@no_type_check
def tangent(x, w, dot, h0, c0, run, h_dot, c_dot, lo, hi):
    """``dh' = (1 - h'^2) (dW x + db + du h + u dh)``."""
    use_whole_registers()
    units = h0.shape[1]
    one = h0.dtype.type(1)
    still = np.zeros((hi - lo, units), h0.dtype)
    for t in range(x.shape[0]):
        before, now = run.h[t - 1, lo:hi] if t > 0 else h0[lo:hi], run.h[t, lo:hi]
        before_dot, now_dot = h_dot[t - 1, lo:hi] if t > 0 else still, h_dot[t, lo:hi]
        sum_of_products(now_dot, dot.b, ((x[t, lo:hi], dot.Wt),), 0, units)
        for i in range(hi - lo):
            for j in range(units):
                moved = now_dot[i, j] + dot.U[0, j] * before[i, j] + w.U[0, j] * before_dot[i, j]
                now_dot[i, j] = (one - now[i, j] * now[i, j]) * moved
