"""Where the signal of a lag comes from: swapped targets for the data, a planted dependency for the probe.

The mean gradient at a lag is not zero without a dependency: the network's own output echoes old inputs, and
shrinking the echo is gradient too. It *is* zero once a dependency is learned. Swapping the targets of two
sequences, ``D = [g(x1,y1) + g(x2,y2) - g(x1,y2) - g(x2,y1)] / 2``, removes the echo; under independence of inputs and
targets the swap turns D into -D, so sign flips are exact, and a learned lag stays visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.adapters import Recurrence
from lagreach.errors import InputError
from lagreach.transport.objective import Objective, output_gradient
from lagreach.types import SIGNALS


def swapped(
    objective: Objective, other: Objective, weights: Tensor | None = None
) -> tuple[Objective, Objective, Tensor]:
    """Return the objectives of the same outputs with their own and with their partners' targets.

    Both use the steps that count in both sequences (or as `weights` says), so that everything but the target cancels.
    The last value says which sequences have such steps at all.
    """
    weights = objective.weights * other.weights if weights is None else weights
    shared = weights.sum(-1) > 0
    weights = torch.where(shared[:, None], weights, 1.0)
    return replace(objective, weights=weights), replace(objective, y=other.y, weights=weights), shared


def exchanged(own: Objective, other: Objective, output: Tensor) -> Float[Tensor, "seq"]:
    """How much less each sequence's loss is with its partner's targets.

    Squares are taken in double precision: targets that are small beside the outputs would drown in the rounding of these.
    """
    output = output.double() if own.loss == "mse" else output
    return own(output) - other(output)


def signal_gradient(
    recurrence: Recurrence,
    objective: Objective,
    other: Objective,
    states: Tensor,
    signal: str,
    weights: Tensor | None = None,
) -> Float[Tensor, "seq time state"]:
    """Loss gradient at the states whose transport is a lag's signal; for `weights` see `swapped`."""
    return signal_gradients(recurrence, objective, [other], states, signal, weights)[0]


def signal_gradients(
    recurrence: Recurrence,
    objective: Objective,
    others: Sequence[Objective],
    states: Tensor,
    signal: str,
    weights: Tensor | None = None,
) -> list[Float[Tensor, "seq time state"]]:
    """The same for each of several partners, with one run of the head."""
    if signal not in SIGNALS:
        raise InputError("unknown signal", got=repr(signal), expected=" or ".join(SIGNALS))
    gradients = []
    with torch.enable_grad():
        leaves = states.detach().requires_grad_()
        output = recurrence.head(leaves, {name: p.detach() for name, p in recurrence.head_params.items()})
        if signal == "gradient":
            return list(torch.autograd.grad(objective(output).sum(), [leaves], materialize_grads=True))
        for other in others:
            with_own, with_other, shared = swapped(objective, other, weights)
            difference = exchanged(with_own, with_other, output).sum()
            (contrast,) = torch.autograd.grad(difference, leaves, retain_graph=True)
            gradients.append(contrast if shared.all() else contrast * shared[:, None, None])
    return gradients


@dataclass(frozen=True)
class Probe:
    """Planted dependencies: which input direction explains which output direction.

    `output` (group, out) are unit vectors and `group` says which of them a probe belongs to; where all outputs belong to the
    end of a sequence, they run over the values of all positions. Inputs are whitened with `mean` and `whitening` (input,
    whitened); `direction` (probe, whitened) are unit vectors there. Where sequences share what varies from step to step,
    every step has a mean of its own.
    """

    output: Float[Tensor, "group out"]
    mean: Float[Tensor, "*time input"]
    whitening: Float[Tensor, "input whitened"]
    direction: Float[Tensor, "probe whitened"]
    group: tuple[int, ...]

    def whiten(self, x: Float[Tensor, "seq time input"]) -> Float[Tensor, "seq time whitened"]:
        """Inputs with mean zero, unit variance and no correlation between directions."""
        mean = self.mean.to(x)
        return (x - (mean if mean.ndim == 1 else mean[: x.shape[1]])) @ self.whitening.to(x)

    def planted(self, x: Float[Tensor, "seq time input"]) -> Float[Tensor, "probe seq time"]:
        """Value of each planted input at every step."""
        return torch.einsum("pw,stw->pst", self.direction.to(x), self.whiten(x))


