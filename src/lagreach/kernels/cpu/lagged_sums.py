"""Products of steps with the inputs some lags before, for `lagreach.statistics.linear_share`.

torch would write every old input once more before it squares it, and every product of spectra before it adds them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from lagreach.errors import InputError
from lagreach.kernels.cpu.compiled import compiled
from lagreach.kernels.entry import check_arrays


@compiled
@no_type_check
def _gather(values, sequence, times, lags, near, weights, out, power):
    probes, time = values.shape[0], values.shape[2]
    for row in range(len(times)):
        weight, oldest = weights[row], times[row] - lags[near - 1]
        before = min(near, max(0, -oldest))  # steps before the sequence began
        for p in range(probes):
            series, old, squares = values[p, sequence[row]], out[row, p], power[p]
            old[:before] = 0
            inside, here, there = series[max(0, oldest) :], old[before:near], squares[before:near]
            for j in range(np.uint64(len(here))):
                here[j] = inside[j]
                there[j] += weight * inside[j] * inside[j]
            for j in range(near, len(lags)):
                at = times[row] - lags[j]
                old[j] = series[at] if 0 <= at < time else values.dtype.type(0)
                squares[j] += weight * old[j] * old[j]


class OldInputs:
    """Inputs of sequences, to be looked up some lags before steps.

    Lags rise. Those that follow each other from the first on are one piece of memory, oldest first: what is returned is in this
    order, and `sorted` puts it into the order of the lags.

    >>> inputs = OldInputs(torch.arange(4.0).view(1, 1, 4), [0, 1, 3])
    >>> old, power = inputs.before(torch.tensor([0]), torch.tensor([2]), torch.ones(1))
    >>> inputs.sorted(old), inputs.sorted(power)
    (tensor([[[2., 1., 0.]]]), tensor([[4., 1., 0.]]))
    """

    def __init__(self, values: Float[Tensor, "probe seq time"], lags: Sequence[int]) -> None:
        self._values, self._lags = values.detach().contiguous().numpy(), np.asarray(lags, dtype=np.int64)
        if self._lags[0] < 0 or (np.diff(self._lags) <= 0).any():
            raise InputError("lags are not in order", got=str(list(lags)), expected="rising lags, from 0 on")
        self._near = int((np.diff(self._lags) == 1).cumprod().sum()) + 1

    def before(
        self, sequence: Int[Tensor, "row"], times: Int[Tensor, "row"], weights: Float[Tensor, "row"]
    ) -> tuple[Float[Tensor, "row probe lag"], Float[Tensor, "probe lag"]]:
        """Values before each row's step, zero where there are none, and the weighted sums of their squares."""
        rows, (probes, sequences, time) = len(times), self._values.shape
        check_arrays("old inputs", {"the rows": (sequence, (rows,)), "the steps": (times, (rows,))}, dtype=torch.int64)
        arrays = [part.detach().contiguous().numpy() for part in (sequence, times, weights)]
        check_arrays("old inputs", {"the weights": (arrays[2], (rows,))}, dtype=self._values.dtype)
        for name, numbers, most in (("sequences", arrays[0], sequences), ("steps", arrays[1], time)):
            if rows and not 0 <= numbers.min() <= numbers.max() < most:
                got = f"{name} from {numbers.min()} to {numbers.max()}"
                raise InputError(f"these {name} are not there", got=got, expected=f"from 0 to {most - 1}")
        out = np.empty((rows, probes, len(self._lags)), self._values.dtype)
        power = np.zeros(out.shape[1:], out.dtype)
        _gather(self._values, arrays[0], arrays[1], self._lags, self._near, arrays[2], out, power)
        return torch.from_numpy(out), torch.from_numpy(power)

    def sorted(self, values: Float[Tensor, "*more lag"]) -> Float[Tensor, "*more lag"]:
        """Bring values into the order of the lags."""
        near, far = values[..., : self._near], values[..., self._near :]
        return torch.cat((near.flip(-1), far), dim=-1)


@compiled
@no_type_check
def _add_products(ours, theirs, out):
    members, kinds, directions, width = ours.shape
    probes = theirs.shape[1]
    for m in range(members):
        for k in range(kinds):
            for p in range(probes):
                one, other, total = ours[m, k, p % directions], theirs[m, p], out[k, p]
                for f in range(np.uint64(width // 2)):
                    a, b, c, d = one[2 * f], one[2 * f + 1], other[2 * f], other[2 * f + 1]
                    total[2 * f] += a * c + b * d
                    total[2 * f + 1] += b * c - a * d


def summed_spectra(
    ours: Complex[Tensor, "member kind direction f"], theirs: Complex[Tensor, "member probe f"]
) -> Complex[Tensor, "kind probe f"]:
    """Spectra times the conjugates of others, summed over members; probes take turns among the directions."""
    members, kinds, _, width = ours.shape
    check_arrays("sums of spectra", {"the others": (theirs, (members, theirs.shape[1], width))}, dtype=ours.dtype)
    out = torch.zeros(kinds, *theirs.shape[1:], dtype=ours.dtype)
    _add_products(*(torch.view_as_real(part.contiguous()).flatten(-2).numpy() for part in (ours, theirs, out)))
    return out
