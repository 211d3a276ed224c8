"""Forward sensitivities along a direction in weight space: immediate ``B_t w`` and total ``ds_t/dtheta w``."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lagreach._util.autodiff import directional_derivative
from lagreach.adapters import Recurrence, View
from lagreach.errors import InputError
from lagreach.kernels import scan_tangent
from lagreach.transport.rollout import Rollout, rollout

Direction = Mapping[str, Tensor]


def immediate_sensitivity(part: Rollout, direction: Direction) -> Float[Tensor, "seq time state"]:
    """``B_t w``: how each state moves with the weights when the state before it is held fixed."""
    recurrence = part.recurrence
    stack, tangent = recurrence.stack, complete_direction(recurrence, direction)
    if len(stack.cells) == 1:  # a scan of one step from every state
        x, before = part.x.flatten(0, 1)[:, None], part.previous.flatten(0, 1)
        return scan_tangent(stack, x, before, recurrence.params, tangent).reshape_as(part.states)
    return directional_derivative(lambda params: stack.step(part.x, part.previous, params), recurrence.params, tangent)


def total_sensitivity(
    model: nn.Module | Recurrence | View, x: Float[Tensor, "seq time input"], direction: Direction
) -> Float[Tensor, "seq time state"]:
    """``ds_t/dtheta w``: how each state moves with the weights, through all earlier states as well.

    Equal to ``sum_l M_{t,t-l} B_{t-l} w``, computed by one forward pass with tangents.
    """
    part = rollout(model, x)
    recurrence = part.recurrence
    tangent = complete_direction(recurrence, direction)
    return scan_tangent(recurrence.stack, part.x, part.initial, recurrence.params, tangent)


def complete_direction(recurrence: Recurrence, direction: Direction) -> dict[str, Tensor]:
    """Fill weights that the direction does not name with zeros; refuse names and shapes that do not exist."""
    known = recurrence.params
    # the states do not depend on the head
    check_direction({name: v for name, v in direction.items() if name not in recurrence.head_params}, known)
    return {name: direction[name].to(p) if name in direction else torch.zeros_like(p) for name, p in known.items()}


def check_direction(direction: Direction, weights: Mapping[str, Tensor]) -> None:
    """Refuse names that no weight has, and shapes that are not theirs."""
    for name, tangent in direction.items():
        if name not in weights or tangent.shape != weights[name].shape:
            raise InputError(
                f"the direction does not fit the weight {name!r}",
                got=f"shape {tuple(tangent.shape)}",
                expected=f"shape {tuple(weights[name].shape)}" if name in weights else f"one of {', '.join(weights)}",
            )
