"""The whole gradient of each sequence on its own."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.adapters import Recurrence
from lagreach.transport.objective import Objective
from lagreach.transport.rollout import Rollout


def total_adjoint(part: Rollout, objective: Objective) -> Float[Tensor, "seq time state"]:
    """``dL_n/ds_t`` through everything that follows: the sum over lags of what is carried to each position."""
    recurrence = part.recurrence
    with torch.enable_grad():
        state = part.initial.detach().requires_grad_()
        states = []
        for x_t in part.x.unbind(1):
            state = recurrence.stack.step(x_t, state, recurrence.params)
            states.append(state)
        losses = objective(recurrence.head(torch.stack(states, dim=1), recurrence.head_params))
        return torch.stack(torch.autograd.grad(losses.sum(), states), dim=1)


def sequence_gradients(part: Rollout, adjoint: Tensor, names: list[str]) -> Float[Tensor, "seq param"]:
    """Gradient of every sequence's loss with respect to the named weights, as rows.

    Given the adjoint, a sequence's gradient is one pullback of the step over all its times at once; `vmap` keeps the
    sequences apart.
    """
    recurrence = part.recurrence

    def pull(x: Tensor, previous: Tensor, cotangent: Tensor) -> list[Tensor]:
        def moved(params: dict[str, Tensor]) -> Tensor:
            return recurrence.stack.step(x, previous, recurrence.params | params)

        pullback = torch.func.vjp(moved, {name: recurrence.params[name] for name in names})[1]
        grads = pullback(cotangent)[0]
        return [grads[name] for name in names]

    per_sequence = torch.func.vmap(pull)(part.x, part.previous, adjoint)
    return torch.cat([g.flatten(1) for g in per_sequence], dim=1)


def as_direction(recurrence: Recurrence, names: list[str], flat: Tensor) -> dict[str, Tensor]:
    """Cut a flat vector into tensors by the names and shapes of the weights."""
    pieces = flat.split([recurrence.params[name].numel() for name in names])
    return {
        name: piece.view(recurrence.params[name].shape).to(recurrence.dtype)
        for name, piece in zip(names, pieces, strict=True)
    }
