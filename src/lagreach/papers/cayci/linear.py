"""The linearised network and what gradient descent does to it: exact in the limit of infinite width."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.arrays import Number
from lagreach.cells.activations import Activation
from lagreach.errors import InputError
from lagreach.papers.cayci.checks import check_positive
from lagreach.papers.cayci.initialise import Weights
from lagreach.papers.cayci.streaming import pushforward


def linearised(
    start: Weights, weights: Weights, x: Float[Tensor, "seq time input"], activation: str | Activation = "tanh"
) -> Float[Tensor, "seq time"]:
    """``F^Lin_t = sum_i <dF_t(start)/dTheta_i, Theta_i - Theta_i(start)>`` (CE section 3.1)."""
    return pushforward(start, x, weights.W - start.W, weights.U - start.U, activation)


def kernel_descent(
    K: Float[Tensor, "seq time seq time"], y: Float[Tensor, "seq time"], *, eta: Number, steps: int
) -> Float[Tensor, "iterate seq time"]:
    """Predictions of the linear model along gradient descent on R/2 from zero, ``iterate = 0..steps``.

    ``F(s) = (1 - (1 - eta K / n)^s) y``: one eigendecomposition gives every iterate.
    """
    check_positive(eta=eta)
    values, vectors = _eigen(K)
    left = (1.0 - float(eta) * values / len(y)) ** torch.arange(steps + 1, dtype=values.dtype)[:, None]
    return (((1.0 - left) * (vectors.T @ y.flatten())) @ vectors.T).unflatten(1, y.shape)


def kernel_regression(
    K: Float[Tensor, "seq time seq time"], y: Float[Tensor, "seq time"], *, ridge: Number = 0.0
) -> Float[Tensor, "seq time"]:
    """Coefficients a with ``(K + ridge) a = y``; predictions elsewhere are the cross kernel times a.

    Without a ridge, directions that the kernel does not see (eigenvalues at rounding level) are left at zero.
    """
    if not ridge >= 0:
        raise InputError("a ridge cannot be negative", got=ridge)
    values, vectors = _eigen(K)
    seen = values > len(values) * torch.finfo(values.dtype).eps * values.max()
    inverse = torch.where(seen, 1.0 / (torch.where(seen, values, 1.0) + float(ridge)), 0.0)
    return (vectors @ (inverse * (vectors.T @ y.flatten()))).reshape(y.shape)


def _eigen(K: Tensor) -> tuple[Tensor, Tensor]:
    flat = K.flatten(0, 1).flatten(1)
    if flat.shape[0] != flat.shape[1]:
        raise InputError("the kernel must pair the training sequences with themselves", got=tuple(K.shape))
    values, vectors = torch.linalg.eigh((flat + flat.T) / 2)
    return values, vectors
