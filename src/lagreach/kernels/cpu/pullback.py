"""Transposed one-step Jacobians of many steps at once, as exact transport needs them at every lag.

torch would go over memory once for every factor and again for the products. Here a few rows at a time are scaled and
multiplied while they lie in the cache, and the memory of the next rows is asked for meanwhile.

All functions take the gradient at the states after the steps, the arrays and weights of a `RowForm`, and arrays to write
to: the spread, the gradient at the states before the steps and, unless `sizes` is empty, the largest absolute value in each
row of it. Of the spread only the rows in work are kept, in the first rows of its array, unless it is wanted `whole`.
Both gradients may lie in one array, if each row before stands earlier in it than the row after that it comes from.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import no_type_check

import numpy as np
import torch
from torch import Tensor

from lagreach.cells._pullback import RowForm
from lagreach.kernels.cpu.compiled import compiled, use_whole_registers
from lagreach.kernels.cpu.tiles import sum_of_products
from lagreach.progress import waiting

ROWS = 64  # in work at a time


@compiled
@no_type_check
def _measure(rows, sizes):
    """Largest absolute value of each row. Bits of positive numbers are in their order, and whole numbers are faster."""
    bits = rows.view(sizes.dtype)
    positive = np.iinfo(sizes.dtype).max  # all but the sign
    for i in range(sizes.shape[0]):
        largest = sizes.dtype.type(0)
        for j in range(np.uint64(bits.shape[1])):
            largest = max(largest, bits[i, j] & positive)
        sizes[i] = largest


@compiled
@no_type_check
def elementwise(after, slopes, shared, retained, recurrent, spread, before, whole, sizes):
    """``retained * after + spread recurrent``; the spread is after times slopes and the row sums of after times shared.

    `slopes` has some blocks side by side, `retained` a column for each unit, one for all, or none; `shared` may have none.
    The weights act on the last columns of the spread.
    """
    use_whole_registers()
    units = after.shape[1]
    n, blocks, first = np.uint64(units), np.uint64(slopes.shape[1] // units), spread.shape[1] - recurrent.shape[0]
    zero = after.dtype.type(0)
    for lo in range(0, after.shape[0], ROWS):
        hi = min(lo + ROWS, after.shape[0])
        then = slice(hi, min(hi + ROWS, after.shape[0]))
        start = lo if whole else 0
        here, to, d = after[lo:hi], before[lo:hi], spread[start : start + hi - lo]
        slope, sharing, by = slopes[lo:hi], shared[lo:hi], retained[lo:hi]
        for i in range(hi - lo):
            for k in range(blocks):
                for j in range(n):
                    d[i, k * n + j] = here[i, j] * slope[i, k * n + j]
            if sharing.shape[1]:
                total = zero
                for j in range(n):
                    total += here[i, j] * sharing[i, j]
                d[i, blocks * n] = total
            if by.shape[1] == 0:
                for j in range(n):
                    to[i, j] = zero
            elif by.shape[1] == 1:
                for j in range(n):
                    to[i, j] = here[i, j] * by[i, 0]
            else:
                for j in range(n):
                    to[i, j] = here[i, j] * by[i, j]
        soon = after[then], slopes[then], shared[then], retained[then], before[then]
        sum_of_products(to, to, ((d[:, first:], recurrent),), 0, units, soon)
        _measure(to, sizes[lo:hi])


@compiled
@no_type_check
def gru(after, slope, update, reset_slope, reset, retained, U_h, gates, spread, before, whole, sizes):
    """Spread to the candidate and the gates z and r; the columns behind them, for ``r h``, are left alone."""
    use_whole_registers()
    units = after.shape[1]
    n = np.uint64(units)
    nothing, through = np.zeros(units, after.dtype), np.empty((ROWS, units), after.dtype)
    for lo in range(0, after.shape[0], ROWS):
        hi = min(lo + ROWS, after.shape[0])
        then = slice(hi, min(hi + ROWS, after.shape[0]))
        start = lo if whole else 0
        here, to, d, via = after[lo:hi], before[lo:hi], spread[start : start + hi - lo], through[: hi - lo]
        own, z, r_slope, r, by = slope[lo:hi], update[lo:hi], reset_slope[lo:hi], reset[lo:hi], retained[lo:hi]
        for i in range(hi - lo):
            for j in range(n):
                d[i, j], d[i, n + j] = here[i, j] * own[i, j], here[i, j] * z[i, j]
        soon = after[then], slope[then], update[then]
        sum_of_products(via, nothing, ((d[:, :units], U_h),), 0, units, soon)
        for i in range(hi - lo):
            for j in range(n):
                d[i, n + n + j] = via[i, j] * r_slope[i, j]
                to[i, j] = here[i, j] * by[i, j] + via[i, j] * r[i, j]
        soon = reset_slope[then], reset[then], retained[then], before[then]
        sum_of_products(to, to, ((d[:, units : 3 * units], gates),), 0, units, soon)
        _measure(to, sizes[lo:hi])


@compiled
@no_type_check
def lstm(after, output, i_slope, f_slope, g_slope, o_slope, forget, recurrent, spread, before, whole, sizes):
    """Spread to the gates i, f, g, o; the columns behind them, for the new c, are left alone. `output` is dh/dc."""
    use_whole_registers()
    units = output.shape[1]
    n = np.uint64(units)
    nothing, led = np.zeros(units, after.dtype), np.empty((ROWS, units), after.dtype)
    for lo in range(0, after.shape[0], ROWS):
        hi = min(lo + ROWS, after.shape[0])
        then = slice(hi, min(hi + ROWS, after.shape[0]))
        start = lo if whole else 0
        here, to, d, dh = after[lo:hi], before[lo:hi], spread[start : start + hi - lo], led[: hi - lo]
        e, f, o = output[lo:hi], forget[lo:hi], o_slope[lo:hi]
        slope_i, slope_f, slope_g = i_slope[lo:hi], f_slope[lo:hi], g_slope[lo:hi]
        for i in range(hi - lo):
            for j in range(n):
                h = here[i, j]
                c = here[i, n + j] + h * e[i, j]
                d[i, j], d[i, n + j], d[i, n + n + j] = c * slope_i[i, j], c * slope_f[i, j], c * slope_g[i, j]
                d[i, n + n + n + j] = h * o[i, j]
                to[i, n + j] = c * f[i, j]
        slopes = i_slope[then], f_slope[then], g_slope[then], o_slope[then]
        soon = after[then], output[then], *slopes, forget[then], before[then]
        sum_of_products(dh, nothing, ((d[:, : 4 * units], recurrent),), 0, units, soon)
        for i in range(hi - lo):
            for j in range(n):
                to[i, j] = dh[i, j]
        _measure(to, sizes[lo:hi])


KERNELS = {"elementwise": elementwise, "gru": gru, "lstm": lstm}
BITS = {torch.float32: np.int32, torch.float64: np.int64}
_ready: set[tuple[str, torch.dtype]] = set()  # kernels that this process has called


class RowPass:
    """A pullback in one compiled call."""

    def __init__(self, form: RowForm) -> None:
        self._kernel, self._dtype = form.kernel, form.arrays[0].dtype
        self._arguments = [v.detach().numpy() for v in (*form.arrays, *form.weights)]

    def __call__(self, after: Tensor, spread: Tensor, before: Tensor, *, whole: bool, sizes: Tensor | None) -> None:
        """Write the spread, the gradient at the states before the steps and the sizes of its rows; all are contiguous.

        There may be fewer rows than the form has.
        """
        bits = (before[:0, 0] if sizes is None else sizes).numpy().view(BITS[before.dtype])
        key = self._kernel, self._dtype
        shown = nullcontext() if key in _ready else waiting("compiling exact transport for this machine, once ...")
        _ready.add(key)
        with shown:
            KERNELS[self._kernel](after.numpy(), *self._arguments, spread.numpy(), before.numpy(), whole, bits)
