"""`scan`: states of a cell, or of a stack of cells, along whole sequences."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach._util.autodiff import directional_derivative
from lagreach.cells import Cell, Params
from lagreach.cells.stack import Stack
from lagreach.kernels.choose import Kernel, choose
from lagreach.kernels.reference import reference


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
    if x.ndim == 4:
        fused = _fused(kernel, cell, x, s0, params)
        return reference(cell, x, s0, params) if fused is None else fused.scan(cell, x, s0, params)
    known, plain = cell.plain(params)
    fused = _fused(kernel, known, x, s0, plain)
    if fused is None:
        return reference(cell, x, s0, params)
    # squeeze, because the gradient of an indexed tensor is filled with zeros first
    return fused.scan(known, x[None], s0[None], {name: p[None] for name, p in plain.items()}).squeeze(0)


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


def scan_output(
    stack: Stack,
    x: Float[Tensor, "*replica seq time input"],
    s0: Float[Tensor, "*replica seq state"],
    params: Params,
    *,
    kernel: str = "auto",
) -> Float[Tensor, "*replica seq time unit"]:
    """Output of the top layer alone. On the CPU its memory has time before sequences: transpose it before products."""
    for k, (cell, state) in enumerate(zip(stack.cells, stack.split(s0), strict=True)):
        x = _layer_output(cell, x, state, stack.layer_params(k, params), kernel)
    return x


def _layer_output(cell: Cell, x: Tensor, s0: Tensor, params: Params, kernel: str) -> Tensor:
    known, plain = cell.plain(params)
    fused = _fused(kernel, known, x, s0, plain)
    if fused is None or not hasattr(fused, "scan_blocks"):
        return cell.output(scan(cell, x, s0, params, kernel=kernel))
    output: Tensor = fused.scan_blocks(known, x, s0, plain)[0]
    return output.transpose(-3, -2)


def scan_readout(
    stack: Stack,
    x: Float[Tensor, "*replica seq time input"],
    s0: Float[Tensor, "*replica seq state"],
    params: Params,
    weight: Float[Tensor, "*replica output unit"],
    bias: Float[Tensor, "*replica output"],
    *,
    kernel: str = "auto",
) -> Float[Tensor, "*replica seq time output"] | None:
    """``weight h + bias`` of the top layer's output h, in the same pass; None where no fused kernel does that.

    Examples
    --------
    >>> from lagreach.cells.diag_gate import DiagGate
    >>> x, s, params = DiagGate().example(torch.Generator().manual_seed(0))
    >>> stack = Stack((DiagGate(),), 4, ({name: name for name in params},))
    >>> scan_readout(stack, x, s[:, 0], params, torch.ones(1, 4).double(), torch.zeros(1).double()).shape
    torch.Size([2, 7, 1])
    """
    read = _in_one_pass("scan_read", stack, x, s0, params, weight, bias, kernel)
    return None if read is None else read.transpose(-3, -2)


def scan_readout_and_output(
    stack: Stack,
    x: Float[Tensor, "*replica seq time input"],
    s0: Float[Tensor, "*replica seq state"],
    params: Params,
    weight: Float[Tensor, "*replica output unit"],
    bias: Float[Tensor, "*replica output"],
    *,
    kernel: str = "auto",
) -> tuple[Float[Tensor, "*replica seq time output"], Float[Tensor, "*replica seq time unit"]] | None:
    """What `scan_readout` gives, and h itself, without gradients."""
    both = _in_one_pass("scan_read_and_output", stack, x, s0, params, weight, bias, kernel)
    return None if both is None else (both[0].transpose(-3, -2), both[1].transpose(-3, -2))


def scan_readout_and_sums(
    stack: Stack,
    x: Float[Tensor, "seq time input"],
    s0: Float[Tensor, "seq state"],
    params: Params,
    weight: Float[Tensor, "output unit"],
    bias: Float[Tensor, "output"],
    target: Float[Tensor, "seq time"],
    share: Float[Tensor, "seq time"],
    index: Int[Tensor, "seq pick"],
    *,
    kernel: str = "auto",
) -> tuple[Float[Tensor, "seq time"], Float[Tensor, "seq unit"], Float[Tensor, "seq pick unit"]] | None:
    """``o = weight h + bias``, sums over time of ``share (target - o) h``, and h at some steps, without gradients.

    The states of all steps are not written anywhere. None where no fused kernel does that, or there are several outputs.
    """
    made: tuple[Tensor, Tensor, Tensor] | None = _in_one_pass(
        "scan_read_and_sums", stack, x, s0, params, weight, bias, kernel, target, share, index
    )
    return made


def _in_one_pass(
    what: str,
    stack: Stack,
    x: Tensor,
    s0: Tensor,
    params: Params,
    weight: Tensor,
    bias: Tensor,
    kernel: str,
    *more: Tensor,
) -> Any:
    """What a fused kernel makes of the top layer and its readout in one pass; None where none does that."""
    *below, top = zip(stack.cells, stack.split(s0), range(len(stack.cells)), strict=True)
    cell, state, k = top
    cell, weights = cell.plain(stack.layer_params(k, params))
    fused = _fused(kernel, cell, x, state, {**weights, "read": weight, "offset": bias})
    if not hasattr(fused, what) or weight.shape[-2] > getattr(fused, "MOST_READ", 0):
        return None
    for under, its_state, layer in below:
        x = _layer_output(under, x, its_state, stack.layer_params(layer, params), kernel)
    return getattr(fused, what)(cell, x, state, weights, weight, bias, *more)


def scan_tangent(
    stack: Stack,
    x: Float[Tensor, "seq time input"],
    s0: Float[Tensor, "seq state"],
    params: Params,
    direction: Params,
    *,
    kernel: str = "auto",
) -> Float[Tensor, "seq time state"]:
    """Derivative of all states along a direction of the weights, which names every weight.

    Examples
    --------
    >>> from lagreach.cells.const_gate import ConstGate
    >>> x, s, params = ConstGate().example(torch.Generator().manual_seed(0))
    >>> stack = Stack((ConstGate(),), 4, ({name: name for name in params},))
    >>> scan_tangent(stack, x, s[:, 0], params, params).shape
    torch.Size([2, 7, 4])
    """
    known, plain = stack.cells[0].plain(stack.layer_params(0, params))
    fused = _fused(kernel, known, x, s0, plain)
    if fused is None or not hasattr(fused, "scan_tangent") or len(stack.cells) > 1:
        # a second layer also sees its inputs move, which the fused tangent does not know
        return directional_derivative(
            lambda p: scan_stack(stack, x, s0, p, kernel=kernel), dict(params), dict(direction)
        )
    _, along = stack.cells[0].plain(stack.layer_params(0, direction))
    one, one_along = ({name: p.detach()[None] for name, p in weights.items()} for weights in (plain, along))
    tangent: Tensor = fused.scan_tangent(known, x[None], s0[None], one, one_along)[0]
    return tangent


def scan_pullback(
    cell: Cell,
    x: Float[Tensor, "seq time input"],
    s0: Float[Tensor, "seq state"],
    params: Params,
    gradient: Float[Tensor, "seq time state"],
    *,
    kernel: str = "auto",
) -> tuple[dict[str, Tensor], Float[Tensor, "seq time input"]] | None:
    """Lead gradients at the states back through all of time, to what the weights make; None where no fused kernel can.

    Returns the gradients at the pre-activations (seq, time, width) of each block, by the name of its bias, and at the inputs.
    """
    known, plain = cell.plain(params)
    fused = _fused(kernel, known, x, s0, plain)
    if fused is None or not hasattr(fused, "scan_pullback"):
        return None
    one = {name: p.detach()[None] for name, p in plain.items()}
    blocks, inputs = fused.scan_pullback(known, x.detach()[None], s0.detach()[None], one, gradient[None])
    return {name: d[0] for name, d in blocks.items()}, inputs[0]


def _fused(kernel: str, cell: Cell, x: Tensor, s0: Tensor, params: Params) -> Kernel | None:
    """Choose a kernel; mixed dtypes and empty inputs are left to the reference loop, whose errors torch words.

    So are cells wider than the kernel takes, unless it was asked for.
    """
    tensors = (x, s0, *params.values())
    if any(v.dtype != x.dtype or v.device != x.device for v in tensors) or any(v.numel() == 0 for v in tensors):
        choose(kernel, cell, x.device, x.dtype)  # still refuses a kernel that does not exist
        return None
    fused = choose(kernel, cell, x.device, x.dtype)
    too_wide = s0.shape[-1] > cell.state_size(getattr(fused, "WIDEST", s0.shape[-1]))
    return None if too_wide and kernel == "auto" else fused
