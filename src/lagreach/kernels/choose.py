"""Which kernel runs a cell: the fastest that can, or the one that was asked for."""

from __future__ import annotations

import importlib
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lagreach.cells import Cell, Params
from lagreach.errors import InputError, UnsupportedError

KERNELS = ("auto", "reference", "numba", "triton", "parallel")
FUSED = {  # tried in this order by "auto"
    "numba": "lagreach.kernels.cpu",
    "triton": "lagreach.kernels.gpu",
    "parallel": "lagreach.kernels.parallel",
}


@runtime_checkable
class Kernel(Protocol):
    """A module that can run cells. Shapes are those of `lagreach.kernels.scan`, with the replica axis always there."""

    def missing(self, cell: Cell, device: torch.device, dtype: torch.dtype) -> str | None:
        """Say why this kernel cannot run the cell there; None if it can."""
        ...

    def scan(self, cell: Cell, x: Tensor, s0: Tensor, params: Params) -> Tensor:
        """States after each step."""
        ...


def check_kernel(name: str) -> str:
    """Refuse a name that is not a kernel."""
    if name not in KERNELS:
        raise InputError("unknown kernel", got=repr(name), expected=", ".join(KERNELS))
    return name


def choose(name: str, cell: Cell, device: torch.device, dtype: torch.dtype) -> Kernel | None:
    """Return the fused kernel to use, or None for the reference loop."""
    check_kernel(name)
    if name == "reference":
        return None
    for candidate, module in FUSED.items():
        if name not in ("auto", candidate):
            continue
        kernel: Kernel = importlib.import_module(module)
        reason = kernel.missing(cell, device, dtype)
        if reason is None:
            return kernel
        if name == candidate:
            raise UnsupportedError(
                f"the {name} kernel cannot run {type(cell).__name__} here",
                got=f"{device.type}, {dtype}: {reason}",
                fix='use kernel="auto", which falls back to the reference loop',
            )
    return None
