"""Does the gradient at a state, from a difference of targets, hang on that state, or on others as well?

For a linear readout with squared or cross-entropy loss it does not: outputs drop out of the difference of two targets. A
readout with layers of its own looks at the state of its step, and one that pools or attends looks at all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lagreach.gradients.contrast import signal_gradient
from lagreach.gradients.measurement_plan import MeasurementPlan, PairBatch

NOTHING, OWN_STEP, EVERYTHING = "nothing", "own step", "everything"
ROUNDING = 256  # units in the last place


def head_reach(plan: MeasurementPlan) -> str:
    """Move the states of one pair at random, and see which gradients change."""
    piece = next(plan.pieces([int(plan.block_plan.blocks[0])]))
    states = piece.part.states
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(states.shape, generator=generator, dtype=torch.float64).to(states)
    moved = noise * states.std().clamp(min=1e-3)
    at_rest = _signal(piece, states)
    if _same(at_rest, _signal(piece, states + moved)):
        return NOTHING
    odd = (torch.arange(states.shape[1], device=states.device) % 2 == 1)[None, :, None]
    for chosen in (odd, ~odd):  # what is moved elsewhere must not be felt here
        if not _same(
            torch.where(chosen, 0.0, at_rest), torch.where(chosen, 0.0, _signal(piece, states + moved * chosen))
        ):
            return EVERYTHING
    return OWN_STEP


def pools(plan: MeasurementPlan) -> bool:
    """Whether an output hangs on the states of several steps, as with a mean over time or attention.

    An input then arrives by way of the state of its own step too, whatever the layer carries over time.
    """
    piece = next(plan.pieces([int(plan.block_plan.blocks[0])]))
    recurrence = piece.part.recurrence
    with torch.enable_grad():
        leaves = piece.part.states.detach().requires_grad_()
        output = recurrence.head(leaves, {name: p.detach() for name, p in recurrence.head_params.items()})
        (gradient,) = torch.autograd.grad(output[:, -1].sum(), leaves, materialize_grads=True)
    read = (gradient != 0).any(-1).sum(1)
    return bool((read > 1).any())


def _signal(piece: PairBatch, states: Tensor) -> Tensor:
    return signal_gradient(piece.part.recurrence, piece.objective, piece.swapped, states, "dependence")


def _same(one: Tensor, other: Tensor) -> bool:
    size = torch.maximum(one.abs().max(), other.abs().max())
    return bool((one - other).abs().max() <= ROUNDING * torch.finfo(one.dtype).eps * size)
