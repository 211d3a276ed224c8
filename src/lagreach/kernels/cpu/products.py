"""Products of small matrices, added to what is there, and LayerNorm on rows.

Blocks of 4 rows by 4 terms are held in registers while the innermost loop runs along contiguous rows, which compilers turn
into vector instructions; the weights stay in the cache. At the sizes of a recurrent step this is as fast as a BLAS, which
must set itself up on every call. `lo` and `hi` choose columns, that is, a group of blocks.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from lagreach.cells._candidate import EPS
from lagreach.kernels.cpu.compiled import compiled


@compiled
@no_type_check
def add_product(A, W, C, lo, hi):
    """``C[:, lo:hi] += A @ W[:, lo:hi]``."""
    rows, terms = A.shape
    start, stop = np.uint64(lo), np.uint64(hi)  # a signed index might count from the end, which spoils the vector loop
    even_rows, even_terms = rows - rows % 4, terms - terms % 4
    for i in range(0, even_rows, 4):
        for k in range(0, even_terms, 4):
            a00, a01, a02, a03 = A[i, k], A[i, k + 1], A[i, k + 2], A[i, k + 3]
            a10, a11, a12, a13 = A[i + 1, k], A[i + 1, k + 1], A[i + 1, k + 2], A[i + 1, k + 3]
            a20, a21, a22, a23 = A[i + 2, k], A[i + 2, k + 1], A[i + 2, k + 2], A[i + 2, k + 3]
            a30, a31, a32, a33 = A[i + 3, k], A[i + 3, k + 1], A[i + 3, k + 2], A[i + 3, k + 3]
            for j in range(start, stop):
                w0, w1, w2, w3 = W[k, j], W[k + 1, j], W[k + 2, j], W[k + 3, j]
                C[i, j] += a00 * w0 + a01 * w1 + a02 * w2 + a03 * w3
                C[i + 1, j] += a10 * w0 + a11 * w1 + a12 * w2 + a13 * w3
                C[i + 2, j] += a20 * w0 + a21 * w1 + a22 * w2 + a23 * w3
                C[i + 3, j] += a30 * w0 + a31 * w1 + a32 * w2 + a33 * w3
        for k in range(even_terms, terms):
            a0, a1, a2, a3 = A[i, k], A[i + 1, k], A[i + 2, k], A[i + 3, k]
            for j in range(start, stop):
                C[i, j] += a0 * W[k, j]
                C[i + 1, j] += a1 * W[k, j]
                C[i + 2, j] += a2 * W[k, j]
                C[i + 3, j] += a3 * W[k, j]
    for i in range(even_rows, rows):
        for k in range(terms):
            a = A[i, k]
            for j in range(start, stop):
                C[i, j] += a * W[k, j]


@compiled
@no_type_check
def project(x, Wt, b, a):
    """``a = b + W x`` for all blocks that have input weights, the bias alone for those that do not."""
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            a[i, j] = b[j]
    add_product(x, Wt, a, 0, Wt.shape[1])


@compiled
@no_type_check
def pull_to_state(before, d, U, dh, dUt, lo, hi):
    """Pull the gradients d of some blocks back to the state they were computed from, and add those of their U."""
    add_product(d[:, lo:hi], U[lo:hi], dh, 0, dh.shape[1])
    add_product(before.T, d, dUt, lo, hi)


@compiled
@no_type_check
def pull_to_input(x, d, W, dWt, db, dx):
    """Add the gradients of W, b and, if `dx` is not empty, of the input."""
    width = dWt.shape[1]
    add_product(x.T, d, dWt, 0, width)
    for i in range(d.shape[0]):
        for j in range(d.shape[1]):
            db[j] += d[i, j]
    if dx.size:
        add_product(d[:, :width], W, dx, 0, dx.shape[1])


@compiled
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


@compiled
@no_type_check
def normalise_backward(d, lo, gain, normal, inverse, d_gain, d_shift):
    """Turn the gradient of the LayerNorm's result in ``d[:, lo:lo+units]`` into that of its argument."""
    units = gain.size
    share = gain.dtype.type(1.0 / units)
    for i in range(d.shape[0]):
        mean = gain.dtype.type(0)
        along = gain.dtype.type(0)
        for j in range(units):
            d_gain[j] += d[i, lo + j] * normal[i, j]
            d_shift[j] += d[i, lo + j]
            d[i, lo + j] *= gain[j]
            mean += d[i, lo + j] * share
            along += d[i, lo + j] * normal[i, j] * share
        for j in range(units):
            d[i, lo + j] = (d[i, lo + j] - mean - normal[i, j] * along) * inverse[i]


@compiled
@no_type_check
def normalise_tangent(da, lo, gain, normal, inverse, gain_dot, shift_dot):
    """Push a tangent in ``da[:, lo:lo+units]`` through the LayerNorm, in place."""
    units = gain.size
    share = gain.dtype.type(1.0 / units)
    for i in range(da.shape[0]):
        mean = gain.dtype.type(0)
        along = gain.dtype.type(0)
        for j in range(units):
            mean += da[i, lo + j] * share
            along += da[i, lo + j] * normal[i, j] * share
        for j in range(units):
            moved = (da[i, lo + j] - mean - normal[i, j] * along) * inverse[i]
            da[i, lo + j] = gain[j] * moved + gain_dot[j] * normal[i, j] + shift_dot[j]
