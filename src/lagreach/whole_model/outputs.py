"""From the loss of a sequence to what arrives at its outputs, and the step of the input that each output belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lagreach.data.batch import Batch
from lagreach.errors import InputError
from lagreach.gradients.output_anchors import AT_THE_END, PER_STEP, check_outputs
from lagreach.transport.losses import Loss
from lagreach.transport.objective import Objective, objective_of, valid_steps
from lagreach.whole_model.input_module import Reading


def objective_for(loss: Loss, batch: Batch, output: Tensor, time: int, steps: Any = None) -> Objective:
    """The loss of every sequence of a batch, for outputs (seq, position, out) and inputs of `time` steps."""
    seq, positions, out = output.shape
    flat = batch if batch.y.ndim <= 3 else Batch(batch.x, batch.y.flatten(2), batch.mask, batch.lengths)
    shape, device, dtype = (seq, positions, out), output.device, output.dtype
    return objective_of(loss, flat, shape, input_time=time, steps=steps, device=device, dtype=dtype)


def decide_outputs(reading: Reading, output: Tensor, outputs: str | None = None) -> str:
    """Whether outputs stand at a step of the input each ("per step"), or all behind it ("at the end"), as in a forecast.

    As the user says, or by the steps of the input that feed the first and the last output. Where both are fed by the same
    steps, as many as there are outputs, only the user can tell, unless an output has several values.
    """
    check_outputs(outputs)
    time, (_, positions, width) = reading.inputs.shape[1], output.shape
    if outputs is not None and (outputs == AT_THE_END or positions == time):
        return outputs
    if positions != time or positions == 1:
        return AT_THE_END
    first, last = (_feeding(reading, output, position) for position in (0, positions - 1))
    if not torch.equal(first, last) or width > 1 or not first.any():  # a dead model is said elsewhere
        return PER_STEP
    raise InputError(
        "are these outputs at every step, or a forecast made at the end?",
        got=f"{positions} outputs for {time} steps, all of them fed by the same inputs",
        expected="outputs that tell by the inputs that feed them",
        fix=f'pass outputs="{PER_STEP}" if output t belongs to step t, or outputs="{AT_THE_END}" if all belong to the end',
    )


def _feeding(reading: Reading, output: Tensor, position: int) -> Bool[Tensor, "seq time"]:
    """Steps of the input that feed the output at a position."""
    picked = output[:, position]
    along = torch.randn(picked.shape, generator=torch.Generator().manual_seed(0)).to(picked)
    return (reading.pull(picked, along) != 0).any(-1)


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

    `after` says that all outputs stand behind the input, even if there are as many of them.
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
