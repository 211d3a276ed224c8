"""Are the steps of a recurrent layer those of the data? What stands around it may mix or shift them.

Some steps of what goes in are exchanged, and what comes out may change at these steps alone. Half of the steps are exchanged at
once, others in every sequence, and then the other half: that finds a way from any step to another, also where a unit is dead or
saturated here and there, and where autograd sees no way. Rows of a product do not depend on each other, so that what does not
change is the same up to the last places.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from lagreach.adapters import View
from lagreach.data.batch import Batch
from lagreach.errors import InputError
from lagreach.gradients.output_anchors import PER_STEP, decide
from lagreach.transport.rollout import Rollout, run

BEFORE, BEHIND = "in front of", "behind"
ROUNDING = 16  # units in the last place

Steps = Bool[Tensor, "seq time"]


def mixed_where(view: View, sample: Batch) -> str | None:
    """Say on which side of a layer steps are mixed or shifted, so that its lags are not those of the data; None if nowhere."""
    try:
        part = run(view.bind(sample.with_x(sample.x.clone())))  # some models change it in place
    except InputError:  # states out of range, which is refused when they are used
        return None
    if _reads_other_steps(view, sample, part):
        return BEFORE
    return BEHIND if _feeds_other_steps(part) else None


def _reads_other_steps(view: View, sample: Batch, part: Rollout) -> bool:
    """Whether what the layer is given at a step hangs on other steps of the model's input than that one; False if nothing tells.

    A model may look at a part of the steps, or put one in front: then the layer's steps are the input's, some of them or more.
    Models of pictures, or of channels first, have their steps on another axis of the input.
    """
    time = part.x.shape[1]
    if len(part.x) != len(sample) or len(sample) < 2 or sample.x.ndim < 2 or time < 2:
        return False
    others = [axis for axis in range(2, sample.x.ndim) if sample.x.shape[axis] == time]
    return not any(_own_steps(view, sample, part, axis) for axis in (1, *others))


def _feeds_other_steps(part: Rollout) -> bool:
    """Whether outputs, one for each step, hang on the states of others than theirs; False for forecasts made at the end."""
    seq, time = part.states.shape[:2]
    if part.output.shape[:2] != (seq, time) or time < 2:
        return False
    noise = torch.randn(part.states.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = part.states + noise.to(part.states) * part.states.std().clamp(min=1e-3)
    head, inside = part.recurrence.head, _within(part.lengths, part.states)
    for exchanged in _halves(inside):
        states = torch.where(exchanged[..., None], moved, part.states)
        with torch.no_grad():
            output = head(states, part.recurrence.head_params)
        if (_changed(part.output, output, inside) & ~exchanged).any():
            return _one_a_step(part)
    return False


def _one_a_step(part: Rollout) -> bool:
    """Whether as many outputs as steps may belong to a step each; where states do not tell, the user is asked elsewhere."""
    try:
        return decide([part]) == PER_STEP
    except InputError:
        return True


def _own_steps(view: View, sample: Batch, part: Rollout, axis: int) -> bool:
    """Whether the layer's steps are those along an axis of the input; yes, where no exchange can tell."""
    x = sample.x.movedim(axis, 1)
    usable = _exchangeable(x, sample.lengths if axis == 1 else None)
    if not usable.any():
        return True
    inside = _within(part.lengths, part.x)
    time, of_layer = x.shape[1], part.x.shape[1]
    fewer = time - of_layer  # steps of the input that are left out; or put in front, below zero
    beside = set(range(min(0, fewer), max(0, fewer) + 1))
    for exchanged in _halves(usable):
        chosen = exchanged.reshape(*exchanged.shape, *[1] * (x.ndim - 2))
        other = _given(view, sample.with_x(torch.where(chosen, x.roll(1, 0), x).movedim(1, axis)))
        if other is None or other.shape != part.x.shape:
            return True
        changed = _changed(part.x, other, inside).to(exchanged.device)
        beside = {shift for shift in beside if not (changed & ~_shifted(exchanged, shift, of_layer)).any()}
    return bool(beside)


def _given(view: View, batch: Batch) -> Tensor | None:
    """What a layer is given; None if the model refuses a sequence that is put together from two."""
    try:
        return view.bind(batch).x
    except Exception:  # whatever the user's model raises
        return None


def _exchangeable(x: Tensor, lengths: Tensor | None) -> Steps:
    """Steps at which each sequence may be given what the one before has there, which is something else.

    Values that repeat at the beginning or the end may be padding, and a model may count it.
    """
    rows = x[..., None].flatten(2)
    new = (rows[:, 1:] != rows[:, :-1]).any(-1)
    begun = torch.cat((new[:, :1], new), 1).cumsum(1) > 0
    to_come = torch.cat((new, new[:, -1:]), 1).flip(1).cumsum(1).flip(1) > 0
    inside = begun & to_come & _within(lengths, x)
    return inside & inside.roll(1, 0) & (rows != rows.roll(1, 0)).any(-1)


def _halves(usable: Steps) -> tuple[Steps, Steps]:
    """About half of some steps, others in every sequence; and the other half."""
    drawn = torch.rand(usable.shape, generator=torch.Generator().manual_seed(0)).to(usable.device) < 0.5
    return usable & drawn, usable & ~drawn


def _shifted(steps: Steps, shift: int, time: int) -> Bool[Tensor, "seq step"]:
    """Steps by the numbers that they have in a layer of `time` steps which begins `shift` steps later."""
    index = torch.arange(time, device=steps.device) + shift
    known = (index >= 0) & (index < steps.shape[1])
    return steps[:, index.clamp(0, steps.shape[1] - 1)] & known


def _within(lengths: Tensor | None, values: Shaped[Tensor, "seq time *rest"]) -> Steps:
    steps = torch.arange(values.shape[1], device=values.device)
    end = values.shape[1] if lengths is None else torch.as_tensor(lengths, device=values.device)[:, None]
    return (steps < end).expand(values.shape[:2])


def _changed(one: Tensor, other: Tensor, inside: Steps) -> Steps:
    """Steps at which something else comes out."""
    one, other = (torch.where(inside[..., None], values, 0) for values in (one, other))
    size = torch.maximum(one.abs(), other.abs()).amax((0, 1))
    return ((one - other).abs() > ROUNDING * torch.finfo(one.dtype).eps * size).any(-1)
