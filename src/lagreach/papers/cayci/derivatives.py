"""Value, slope and curvature of an activation: closed forms where they are known, autodiff for the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lagreach._util.arrays import Number
from lagreach.cells.activations import ACTIVATIONS, Activation
from lagreach.errors import InputError


@dataclass(frozen=True)
class AffineTanh:
    """``outer * tanh(inner * z) + shift``; tanh, logistic and their scaled forms are all of this kind."""

    outer: float
    inner: float
    shift: float = 0.0

    def __call__(self, z: Tensor) -> Tensor:
        return self.outer * torch.tanh(self.inner * z) + self.shift


def scaled_tanh(outer: Number, inner: Number = 1.0) -> Activation:
    """``outer * tanh(inner * z)`` with its bounds.

    >>> steep = scaled_tanh(10.0)
    >>> steep.sigma_0, steep.sigma_1, round(steep.sigma_2, 3)
    (10.0, 10.0, 7.698)
    """
    if not (outer > 0 and inner > 0):
        raise InputError("both scales of a tanh must be positive", got=f"{outer}, {inner}")
    a, b = float(outer), float(inner)
    return Activation(f"{a:g}*tanh({b:g}z)", AffineTanh(a, b), a, a * b, a * b * b * 4 / (3 * math.sqrt(3)))


def affine_tanh(activation: Activation) -> AffineTanh | None:
    """Return the activation as a shifted and scaled tanh, or None if it is no such thing."""
    if isinstance(activation.function, AffineTanh):
        return activation.function
    if activation is ACTIVATIONS["tanh"]:
        return AffineTanh(1.0, 1.0)
    if activation is ACTIVATIONS["logistic"]:
        return AffineTanh(0.5, 0.5, 0.5)
    return None


def with_slope(activation: Activation, z: Tensor) -> tuple[Tensor, Tensor]:
    """``sigma(z)`` and ``sigma'(z)``."""
    value = activation(z)
    affine = affine_tanh(activation)
    if affine is not None:
        return value, affine.inner * (affine.outer - (value - affine.shift) ** 2 / affine.outer)
    if activation is ACTIVATIONS["gaussian"]:
        return value, -z * value
    if activation is ACTIVATIONS["erf"]:
        return value, 2 / math.sqrt(math.pi) * torch.exp(-z * z)
    if activation is ACTIVATIONS["sine"]:
        return value, torch.cos(z)
    return value, activation.slope(z)


def curvature(activation: Activation, z: Tensor) -> Tensor:
    """``sigma''(z)``."""
    value, slope = with_slope(activation, z)
    affine = affine_tanh(activation)
    if affine is not None:
        return -2 * affine.inner / affine.outer * (value - affine.shift) * slope
    if activation is ACTIVATIONS["gaussian"]:
        return (z * z - 1) * value
    if activation is ACTIVATIONS["erf"]:
        return -2 * z * slope
    if activation is ACTIVATIONS["sine"]:
        return -value
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        first = torch.autograd.grad(activation(leaf).sum(), leaf, create_graph=True)[0]
        return torch.autograd.grad(first.sum(), leaf)[0]
