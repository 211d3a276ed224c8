"""Transposed one-step Jacobians of many steps at once, as exact transport needs them at every lag.

torch would go over memory once for every factor and again for the products. Here a few rows at a time are scaled and
multiplied while they lie in the cache, and the memory of the next rows is asked for meanwhile.

All functions take the gradient at the states after the steps, the arrays and weights of a `RowForm`, and arrays to write
to: the spread, the gradient at the states before the steps and, unless `sizes` is empty, the largest absolute value in each
row of it. Of the spread only the rows in work are kept, in the first rows of its array, unless it is wanted `whole`.
A layer of several has the columns of all states from `at` on. What the layer above adds to the gradient at its outputs is `fed`
to it, and what it adds itself to the one below goes `onward`, by its weights `reads`. Of a layer alone `fed`, of the
lowest `onward`, and without a LayerNorm its `gain` are None: numba then compiles without them.
Unless `by` (row, k) is empty, ``total[k, f, c]`` takes in the sums over rows of ``by[k] factor[f] spread[c]``: the gradients of
weights, with k sets of row weights, collected in double precision every few rows.
Both gradients may lie in one array, if each row before stands earlier in it than the row after that it comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple, no_type_check

import numpy as np
import torch
from torch import Tensor

from lagreach._util.buffers import empty
from lagreach._util.progress import waiting
from lagreach.cells._pullback import RowForm
from lagreach.errors import InputError
from lagreach.kernels.cpu.compiled import aligned, compiled, inlined, use_whole_registers
from lagreach.kernels.cpu.parts import normalise_slope
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


@inlined
@no_type_check
def _arrived(after, at, fed, lo, hi, room):
    """Return the gradient at a layer's own states after the steps."""
    here = room[: hi - lo]
    for i in range(lo, hi):
        for j in range(np.uint64(room.shape[1])):
            here[i - lo, j] = after[i, at + j]
        for j in range(np.uint64(fed.shape[1])):
            here[i - lo, j] += fed[i, j]
    return here


@inlined
@no_type_check
def _normalised(d, place, behind, normal, inverse, gain, lo, hi):
    """Lead the gradient at a LayerNorm's result back to its argument; what shift and gain receive stands behind."""
    n, p, b = np.uint64(gain.shape[1]), np.uint64(place), np.uint64(behind)
    for i in range(hi - lo):
        for j in range(n):
            d[i, b + j], d[i, b + n + j] = d[i, p + j], d[i, p + j] * normal[lo + i, j]
            d[i, p + j] *= gain[0, j]
    normalise_slope(d, place, normal[lo:hi], inverse[lo:hi, 0])


