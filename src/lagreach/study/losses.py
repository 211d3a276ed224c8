"""Training losses, one number for each model: means over the sequences and steps that count."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.errors import InputError
from lagreach.transport.losses import LOSSES


def check_loss(name: str) -> str:
    """Refuse a loss that training does not know."""
    if name not in LOSSES:
        raise InputError("unknown loss", got=repr(name), expected=" or ".join(LOSSES))
    return name


def replica_losses(
    loss: str, output: Float[Tensor, "replica seq time output"], y: Tensor, mask: Tensor | None
) -> Float[Tensor, "replica"]:
    """Mean loss of each model; `mask` (time,) weights the steps."""
    if loss == "mse":
        each = (output - y).square().mean(-1)
    else:
        each = torch.nn.functional.cross_entropy(output.flatten(0, 2), y.flatten(), reduction="none").view(y.shape)
    if mask is None:
        return each.mean((1, 2))
    return (each * mask).sum((1, 2)) / (mask.sum() * each.shape[1])
