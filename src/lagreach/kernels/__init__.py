"""Run a cell along whole sequences: one entry point, several implementations with the same results.

`scan` gives the states after each step. ``kernel="reference"`` is the plain torch loop that every other kernel is
tested against; "numba" (CPU) and "triton" (CUDA) run the time loop in one fused call,
"parallel" needs none for cells that are linear in their state. All of them are differentiable,
in float32 and float64, and take an optional leading replica axis: independent models of one shape, run together.
"""

from __future__ import annotations

from lagreach.kernels.choose import KERNELS, check_kernel, choose
from lagreach.kernels.scan import (
    scan,
    scan_output,
    scan_pullback,
    scan_readout,
    scan_readout_and_output,
    scan_readout_and_sums,
    scan_stack,
    scan_tangent,
)

__all__ = [
    "KERNELS",
    "check_kernel",
    "choose",
    "scan",
    "scan_output",
    "scan_pullback",
    "scan_readout",
    "scan_readout_and_output",
    "scan_readout_and_sums",
    "scan_stack",
    "scan_tangent",
]
