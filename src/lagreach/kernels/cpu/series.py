"""Inputs along some directions, as series along time less their means, for `lagreach.forecasting.plan`.

A product of matrices leaves the values of a step side by side, and torch takes five times as long for the one that leaves them
along time. Here a few steps are multiplied, and turned while they are in the cache.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Float
from torch import Tensor

from lagreach.kernels.cpu.compiled import aligned, compiled, use_whole_registers
from lagreach.kernels.cpu.tiles import sum_of_products
from lagreach.kernels.entry import check_arrays

TURNED = 128  # steps that are in the cache


@compiled
@no_type_check
def _project(x, directions, mean, out):
    use_whole_registers()
    probes, sequences, time = out.shape
    nothing, values = np.zeros(probes, x.dtype), aligned(TURNED, probes, x)
    for s in range(sequences):
        for start in range(0, time, TURNED):
            stop = min(start + TURNED, time)
            here = values[: stop - start]
            sum_of_products(here, nothing, ((x[s, start:stop], directions),), 0, probes)
            for p in range(probes):
                there, less = out[p, s, start:stop], mean[p, start:stop]
                for t in range(np.uint64(stop - start)):
                    there[t] = here[t, p] - less[t]


def series(
    x: Float[Tensor, "seq time input"], directions: Float[Tensor, "input probe"], mean: Float[Tensor, "probe time"]
) -> Float[Tensor, "probe seq time"]:
    """Values of inputs along directions, less the means of every step.

    >>> import torch
    >>> series(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.eye(2), torch.ones(2, 2))
    tensor([[[0., 2.]],
    <BLANKLINE>
            [[1., 3.]]])
    """
    (sequences, time, inputs), probes = x.shape, directions.shape[1]
    given = {"the directions": (directions, (inputs, probes)), "the means": (mean, (probes, time))}
    check_arrays("series of inputs", given, dtype=x.dtype)
    out = x.new_empty(probes, sequences, time)
    _project(*(part.detach().contiguous().numpy() for part in (x, directions, mean)), out.numpy())
    return out
