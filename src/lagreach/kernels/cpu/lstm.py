"""LSTM: blocks i, f, g, o; the states h and c are kept apart."""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from lagreach.kernels.cpu.compiled import aligned, compiled, use_whole_registers
from lagreach.kernels.cpu.nonlinear import activate, activate_gates, one_minus_sigmoid_of, sigmoid_of, tanh
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
    """``c' = f c + i g``, ``h' = o tanh(c')``."""
    use_whole_registers()
    units = h0.shape[1]
    n = np.uint64(units)
    for t in range(x.shape[0]):
        k = min(t, run.act.shape[0] - 1)
        before = run.h[t - 1, lo:hi] if t > 0 else h0[lo:hi]
        now, act = run.h[t, lo:hi], run.act[k, lo:hi]
        rooms = run.c.shape[0]  # all of time, or two that take turns
        c_before, c_now = run.c[(t - 1) % rooms, lo:hi] if t > 0 else c0[lo:hi], run.c[t % rooms, lo:hi]
        prefetch = step_of(run.act, k + 1, lo, hi), step_of(run.h, t + 1, lo, hi), step_of(run.c, t + 1, lo, hi)
        sum_of_products(act, w.b, ((x[t, lo:hi], w.Wt), (before, w.Ut)), 0, 4 * units, prefetch)
        if w.gain.size:
            normalise(act, 2 * units, w.gain, w.shift, run.normal[k, lo:hi], run.inverse[k, lo:hi])
        activate_gates(act, 0, 2 * units)
        activate(act, 2 * units, 3 * units)
        activate_gates(act, 3 * units, 4 * units)
        for i in range(hi - lo):
            for j in range(n):
                value = sigmoid_of(act[i, n + j]) * c_before[i, j] + sigmoid_of(act[i, j]) * act[i, n + n + j]
                c_now[i, j], now[i, j] = value, value
        activate(now, 0, units)
        for i in range(hi - lo):
            for j in range(n):
                now[i, j] *= sigmoid_of(act[i, n + n + n + j])
        read_out(now, w, run.read, t, lo, hi)


@compiled
@no_type_check
def summed(x, w, h, c, run, turned, pull, near, target, share, index, read, sums, picked):
    """See `sum_along`."""
    sum_along(forward, x, w, h, c, run, turned, pull, near, target, share, index, read, sums, picked)


@compiled
@no_type_check
def backward(x, w, h0, c0, run, dh_out, dc_out, into, room, dh0, dc0, dx, lo, hi):
    """``da_o = dh tanh(c') o(1-o)``; with ``e = dc + dh o (1 - tanh(c')^2)``: ``e g i(1-i)``, ``e c f(1-f)``, ``e i (1-g^2)``."""
    use_whole_registers()
    units = h0.shape[1]
    n = np.uint64(units)
    one = h0.dtype.type(1)
    dh = dh0[lo:hi]
    recent = some_steps(room, hi - lo, w.b.size)
    dc = dc0[lo:hi]
    squashed, nothing = aligned(hi - lo, units, h0), np.zeros(units, h0.dtype)
    for t in range(x.shape[0] - 1, -1, -1):
        d = recent[t % recent.shape[0]]
        act = run.act[t, lo:hi]
        if into is not None and w.read.size:
            add_read(dh, dh_out, run.h, w, into, t, lo, hi)
        else:
            add_arriving(dh, dh_out, t, lo, hi)
        c_before, c_now = run.c[t - 1, lo:hi] if t > 0 else c0[lo:hi], run.c[t, lo:hi]
        if dc_out.size:
            for i in range(hi - lo):
                for j in range(n):
                    dc[i, j] += dc_out[t, lo + i, j]
        for i in range(hi - lo):
            for j in range(n):
                squashed[i, j] = tanh(c_now[i, j])
        for i in range(hi - lo):
            for j in range(n):
                o, th, total = act[i, n + n + n + j], squashed[i, j], dh[i, j]
                d[i, n + n + n + j] = total * th * sigmoid_of(o) * one_minus_sigmoid_of(o)
                dc[i, j] += total * sigmoid_of(o) * (one - th * th)
        for i in range(hi - lo):
            for j in range(n):
                d[i, j] = dc[i, j] * act[i, n + n + j] * sigmoid_of(act[i, j]) * one_minus_sigmoid_of(act[i, j])
            for j in range(n):
                d[i, n + n + j] = dc[i, j] * sigmoid_of(act[i, j]) * (one - act[i, n + n + j] * act[i, n + n + j])
            for j in range(n):
                d[i, n + j] = (
                    dc[i, j] * c_before[i, j] * sigmoid_of(act[i, n + j]) * one_minus_sigmoid_of(act[i, n + j])
                )
                dc[i, j] *= sigmoid_of(act[i, n + j])
        if into is not None and w.gain.size:
            normalise_backward(d, 2 * units, w.gain, run.normal[t, lo:hi], run.inverse[t, lo:hi], into.gain, into.shift)
        prefetch = (
            step_of(run.act, t - 1, lo, hi),
            step_of(run.h, t - 2, lo, hi),
            step_of(run.c, t - 2, lo, hi),
            step_of(dh_out, t - 1, lo, hi),
        )
        sum_of_products(dh, nothing, ((d, w.U),), 0, units, prefetch)
        if into is not None and t % recent.shape[0] == 0:
            add_state_gradients(run.h, h0, recent, t, lo, hi, into.Ut, 0, 4 * units)
            add_input_gradients(x, recent, t, lo, hi, w.W, into.Wt, into.b, dx)


