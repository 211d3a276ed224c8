"""`scan`: states of a cell, or of a stack of cells, along whole sequences."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.cells import Cell, Params, unroll
from lagreach.cells.stack import Stack
from lagreach.kernels.choose import choose


def scan(
    cell: Cell,
    x: Float[Tensor, "*replica seq time input"],
    s0: Float[Tensor, "*replica seq state"],
    params: Params,
    *,
    kernel: str = "auto",
) -> Float[Tensor, "*replica seq time state"]:
    """States after each step of a cell.

    With a leading replica axis on `x`, `s0` and every weight, replica r of the result depends on replica r alone.

    Examples
    --------
    >>> from lagreach.cells.diag_gate import DiagGate
    >>> x, s, params = DiagGate().example(torch.Generator().manual_seed(0))
    >>> scan(DiagGate(), x, s[:, 0], params, kernel="reference").shape
    torch.Size([2, 7, 4])
    """
    fused = choose(kernel, cell, x.device, x.dtype)
    if fused is None:
        return reference(cell, x, s0, params)
    if x.ndim == 4:
        return fused.scan(cell, x, s0, params)
    return fused.scan(cell, x[None], s0[None], {name: p[None] for name, p in params.items()})[0]


def reference(cell: Cell | Stack, x: Tensor, s0: Tensor, params: Params) -> Tensor:
    """Run the plain loop over time, for each replica on its own if there are any."""
    if x.ndim == 3:
        return unroll(cell, x, s0, params)
    each = [{name: p[r] for name, p in params.items()} for r in range(len(x))]
    return torch.stack([unroll(cell, x[r], s0[r], own) for r, own in enumerate(each)])


def scan_stack(
    stack: Stack,
    x: Float[Tensor, "*replica seq time input"],
    s0: Float[Tensor, "*replica seq state"],
    params: Params,
    *,
    kernel: str = "auto",
) -> Float[Tensor, "*replica seq time state"]:
    """States after each step of a stack, its layers side by side; layer after layer, each over all of time."""
    after = []
    for k, (cell, state) in enumerate(zip(stack.cells, stack.split(s0), strict=True)):
        after.append(scan(cell, x, state, stack.layer_params(k, params), kernel=kernel))
        x = cell.output(after[-1])
    return torch.cat(after, dim=-1) if len(after) > 1 else after[0]
