"""Fused kernels (in preparation)."""

from __future__ import annotations

import torch
from torch import Tensor

from lagreach.cells import Cell, Params


def missing(cell: Cell, device: torch.device, dtype: torch.dtype) -> str | None:
    """Say why this kernel cannot run the cell there; None if it can."""
    return "not built"


def scan(cell: Cell, x: Tensor, s0: Tensor, params: Params) -> Tensor:
    """States after each step."""
    raise NotImplementedError
