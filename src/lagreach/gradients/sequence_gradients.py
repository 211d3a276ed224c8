"""The whole gradient of each sequence on its own."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.kernels.parallel import adjoint
from lagreach.transport.carry import one_position_back
from lagreach.transport.linear_scan import only_scan
from lagreach.transport.linearised import step_by_sequence
from lagreach.transport.objective import Objective, output_gradient
from lagreach.transport.rollout import Rollout
from lagreach.transport.scaled import size_in_powers_of_two


def total_adjoint(part: Rollout, objective: Objective) -> Float[Tensor, "seq time state"]:
    """``dL_n/ds_t`` through everything that follows: the sum over lags of what is carried to each position."""
    delta = output_gradient(part.recurrence, objective, part.states)[0]
    recurrence = part.recurrence
    if (cell := only_scan(part)) is not None:
        with torch.no_grad():
            keep, _ = cell.affine(part.x, recurrence.stack.layer_params(0, recurrence.params))
        return adjoint(keep, delta)
    total = delta.transpose(0, 1).contiguous()  # position by position, what arrives from all later ones is added up
    step_back, arrived = one_position_back(part), torch.empty_like(total[0])
    for position in range(len(total) - 1, 0, -1):
        step_back(position, total[position], arrived)
        total[position - 1] += arrived
    return total.transpose(0, 1)


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
