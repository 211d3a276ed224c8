"""What exact transport does with each row beside its matrix products, in one pass over memory instead of several."""

from __future__ import annotations

from contextlib import nullcontext
from typing import no_type_check

import torch
from torch import Tensor

from lagreach.kernels.cpu.compiled import compiled, use_whole_registers
from lagreach.progress import waiting

_ready: set[torch.dtype] = set()  # that this process has called it with


@compiled
@no_type_check
def _scale_and_sum(values, own, shared, retained, spread, kept):
    use_whole_registers()
    units = values.shape[1]
    for i in range(values.shape[0]):
        total, by = values.dtype.type(0), retained[i, 0]
        for j in range(units):
            value = values[i, j]
            spread[i, j] = value * own[i, j]
            total += value * shared[i, j]
            kept[i, j] = value * by
        spread[i, units] = total


def scale_and_sum(values: Tensor, own: Tensor, shared: Tensor, retained: Tensor, spread: Tensor, kept: Tensor) -> None:
    """Write ``values * own`` and the row sums of ``values * shared`` into `spread`, ``values * retained`` into `kept`.

    All are contiguous and of one dtype.
    """
    dtype = values.dtype
    shown = nullcontext() if dtype in _ready else waiting("compiling the exact transport for this machine, once ...")
    _ready.add(dtype)
    with shown:
        _scale_and_sum(*(v.numpy() for v in (values, own, shared, retained, spread, kept)))
