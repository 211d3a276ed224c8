"""Weights and inputs as these kernels want them: sequence by sequence in time, every block as wide as the state.

This differs from `lagreach.kernels.packing`, which puts time first for the CPU's cache: here rows of one sequence stay
together, as the inputs and the readout have them, so nothing is transposed.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.cells import Cell, Params
from lagreach.cells.diag_elman import DiagElman
from lagreach.cells.shared_gate import SharedGate
from lagreach.kernels.packing import BLOCKS


def preactivations(
    cell: Cell, x: Float[Tensor, "replica seq time input"], params: Params
) -> Float[Tensor, "replica seq time width"]:
    """``W x + b`` of every block at every time, in one product.

    The biases ride along as the weights of an input that is always one, so that their gradients come with the others.
    """
    ones = x.new_ones(*x.shape[:-1], 1)
    W = torch.cat((_stacked("W", cell, params), _stacked("b", cell, params)[..., None]), dim=-1)
    fill = -W.shape[-1] % 4  # rows of 16 bytes
    rows = torch.nn.functional.pad(torch.cat((x, ones), dim=-1), (0, fill)).flatten(1, 2)
    W = torch.nn.functional.pad(W, (0, fill))
    return torch.bmm(rows, W.transpose(1, 2)).unflatten(1, x.shape[1:3])


def recurrent_weights(cell: Cell, params: Params) -> Tensor:
    """Stacked U (replica, width, unit), in the order of the blocks; for DiagElman its diagonal u_h (replica, unit)."""
    return params["u_h"] if isinstance(cell, DiagElman) else _stacked("U", cell, params)


def _stacked(kind: str, cell: Cell, params: Params) -> Tensor:
    each = [params[f"{kind}_{block}"] for block in BLOCKS[type(cell)]]
    if isinstance(cell, SharedGate):  # one gate for all units: a gate for each, all with the same weights
        each[0] = each[0].expand_as(each[1])
    return torch.cat(each, dim=1)
