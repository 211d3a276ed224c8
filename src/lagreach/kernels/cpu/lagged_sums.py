"""Products of features with the inputs some lags before, for `lagreach.statistics.linear_share`.

torch would write every old input once more before it squares it, and wait for memory between the products. Here the old inputs
of a few rows are gathered and multiplied while they are in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach._util.buffers import empty
from lagreach.errors import InputError
from lagreach.kernels.cpu.compiled import compiled, part, use_whole_registers
from lagreach.kernels.cpu.tiles import sum_of_products
from lagreach.kernels.entry import check_arrays

GATHERED = 64  # rows whose old inputs are in the cache
SINGLE = 256  # rows whose products are summed in the precision of the inputs


@part
@no_type_check
def _gather(values, sequence, times, weights, start, lags, near, old, power):
    """Inputs of some rows from the first on at all lags, zero where there are none, and their squares added up."""
    probes, time, count = values.shape[0], values.shape[2], len(lags)
    zero = values.dtype.type(0)
    for row in range(len(old)):
        step, weight, where = times[start + row], weights[start + row], sequence[start + row]
        newest = step - lags[0]
        inside = min(near, max(0, newest + 1))  # the other steps lie before the sequence began
        last = np.uint64(inside - 1)
        for p in range(probes):
            series = values[p, where]
            steps = series[max(0, newest + 1 - near) :]
            here, squares = old[row, p * count : (p + 1) * count], power[p]
            for j in range(np.uint64(inside)):
                value = steps[last - j]
                here[j] = value
                squares[j] += weight * value * value
            here[inside:near] = zero
            for j in range(near, count):
                at = step - lags[j]
                here[j] = series[at] if 0 <= at < time else zero
                squares[j] += weight * here[j] * here[j]


@part
@no_type_check
def _add_about(products, power, about, cross, old, powers, first, apart):
    """Products of features about their means, and of rows, as sums of the features themselves."""
    features, rows, probes, count = len(cross), len(old), len(power), power.shape[1]
    n = np.uint64(count)
    for p in range(probes):
        total, mine = powers[first + p * apart], power[p]
        for j in range(n):
            total[j] += mine[j]
    for f in range(features + rows):
        for p in range(probes):
            mine = products[f, p * count : (p + 1) * count]
            if f >= features:
                total = old[f - features, first + p * apart]
                for j in range(n):
                    total[j] += mine[j]
                continue
            total = cross[f, first + p * apart]
            mean, others = cross.dtype.type(about[0, f]), products[features, p * count : (p + 1) * count]
            for j in range(n):  # sums are many: they are read and written once
                total[j] += mine[j] + mean * others[j]
            for r in range(1, rows):
                mean, others = cross.dtype.type(about[r, f]), products[features + r, p * count : (p + 1) * count]
                for j in range(n):
                    total[j] += mean * others[j]


@part
@no_type_check
def _pull(features, pull, about, start, ours):
    """Features of some rows from the first on about their means, along what pulls at the outputs, and behind them the pulls."""
    outputs, width = about.shape
    n = np.uint64(width)
    for row in range(len(ours)):
        mine, pulls = ours[row], pull[start + row]
        for o in range(outputs):
            each, mean, much = features[start + row, o], about[o], pulls[o]
            mine[width + o] = much
            if o == 0:
                for k in range(n):
                    mine[k] = (each[k] - mean[k]) * much
            else:
                for k in range(n):
                    mine[k] += (each[k] - mean[k]) * much


@compiled
@no_type_check
def _add(
    features, pull, size, values, sequence, times, lags, near, room, about, cross, old, powers, first, apart
):  # fmt: skip
    use_whole_registers()
    ours, gathered, products, power = room
    width, columns = products.shape
    for block in range(len(features)):
        rows = features.shape[1]
        for begin in range(0, rows, SINGLE):
            end = min(begin + SINGLE, rows)
            products[:], power[:] = 0, 0
            for start in range(begin, end, GATHERED):
                some = min(GATHERED, end - start)
                mine, before = ours[:some], gathered[:some]
                _pull(features[block], pull[block], about[block], start, mine)
                _gather(values, sequence[block], times[block], size[block], start, lags, near, before, power)
                pair = mine.reshape(1, some, width), before.reshape(1, some, columns)
                sum_of_products(products, products, (pair,), 0, columns)
            _add_about(products, power, about[block], cross[block], old[block], powers[block], first, apart)


def add_products(
    features: Float[Tensor, "block row output feature"],
    pull: Float[Tensor, "block row output"],
    size: Float[Tensor, "block row"],
    values: Float[Tensor, "probe seq time"],
    sequence: Int[Tensor, "block row"],
    times: Int[Tensor, "block row"],
    lags: Sequence[int],
    about: Float[Tensor, "block output feature"],
    cross: Float[Tensor, "block feature every_probe lag"],
    old: Float[Tensor, "block output every_probe lag"],
    powers: Float[Tensor, "block every_probe lag"],
    probes: slice,
) -> None:
    """Add ``sum pull phi z``, ``sum pull z`` and ``sum size z^2`` over the rows of each block: z are the inputs some lags before.

    Lags rise. Products are of the features about their means `about`, and what is added to `cross` is that of the features
    themselves; features may be in double precision. Sums are contiguous and in double precision; those of `probes` are added to.
    """
    (blocks, rows), (_, sequences, time) = size.shape, values.shape
    (outputs, width), every, count = about.shape[1:], cross.shape[2], len(lags)
    first, last, apart = probes.indices(every)
    where = "sums of products"
    given = {
        "the pulls": (pull, (blocks, rows, outputs)),
        "the weights": (size, (blocks, rows)),
        "the inputs": (values, (len(range(first, last, apart)), sequences, time)),
        "the means": (about, (blocks, outputs, width)),
    }
    check_arrays(where, given, dtype=values.dtype)
    exact = torch.float64 if features.dtype == torch.float64 else values.dtype
    check_arrays(where, {"the features": (features, (blocks, rows, outputs, width))}, dtype=exact)
    numbered = {"the rows": (sequence, (blocks, rows)), "the steps": (times, (blocks, rows))}
    check_arrays(where, numbered, dtype=torch.int64)
    sums = {
        "the sums": (cross, (blocks, width, every, count)),
        "the others": (old, (blocks, outputs, every, count)),
        "their squares": (powers, (blocks, every, count)),
    }
    check_arrays(where, sums, dtype=torch.float64)
    for name, numbers, most in (("sequences", sequence, sequences), ("steps", times, time)):
        low, high = (int(end) for end in numbers.aminmax()) if numbers.numel() else (0, 0)
        if numbers.numel() and not 0 <= low <= high < most:
            got, expected = f"{name} from {low} to {high}", f"from 0 to {most - 1}"
            raise InputError(f"these {name} are not there", got=got, expected=expected)
    distances = np.asarray(lags, dtype=np.int64)
    if distances[0] < 0 or (np.diff(distances) <= 0).any():
        raise InputError("lags are not in order", got=str(list(lags)), expected="rising lags, from 0 on")
    if not (cross.is_contiguous() and old.is_contiguous() and powers.is_contiguous()):
        got = f"strides {[part.stride() for part in (cross, old, powers)]}"
        raise InputError("these sums are not contiguous", got=got, expected="whole arrays, not views of some columns")
    near = int((np.diff(distances) == 1).cumprod().sum()) + 1  # lags that follow each other from the first on
    arrays = [part.detach().contiguous().numpy() for part in (features, pull, size, values, sequence, times)]
    sums_at = [part.detach().numpy() for part in (cross, old, powers)]
    columns, kind = len(values) * count, arrays[3].dtype
    shapes = (GATHERED, width + outputs), (GATHERED, columns), (width + outputs, columns), (len(values), count)
    room = tuple(empty(shape, kind) for shape in shapes)
    means = about.detach().contiguous().numpy()
    _add(*arrays, distances, near, room, means, *sums_at, first, apart)
