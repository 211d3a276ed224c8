"""The whole gradient of each sequence on its own."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.transport.carry import one_position_back
from lagreach.transport.objective import Objective, output_gradient
from lagreach.transport.rollout import Rollout
from lagreach.transport.scaled import size_in_powers_of_two


def total_adjoint(part: Rollout, objective: Objective) -> Float[Tensor, "seq time state"]:
    """``dL_n/ds_t`` through everything that follows: the sum over lags of what is carried to each position."""
    delta = output_gradient(part.recurrence, objective, part.states)[0]
    total = delta.transpose(0, 1).contiguous()  # position by position, what arrives from all later ones is added up
    step_back, arrived = one_position_back(part), torch.empty_like(total[0])
    for position in range(len(total) - 1, 0, -1):
        step_back(position, total[position], arrived)
        total[position - 1] += arrived
    return total.transpose(0, 1)


class SequenceLinearisation:
    """`step` at all steps of a rollout, with weights of its own for every sequence, its graph kept.

    A pullback then gives the gradient of every sequence at once, in one batched product.
    """

    def __init__(self, part: Rollout, names: list[str]) -> None:
        recurrence, count = part.recurrence, len(part.x)
        self.time = part.x.shape[1]
        self.weights = [
            recurrence.params[name].detach().expand(count, *recurrence.params[name].shape).clone().requires_grad_()
            for name in names
        ]

        def step(x: Tensor, previous: Tensor, *weights: Tensor) -> Tensor:
            return recurrence.stack.step(x, previous, recurrence.params | dict(zip(names, weights, strict=True)))

        with torch.enable_grad():
            self.states = torch.func.vmap(step)(part.x, part.previous, *self.weights)

    def pull(self, carried: Float[Tensor, "seq reached state"]) -> Float[np.ndarray, "seq param"]:
        """Gradient of every sequence as a row of float64, scaled so that float32 models do not underflow."""
        power = size_in_powers_of_two(carried)
        missing = self.time - carried.shape[1]
        cotangent = torch.nn.functional.pad((carried / power).to(self.states.dtype), (0, 0, 0, missing))
        grads = torch.autograd.grad(
            self.states, self.weights, grad_outputs=cotangent, retain_graph=True, materialize_grads=True
        )
        return (torch.cat([g.flatten(1) for g in grads], dim=1).double() * power).cpu().numpy()
