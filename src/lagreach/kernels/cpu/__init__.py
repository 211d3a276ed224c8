"""Fused kernels for the CPU, compiled by numba on first use and cached on disk.

Input projections, recurrence, nonlinearities and, on the way back, the gradients of all weights happen in one pass over
time, a block of sequences at a time, so that everything but the states and activations stays in the cache. numba is
imported at first use.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lagreach._util.interrupts import import_whole
from lagreach.cells import Cell, Params
from lagreach.cells._pullback import RowForm
from lagreach.kernels.packing import blocks_of

if TYPE_CHECKING:
    from lagreach.kernels.cpu.pullback import RowPass

__all__ = [
    "SlowWarning",
    "has_numba",
    "missing",
    "row_pass",
    "scan",
    "scan_blocks",
    "scan_pullback",
    "scan_read",
    "scan_read_and_output",
    "scan_read_and_sums",
    "scan_tangent",
]


MOST_READ = 4  # outputs that `scan_read` is good for, a row at a time; more are better read by one product afterwards


class SlowWarning(UserWarning):
    """Something works, but a faster way is closed."""


def missing(cell: Cell, device: torch.device, dtype: torch.dtype) -> str | None:
    """Say why this kernel cannot run the cell here and now; None if it can."""
    if device.type != "cpu":
        return "it runs on the CPU"
    if dtype not in (torch.float32, torch.float64):
        return "it computes in float32 and float64"
    if blocks_of(cell) is None:
        return "it does not know this cell"
    if getattr(cell, "activation", "tanh") != "tanh":
        return "it knows tanh only"
    if torch.compiler.is_compiling():
        return "torch.compile or torch.export is at work"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transformation of torch.func is at work"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode differentiation is at work"
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    if not has_numba():
        return "numba is not installed"
    return None


@functools.cache
def has_numba() -> bool:
    """Whether anything can be compiled; warns if not."""
    installed = importlib.util.find_spec("numba") is not None
    if installed:
        import_whole("numba")
    else:
        warnings.warn(
            "numba is not installed, so recurrent networks run in a plain torch loop, some 20 times slower; "
            "install it with: pip install numba",
            SlowWarning,
            stacklevel=2,
        )
    return installed


def scan(cell: Cell, x: Tensor, s0: Tensor, params: Params) -> Tensor:
    """States after each step; shapes as in `lagreach.kernels.scan`, with the replica axis always there."""
    states = [block.transpose(1, 2) for block in scan_blocks(cell, x, s0, params)]
    return torch.cat(states, dim=-1) if len(states) > 1 else states[0]


def scan_blocks(cell: Cell, x: Tensor, s0: Tensor, params: Params) -> tuple[Tensor, ...]:
    """Blocks of the state after each step, in the order of `Cell.blocks`, time before sequences; with or without replicas."""
    from lagreach.kernels.cpu.function import blocks

    return blocks(cell, x, s0, params)


def scan_read(cell: Cell, x: Tensor, s0: Tensor, params: Params, weight: Tensor, bias: Tensor) -> Tensor:
    """``weight h + bias`` of the output h of each step, time before sequences; with or without replicas."""
    from lagreach.kernels.cpu.function import read

    return read(cell, x, s0, params, weight, bias)


def scan_read_and_output(
    cell: Cell, x: Tensor, s0: Tensor, params: Params, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """What `scan_read` gives, and the output h, without gradients."""
    from lagreach.kernels.cpu.function import read_and_output

    return read_and_output(cell, x, s0, params, weight, bias)


def scan_read_and_sums(
    cell: Cell,
    x: Tensor,
    s0: Tensor,
    params: Params,
    weight: Tensor,
    bias: Tensor,
    target: Tensor,
    share: Tensor,
    index: Tensor,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """What `scan_read` gives, sums of the output h, and h at some steps, of one network with one output; None of others."""
    from lagreach.kernels.cpu.function import read_and_sums

    return read_and_sums(cell, x, s0, params, weight, bias, target, share, index) if len(weight) == 1 else None


def scan_tangent(cell: Cell, x: Tensor, s0: Tensor, params: Params, direction: Params) -> Tensor:
    """Derivative of the states along a direction of the weights."""
    from lagreach.kernels.cpu.function import tangent

    return tangent(cell, x, s0, params, direction)


def scan_pullback(
    cell: Cell, x: Tensor, s0: Tensor, params: Params, gradient: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients at the pre-activations of each block, by the name of its bias, and at the inputs."""
    from lagreach.kernels.cpu.function import pullback

    return pullback(cell, x, s0, params, gradient)


def row_pass(forms: Sequence[RowForm | None]) -> RowPass | None:
    """Return the compiled pullback through layers of these forms, the lowest first; None if there is none here."""
    known = [form for form in forms if form is not None]
    if len(known) < len(forms):
        return None
    dtype, tensors = known[0].arrays[0].dtype, [v for form in known for v in (*form.arrays, *form.weights, form.reads)]
    if any(v.device.type != "cpu" or v.dtype != dtype or not v.is_contiguous() for v in tensors):
        return None
    if dtype not in (torch.float32, torch.float64) or not has_numba():
        return None
    from lagreach.kernels.cpu.pullback import RowPass

    return RowPass(known)
