"""Transposed one-step Jacobians of many steps at once, as exact transport needs them at every lag.

torch would go over memory once for every factor and again for the products. Here a few rows at a time are scaled and
multiplied while they lie in the cache, and the memory of the next rows is asked for meanwhile.

All functions take the gradient at the states after the steps, the arrays and weights of a `RowForm`, and arrays to write
to: the spread, the gradient at the states before the steps and, unless `sizes` is empty, the largest absolute value in each
row of it. Of the spread only the rows in work are kept, in the first rows of its array, unless it is wanted `whole`.
Unless `by` (row, k) is empty, ``total[k, f, c]`` takes in the sums over rows of ``by[k] factor[f] spread[c]``: the gradients of
weights, with k sets of row weights, collected in double precision every few rows.
Both gradients may lie in one array, if each row before stands earlier in it than the row after that it comes from.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple, no_type_check

import numpy as np
import torch
from torch import Tensor

from lagreach._util.progress import waiting
from lagreach.cells._pullback import RowForm
from lagreach.errors import InputError
from lagreach.kernels.cpu.compiled import aligned, compiled, inlined, use_whole_registers
from lagreach.kernels.cpu.tiles import sum_of_products
from lagreach.kernels.entry import check_arrays

ROWS = 64  # in work at a time
SUMMED = 512  # rows whose products are summed before the sum goes on in double precision


@inlined
@no_type_check
def _places(lo, rows, whole):
    """Where the rows in work end, where the next ones are, and where the spread of these goes."""
    hi = min(lo + ROWS, rows)
    start = lo if whole else 0
    return hi, slice(hi, min(hi + ROWS, rows)), slice(start, start + hi - lo)


@inlined
@no_type_check
def _measure(values, lo, hi, sizes):
    """Largest absolute value of some rows. Bits of positive numbers are in their order, and whole numbers are faster."""
    if not sizes.size:
        return
    bits = values.view(sizes.dtype)
    positive = np.iinfo(sizes.dtype).max  # all but the sign
    for i in range(lo, hi):
        largest = sizes.dtype.type(0)
        for j in range(np.uint64(bits.shape[1])):
            largest = max(largest, bits[i, j] & positive)
        sizes[i] = largest


@inlined
@no_type_check
def _room(by, total):
    """Room for the weighted factors of the rows in work, and for sums over some rows."""
    return np.empty((1, ROWS, total.shape[0]), by.dtype), np.zeros(total.shape, by.dtype)


@inlined
@no_type_check
def _collect(d, lo, hi, by, factor, weighted, sums, total):
    """Add the products of the rows in work to the sums, and now and then the sums to the total."""
    if not by.size:
        return
    terms = np.uint64(factor.shape[1])
    for i in range(lo, hi):
        for k in range(np.uint64(by.shape[1])):
            for j in range(terms):
                weighted[0, i - lo, k * terms + j] = by[i, k] * factor[i, j]
    spread = d.reshape((1, d.shape[0], d.shape[1]))
    sum_of_products(sums, sums, ((weighted[:, : hi - lo], spread),), 0, sums.shape[1])
    if hi % SUMMED == 0 or hi == by.shape[0]:
        for k in range(sums.shape[0]):
            for j in range(np.uint64(sums.shape[1])):
                total[k, j] += sums[k, j]
                sums[k, j] = 0


@compiled
@no_type_check
def elementwise(after, slopes, shared, retained, recurrent, spread, before, whole, sizes, by, factor, total):
    """``retained * after + spread recurrent``; the spread is after times slopes and the row sums of after times shared.

    `slopes` has some blocks side by side, `retained` a column for each unit, one for all, or none; `shared` may have none.
    The weights act on the last columns of the spread.
    """
    use_whole_registers()
    units = after.shape[1]
    n, blocks, first = np.uint64(units), np.uint64(slopes.shape[1] // units), spread.shape[1] - recurrent.shape[0]
    zero = after.dtype.type(0)
    weighted, sums = _room(by, total)
    for lo in range(0, after.shape[0], ROWS):
        hi, then, spread_rows = _places(lo, after.shape[0], whole)
        to, d = before[lo:hi], spread[spread_rows]
        for i in range(lo, hi):
            for k in range(blocks):
                for j in range(n):
                    d[i - lo, k * n + j] = after[i, j] * slopes[i, k * n + j]
            if shared.shape[1]:
                row_sum = zero
                for j in range(n):
                    row_sum += after[i, j] * shared[i, j]
                d[i - lo, blocks * n] = row_sum
            if retained.shape[1] == 0:
                for j in range(n):
                    before[i, j] = zero
            elif retained.shape[1] == 1:
                for j in range(n):
                    before[i, j] = after[i, j] * retained[i, 0]
            else:
                for j in range(n):
                    before[i, j] = after[i, j] * retained[i, j]
        prefetch = after[then], slopes[then], shared[then], retained[then], before[then]
        sum_of_products(to, to, ((d[:, first:], recurrent),), 0, units, prefetch)
        _measure(before, lo, hi, sizes)
        _collect(d, lo, hi, by, factor, weighted, sums, total)


@compiled
@no_type_check
def gru(
    after, slope, update, reset_slope, reset, retained, U_h, gates, spread, before, whole, sizes, by, factor, total
):
    """Spread to the candidate and the gates z and r; the columns behind them, for ``r h``, are left alone."""
    use_whole_registers()
    units = after.shape[1]
    n = np.uint64(units)
    nothing, through = np.zeros(units, after.dtype), aligned(ROWS, units, after)
    weighted, sums = _room(by, total)
    for lo in range(0, after.shape[0], ROWS):
        hi, then, spread_rows = _places(lo, after.shape[0], whole)
        to, d, via = before[lo:hi], spread[spread_rows], through[: hi - lo]
        for i in range(lo, hi):
            for j in range(n):
                d[i - lo, j], d[i - lo, n + j] = after[i, j] * slope[i, j], after[i, j] * update[i, j]
        prefetch = after[then], slope[then], update[then]
        sum_of_products(via, nothing, ((d[:, :units], U_h),), 0, units, prefetch)
        for i in range(lo, hi):
            for j in range(n):
                d[i - lo, n + n + j] = via[i - lo, j] * reset_slope[i, j]
                before[i, j] = after[i, j] * retained[i, j] + via[i - lo, j] * reset[i, j]
        prefetch = reset_slope[then], reset[then], retained[then], before[then]
        sum_of_products(to, to, ((d[:, units : 3 * units], gates),), 0, units, prefetch)
        _measure(before, lo, hi, sizes)
        _collect(d, lo, hi, by, factor, weighted, sums, total)


@compiled
@no_type_check
def lstm(
    after,
    output,
    i_slope,
    f_slope,
    g_slope,
    o_slope,
    forget,
    recurrent,
    spread,
    before,
    whole,
    sizes,
    by,
    factor,
    total,
):
    """Spread to the gates i, f, g, o; the columns behind them, for the new c, are left alone. `output` is dh/dc."""
    use_whole_registers()
    units = output.shape[1]
    n = np.uint64(units)
    nothing, led = np.zeros(units, after.dtype), aligned(ROWS, units, after)
    weighted, sums = _room(by, total)
    for lo in range(0, after.shape[0], ROWS):
        hi, then, spread_rows = _places(lo, after.shape[0], whole)
        d, dh = spread[spread_rows], led[: hi - lo]
        for i in range(lo, hi):
            for j in range(n):
                h = after[i, j]
                c = after[i, n + j] + h * output[i, j]
                d[i - lo, j], d[i - lo, n + j] = c * i_slope[i, j], c * f_slope[i, j]
                d[i - lo, n + n + j], d[i - lo, n + n + n + j] = c * g_slope[i, j], h * o_slope[i, j]
                before[i, n + j] = c * forget[i, j]
        slopes = i_slope[then], f_slope[then], g_slope[then], o_slope[then]
        prefetch = after[then], output[then], *slopes, forget[then], before[then]
        sum_of_products(dh, nothing, ((d[:, : 4 * units], recurrent),), 0, units, prefetch)
        for i in range(lo, hi):
            for j in range(n):
                before[i, j] = dh[i - lo, j]
        _measure(before, lo, hi, sizes)
        _collect(d, lo, hi, by, factor, weighted, sums, total)


KERNELS = {"elementwise": elementwise, "gru": gru, "lstm": lstm}
FIX = "check what the cell's pullback() returns"
BITS = {torch.float32: np.int32, torch.float64: np.int64}
_ready: set[tuple[str, torch.dtype]] = set()  # kernels that this process has called


def _check_form(form: RowForm) -> tuple[int, int, int]:
    """Compare a form with what its kernel takes for granted; return its rows, and the widths of state and spread."""
    rows, units = len(form.arrays[0]), form.weights[0].shape[1]
    state, widths = units, (units,) * len(form.arrays)
    if form.kernel == "elementwise":
        slopes, shared, retained = (array.shape[1] for array in form.arrays)
        blocks, one_more = max(1, slopes // units), int(shared > 0)
        spread = blocks * units + one_more
        widths = (blocks * units, one_more * units, retained if retained in (0, 1) else units)
        heights: tuple[int, ...] = (min(len(form.weights[0]), spread),)
    elif form.kernel == "gru":
        heights, spread = (units, 2 * units), 3 * units
    else:
        heights, spread, state = (4 * units,), 4 * units, 2 * units
    arrays = {f"array {k}": (a, (rows, width)) for k, (a, width) in enumerate(zip(form.arrays, widths, strict=True))}
    weights = {f"weight {k}": (w, (n, units)) for k, (w, n) in enumerate(zip(form.weights, heights, strict=True))}
    check_arrays(f"transport through {form.kernel}", arrays | weights, dtype=form.arrays[0].dtype, fix=FIX)
    return rows, state, spread


class Collect(NamedTuple):
    """Sums of weights' gradients that are wanted beside: row weights, what the weights multiply, and where the sums go."""

    by: Tensor  # (row, k)
    factor: Tensor  # (row, factor)
    total: Tensor  # (k * factor, column), float64


