"""The plain torch loop that every fused kernel is tested against."""

from __future__ import annotations

import torch
from torch import Tensor

from lagreach.cells import Cell, Params, unroll
from lagreach.cells.stack import Stack


def reference(cell: Cell | Stack, x: Tensor, s0: Tensor, params: Params) -> Tensor:
    """Run the plain loop over time, for each replica on its own if there are any."""
    if x.ndim == 3:
        return unroll(cell, x, s0, params)
    each = [{name: p[r] for name, p in params.items()} for r in range(len(x))]
    return torch.stack([unroll(cell, x[r], s0[r], weights) for r, weights in enumerate(each)])
