"""Sums over the steps of each sequence, in the order in which fused layers leave their states in memory: time first.

torch would write all products before it adds them up.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.kernels.cpu.compiled import compiled
from lagreach.kernels.entry import check_arrays

STRETCH = 64  # steps that are summed before their sum is added to the others, so that little is lost in rounding


@compiled
@no_type_check
def _add_up(weights, values, out):
    time, seq, width = values.shape
    part = np.empty((seq, width), out.dtype)
    for start in range(0, time, STRETCH):
        part[:] = 0
        for t in range(start, min(start + STRETCH, time)):
            for s in range(seq):
                weight = weights[s, t]
                for k in range(np.uint64(width)):
                    part[s, k] += weight * values[t, s, k]
        out += part


def weighted_sums(
    weights: Float[Tensor, "seq time"], values: Float[Tensor, "time seq value"]
) -> Float[Tensor, "seq value"]:
    """``sum_t w_t v_t`` for each sequence; both contiguous.

    >>> weighted_sums(torch.ones(2, 3), torch.ones(3, 2, 4)).shape
    torch.Size([2, 4])
    """
    check_arrays("sums over steps", {"the weights": (weights, (values.shape[1], values.shape[0]))}, dtype=values.dtype)
    out = torch.zeros(values.shape[1:], dtype=values.dtype)
    _add_up(*(part.detach().contiguous().numpy() for part in (weights, values)), out.numpy())
    return out
