"""From the loss of a sequence to what arrives at its outputs, and the step of the input that each output belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lagreach.data.batch import Batch
from lagreach.transport.objective import Loss, Objective, objective_of, valid_steps
from lagreach.whole_model.input_module import Reading


def objective_for(loss: Loss, batch: Batch, output: Tensor, time: int, steps: Any = None) -> Objective:
    """The loss of every sequence of a batch, for outputs (seq, position, out) and inputs of `time` steps."""
    seq, positions, out = output.shape
    own = batch if batch.y.ndim <= 3 else Batch(batch.x, batch.y.flatten(2), batch.mask, batch.lengths)
    asked = None if follow_the_input(steps, batch, output) else steps
    shape, device, dtype = (seq, positions, out), output.device, output.dtype
    return objective_of(loss, own, shape, input_time=time, steps=asked, device=device, dtype=dtype)


def follow_the_input(steps: Any, batch: Batch, output: Tensor) -> bool:
    """Whether ``steps="last"`` says that several outputs, each with its target, all come after the last step (forecasts)."""
    _, positions, out = output.shape
    by_position = batch.y.ndim > 1 and batch.y.shape[1] == positions
    one_each = batch.y.ndim > 2 or out == 1 or not batch.y.is_floating_point()
    return isinstance(steps, str) and steps == "last" and positions > 1 and by_position and one_each


def cotangents(
    objective: Callable[[Tensor], Tensor], output: Tensor
) -> tuple[Float[Tensor, "seq position out"], Float[Tensor, "seq"]]:
    """Gradient of each sequence's loss at its own outputs, and the losses."""
    with torch.enable_grad():
        leaf = output.detach().requires_grad_()
        losses = objective(leaf)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf, materialize_grads=True)
    return gradient, losses.detach()


def input_steps(batch: Batch, reading: Reading) -> Bool[Tensor, "seq time"]:
    """Which steps of what was read lie within the sequences: by their lengths, or by an attention mask."""
    seq, time = reading.inputs.shape[:2]
    device = reading.inputs.device
    mask = batch.others.get("attention_mask") if isinstance(batch.others, dict) else None
    if isinstance(mask, Tensor) and mask.shape == (seq, time):
        return mask.to(device) > 0
    lengths = batch.lengths if batch.lengths is not None and batch.x.shape[1] == time else None
    return valid_steps(lengths, seq, time, device)


def output_steps(
    inside: Bool[Tensor, "seq time"], positions: int, *, after: bool = False
) -> Int[Tensor, "seq position"]:
    """Step of the input at which each output stands: its own, or the last one where there is not one for every step.

    `after` says that all outputs come after the input, even if there are as many of them.
    """
    seq, time = inside.shape
    steps = torch.arange(time, device=inside.device)
    if positions == time and not after:
        return steps.expand(seq, -1)
    last = torch.where(inside, steps, 0).amax(1)
    return last[:, None].expand(-1, positions)


def used_outputs(field: Float[Tensor, "seq position out"]) -> Bool[Tensor, "seq position"]:
    """Outputs that a gradient arrives at."""
    return field.abs().amax(-1) > 0
