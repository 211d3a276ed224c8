"""Does training get the gradients that the outputs have? A detach() on the way changes one and not the other."""

from __future__ import annotations

import torch

from lagreach._util.full_precision import without_cudnn
from lagreach.adapters.own_use import no_gradient
from lagreach.data.batch import Batch
from lagreach.forecasting.network import Network

DIRECTIONS = 4  # of the weights, at random
STEP = 1e-5  # along them, as a share of the weights
APART = 1e-3  # share of the derivative from which the two differ by more than rounding and curvature
CUT = (
    "the gradient that training gets is not the derivative of the outputs (a detach(), no_grad or truncated backpropagation "
    "inside?): a forecast moves the weights themselves, so shares of all weights are those of a training without that cut"
)


def cut_gradients(network: Network, sample: Batch) -> str | None:
    """Compare autograd's derivative along a few directions of the weights with differences of the outputs, in float64."""
    weights = {name: weight.double().requires_grad_() for name, weight in network.weights.items()}
    generator = torch.Generator(network.device).manual_seed(0)  # many weights are drawn where they are

    def drawn(like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64, device=like.device)

    _refuse_no_gradient(network, sample)
    try:
        # cuDNN's recurrent layers have no way back in evaluation mode
        with network.at_rest(), torch.enable_grad(), without_cudnn():
            output = network.output(weights, sample)
            along = drawn(output)
            gradients = torch.autograd.grad((output * along).sum(), list(weights.values()), allow_unused=True)
        pairs = []
        for _ in range(DIRECTIONS):
            moves = [drawn(weight) * weight.detach().square().mean().sqrt() for weight in weights.values()]
            slope = sum(float((g * m).sum()) for g, m in zip(gradients, moves, strict=True) if g is not None)
            ends = []
            for sign in (STEP, -STEP):
                moved = {n: w.detach() + sign * m for (n, w), m in zip(weights.items(), moves, strict=True)}
                with network.at_rest(), torch.no_grad():
                    ends.append(float((network.output(moved, sample) * along).sum()))
            pairs.append((slope, (ends[0] - ends[1]) / (2 * STEP)))
    except Exception:  # whatever a user's model raises when its weights have another type
        return None  # a model that does not run in float64, or backwards on this device: nothing can be compared
    slopes, derivatives = torch.tensor(pairs, dtype=torch.float64).T
    apart = (slopes - derivatives).norm() > APART * derivatives.norm()
    return CUT if bool(apart) and bool(derivatives.isfinite().all()) else None


def _refuse_no_gradient(network: Network, sample: Batch) -> None:
    """Refuse a model whose output does not hang on any weight: training would move none."""
    weights = {name: weight.detach().requires_grad_() for name, weight in network.weights.items()}
    with network.at_rest(), torch.enable_grad(), without_cudnn():
        if not network.output(weights, sample).requires_grad:
            raise no_gradient()
