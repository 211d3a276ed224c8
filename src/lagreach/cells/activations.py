"""Smooth activations with the bounds the convergence theory asks for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lagreach.errors import InputError


@dataclass(frozen=True)
class Activation:
    """A smooth function with ``|f| <= sigma_0``, ``|f'| <= sigma_1``, ``|f''| <= sigma_2`` everywhere.

    >>> tanh = get_activation("tanh")
    >>> tanh.sigma_0, tanh.sigma_1, round(tanh.sigma_2, 4)
    (1.0, 1.0, 0.7698)
    """

    name: str
    function: Callable[[Tensor], Tensor]
    sigma_0: float
    sigma_1: float
    sigma_2: float

    def __call__(self, z: Tensor) -> Tensor:
        return self.function(z)

    def slope(self, z: Tensor) -> Tensor:
        """First derivative, by autodiff."""
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            return torch.autograd.grad(self.function(leaf).sum(), leaf)[0]


def _gaussian(z: Tensor) -> Tensor:
    return torch.exp(-z * z / 2)


ACTIVATIONS = {
    a.name: a
    for a in (
        Activation("tanh", torch.tanh, 1.0, 1.0, 4 / (3 * math.sqrt(3))),
        Activation("logistic", torch.sigmoid, 1.0, 0.25, 1 / (6 * math.sqrt(3))),
        Activation("gaussian", _gaussian, 1.0, math.exp(-0.5), 1.0),
        Activation("erf", torch.erf, 1.0, 2 / math.sqrt(math.pi), 2 * math.sqrt(2 / math.pi) * math.exp(-0.5)),
        Activation("sine", torch.sin, 1.0, 1.0, 1.0),
    )
}


def get_activation(activation: str | Activation) -> Activation:
    """Look an activation up by name; an `Activation` passes through."""
    if isinstance(activation, Activation):
        return activation
    if activation not in ACTIVATIONS:
        raise InputError(
            "unknown activation",
            got=repr(activation),
            expected=", ".join(ACTIVATIONS),
            fix="use one of these names, or pass Activation(name, function, sigma_0, sigma_1, sigma_2)",
        )
    return ACTIVATIONS[activation]
