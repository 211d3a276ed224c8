"""Second moments of features in double precision, for `lagreach.statistics.linear_share`.

torch would write features of single precision once more in double, and once more weighted. Here a few rows are, and multiplied
while they are in the cache.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.errors import InputError
from lagreach.kernels.cpu.compiled import compiled, use_whole_registers
from lagreach.kernels.cpu.tiles import sum_of_products
from lagreach.kernels.entry import check_arrays

TOGETHER = 64  # rows whose products are added up in registers


@compiled
@no_type_check
def _add(features, counts, squares, means):
    use_whole_registers()
    rows, outputs, width = features.shape[1:]
    n, all_rows = np.uint64(width), rows * outputs
    exact, weighted = np.empty((TOGETHER, width)), np.empty((TOGETHER, width))
    for block in range(len(features)):
        for start in range(0, all_rows, TOGETHER):
            some = min(TOGETHER, all_rows - start)
            for i in range(some):
                row, output = divmod(start + i, outputs)
                count, here = counts[block, row], features[block, row, output]
                mine, times, mean = exact[i], weighted[i], means[block, output]
                for k in range(n):
                    value = np.float64(here[k])
                    mine[k] = value
                    times[k] = count * value
                    mean[k] += count * value
            pair = weighted[:some].reshape(1, some, width), exact[:some].reshape(1, some, width)
            sum_of_products(squares[block], squares[block], (pair,), 0, width)


def squares_and_means(
    features: Float[Tensor, "block row output feature"], counts: Float[Tensor, "block row"]
) -> tuple[Float[Tensor, "block feature feature"], Float[Tensor, "block output feature"]]:
    """``sum w phi phi'`` over rows and outputs of each block, and ``sum w phi`` by output.

    >>> squares, means = squares_and_means(torch.ones(1, 3, 1, 2), torch.ones(1, 3, dtype=torch.float64))
    >>> squares.tolist(), means.tolist()
    ([[[3.0, 3.0], [3.0, 3.0]]], [[[3.0, 3.0]]])
    """
    blocks, rows, outputs, width = features.shape
    if features.dtype not in (torch.float32, torch.float64):
        raise InputError("these features are of another type", got=str(features.dtype), expected="float32 or float64")
    check_arrays("sums of squares", {"the weights": (counts, (blocks, rows))}, dtype=torch.float64)
    squares, means = (torch.zeros(blocks, *shape, dtype=torch.float64) for shape in ((width, width), (outputs, width)))
    _add(*(part.detach().contiguous().numpy() for part in (features, counts)), squares.numpy(), means.numpy())
    return squares, means