@compiled
@no_type_check
def elementwise(
    after, slopes, shared, retained, through, normal, inverse, recurrent, gain,
    reads, fed, spread, before, at, onward, whole, sizes, by, factor, total,
):  # fmt: skip
    """``retained * after + spread recurrent``; see `Pullback.elementwise` for the spread.

    `retained` has a column for each unit, one for all, or none. The weights act on the last columns before those of a LayerNorm.
    """
    use_whole_registers()
    units, kept = recurrent.shape[1], retained.shape[1]
    gates = slopes.shape[1] + through.shape[1] + (1 if shared.shape[1] else 0)
    n, start, zero = np.uint64(units), np.uint64(at), after.dtype.type(0)
    blocks, passed = np.uint64(slopes.shape[1] // units), np.uint64(through.shape[1] // units)
    alone = before.shape[1] == units
    if onward is not None:
        below = np.zeros((ROWS, onward.shape[1]), after.dtype)
    led, room = aligned(ROWS, units, after), aligned(ROWS, units, after)
    weighted, sums = _room(by, total)
    for lo in range(0, after.shape[0], ROWS):
        hi, then, spread_rows = _places(lo, after.shape[0], whole)
        to, d = led[: hi - lo], spread[spread_rows]
        if alone:
            to = before[lo:hi]
        here = after[lo:hi] if fed is None else _arrived(after, start, fed, lo, hi, room)
        for i in range(hi - lo):
            for k in range(blocks):
                for j in range(n):
                    d[i, k * n + j] = here[i, j] * slopes[lo + i, k * n + j]
            if shared.shape[1]:
                row_sum = zero
                for j in range(n):
                    row_sum += here[i, j] * shared[lo + i, j]
                d[i, gates - 1] = row_sum
            if kept == 0:
                for j in range(n):
                    to[i, j] = zero
            elif kept == 1:
                for j in range(n):
                    to[i, j] = here[i, j] * retained[lo + i, 0]
            else:
                for j in range(n):
                    to[i, j] = here[i, j] * retained[lo + i, j]
        if gain is not None:
            _normalised(d, 0, gates, normal, inverse, gain, lo, hi)
        for i in range(hi - lo):
            for k in range(passed):
                for j in range(n):
                    d[i, (blocks + k) * n + j] = d[i, j] * through[lo + i, k * n + j]
        prefetch = after[then], slopes[then], shared[then], retained[then], through[then], normal[then], before[then]
        sum_of_products(to, to, ((d[:, gates - recurrent.shape[0] : gates], recurrent),), 0, units, prefetch)
        if not alone:
            for i in range(hi - lo):
                for j in range(n):
                    before[lo + i, start + j] = to[i, j]
        if onward is not None:
            read = d[:, : reads.shape[0]]
            sum_of_products(onward[lo:hi], below[: hi - lo], ((read, reads),), 0, onward.shape[1], prefetch)
        _measure(before, lo, hi, sizes)
        _collect(d, lo, hi, by, factor, weighted, sums, total)


@compiled
@no_type_check
def gru(
    after, slope, update, reset_slope, reset, retained, normal, inverse, U_h, gates, gain,
    reads, fed, spread, before, at, onward, whole, sizes, by, factor, total,
):  # fmt: skip
    """Spread to the candidate and the gates z and r; the last columns, for ``r h``, are left alone."""
    use_whole_registers()
    units = U_h.shape[1]
    n, start = np.uint64(units), np.uint64(at)
    nothing = np.zeros(units, after.dtype)
    if onward is not None:
        below = np.zeros(onward.shape[1], after.dtype)
    led, through, room = (aligned(ROWS, units, after), aligned(ROWS, units, after), aligned(ROWS, units, after))
    weighted, sums = _room(by, total)
    for lo in range(0, after.shape[0], ROWS):
        hi, then, spread_rows = _places(lo, after.shape[0], whole)
        to, d, via = led[: hi - lo], spread[spread_rows], through[: hi - lo]
        here = after[lo:hi] if fed is None else _arrived(after, start, fed, lo, hi, room)
        for i in range(hi - lo):
            for j in range(n):
                d[i, j], d[i, n + j] = here[i, j] * slope[lo + i, j], here[i, j] * update[lo + i, j]
        if gain is not None:
            _normalised(d, 0, 3 * units, normal, inverse, gain, lo, hi)
        prefetch = after[then], slope[then], update[then], normal[then]
        sum_of_products(via, nothing, ((d[:, :units], U_h),), 0, units, prefetch)
        for i in range(hi - lo):
            for j in range(n):
                d[i, n + n + j] = via[i, j] * reset_slope[lo + i, j]
        prefetch = reset_slope[then], reset[then], retained[then], before[then]
        sum_of_products(to, nothing, ((d[:, units : 3 * units], gates),), 0, units, prefetch)
        for i in range(hi - lo):
            for j in range(n):
                before[lo + i, start + j] = here[i, j] * retained[lo + i, j] + via[i, j] * reset[lo + i, j] + to[i, j]
        if onward is not None:
            read = d[:, : reads.shape[0]]
            sum_of_products(onward[lo:hi], below, ((read, reads),), 0, onward.shape[1], prefetch)
        _measure(before, lo, hi, sizes)
        _collect(d, lo, hi, by, factor, weighted, sums, total)


@compiled
@no_type_check
def lstm(
    after, output, i_slope, f_slope, g_slope, o_slope, forget, normal, inverse, recurrent, gain,
    reads, fed, spread, before, at, onward, whole, sizes, by, factor, total,
):  # fmt: skip
    """Spread to the gates i, f, g, o; the last columns, for the new c, are left alone. `output` is dh/dc."""
    use_whole_registers()
    units = output.shape[1]
    n, start = np.uint64(units), np.uint64(at)
    nothing = np.zeros(units, after.dtype)
    if onward is not None:
        below = np.zeros(onward.shape[1], after.dtype)
    led, new, room = aligned(ROWS, units, after), aligned(ROWS, units, after), aligned(ROWS, 2 * units, after)
    weighted, sums = _room(by, total)
    for lo in range(0, after.shape[0], ROWS):
        hi, then, spread_rows = _places(lo, after.shape[0], whole)
        d, dh = spread[spread_rows], led[: hi - lo]
        here = after[lo:hi] if fed is None else _arrived(after, start, fed, lo, hi, room)
        for i in range(lo, hi):  # several loops, because the compiler does not make vectors of one with so many arrays
            for j in range(n):
                new[i - lo, j] = here[i - lo, n + j] + here[i - lo, j] * output[i, j]
            for j in range(n):
                c = new[i - lo, j]
                d[i - lo, j], d[i - lo, n + j], d[i - lo, n + n + j] = (
                    c * i_slope[i, j],
                    c * f_slope[i, j],
                    c * g_slope[i, j],
                )
            for j in range(n):
                d[i - lo, n + n + n + j] = here[i - lo, j] * o_slope[i, j]
        if gain is not None:
            _normalised(d, 2 * units, 4 * units, normal, inverse, gain, lo, hi)
        slopes = i_slope[then], f_slope[then], g_slope[then], o_slope[then]
        prefetch = after[then], output[then], *slopes, forget[then], normal[then], before[then]
        sum_of_products(dh, nothing, ((d[:, : 4 * units], recurrent),), 0, units, prefetch)
        for i in range(hi - lo):
            for j in range(n):
                before[lo + i, start + j] = dh[i, j]
            for j in range(n):
                before[lo + i, start + n + j] = new[i, j] * forget[lo + i, j]
        if onward is not None:
            sum_of_products(onward[lo:hi], below, ((d[:, : 4 * units], reads),), 0, onward.shape[1], prefetch)
        _measure(before, lo, hi, sizes)
        _collect(d, lo, hi, by, factor, weighted, sums, total)


KERNELS = {"elementwise": elementwise, "gru": gru, "lstm": lstm}
FIX = "check what the cell's pullback() returns"
BITS = {torch.float32: np.int32, torch.float64: np.int64}
_ready: set[tuple[str, torch.dtype]] = set()  # kernels that this process has called


class Widths(NamedTuple):
    """Columns of a layer."""

    state: int
    spread: int
    read: int  # its inputs


def _check_form(form: RowForm, rows: int) -> Widths:
    """Compare a form with what its kernel takes for granted."""
    units = state = form.weights[0].shape[1]
    normed = min(1, len(form.weights[-1]))
    widths: tuple[int, ...]
    if form.kernel == "elementwise":
        slopes, shared, retained, through = (array.shape[1] for array in form.arrays[:-2])
        blocks, passed, one_more = max(1, slopes // units), through // units, int(shared > 0)
        gates = (blocks + passed) * units + one_more
        widths = blocks * units, one_more * units, retained if retained in (0, 1) else units, passed * units
        heights: tuple[int, ...] = (min(len(form.weights[0]), gates),)
    elif form.kernel == "gru":
        heights, gates, widths = (units, 2 * units), 3 * units, (units,) * 5
    else:
        heights, gates, widths, state = (4 * units,), 4 * units, (units,) * 6, 2 * units
    widths, heights = (*widths, normed * units, normed), (*heights, normed)
    arrays = {f"array {k}": (a, (rows, width)) for k, (a, width) in enumerate(zip(form.arrays, widths, strict=True))}
    weights = {f"weight {k}": (w, (n, units)) for k, (w, n) in enumerate(zip(form.weights, heights, strict=True))}
    read = form.reads.shape[1]
    weights["input weights"] = form.reads, (min(len(form.reads), gates), read)
    check_arrays(f"transport through {form.kernel}", arrays | weights, dtype=form.arrays[0].dtype, fix=FIX)
    return Widths(state, gates + 2 * normed * units, read)


class Collect(NamedTuple):
    """Sums of weights' gradients that are wanted beside: row weights, what the weights multiply, and where the sums go."""

    by: Tensor  # (row, k)
    factor: Tensor  # (row, factor)
    total: Tensor  # (k * factor, column), float64


class RowPass:
    """A pullback through one layer or several, from the top one down, each in one compiled call."""

    def __init__(self, forms: Sequence[RowForm]) -> None:
        self._kernels, self._dtype = [form.kernel for form in forms], forms[0].arrays[0].dtype
        self._rows = len(forms[0].arrays[0])
        self._widths = [_check_form(form, self._rows) for form in forms]
        starts = np.cumsum([0, *(width.state for width in self._widths)]).tolist()
        self._starts, self._state = starts[:-1], starts[-1]
        self._arrays = [[array.detach().numpy() for array in form.arrays] for form in forms]
        self._weights = [[weight.detach().numpy() for weight in (*form.weights, form.reads)] for form in forms]

    def spreads(self, like: Tensor) -> list[Tensor]:
        """Room for the rows in work of every layer's spread."""
        return [like.new_empty(ROWS, width.spread) for width in self._widths]

    def __call__(
        self,
        after: Tensor,
        spreads: Sequence[Tensor],
        before: Tensor,
        *,
        whole: bool,
        sizes: Tensor | None,
        first: int = 0,
        collect: Sequence[Collect | None] | None = None,
    ) -> None:
        """Write the layers' spreads, the gradient at the states before the steps and the sizes of its rows; all are contiguous.

        There may be fewer rows than the form has: they are those from the `first` on.
        """
        rows = min(len(after), self._rows - first)
        gradient = (rows, self._state)
        arrays: dict[str, tuple[Tensor | None, tuple[int, ...]]] = {
            "the gradient after": (after, gradient),
            "the gradient before": (before, gradient),
            "its sizes": (sizes, (rows,)),
        }
        for k, (spread, width) in enumerate(zip(spreads, self._widths, strict=True)):
            kept = max(rows if whole else min(rows, ROWS), len(spread))
            arrays[f"the spread of layer {k}"] = spread, (kept, max(width.spread, spread.shape[1]))
        collected = [None] * len(spreads) if collect is None else collect
        for spread, some in zip(spreads, collected, strict=True):
            if some is not None:
                by, factor, total = some
                products = by.shape[1] * factor.shape[1], min(total.shape[1], spread.shape[1])
                arrays |= {"row weights": (by, (rows, by.shape[1])), "the factors": (factor, (rows, factor.shape[1]))}
                check_arrays("compiled transport", {"the sums": (total, products)}, dtype=torch.float64, fix=FIX)
        check_arrays("compiled transport", arrays, dtype=self._dtype, fix=FIX)
        of_sums = [tensor for some in collected if some is not None for tensor in some]
        if not all(values.is_contiguous() for values in (after, before, *spreads, *of_sums)):
            raise InputError("compiled transport needs contiguous gradients", got="strided tensors", fix="copy them")
        fed = np.empty((rows, 0), after.numpy().dtype)
        for k in reversed(
            range(len(spreads))
        ):  # a row is whole, and measured, when the lowest layer has written its part
            onward = empty((rows, self._widths[k].read if k else 0), fed.dtype)
            measured = None if k else sizes
            self._layer(k, after, fed, spreads[k], before, onward, whole, measured, first, collected[k])
            fed = onward

    def _layer(
        self,
        k: int,
        after: Tensor,
        fed: np.ndarray,
        spread: Tensor,
        before: Tensor,
        onward: np.ndarray,
        whole: bool,
        sizes: Tensor | None,
        first: int,
        collect: Collect | None,
    ) -> None:
        by, factor, total = collect or (after[:0, :0], after[:0, :0], after.new_empty(0, 0, dtype=torch.float64))
        bits = (before[:0, 0] if sizes is None else sizes).numpy().view(BITS[before.dtype])
        key = self._kernels[k], self._dtype
        shown = nullcontext() if key in _ready else waiting("compiling exact transport for this machine, once ...")
        _ready.add(key)
        arrays_here = (array[first:] for array in self._arrays[k])
        *weights, gain, reads = self._weights[k]
        with shown:
            KERNELS[self._kernels[k]](
                after.numpy(), *arrays_here, *weights, gain if gain.size else None, reads,
                None if len(self._starts) == 1 else fed, spread.numpy(), before.numpy(),
                self._starts[k], onward if k else None, whole, bits, by.numpy(), factor.numpy(), total.numpy(),
            )  # fmt: skip
