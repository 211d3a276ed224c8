"""How far an optimiser gets in so many steps: the time for which gradient descent on the linearised network runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lagreach._util.full_precision import without_cudnn
from lagreach.errors import InputError
from lagreach.forecasting.target_batches import Measurement
from lagreach.gradients.optimiser_geometry import step_sizes

GRADIENT_BATCH = 32  # sequences of a batch whose gradient tells what Adam divides by before its first step
GRADIENT_BATCHES = 4


def optimiser_scale(
    measurement: Measurement, optimiser: Any, model: object, squared: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Step size of each weight, from its mean squared gradient; zero for weights that the optimiser does not move."""
    if not isinstance(model, nn.Module):
        raise InputError("optimiser= needs the torch module whose weights it moves", got=type(model).__name__)
    weights = measurement.network.weights
    sizes = step_sizes(optimiser, model, squared)
    if not set(sizes) & set(weights):
        raise InputError(
            "the optimiser does not move any weight of this model",
            got=f"{len(sizes)} weights of its own",
            fix="pass the optimiser of this very model",
        )
    return {name: sizes.get(name, torch.zeros(w.shape, dtype=torch.float64)) for name, w in weights.items()}


def farthest(scale: Mapping[str, Tensor], squared: Mapping[str, Tensor], steps: int) -> float:
    """Root mean square of the distance that weights move in so many steps, if all steps went the same way.

    Adam moves a weight by its learning rate at a step, whatever the gradient; SGD by the gradient's own size. Training
    that cannot move weights by a good part of one has hardly begun.
    """
    moved = torch.cat([(scale[name].square() * squared[name].to(scale[name])).flatten() for name in scale])
    return float(steps * moved[moved > 0].mean().sqrt()) if bool((moved > 0).any()) else 0.0


def mean_squared_gradients(measurement: Measurement, seconds: float | None = None) -> dict[str, Tensor]:
    """Mean over a few batches of the squared gradient of the mean loss; fewer, once so many seconds are over."""
    begun = time.perf_counter()
    network = measurement.network
    measurement = replace(measurement, start=None)  # training sees targets as they are
    plan = measurement.plan.only(GRADIENT_BATCH * GRADIENT_BATCHES)
    totals: dict[str, Tensor] = {}
    count = 0
    for batch, _, _ in plan.batches(GRADIENT_BATCH):
        objective = measurement.run(batch).objective
        leaves = {name: w.detach().requires_grad_() for name, w in network.weights.items()}
        with network.at_rest(), torch.enable_grad(), without_cudnn():
            loss = objective(network.output(leaves, batch)).mean()
            gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True, allow_unused=True)
        for name, gradient in zip(leaves, gradients, strict=True):
            totals[name] = totals.get(name, torch.zeros_like(gradient)) + gradient.square()
        count += 1
        if seconds is not None and time.perf_counter() - begun > seconds:
            break
    return {name: total / count for name, total in totals.items()}


def descent_time(loss: str, outputs: int, steps: int) -> float:
    """Time of gradient descent on half the squared distance, with step sizes in the features.

    The squared loss is a mean over outputs without the half: ``2 / outputs`` a step. Cross-entropy has curvature one in the
    coordinates of `OutputSpace`.
    """
    if steps < 1:
        raise InputError("training takes a positive number of steps", got=steps, expected="1 or more")
    return steps * (2.0 / outputs if loss == "mse" else 1.0)


def readout_time(loss: str, outputs: int, steps: int) -> float:
    """The same for a readout alone, of which one output stands for all.

    The mean curvature of cross-entropy counts the constant that all logits can be moved by, which has none.
    """
    mean = outputs / (outputs - 1) if loss == "cross_entropy" and outputs > 1 else 1.0
    return mean * descent_time(loss, outputs, steps)


def readout_scale(scale: Mapping[str, Tensor], readout: tuple[str, ...], features: int) -> Tensor | None:
    """Root of the step size of the readout's weights, by feature: the mean over outputs; None without a matrix."""
    for name in readout:
        if scale[name].ndim == 2 and scale[name].shape[1] == features:
            return scale[name].mean(0).sqrt()
    return None
