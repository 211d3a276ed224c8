"""Cells that are linear in their state: all steps at once, in a few large rounds instead of a loop over time.

Plain torch operations on any device. ``s_t = a_t s_{t-1} + b_t``: time is cut into about ``sqrt(T)`` stretches of as many
steps. A loop over the steps of a stretch runs in all stretches together, each from a state of zero; a loop over the stretches
then hands the state on, and what it came in with is added to every step.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from lagreach.cells import Cell, Params


def missing(cell: Cell, device: torch.device, dtype: torch.dtype) -> str | None:
    """Say why this kernel cannot run the cell; None if it can."""
    return None if getattr(cell, "affine", None) is not None else "the cell is not linear in its state"


def scan(cell: Any, x: Tensor, s0: Tensor, params: Params) -> Tensor:
    """States after each step, with a leading replica axis throughout."""
    if len(x) == 1:
        keep, add = cell.affine(x[0], {name: weight[0] for name, weight in params.items()})
        return linear_recurrence(keep, add, s0[0])[None]
    keep, add = torch.func.vmap(cell.affine)(x, dict(params))
    return linear_recurrence(keep, add, s0)


def linear_recurrence(
    keep: Float[Tensor, "*batch time unit"], add: Float[Tensor, "*batch time unit"], start: Float[Tensor, "*batch unit"]
) -> Float[Tensor, "*batch time unit"]:
    """All ``s_t = keep_t s_{t-1} + add_t``.

    >>> half, one = torch.full((3, 1), 0.5), torch.ones(3, 1)
    >>> linear_recurrence(half, one, torch.zeros(1)).flatten()
    tensor([1.0000, 1.5000, 1.7500])
    """
    states: Tensor = _Recurrence.apply(keep, add, start)
    return states


class _Recurrence(torch.autograd.Function):
    """Backwards it is the same recurrence from the end, of the gradients that arrive."""

    generate_vmap_rule = True

    @staticmethod
    def forward(keep: Tensor, add: Tensor, start: Tensor) -> Tensor:
        return _states(keep, add, start)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        context.save_for_backward(inputs[0], inputs[2], output)

    @staticmethod
    def backward(context: Any, *arriving: Tensor) -> tuple[Tensor, ...]:
        keep, start, states = context.saved_tensors
        total = adjoint(keep, arriving[0])
        before = torch.cat((start[..., None, :], states[..., :-1, :]), dim=-2)
        return total * before, total, keep[..., 0, :] * total[..., 0, :]


def adjoint(
    keep: Float[Tensor, "*batch time unit"], arriving: Float[Tensor, "*batch time unit"]
) -> Float[Tensor, "*batch time unit"]:
    """Gradients at all states, through everything that follows: ``g_t = arriving_t + keep_{t+1} g_{t+1}``.

    >>> adjoint(torch.full((3, 1), 0.5), torch.ones(3, 1)).flatten()
    tensor([1.7500, 1.5000, 1.0000])
    """
    later = pad(keep[..., 1:, :], (0, 0, 0, 1)).flip(-2)
    return linear_recurrence(later, arriving.flip(-2), torch.zeros_like(arriving[..., 0, :])).flip(-2)


def _states(keep: Tensor, add: Tensor, start: Tensor) -> Tensor:
    time = keep.shape[-2]
    steps = max(1, math.isqrt(time))
    missing_steps = -time % steps
    if missing_steps:
        keep, add = pad(keep, (0, 0, 0, missing_steps)), pad(add, (0, 0, 0, missing_steps))
    keep, add = (v.unflatten(-2, (-1, steps)) for v in (keep, add))  # (*batch, stretch, step, unit)
    states, kept = torch.empty_like(add), torch.empty_like(keep)  # kept: of the state before the stretch
    states[..., 0, :], kept[..., 0, :] = add[..., 0, :], keep[..., 0, :]
    for step in range(1, steps):
        states[..., step, :] = torch.addcmul(add[..., step, :], keep[..., step, :], states[..., step - 1, :])
        kept[..., step, :] = keep[..., step, :] * kept[..., step - 1, :]
    before = [start]
    for stretch in range(states.shape[-3] - 1):
        before.append(torch.addcmul(states[..., stretch, -1, :], kept[..., stretch, -1, :], before[-1]))
    states = torch.addcmul(states, kept, torch.stack(before, dim=-2)[..., None, :])
    return states.flatten(-3, -2)[..., :time, :]
