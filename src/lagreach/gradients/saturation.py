"""Inputs so large that units no longer follow them: what is left of their gradients is rounding."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.transport.rollout import Rollout

LARGE = 1e3  # sizes of inputs up to which none is called too large
MOVED = 0.01  # part of itself by which every input is moved
FELT = 1e-3  # of what a unit that follows its input would move
MOST = 0.5  # share of states that do not move, from which it is said


def size_of(x: Float[Tensor, "seq time input"]) -> float:
    """Root mean square of a layer's inputs."""
    return x.double().square().mean().sqrt().item()


def saturation_note(name: str, part: Rollout) -> str | None:
    """Say that most units of a layer do not follow its inputs, if these are large; None if they do."""
    size = size_of(part.x)
    if not size > LARGE:
        return None
    recurrence, stack = part.recurrence, part.recurrence.stack
    with torch.no_grad():
        after, moved = (
            stack.split(stack.step(x, part.previous, recurrence.params))[0] for x in (part.x, (1 + MOVED) * part.x)
        )
    still = (moved - after).abs() <= FELT * MOVED * after.std()
    share = still[part.x.any(-1)].double().mean().item()  # nothing moves an input that is zero
    if not share > MOST:
        return None
    return (
        f"{name} is saturated: {100 * share:.0f} % of its states do not follow its inputs, which are of size {size:.1g}, so that "
        "gradients are zero or at the level of rounding; scale the inputs to about one"
    )
