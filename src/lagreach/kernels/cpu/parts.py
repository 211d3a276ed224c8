"""What the passes of all cells have in common: products with the weights, their gradients, and LayerNorm on rows.

The gradient of a weight is a sum over rows and steps. One step has few rows, so the gradients of pre-activations are kept
for some steps (`some_steps`) and the products are made for all of them at once (`add_gradients`): then the sums are
long enough to stay in registers. Who wants these gradients themselves gives room for those of all steps.
`lo` and `hi` choose rows, `first` and `last` columns, that is, a group of blocks.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from lagreach.cells._candidate import EPS
from lagreach.kernels.cpu.compiled import inlined
from lagreach.kernels.cpu.tiles import sum_of_products


@inlined
@no_type_check
def step_of(a, t, lo, hi):
    """Rows of step t, or of the nearest step there is."""
    return a[min(max(t, 0), a.shape[0] - 1), lo:hi]


@inlined
@no_type_check
def some_steps(room, rows, width):
    """The gradients of pre-activations (step, row, column) of as many steps as there is room for."""
    steps = room.size // (rows * width)
    return room[: steps * rows * width].reshape(steps, rows, width)


@inlined
@no_type_check
def read_out(h, w, out, t, lo, hi):
    """Read the states of a step, if there is a readout."""
    if not w.read.size:
        return
    for i in range(hi - lo):
        for k in range(w.read.shape[0]):
            total = w.offset[k]
            for j in range(np.uint64(w.read.shape[1])):
                total += h[i, j] * w.read[k, j]
            out[t, lo + i, k] = total


@inlined
@no_type_check
def add_arriving(dh, out, t, lo, hi):
    """Add the gradient `out` of the states of a step."""
    for i in range(hi - lo):
        for j in range(np.uint64(dh.shape[1])):
            dh[i, j] += out[t, lo + i, j]


@inlined
@no_type_check
def add_read(dh, out, h, w, into, t, lo, hi):
    """Add what comes of the gradient `out` of what was read of a step's states, and the gradients of the readout."""
    for i in range(hi - lo):
        for k in range(w.read.shape[0]):
            g = out[t, lo + i, k]
            into.offset[k] += g
            for j in range(np.uint64(dh.shape[1])):
                dh[i, j] += g * w.read[k, j]
                into.read[k, j] += g * h[t, lo + i, j]


@inlined
@no_type_check
def add_state_gradients(h, h0, d, t, lo, hi, dUt, first, last):
    """Add the gradients of U over the steps from t on that `d` holds; each step saw the state before it."""
    steps, start = min(d.shape[0], h.shape[0] - t), max(t, 1)
    sum_of_products(dUt, dUt, ((h[start - 1 : t + steps - 1, lo:hi], d[start - t : steps]),), first, last)
    if t == 0:
        initial = np.empty((1, hi - lo, h0.shape[1]), h0.dtype)
        for i in range(hi - lo):
            for j in range(h0.shape[1]):
                initial[0, i, j] = h0[lo + i, j]
        sum_of_products(dUt, dUt, ((initial[:, 0 : hi - lo], d[:1]),), first, last)


@inlined
@no_type_check
def add_input_gradients(x, d, t, lo, hi, W, dWt, db, dx):
    """Add the gradients of W, b and, if `dx` is not empty, of the input over the steps from t on that `d` holds."""
    steps, width = min(d.shape[0], x.shape[0] - t), dWt.shape[1]
    sum_of_products(dWt, dWt, ((x[t : t + steps, lo:hi], d[:steps]),), 0, width)
    for k in range(steps):
        for i in range(d.shape[1]):
            for j in range(d.shape[2]):
                db[j] += d[k, i, j]
        if dx.size:
            sum_of_products(dx[t + k, lo:hi], dx[t + k, lo:hi], ((d[k, :, :width], W),), 0, dx.shape[2])


@inlined
@no_type_check
def normalise(a, lo, gain, shift, normal, inverse):
    """LayerNorm of ``a[:, lo:lo+units]`` in place; keep the normalised values and one over the standard deviation."""
    units = gain.size
    share, eps = gain.dtype.type(1.0 / units), gain.dtype.type(EPS)
    for i in range(a.shape[0]):
        mean = gain.dtype.type(0)
        for j in range(units):
            mean += a[i, lo + j] * share
        variance = gain.dtype.type(0)
        for j in range(units):
            centred = a[i, lo + j] - mean
            variance += centred * centred * share
        inverse[i] = gain.dtype.type(1) / np.sqrt(variance + eps)
        for j in range(units):
            normal[i, j] = (a[i, lo + j] - mean) * inverse[i]
            a[i, lo + j] = gain[j] * normal[i, j] + shift[j]


@inlined
@no_type_check
def normalise_backward(d, lo, gain, normal, inverse, d_gain, d_shift):
    """Turn the gradient of the LayerNorm's result in ``d[:, lo:lo+units]`` into that of its argument."""
    for i in range(d.shape[0]):
        for j in range(gain.size):
            d_gain[j] += d[i, lo + j] * normal[i, j]
            d_shift[j] += d[i, lo + j]
            d[i, lo + j] *= gain[j]
    normalise_slope(d, lo, normal, inverse)


@inlined
@no_type_check
def normalise_tangent(da, lo, gain, normal, inverse, gain_dot, shift_dot):
    """Push a tangent in ``da[:, lo:lo+units]`` through the LayerNorm, in place."""
    normalise_slope(da, lo, normal, inverse)
    for i in range(da.shape[0]):
        for j in range(gain.size):
            da[i, lo + j] = gain[j] * da[i, lo + j] + gain_dot[j] * normal[i, j] + shift_dot[j]


@inlined
@no_type_check
def normalise_slope(v, lo, normal, inverse):
    """Multiply ``v[:, lo:lo+units]`` by the derivative of the normalised values, which is symmetric, in place."""
    units = normal.shape[1]
    share = v.dtype.type(1.0 / units)
    for i in range(v.shape[0]):
        mean = v.dtype.type(0)
        along = v.dtype.type(0)
        for j in range(units):
            mean += v[i, lo + j] * share
            along += v[i, lo + j] * normal[i, j] * share
        for j in range(units):
            v[i, lo + j] = (v[i, lo + j] - mean - normal[i, j] * along) * inverse[i]
