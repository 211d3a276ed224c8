"""The whole gradient of each sequence on its own."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.kernels.parallel import adjoint
from lagreach.transport.linear_scan import only_scan
from lagreach.transport.linearised import step_by_sequence
from lagreach.transport.objective import Objective, output_gradient
from lagreach.transport.rollout import Rollout
from lagreach.transport.scaled import size_in_powers_of_two


def total_adjoint(part: Rollout, objective: Objective) -> Float[Tensor, "seq time state"]:
    """``dL_n/ds_t`` through everything that follows: the sum over lags of what is carried to each position."""
    recurrence = part.recurrence
    if (cell := only_scan(part)) is not None:
        with torch.no_grad():
            keep, _ = cell.affine(part.x, recurrence.stack.layer_params(0, recurrence.params))
        return adjoint(keep, output_gradient(recurrence, objective, part.states)[0])
    with torch.enable_grad():
        state = part.initial.detach().requires_grad_()
        states = []
        for x_t in part.x.unbind(1):
            state = recurrence.stack.step(x_t, state, recurrence.params)
            states.append(state)
        losses = objective(recurrence.head(torch.stack(states, dim=1), recurrence.head_params))
        return torch.stack(torch.autograd.grad(losses.sum(), states), dim=1)


class SequenceLinearisation:
    """`step` at all steps of a rollout, with weights of its own for every sequence, its graph kept."""

    def __init__(self, part: Rollout, names: list[str]) -> None:
        self.time = part.x.shape[1]
        self.states, self.weights = step_by_sequence(part.recurrence, part.x, part.previous, names)

    def pull(self, carried: Float[Tensor, "seq reached state"]) -> Float[np.ndarray, "seq param"]:
        """Gradient of every sequence as a row of float64, scaled so that float32 models do not underflow."""
        power = size_in_powers_of_two(carried)
        missing = self.time - carried.shape[1]
        cotangent = torch.nn.functional.pad((carried / power).to(self.states.dtype), (0, 0, 0, missing))
        grads = torch.autograd.grad(
            self.states, self.weights, grad_outputs=cotangent, retain_graph=True, materialize_grads=True
        )
        return (torch.cat([g.flatten(1) for g in grads], dim=1).double() * power).cpu().numpy()
