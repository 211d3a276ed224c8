"""Fused kernels for CUDA, written in Triton: the whole of time in one launch, for many replicas at once.

What depends on the inputs alone is one matrix product before the loop, and the gradients of the weights are products
after it. In between, one program takes 16 sequences of one replica through all of time. The recurrent weights stay in
shared memory as far as they fit (all of them up to 192 KB); the rest is streamed from the L2 cache at every step.
Replicas are independent, so a study trains many seeds in the time of one.

Where `plan.chosen_shape` says so, *units-first* kernels (`units_first_parts`) take 8 sequences instead, and `weight_sums`
replaces the products of the weights' gradients. Of few sequences a program takes one *alone*, its weights in registers.

Products are of float32 accuracy; ``with precision("float16"):`` trades it for speed. Triton is imported at first use. Set
``TRITON_INTERPRET=1`` before that to run the same kernels on the CPU, slowly, as the tests do.
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

from lagreach.cells import Cell, Params
from lagreach.cells.activations import ACTIVATIONS, Activation, get_activation
from lagreach.kernels.entry import check_scan
from lagreach.kernels.gpu.plan import (
    WIDEST,
    Plan,
    check_precision,
    chosen_shape,
    current_precision,
    family_of,
    precision,
)

__all__ = [
    "WIDEST",
    "check_precision",
    "current_precision",
    "missing",
    "plan_of",
    "precision",
    "scan",
    "scan_pullback",
    "scan_tangent",
    "vectors_of",
]


def missing(cell: Cell, device: torch.device, dtype: torch.dtype) -> str | None:
    """Say why this kernel cannot run the cell there; None if it can."""
    interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not interpreted:
        return "it needs a CUDA device"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if family_of(cell) is None:
        return "it does not know this cell"
    activation = getattr(cell, "activation", "tanh")
    if isinstance(activation, Activation) and ACTIVATIONS.get(activation.name) is not activation:
        return "it does not know this activation"
    if dtype != torch.float32 and not (interpreted and dtype == torch.float64):
        return "it computes in float32"
    return None


def scan(cell: Cell, x: Tensor, s0: Tensor, params: Params) -> Tensor:
    """States after each step; shapes as in `lagreach.kernels.scan`, with the replica axis always there."""
    from lagreach.kernels.gpu.function import Recurrence
    from lagreach.kernels.gpu.packing import stacked

    check_scan(cell, x, s0, params)
    states: Tensor = Recurrence.apply(plan_of(cell, s0), x, *stacked(cell, params), s0, *vectors_of(params))[0]
    return states


def scan_tangent(cell: Cell, x: Tensor, s0: Tensor, params: Params, direction: Params) -> Tensor:
    """Derivative of the states along a direction of the weights, in the layout of `scan`."""
    from lagreach.kernels.gpu.function import Recurrence, tangent_of
    from lagreach.kernels.gpu.packing import stacked

    check_scan(cell, x, s0, params)
    check_scan(cell, x, s0, direction, "the direction of")
    plan, vectors, (W, b, U) = plan_of(cell, s0), vectors_of(params), stacked(cell, params)
    with torch.no_grad():
        after = Recurrence.forward(plan, x, W, b, U, s0, *vectors)
        moved = (None, *stacked(cell, direction), None, *vectors_of(direction))  # inputs and first state stay
        return tangent_of(plan, (x, W, U, s0, *vectors, *after), moved)


def scan_pullback(
    cell: Cell, x: Tensor, s0: Tensor, params: Params, gradient: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients at the pre-activations of each block, by the name of its bias, and at the inputs, in the layout of `scan`."""
    from lagreach.kernels.gpu.function import Pullback, Recurrence
    from lagreach.kernels.gpu.packing import by_block, stacked

    check_scan(cell, x, s0, params)
    plan, vectors, (W, b, U) = plan_of(cell, s0), vectors_of(params), stacked(cell, params)
    with torch.no_grad():
        after = Recurrence.forward(plan, x, W, b, U, s0, *vectors)
        d = Pullback.apply(plan, plan.tile(x, U), gradient, U, s0, *vectors, *after)[0]
        return by_block(cell, d), torch.matmul(d[..., : W.shape[1]], W[:, None])


def plan_of(cell: Cell, s0: Tensor) -> Plan:
    """How to run a cell from first states (replica, seq, state)."""
    family = family_of(cell)
    assert family is not None, "missing() comes first"
    return Plan(
        family,
        layernorm=getattr(cell, "layernorm", False),
        fixed=getattr(cell, "gate", 1.0),
        precision=current_precision(),
        activation=get_activation(getattr(cell, "activation", "tanh")).name,
        shape=chosen_shape(family, s0.shape[-1] // family.state, s0.shape[0] * s0.shape[1]),
    )


def vectors_of(params: Params) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gain and shift of a LayerNorm and the hidden bias of TorchGRU's candidate, where there are some."""
    return params.get("ln_gain"), params.get("ln_shift"), params.get("c_n")
