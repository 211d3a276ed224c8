"""Products of features with the inputs some lags before, for `lagreach.statistics.linear_share`.

torch would write every old input once more before it squares it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach.errors import InputError
from lagreach.kernels.cpu.compiled import compiled
from lagreach.kernels.entry import check_arrays


@compiled
@no_type_check
def _gather(values, sequence, times, lags, near, weights, out, powers):
    probes, time = values.shape[0], values.shape[2]
    powers[:] = 0
    for block in range(len(times)):
        power = powers[block]
        for row in range(times.shape[1]):
            step, weight = times[block, row], weights[block, row]
            newest = step - lags[0]
            inside = min(near, max(0, newest + 1))  # the other steps lie before the sequence began
            last = np.uint64(inside - 1)
            for p in range(probes):
                series, old, squares = values[p, sequence[block, row]], out[block, row, p], power[p]
                steps, here, there = series[max(0, newest + 1 - near) :], old[:inside], squares[:inside]
                for j in range(np.uint64(inside)):
                    value = steps[last - j]
                    here[j] = value
                    there[j] += weight * value * value
                old[inside:near] = 0
                for j in range(near, len(lags)):
                    at = step - lags[j]
                    old[j] = series[at] if 0 <= at < time else values.dtype.type(0)
                    squares[j] += weight * old[j] * old[j]


class OldInputs:
    """Inputs of sequences some lags before steps, of which each row of a block has one; lags rise.

    >>> row = torch.zeros(1, 1, dtype=torch.long)
    >>> inputs = OldInputs(torch.arange(4.0).view(1, 1, 4), [0, 1, 3], row, row + 2, torch.ones(1, 1))
    >>> inputs.before(slice(0, 1), slice(0, 1))
    (tensor([[[[2., 1., 0.]]]]), tensor([[[4., 1., 0.]]]))
    """

    def __init__(
        self,
        values: Float[Tensor, "probe seq time"],
        lags: Sequence[int],
        sequence: Int[Tensor, "block row"],
        times: Int[Tensor, "block row"],
        weights: Float[Tensor, "block row"],
    ) -> None:
        rows, (_, sequences, time) = tuple(times.shape), values.shape
        check_arrays("old inputs", {"the rows": (sequence, rows), "the steps": (times, rows)}, dtype=torch.int64)
        check_arrays("old inputs", {"the weights": (weights, rows)}, dtype=values.dtype)
        for name, numbers, most in (("sequences", sequence, sequences), ("steps", times, time)):
            low, high = (int(end) for end in numbers.aminmax()) if numbers.numel() else (0, 0)
            if numbers.numel() and not 0 <= low <= high < most:
                got, expected = f"{name} from {low} to {high}", f"from 0 to {most - 1}"
                raise InputError(f"these {name} are not there", got=got, expected=expected)
        self._lags = np.asarray(lags, dtype=np.int64)
        if self._lags[0] < 0 or (np.diff(self._lags) <= 0).any():
            raise InputError("lags are not in order", got=str(list(lags)), expected="rising lags, from 0 on")
        # lags that follow each other from the first on
        self._near = int((np.diff(self._lags) == 1).cumprod().sum()) + 1
        self._arrays = [part.detach().contiguous().numpy() for part in (values, sequence, times, weights)]
        self._room = np.empty(0, self._arrays[0].dtype)

    def before(
        self, blocks: slice, rows: slice
    ) -> tuple[Float[Tensor, "block row probe lag"], Float[Tensor, "block probe lag"]]:
        """Values before the steps of some rows of some blocks, zero where there are none, and the weighted sums of their squares.

        The next call writes over the values.
        """
        values, *by_row = self._arrays
        sequence, times, weights = (part[blocks, rows] for part in by_row)
        shape = (*times.shape, len(values), len(self._lags))
        if self._room.size < math.prod(shape):
            self._room = np.empty(math.prod(shape), values.dtype)
        old = self._room[: math.prod(shape)].reshape(shape)
        power = np.empty((shape[0], *shape[2:]), values.dtype)
        _gather(values, sequence, times, self._lags, self._near, weights, old, power)
        return torch.from_numpy(old), torch.from_numpy(power)


@compiled
@no_type_check
def _add_about(products, power, about, cross, old, powers, first, apart):
    features, rows, probes = cross.shape[1], about.shape[1], products.shape[2]
    for b in range(len(about)):
        for p in range(probes):
            total, mine = powers[b, first + p * apart], power[b, p]
            for j in range(np.uint64(len(mine))):
                total[j] += mine[j]
        for f in range(features + rows):
            for p in range(probes):
                mine = products[b, f, p]
                total = cross[b, f, first + p * apart] if f < features else old[b, f - features, first + p * apart]
                for j in range(np.uint64(len(mine))):
                    total[j] += mine[j]
                for r in range(rows if f < features else 0):
                    mean, others = cross.dtype.type(about[b, r, f]), products[b, features + r, p]
                    for j in range(np.uint64(len(mine))):
                        total[j] += mean * others[j]


def add_about(
    products: Float[Tensor, "block feature_and_row probe lag"],
    power: Float[Tensor, "block probe lag"],
    about: Float[Tensor, "block row feature"],
    cross: Float[Tensor, "block feature every_probe lag"],
    old: Float[Tensor, "block row every_probe lag"],
    powers: Float[Tensor, "block every_probe lag"],
    probes: slice,
) -> None:
    """Add products of features about their means, and of rows, with old inputs: to the sums of the features themselves.

    `power` is added to `powers` as it is. Sums are contiguous and in double precision; those of `probes` are added to.
    """
    (blocks, rows, features), lags, every = about.shape, products.shape[3], cross.shape[2]
    first, last, apart = probes.indices(every)
    count = len(range(first, last, apart))
    new = {
        "the products": (products, (blocks, features + rows, count, lags)),
        "the squares": (power, (blocks, count, lags)),
        "the means": (about, (blocks, rows, features)),
    }
    check_arrays("sums of products", new, dtype=products.dtype)
    sums = {
        "the sums": (cross, (blocks, features, every, lags)),
        "the others": (old, (blocks, rows, every, lags)),
        "their squares": (powers, (blocks, every, lags)),
    }
    check_arrays("sums of products", sums, dtype=torch.float64)
    if not (cross.is_contiguous() and old.is_contiguous() and powers.is_contiguous()):
        got = f"strides {[part.stride() for part in (cross, old, powers)]}"
        raise InputError("these sums are not contiguous", got=got, expected="whole arrays, not views of some columns")
    arrays = (*(part.contiguous() for part in (products, power, about)), cross, old, powers)
    _add_about(*(part.detach().numpy() for part in arrays), first, apart)
