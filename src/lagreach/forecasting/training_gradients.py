"""Does training get the gradients that the outputs have? A detach() on the way changes one and not the other."""

from __future__ import annotations

from itertools import pairwise

import torch

from lagreach._util.full_precision import without_cudnn
from lagreach.adapters.own_use import no_gradient
from lagreach.data.batch import Batch
from lagreach.forecasting.network import Network

Moves = dict[str, torch.Tensor]

DIRECTIONS = 4  # of the weights, at random
STEP = 1e-5  # along them, as a share of the weights
MORE_STEPS = (1e-7, 1e-6, STEP, 1e-4, 1e-3, 1e-2)  # one of them stands above rounding, and below curvature
APART = 1e-3  # share of the derivative from which the two differ by more than rounding and curvature
SURE = 4.0  # times as far apart as differences over two distances
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

    def changes(moves: Moves, step: float) -> float:
        ends = []
        for sign in (step, -step):
            moved = {name: weight.detach() + sign * moves[name] for name, weight in weights.items()}
            with network.at_rest(), torch.no_grad():
                ends.append(float((network.output(moved, sample) * along).sum()))
        return (ends[0] - ends[1]) / (2 * step)

    _refuse_no_gradient(network, sample)
    try:
        # cuDNN's recurrent layers have no way back in evaluation mode
        with network.at_rest(), torch.enable_grad(), without_cudnn():
            output = network.output(weights, sample)
            along = drawn(output)
            gradients = torch.autograd.grad((output * along).sum(), list(weights.values()), allow_unused=True)
        directions, slopes = [], []
        for _ in range(DIRECTIONS):
            moves = {name: drawn(weight) * weight.detach().square().mean().sqrt() for name, weight in weights.items()}
            for name, row in network.padding.items():
                moves[name][row] = 0.0
            directions.append(moves)
            pairs = zip(gradients, moves.values(), strict=True)
            slopes.append(sum(float((g * m).sum()) for g, m in pairs if g is not None))
        slope = torch.tensor(slopes, dtype=torch.float64)

        def over(step: float) -> torch.Tensor:
            return torch.tensor([changes(moves, step) for moves in directions], dtype=torch.float64)

        return CUT if _apart(slope, over(STEP)) and _surely_apart(slope, [over(step) for step in MORE_STEPS]) else None
    except Exception:  # whatever a user's model raises when its weights have another type
        return None  # a model that does not run in float64, or backwards on this device: nothing can be compared


def _apart(slope: torch.Tensor, differences: torch.Tensor) -> bool:
    apart = (slope - differences).norm() > APART * differences.norm()
    return bool(apart) and bool(differences.isfinite().all())


def _surely_apart(slope: torch.Tensor, by_step: list[torch.Tensor]) -> bool:
    """Whether derivatives are apart by more than differences are good to, which models that compute in float32 inside lower.

    The two distances that agree best tell: of rounding the farther one has less, and curvature parts the two. Distances over
    which nothing changes are below what the outputs resolve.
    """
    told = [one for one in by_step if bool((one.isfinite() & (one != 0)).all())] or by_step[-1:]
    spreads = [float((far - near).norm() / far.norm()) for near, far in pairwise(told)]
    best = min(range(len(spreads)), key=spreads.__getitem__, default=-1)
    spread = spreads[best] if spreads else 0.0
    differences = told[best + 1] if spreads else told[0]
    return _apart(slope, differences) and float((slope - differences).norm()) > SURE * spread * float(
        differences.norm()
    )


def _refuse_no_gradient(network: Network, sample: Batch) -> None:
    """Refuse a model whose output does not hang on any weight: training would move none."""
    weights = {name: weight.detach().requires_grad_() for name, weight in network.weights.items()}
    with network.at_rest(), torch.enable_grad(), without_cudnn():
        if not network.output(weights, sample).requires_grad:
            raise no_gradient()
