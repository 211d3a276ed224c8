"""Directional derivatives from two backward passes.

Torch's own forward mode takes seconds to load and covers fewer operations. The derivative along a direction is the
derivative of the pullback with respect to its (arbitrary) cotangent, which needs reverse mode alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def directional_derivative(
    function: Callable[[dict[str, Tensor]], Tensor], at: dict[str, Tensor], direction: dict[str, Tensor]
) -> Tensor:
    """Derivative of a function of named tensors along a direction.

    >>> square = lambda p: p["w"] ** 2
    >>> directional_derivative(square, {"w": torch.tensor([3.0])}, {"w": torch.tensor([0.5])})
    tensor([3.])
    """
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in at.items()}
        value = function(leaves)
        cotangent = torch.zeros_like(value, requires_grad=True)
        pulled = torch.autograd.grad(value, list(leaves.values()), cotangent, create_graph=True, materialize_grads=True)
        along = sum(((p * direction[name]).sum() for name, p in zip(leaves, pulled, strict=True)), cotangent.sum() * 0)
        (derivative,) = torch.autograd.grad(along, cotangent)
    return derivative
