"""Values that belong to steps, as series along time less their means, for `lagreach.forecasting.plan`.

A product of matrices leaves the values of a step side by side; the product that leaves them along time takes torch five times as
long.
"""

from __future__ import annotations

from typing import no_type_check

from jaxtyping import Float
from torch import Tensor

from lagreach.kernels.cpu.compiled import compiled
from lagreach.kernels.entry import check_arrays


@compiled
@no_type_check
def _turn(values, mean, out):
    probes, seq, time = out.shape
    for s in range(seq):
        for p in range(probes):
            here, less, there = values[s], mean[p], out[p, s]
            for t in range(time):
                there[t] = here[t, p] - less[t]


def series(
    values: Float[Tensor, "seq time probe"], mean: Float[Tensor, "probe time"]
) -> Float[Tensor, "probe seq time"]:
    """Turn values, and subtract the means of every step.

    >>> import torch
    >>> series(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.ones(2, 2))
    tensor([[[0., 2.]],
    <BLANKLINE>
            [[1., 3.]]])
    """
    seq, time, probes = values.shape
    check_arrays("series of values", {"the means": (mean, (probes, time))}, dtype=values.dtype)
    out = values.new_empty(probes, seq, time)
    _turn(*(part.detach().contiguous().numpy() for part in (values, mean)), out.numpy())
    return out
