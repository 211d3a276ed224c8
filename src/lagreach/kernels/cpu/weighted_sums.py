"""Sums over the steps of each sequence, in the order in which fused layers leave their states in memory: time first.

torch would write all products before it adds them up.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach.errors import InputError
from lagreach.kernels.cpu.compiled import compiled
from lagreach.kernels.entry import check_arrays

STRETCH = 64  # steps that are summed before their sum is added to the others, so that little is lost in rounding


@compiled
@no_type_check
def add_up(weights, values, index, out, picked):
    """See `weighted_sums`; `index` may also name steps that are not there, whose values are not picked."""
    time, seq, width = values.shape
    n = np.uint64(width)
    part = np.empty((seq, width), out.dtype)
    for start in range(0, time, STRETCH):
        stop = min(start + STRETCH, time)
        last = stop - (stop - start) % 4
        part[:] = 0
        for t in range(start, last, 4):  # sums are read and written once for four steps
            for s in range(seq):
                a, b, c, d = weights[s, t], weights[s, t + 1], weights[s, t + 2], weights[s, t + 3]
                one, two, three, four = values[t, s], values[t + 1, s], values[t + 2, s], values[t + 3, s]
                for k in range(n):
                    part[s, k] += a * one[k] + b * two[k] + c * three[k] + d * four[k]
        for t in range(last, stop):
            for s in range(seq):
                weight = weights[s, t]
                for k in range(n):
                    part[s, k] += weight * values[t, s, k]
        out += part
        for s in range(seq):
            for a in range(index.shape[1]):
                t = index[s, a]
                if start <= t < stop:  # still in the cache
                    for k in range(n):
                        picked[s, a, k] = values[t, s, k]


def weighted_sums(
    weights: Float[Tensor, "seq time"], values: Float[Tensor, "time seq value"], index: Int[Tensor, "seq pick"]
) -> tuple[Float[Tensor, "seq value"], Float[Tensor, "seq pick value"]]:
    """``sum_t w_t v_t`` for each sequence, and the values at some of its steps; values are contiguous.

    >>> sums, picked = weighted_sums(torch.ones(2, 3), torch.ones(3, 2, 4), torch.zeros(2, 1, dtype=torch.long))
    >>> sums.shape, picked.shape
    (torch.Size([2, 4]), torch.Size([2, 1, 4]))
    """
    time, seq, width = values.shape
    check_arrays("sums over steps", {"the weights": (weights, (seq, time))}, dtype=values.dtype)
    check_arrays("sums over steps", {"the steps": (index, (seq, index.shape[1]))}, dtype=torch.int64)
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < time:
        raise InputError("these steps are not there", got=f"up to {int(index.max())}", expected=f"from 0 to {time - 1}")
    out, picked = (torch.zeros(shape, dtype=values.dtype) for shape in ((seq, width), (*index.shape, width)))
    add_up(*(part.detach().contiguous().numpy() for part in (weights, values, index)), out.numpy(), picked.numpy())
    return out, picked