class RowPass:
    """A pullback in one compiled call."""

    rows_in_work = ROWS  # of the spread, unless it is wanted whole

    def __init__(self, form: RowForm) -> None:
        self._kernel, self._dtype = form.kernel, form.arrays[0].dtype
        self._rows, self._state, self.width = _check_form(form)
        self._arrays, self._weights = ([v.detach().numpy() for v in tensors] for tensors in (form.arrays, form.weights))

    def __call__(
        self,
        after: Tensor,
        spread: Tensor,
        before: Tensor,
        *,
        whole: bool,
        sizes: Tensor | None,
        first: int = 0,
        collect: Collect | None = None,
    ) -> None:
        """Write the spread, the gradient at the states before the steps and the sizes of its rows; all are contiguous.

        There may be fewer rows than the form has: they are those from the `first` on.
        """
        rows, width = min(len(after), self._rows - first), max(self.width, spread.shape[1])
        kept = max(rows if whole else min(rows, ROWS), len(spread))
        gradient = (rows, self._state)
        arrays: dict[str, tuple[Tensor | None, tuple[int, ...]]] = {
            "the gradient after": (after, gradient),
            "the gradient before": (before, gradient),
            "its sizes": (sizes, (rows,)),
            "the spread": (spread, (kept, width)),
        }
        by, factor, total = collect or (after[:0, :0], after[:0, :0], after.new_empty(0, 0, dtype=torch.float64))
        if collect is not None:
            products = by.shape[1] * factor.shape[1], min(total.shape[1], width)
            arrays |= {"row weights": (by, (rows, by.shape[1])), "the factors": (factor, (rows, factor.shape[1]))}
            check_arrays("compiled transport", {"the sums": (total, products)}, dtype=torch.float64, fix=FIX)
        check_arrays("compiled transport", arrays, dtype=self._dtype, fix=FIX)
        if not all(values.is_contiguous() for values in (after, spread, before, by, factor, total)):
            raise InputError("compiled transport needs contiguous gradients", got="strided tensors", fix="copy them")
        bits = (before[:0, 0] if sizes is None else sizes).numpy().view(BITS[before.dtype])
        key = self._kernel, self._dtype
        shown = nullcontext() if key in _ready else waiting("compiling exact transport for this machine, once ...")
        _ready.add(key)
        arrays_here = (array[first:] for array in self._arrays)
        with shown:
            KERNELS[self._kernel](
                after.numpy(), *arrays_here, *self._weights, spread.numpy(), before.numpy(), whole, bits,
                by.numpy(), factor.numpy(), total.numpy(),
            )  # fmt: skip