def make_probe(
    mean: Float[Tensor, "*time input"],
    covariance: Float[Tensor, "input input"],
    output_size: int,
    probes: int,
    generator: torch.Generator,
) -> Probe:
    """Draw random directions on the whitened input and, for several outputs, two random output directions."""
    values, vectors = torch.linalg.eigh(covariance)
    keep = values > values.max() * 1e-10  # constant or redundant inputs carry nothing that could be planted
    if not bool(keep.any()):
        raise InputError(
            "the inputs do not vary, so nothing can depend on them",
            got="zero variance",
            expected="inputs that differ between sequences or steps",
        )
    values, vectors = values[keep], vectors[:, keep]
    # drawn in the space of the inputs: eigenvectors are arbitrary where eigenvalues agree (one-hot inputs, say)
    draws = torch.randn(probes, len(covariance), generator=generator, dtype=torch.float64) @ vectors
    direction = draws / draws.norm(dim=1, keepdim=True)
    groups = 1 if output_size == 1 else min(2, probes)
    output = torch.randn(groups, output_size, generator=generator, dtype=torch.float64)
    output = output / output.norm(dim=1, keepdim=True)
    return Probe(output, mean, vectors / values.sqrt(), direction, tuple(i % groups for i in range(probes)))


def step_weights(objective: Objective, positions: int) -> Float[Tensor, "seq position"]:
    """Share of each output position (usually a step) in the loss of its sequence."""
    shares = objective.weights / objective.weights.sum(-1, keepdim=True)
    if objective.steps is None:
        return shares
    return shares.new_zeros(len(shares), positions).scatter_add(1, objective.steps, shares)


def anchor_shares(recurrence: Recurrence, objective: Objective, states: Tensor) -> Float[Tensor, "seq time"]:
    """How much the loss looks at the state of each step: its share of the steps, or 1 where a pooled loss looks."""
    with torch.no_grad():
        positions = recurrence.head(states, recurrence.head_params).shape[1]
    if positions == states.shape[1] and not objective.at_end:
        return step_weights(objective, positions)
    delta = output_gradient(recurrence, objective, states)[0]
    return (delta.abs().amax(-1) > 0).to(delta.dtype)


def target_spread(
    recurrence: Recurrence, objective: Objective, other: Objective, states: Tensor, direction: Float[Tensor, "out"]
) -> Float[np.ndarray, "seq 2"]:
    """Two numbers per sequence; the ratio of their sums is the variance of the target part of the loss gradient.

    The target part is what changes when the target is swapped; the difference of two independent draws has twice its
    variance. Gradients carry the share of their step, so its square is divided out.
    """
    with_own, with_other, shared = swapped(objective, other)
    with torch.enable_grad():
        output = recurrence.head(states, recurrence.head_params).detach().requires_grad_()
        difference = with_own(output).sum() - with_other(output).sum()
        (gradient,) = torch.autograd.grad(difference, output)
    if objective.at_end:
        along = (gradient.flatten(1) @ direction.to(gradient))[:, None] * shared[:, None]
    else:
        along = (gradient @ direction.to(gradient)) * shared[:, None]
    amounts = planted_amounts(with_own, output.shape[1], direction.to(output.device).double()) * shared[:, None, None]
    sums = (along.double().square().sum(1), 2 * amounts.square().sum((1, 2)))
    return torch.stack(sums, dim=1).cpu().numpy()


def planted_amounts(
    objective: Objective, positions: int, direction: Float[Tensor, "out"]
) -> Float[Tensor, "seq position value"]:
    """By how much a target that moves by one unit along an output direction moves the loss gradient at each position.

    At every step by the step's share of the loss; at the end of a sequence once, over all positions together.
    """
    shares = step_weights(objective, positions)[..., None].to(direction)
    return positions * shares * direction.view(positions, -1) if objective.at_end else shares * direction


def planted_gradient(
    recurrence: Recurrence, objective: Objective, states: Tensor, direction: Float[Tensor, "out"]
) -> Float[Tensor, "seq time state"]:
    """Gradient at the states of a target that moves by one unit along an output direction at every step."""
    with torch.enable_grad():
        leaves = states.detach().requires_grad_()
        output = recurrence.head(leaves, recurrence.head_params)
        cotangent = planted_amounts(objective, output.shape[1], direction.to(output))
        (gradient,) = torch.autograd.grad(output, leaves, grad_outputs=cotangent)
    return gradient
