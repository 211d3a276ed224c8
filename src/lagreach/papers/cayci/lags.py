"""What each lag contributes to gradient and kernel of a diagonal network, exactly.

The Jacobian of a step is diagonal, so transport over lag l is a plain product,
``P_l(t) = W^l I_{t-1} ... I_{t-l}``, and the sensitivity is the sum of ``C_l(t) = P_l(t) I_{t-l-1} e_{t-l-1}``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.arrays import Array
from lagreach.cells.activations import Activation
from lagreach.errors import InputError
from lagreach.papers.cayci.checks import check_targets
from lagreach.papers.cayci.initialise import Weights
from lagreach.papers.cayci.recurrence import forward, output


@dataclass(frozen=True)
class LagParts:
    """Gradient and kernel of a diagonal network by lag.

    Attributes
    ----------
    lags
        0, 1, ...
    gradient_w, gradient_u
        ``G_l``: parts of the gradient of R/2 that travelled l steps; over all lags they add up to it.
    energy
        ``q(l)``: mean of ``|C_l|^2`` over sequences, times and units, the kernel's energy at this lag.
    transport
        ``E|P_l|``: mean over sequences, times and units; their sum over units is the envelope f(l).
    """

    lags: tuple[int, ...]
    gradient_w: Float[Tensor, "lag unit"]
    gradient_u: Float[Tensor, "lag unit input"]
    energy: Array
    transport: Array


def lag_parts(
    weights: Weights,
    x: Float[Tensor, "seq time input"],
    y: Float[Tensor, "seq time"],
    activation: str | Activation = "tanh",
    *,
    longest: int | None = None,
) -> LagParts:
    """Split the gradient of R/2 and the kernel's diagonal by lag, up to `longest` (default: all, T - 1).

    Holds all states; meant for networks and samples of moderate size.
    """
    check_targets(x, y)
    last = x.shape[1] - 1 if longest is None else longest
    if not 0 <= last < x.shape[1]:
        raise InputError("a lag must be shorter than the sequences", got=longest, expected=f"0 to {x.shape[1] - 1}")
    H, slopes = forward(weights, x, activation)
    pull = ((output(weights.c, H) - y) / len(x))[..., None] * weights.c / math.sqrt(len(weights.c))
    size = H[:, :-1].square() + x.square().sum(-1, keepdim=True)
    reach = torch.ones_like(slopes)  # P_l(t) at t = l+1..T
    dW, dU, energy, transport = [], [], [], []
    for lag in range(last + 1):
        steps = x.shape[1] - lag
        if lag:
            reach = weights.W * slopes[:, lag:] * reach[:, :-1]
        product = reach * slopes[:, :steps]
        part = pull[:, lag:] * product
        dW.append((part * H[:, :steps]).sum((0, 1)))
        dU.append(torch.einsum("ntm,ntd->md", part, x[:, :steps]))
        energy.append(float((product.square() * size[:, :steps]).mean()))
        transport.append(float(reach.abs().mean()))
    return LagParts(tuple(range(last + 1)), torch.stack(dW), torch.stack(dU), np.array(energy), np.array(transport))
