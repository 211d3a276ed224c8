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

from lagreach.errors import InputError
from lagreach.kernels.cpu.buffers import empty
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
            total = cross[f, first + p * apart] if f < features else old[f - features, first + p * apart]
            for j in range(n):
                total[j] += mine[j]
            for r in range(rows if f < features else 0):
                mean, others = cross.dtype.type(about[r, f]), products[features + r, p * count : (p + 1) * count]
                for j in range(n):
                    total[j] += mean * others[j]


@compiled
@no_type_check
def _add(
    ours, size, values, sequence, times, lags, near, gathered, products, power, about, cross, old, powers, first, apart
):
    use_whole_registers()
    width, columns = products.shape
    for block in range(len(ours)):
        for begin in range(0, ours.shape[1], SINGLE):
            end = min(begin + SINGLE, ours.shape[1])
            products[:], power[:] = 0, 0
            for start in range(begin, end, GATHERED):
                some = min(GATHERED, end - start)
                before = gathered[:some]
                _gather(values, sequence[block], times[block], size[block], start, lags, near, before, power)
                mine = ours[block, start : start + some].reshape(1, some, width), before.reshape(1, some, columns)
                sum_of_products(products, products, (mine,), 0, columns)
            _add_about(products, power, about[block], cross[block], old[block], powers[block], first, apart)


def add_products(
    ours: Float[Tensor, "block row feature_and_output"],
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
    """Add ``sum ours z`` and ``sum size z^2`` over the rows of each block, z being the inputs that lie some lags before.

    Lags rise. Features are given about their means `about`, and the sums `cross` are those of the features themselves; the
    last of `ours` are the outputs' own, summed in `old`. Sums are contiguous and in double precision; those of `probes` are
    added to.
    """
    (blocks, rows), (_, sequences, time) = size.shape, values.shape
    (outputs, features), every, count = about.shape[1:], cross.shape[2], len(lags)
    first, last, apart = probes.indices(every)
    given = {
        "the features": (ours, (blocks, rows, features + outputs)),
        "the weights": (size, (blocks, rows)),
        "the inputs": (values, (len(range(first, last, apart)), sequences, time)),
        "the means": (about, (blocks, outputs, features)),
    }
    check_arrays("sums of products", given, dtype=values.dtype)
    numbered = {"the rows": (sequence, (blocks, rows)), "the steps": (times, (blocks, rows))}
    check_arrays("sums of products", numbered, dtype=torch.int64)
    sums = {
        "the sums": (cross, (blocks, features, every, count)),
        "the others": (old, (blocks, outputs, every, count)),
        "their squares": (powers, (blocks, every, count)),
    }
    check_arrays("sums of products", sums, dtype=torch.float64)
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
    arrays = [part.detach().contiguous().numpy() for part in (ours, size, values, sequence, times)]
    sums_at = [part.detach().numpy() for part in (cross, old, powers)]
    columns = len(values) * count
    gathered, products, power = (
        empty(shape, arrays[0].dtype)
        for shape in ((GATHERED, columns), (features + outputs, columns), (len(values), count))
    )
    means = about.detach().contiguous().numpy()
    _add(*arrays, distances, near, gathered, products, power, means, *sums_at, first, apart)
