"""Inputs, weights and reference values for the tests of the convergence package."""

import json
from pathlib import Path

import torch

from lagreach.papers.cayci import Weights, scaled_tanh

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text())
ACTIVATIONS = ["tanh", "logistic", "gaussian", "erf", "sine", scaled_tanh(3.0, 0.5)]
START = Weights(
    torch.tensor([0.5, -0.5, 0.5, -0.5], dtype=torch.float64),
    torch.tensor([[1.0], [-0.7], [1.0], [-0.7]], dtype=torch.float64),
    torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64),
)
X = torch.tensor([[0.5, -0.25, 1.0], [1.0, 0.5, -0.5]], dtype=torch.float64)[..., None]
Y = torch.tensor([[0.2, 0.1, -0.3], [0.4, 0.0, 0.1]], dtype=torch.float64)
X4 = torch.tensor([[0.5, -0.25, 1.0, 0.75], [1.0, 0.5, -0.5, 0.25]], dtype=torch.float64)[..., None]


def unit_inputs(n, steps, d, generator):
    """Inputs of length one."""
    x = torch.randn(n, steps, d, generator=generator, dtype=torch.float64)
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def some_weights(m, d, generator, size=0.7):
    """Weights without any symmetry."""
    draw = torch.randn(m, d + 2, generator=generator, dtype=torch.float64)
    return Weights(size * draw[:, 0], draw[:, 1:-1], draw[:, -1])


def name_of(activation):
    return activation if isinstance(activation, str) else activation.name


def assert_near(value, wanted, tolerance=1e-14):
    """Equal up to `tolerance` of the largest number (or of one)."""
    wanted = torch.as_tensor(wanted, dtype=torch.float64)
    largest = max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(value, wanted, rtol=0, atol=tolerance * largest)
