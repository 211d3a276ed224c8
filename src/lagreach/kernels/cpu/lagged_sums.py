"""Products of features with the inputs some lags before, for `lagreach.statistics.linear_share`.

torch would write every old input once more before it squares it.
"""

from __future__ import annotations

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
def _gather(values, sequence, times, lags, near, weights, out, power):
    probes, time = values.shape[0], values.shape[2]
    power[:] = 0
    for row in range(len(times)):
        weight, newest = weights[row], times[row] - lags[0]
        inside = min(near, max(0, newest + 1))  # the other steps lie before the sequence began
        last = np.uint64(inside - 1)
        for p in range(probes):
            series, old, squares = values[p, sequence[row]], out[row, p], power[p]
            steps, here, there = series[max(0, newest + 1 - near) :], old[:inside], squares[:inside]
            for j in range(np.uint64(inside)):
                value = steps[last - j]
                here[j] = value
                there[j] += weight * value * value
            old[inside:near] = 0
            for j in range(near, len(lags)):
                at = times[row] - lags[j]
                old[j] = series[at] if 0 <= at < time else values.dtype.type(0)
                squares[j] += weight * old[j] * old[j]


class OldInputs:
    """Inputs of sequences some lags before steps, of which each row has one; lags rise.

    >>> inputs = OldInputs(torch.arange(4.0).view(1, 1, 4), [0, 1, 3], torch.tensor([0]), torch.tensor([2]), torch.ones(1))
    >>> inputs.before(0, 1)
    (tensor([[[2., 1., 0.]]]), tensor([[4., 1., 0.]]))
    """

    def __init__(
        self,
        values: Float[Tensor, "probe seq time"],
        lags: Sequence[int],
        sequence: Int[Tensor, "row"],
        times: Int[Tensor, "row"],
        weights: Float[Tensor, "row"],
    ) -> None:
        rows, (probes, sequences, time) = len(times), values.shape
        check_arrays("old inputs", {"the rows": (sequence, (rows,)), "the steps": (times, (rows,))}, dtype=torch.int64)
        check_arrays("old inputs", {"the weights": (weights, (rows,))}, dtype=values.dtype)
        for name, numbers, most in (("sequences", sequence, sequences), ("steps", times, time)):
            low, high = (int(end) for end in numbers.aminmax()) if rows else (0, 0)
            if rows and not 0 <= low <= high < most:
                got, expected = f"{name} from {low} to {high}", f"from 0 to {most - 1}"
                raise InputError(f"these {name} are not there", got=got, expected=expected)
        self._lags = np.asarray(lags, dtype=np.int64)
        if self._lags[0] < 0 or (np.diff(self._lags) <= 0).any():
            raise InputError("lags are not in order", got=str(list(lags)), expected="rising lags, from 0 on")
        # lags that follow each other from the first on
        self._near = int((np.diff(self._lags) == 1).cumprod().sum()) + 1
        self._arrays = [part.detach().contiguous().numpy() for part in (values, sequence, times, weights)]
        self._room = np.empty((0, probes, len(lags)), self._arrays[0].dtype)

    def before(self, start: int, stop: int) -> tuple[Float[Tensor, "row probe lag"], Float[Tensor, "probe lag"]]:
        """Values before the steps of some rows, zero where there are none, and the weighted sums of their squares.

        The next call writes over the values.
        """
        values, *rows = self._arrays
        sequence, times, weights = (part[start:stop] for part in rows)
        if len(self._room) < len(times):
            self._room = np.empty((len(times), *self._room.shape[1:]), values.dtype)
        old, power = self._room[: len(times)], np.empty(self._room.shape[1:], values.dtype)
        _gather(values, sequence, times, self._lags, self._near, weights, old, power)
        return torch.from_numpy(old), torch.from_numpy(power)


@compiled
@no_type_check
def _add_about(products, power, about, cross, old, powers, first, apart):
    features, rows, probes = cross.shape[0], len(about), products.shape[1]
    for p in range(probes):
        total, mine = powers[first + p * apart], power[p]
        for j in range(np.uint64(len(mine))):
            total[j] += mine[j]
    for f in range(features + rows):
        for p in range(probes):
            mine = products[f, p]
            total = cross[f, first + p * apart] if f < features else old[f - features, first + p * apart]
            for j in range(np.uint64(len(mine))):
                total[j] += mine[j]
            for r in range(rows if f < features else 0):
                mean, others = cross.dtype.type(about[r, f]), products[features + r, p]
                for j in range(np.uint64(len(mine))):
                    total[j] += mean * others[j]


def add_about(
    products: Float[Tensor, "feature_and_row probe lag"],
    power: Float[Tensor, "probe lag"],
    about: Float[Tensor, "row feature"],
    cross: Float[Tensor, "feature every_probe lag"],
    old: Float[Tensor, "row every_probe lag"],
    powers: Float[Tensor, "every_probe lag"],
    probes: slice,
) -> None:
    """Add products of features about their means, and of rows, with old inputs: to the sums of the features themselves.

    `power` is added to `powers` as it is. Sums are contiguous and in double precision; those of `probes` are added to.
    """
    (rows, features), lags, every = about.shape, products.shape[2], cross.shape[1]
    first, last, apart = probes.indices(every)
    count = len(range(first, last, apart))
    new = {"the products": (products, (features + rows, count, lags)), "the squares": (power, (count, lags))}
    check_arrays("sums of products", {**new, "the means": (about, (rows, features))}, dtype=products.dtype)
    shapes = {"the sums": (cross, (features, every, lags)), "the others": (old, (rows, every, lags))}
    check_arrays("sums of products", {**shapes, "their squares": (powers, (every, lags))}, dtype=torch.float64)
    sums = (cross, old, powers)
    if not all(part.is_contiguous() for part in sums):
        got = f"strides {[part.stride() for part in sums]}"
        raise InputError("these sums are not contiguous", got=got, expected="whole arrays, not views of some columns")
    arrays = (*(part.contiguous() for part in (products, power, about)), *sums)
    _add_about(*(part.detach().numpy() for part in arrays), first, apart)