@compiled
@no_type_check
def tangent(x, w, dot, h0, c0, run, h_dot, c_dot, lo, hi):
    """``dc' = f dc + c df + i dg + g di``, ``dh' = tanh(c') do + o (1 - tanh(c')^2) dc'``."""
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
        c_before, c_now = run.c[t - 1, lo:hi] if t > 0 else c0[lo:hi], run.c[t, lo:hi]
        c_before_dot, c_now_dot = c_dot[t - 1, lo:hi] if t > 0 else still, c_dot[t, lo:hi]
        sum_of_products(da, dot.b, ((x[t, lo:hi], dot.Wt), (before, dot.Ut)), 0, 4 * units)
        if t > 0:
            sum_of_products(da, da, ((before_dot, w.Ut),), 0, 4 * units)
        if w.gain.size:
            normalise_tangent(da, 2 * units, w.gain, run.normal[t, lo:hi], run.inverse[t, lo:hi], dot.gain, dot.shift)
        for i in range(hi - lo):
            for j in range(n):
                a_i, a_f, g, o = act[i, j], act[i, n + j], act[i, n + n + j], act[i, n + n + n + j]
                i_dot, f_dot = (
                    sigmoid_of(a_i) * one_minus_sigmoid_of(a_i) * da[i, j],
                    sigmoid_of(a_f) * one_minus_sigmoid_of(a_f) * da[i, n + j],
                )
                g_dot, o_dot = (
                    (one - g * g) * da[i, n + n + j],
                    sigmoid_of(o) * one_minus_sigmoid_of(o) * da[i, n + n + n + j],
                )
                value = (
                    sigmoid_of(a_f) * c_before_dot[i, j] + c_before[i, j] * f_dot + sigmoid_of(a_i) * g_dot + g * i_dot
                )
                th = tanh(c_now[i, j])
                c_now_dot[i, j] = value
                now_dot[i, j] = th * o_dot + sigmoid_of(o) * (one - th * th) * value


@compiled
@no_type_check
def slopes(act, c_before, c_now, output, i_slope, f_slope, g_slope, o_slope, forget):
    """What `pullback.lstm` takes, of steps that have been run."""
    use_whole_registers()
    n = np.uint64(c_now.shape[1])
    one = c_now.dtype.type(1)
    for row in range(c_now.shape[0]):
        for j in range(n):
            output[row, j] = tanh(c_now[row, j])
        for j in range(n):
            i, f, g, o = act[row, j], act[row, n + j], act[row, n + n + j], act[row, n + n + n + j]
            th = output[row, j]
            forget[row, j] = sigmoid_of(f)
            i_slope[row, j] = g * sigmoid_of(i) * one_minus_sigmoid_of(i)
            f_slope[row, j] = c_before[row, j] * sigmoid_of(f) * one_minus_sigmoid_of(f)
            g_slope[row, j] = (one - g * g) * sigmoid_of(i)
            o_slope[row, j] = th * sigmoid_of(o) * one_minus_sigmoid_of(o)
            output[row, j] = sigmoid_of(o) * (one - th * th)
