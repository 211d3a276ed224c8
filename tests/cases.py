"""What the tests share: the list of cells, tolerances by dtype, and small models at generic points."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from lagreach import GatedRNN, all_cells

CELLS = list(all_cells())
WITH_LAYERNORM = [name for name, cell in all_cells().items() if "layernorm" in {f.name for f in fields(cell)}]
VARIANTS = [(name, False) for name in CELLS] + [(name, True) for name in WITH_LAYERNORM]
TOLERANCE = {torch.float64: {"rtol": 1e-10, "atol": 1e-10}, torch.float32: {"rtol": 1e-4, "atol": 1e-6}}


def normal(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def small_model(
    cell: str,
    generator: torch.Generator,
    *,
    layernorm: bool = False,
    num_layers: int = 1,
    output_size: int = 2,
    hidden_size: int = 4,
    dtype: torch.dtype = torch.float64,
) -> GatedRNN:
    """A model with all weights random (no zero biases, no small gate weights)."""
    model = GatedRNN(
        cell, 3, hidden_size, output_size, num_layers, layernorm=layernorm, generator=generator, dtype=dtype
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
            parameter.copy_(0.5 * noise + (1.0 if name.endswith("ln_gain") else 0.0))
    return model


def autograd_gradient(model: GatedRNN, loss: Tensor) -> dict[str, Tensor]:
    grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g
        for (name, p), g in zip(model.named_parameters(), grads, strict=True)
    }
