"""Weights of a cell as these kernels want them: the blocks stacked, each as wide as the state."""

from __future__ import annotations

import torch
from torch import Tensor

from lagreach.cells import Cell, Params
from lagreach.cells.diag_elman import DiagElman
from lagreach.cells.shared_gate import SharedGate
from lagreach.kernels.packing import BLOCKS, products_of


def stacked(cell: Cell, params: Params) -> tuple[Tensor, Tensor, Tensor]:
    """W (replica, width, input), b (replica, width), U (replica, width, unit); for DiagElman U is the diagonal u_h.

    >>> from lagreach.cells.shared_gate import SharedGate
    >>> _, _, params = SharedGate().example(torch.Generator().manual_seed(0))
    >>> [p.shape for p in stacked(SharedGate(), {name: p[None] for name, p in params.items()})]
    [torch.Size([1, 8, 3]), torch.Size([1, 8]), torch.Size([1, 8, 4])]
    """
    U = params["u_h"] if isinstance(cell, DiagElman) else _stacked("U", cell, params)
    return _stacked("W", cell, params), _stacked("b", cell, params), U


def _stacked(kind: str, cell: Cell, params: Params) -> Tensor:
    each = [params[f"{kind}_{block}"] for block in BLOCKS[type(cell)]]
    if isinstance(cell, SharedGate):  # one gate for all units: a gate for each, all with the same weights
        each[0] = each[0].expand_as(each[1])
    return torch.cat(each, dim=1)


def by_block(cell: Cell, stacked_gradients: Tensor) -> dict[str, Tensor]:
    """Gradients at the pre-activations (..., width) of each block, by the name of its bias."""
    biases = list(products_of(cell))
    blocks = dict(zip(biases, stacked_gradients.chunk(len(biases), dim=-1), strict=True))
    return blocks | {"b_s": blocks["b_s"].sum(-1, keepdim=True)} if isinstance(cell, SharedGate) else blocks
