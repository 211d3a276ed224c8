"""The loss of each sequence, and its gradient at the states: where transport starts.

The total loss is the mean over sequences of ``L_n``. For ``"mse"`` and ``"cross_entropy"``, ``L_n`` is the mean
over the steps that count (all, the last one, chosen ones, those a mask or the lengths keep).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from lagreach._util.same_rows import by_row
from lagreach.adapters.view import Recurrence, check_finite
from lagreach.data.batch import Batch
from lagreach.errors import InputError
from lagreach.transport.losses import IGNORE_INDEX, Loss, as_loss, losses_of


@dataclass(frozen=True)
class Objective:
    """Loss, targets and weights of the steps, for sequences that run together.

    `steps` holds for each sequence the time indices its targets belong to, or is None when there is one target per
    time step; `weights` says how much each (sequence, target) counts. With `at_end`, all outputs belong to one anchor, as in a
    forecast of several steps.
    """

    loss: Loss
    y: Tensor
    weights: Float[Tensor, "seq target"]
    steps: Tensor | None = None
    at_end: bool = False

    def select(self, rows: slice | Tensor) -> Objective:
        """Return the objective of some of the sequences."""
        steps = None if self.steps is None else self.steps[rows]
        return replace(self, y=self.y[rows], weights=self.weights[rows], steps=steps)

    def to(self, device: torch.device) -> Objective:
        """Return the objective on a device."""
        steps = None if self.steps is None else self.steps.to(device)
        return replace(self, y=self.y.to(device), weights=self.weights.to(device), steps=steps)

    def at_targets(self, output: Float[Tensor, "seq time out"]) -> Float[Tensor, "seq target out"]:
        """Pick the steps that have targets."""
        return (
            output if self.steps is None else output.gather(1, self.steps[..., None].expand(-1, -1, output.shape[-1]))
        )

    def __call__(self, output: Float[Tensor, "seq time out"]) -> Float[Tensor, "seq"]:
        """Return L_n for every sequence."""
        if callable(self.loss):
            return losses_of(self.loss, output, self.y, self.weights > 0)
        output = self.at_targets(output)
        if self.loss == "mse":
            per_target = (output - self.y).square().mean(-1)
        else:
            per_target = cross_entropy(
                output.flatten(0, 1), self.y.flatten(), reduction="none", ignore_index=IGNORE_INDEX
            ).view(self.y.shape)
        return (per_target * self.weights).sum(-1) / self.weights.sum(-1)


def make_objective(
    loss: Loss,
    batch: Batch,
    recurrence: Recurrence,
    output_shape: tuple[int, int, int],
    *,
    input_time: int,
    steps: str | Sequence[int] | Tensor | None = None,
) -> Objective:
    """Check the targets of a batch against the output (seq, time, out) and work out which steps count.

    Targets without a time axis belong to the last (valid) step. `steps` names the steps explicitly: ``"last"``
    or a list of time indices, one target each. The batch's lengths are those of its inputs: they say which outputs count
    where there is one for every step of the input. `input_time` is the number of steps of the recurrent layer.
    """
    device, dtype = recurrence.device, recurrence.dtype
    return objective_of(loss, batch, output_shape, input_time=input_time, steps=steps, device=device, dtype=dtype)


def objective_of(
    loss: Loss,
    batch: Batch,
    output_shape: tuple[int, int, int],
    *,
    input_time: int,
    steps: str | Sequence[int] | Tensor | None = None,
    device: torch.device,
    dtype: torch.dtype,
    named: str = "steps",
) -> Objective:
    """Do as `make_objective` does, for outputs of any model on a device and in a floating type.

    `named` is what the user knows `steps` by.
    """
    loss = as_loss(loss)
    seq, time, out = output_shape
    mask, lengths = batch.mask, _lengths_of_outputs(batch, time, input_time)
    y = torch.as_tensor(batch.y, device=device)
    if y.shape[0] != seq:
        raise InputError(
            "x and y hold different numbers of sequences",
            got=f"{seq} and {y.shape[0]}",
            expected="the sequences on the first axis of both",
        )
    valid = valid_steps(lengths, seq, time, device)
    if mask is not None:
        mask = torch.as_tensor(mask, device=device)
        wrong = mask.is_complex() or bool((mask < 0).any())
        if tuple(mask.shape) != (seq, time) or wrong:
            raise InputError(
                "mask must weight each step of each sequence",
                got=f"shape {tuple(mask.shape)}" + (" with complex or negative values" if wrong else ""),
                expected=f"({seq}, {time}), bool or nonnegative",
            )
        check_finite("the mask", mask, batch.numbers)
    per_step = by_row(lambda steps: steps.to(dtype), valid) if mask is None else valid * mask.to(dtype)

    if callable(loss):
        _check_some_weight(per_step, batch)
        check_finite("the target y", y, batch.numbers)
        if y.is_floating_point():
            y = y.to(dtype)
        return Objective(loss, y, per_step)
    if y.is_complex():
        raise InputError(
            "the targets are complex numbers, of which a loss would see the real part alone",
            got=str(y.dtype),
            expected="real numbers or classes",
            fix="pass torch.view_as_real(y).flatten(-2), and a model with twice as many outputs",
        )
    y, times = (_mse_targets if loss == "mse" else _class_targets)(y, (seq, time, out), steps)
    y = _rounded(y, dtype) if loss == "mse" else y.long()
    index = _step_indices(steps, times, valid, named)
    weights = per_step if index is None else per_step.gather(1, index)
    if loss == "cross_entropy":
        weights = weights * (y != IGNORE_INDEX)
        bad = (y != IGNORE_INDEX) & ((y < 0) | (y >= out))
        if bad.any():
            raise InputError(
                "a class index is out of range",
                got=int(y[bad][0]),
                expected=f"0..{out - 1} or {IGNORE_INDEX} (ignored)",
            )
    elif mask is not None or lengths is not None:
        y = torch.where(weights[..., None] > 0, y, 0)  # what does not count may be anything, also NaN
    _check_some_weight(weights, batch)
    check_finite("the target y", y, batch.numbers)
    return Objective(loss, y, weights, index)


def _lengths_of_outputs(batch: Batch, time: int, layer_time: int) -> Tensor | None:
    """Lengths of the inputs, if outputs have a step for every step of theirs; refuse outputs that count other steps."""
    steps = batch.x.shape[1] if batch.x.ndim > 1 else layer_time
    if batch.lengths is None or time == steps:
        return batch.lengths
    if time == layer_time > 1 and batch.mask is None and bool((torch.as_tensor(batch.lengths) != steps).any()):
        raise InputError(
            "lengths count steps of x, but the model's outputs have other steps",
            got=f"x of {steps} steps, outputs of {time}",
            expected=f"a mask (seq, {time}) that says which outputs count",
            fix="pass mask=, made from the lengths as the model's front makes its steps; lengths may stay",
        )
    return None  # one output a sequence, or a forecast: all of it counts


def _mse_targets(y: Tensor, shape: tuple[int, int, int], steps: object) -> tuple[Tensor, int | None]:
    """Bring y to (seq, target, out); the second value is the number of targets, None for one per step."""
    seq, time, out = shape
    if out == 1 and y.ndim == 2 and (steps is not None or y.shape == (seq, time)):
        return y[..., None], (None if steps is None else y.shape[1])
    if y.shape == (seq, out):
        return y[:, None], 1
    if y.ndim == 1 and out == 1:
        return y[:, None, None], 1
    if time == 1 and y.shape == (seq, out, 1):  # as forecasts of several steps may have them
        return y.mT, 1
    if y.ndim == 3 and y.shape[-1] == out:
        return y, (None if steps is None and y.shape[1] == time else y.shape[1])
    raise InputError(
        "the targets do not fit the outputs",
        got=f"y of shape {tuple(y.shape)}",
        expected=f"({seq}, {time}, {out}) per step, ({seq}, {out}) for the last step, or (seq, K, {out}) with K steps",
        fix=_if_classes(y, out),
    )


def _if_classes(y: Tensor, out: int) -> str | None:
    """What to do where targets may be classes, of which the loss was not told."""
    if out < 2 or y.is_floating_point() or y.ndim > 2 or not bool(((y == IGNORE_INDEX) | ((y >= 0) & (y < out))).all()):
        return None
    return f'pass loss="cross_entropy" if these are classes, one of {out}'


def _rounded(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Targets in the model's type; refused where that has no such numbers."""
    rounded = y.to(dtype)
    if not y.is_floating_point() or torch.finfo(y.dtype).bits <= torch.finfo(dtype).bits:
        return rounded
    lost = bool((rounded.isinf() & y.isfinite()).any())
    if lost or (bool(y.any()) and not bool(rounded.any())):
        raise InputError(
            f"the targets are too {'large' if lost else 'small'} for the numbers that the model computes with",
            got=f"up to {float(y[y.isfinite()].abs().max()):.3g}, as {str(dtype).removeprefix('torch.')} "
            f"{'infinite' if lost else 'all zero'}",
            expected=f"numbers up to {torch.finfo(dtype).max:.1g}"
            if lost
            else f"numbers above {torch.finfo(dtype).tiny:.1g}",
            fix="scale the targets to mean 0 and variance 1",
        )
    return rounded


def _class_targets(y: Tensor, shape: tuple[int, int, int], steps: object) -> tuple[Tensor, int | None]:
    """Bring class indices to (seq, target)."""
    seq, time, out = shape
    if y.is_floating_point():
        raise InputError("cross_entropy needs integer class targets", got=y.dtype, fix="pass y.long()")
    if out < 2:
        raise InputError("cross_entropy needs at least two outputs", got=f"output_size {out}")
    if y.ndim == 1:
        return y[:, None], 1
    if y.ndim == 2:
        return y, (None if steps is None and y.shape[1] == time else y.shape[1])
    raise InputError(
        "the class targets do not fit the outputs",
        got=f"y of shape {tuple(y.shape)}",
        expected=f"({seq}, {time}) per step, ({seq},) for the last step, or (seq, K) with K steps",
    )


def _step_indices(
    steps: str | Sequence[int] | Tensor | None,
    targets: int | None,
    valid: Tensor,
    named: str,
) -> Tensor | None:
    """Time index of each target, (seq, target); None when there is a target at every step."""
    if steps is None and targets is None:
        return None
    seq, time = valid.shape
    if (steps is None and targets == 1) or (isinstance(steps, str) and steps == "last"):
        if targets != 1:
            raise InputError(f'{named}="last" needs one target per sequence', got=f"{targets} targets")
        return valid.sum(1, keepdim=True) - 1
    if steps is None or isinstance(steps, str):
        raise InputError(
            "which steps do these targets belong to?",
            got=f"{targets} targets for {time} steps, {named}={steps!r}",
            fix=f'pass {named}="last" or a list of time indices, one per target',
        )
    index = _whole_numbers(steps)
    if index is None or index.ndim != 1 or len(index) != targets or (index < 0).any() or (index >= time).any():
        raise InputError(
            f"{named} must list one time index per target",
            got=f"{steps!r:.200} for {targets} targets",
            expected=f"{targets} indices in 0..{time - 1}",
            fix=f'pass a list of whole numbers, or {named}="last"',
        )
    return index.to(valid.device).expand(seq, -1)


def _whole_numbers(values: object) -> Tensor | None:
    """Return them as a tensor of integers, or None if they are none."""
    try:
        numbers = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    if numbers.dtype == torch.bool or (numbers != numbers.long()).any():
        return None
    return numbers.long()


def valid_steps(
    lengths: Tensor | Sequence[int] | None, seq: int, time: int, device: torch.device
) -> Bool[Tensor, "seq time"]:
    """Which steps lie within each sequence's length."""
    if lengths is None:
        return torch.ones(1, time, dtype=torch.bool, device=device).expand(seq, -1)
    checked = torch.as_tensor(lengths, device=device).long()
    if checked.shape != (seq,) or (checked < 1).any() or (checked > time).any():
        raise InputError(
            "lengths must give the number of valid steps of every sequence",
            got=f"shape {tuple(checked.shape)}, values {checked.flatten()[:6].tolist()}",
            expected=f"({seq},) with values in 1..{time}",
        )
    return torch.arange(time, device=device) < checked[:, None]


def _check_some_weight(weights: Tensor, batch: Batch) -> None:
    empty = by_row(lambda each: each.sum(-1) <= 0, weights).nonzero().flatten().cpu()
    if len(empty):
        numbers = empty if batch.numbers is None else batch.numbers[empty]
        raise InputError(
            "a sequence has no step that counts",
            got=f"sequence {int(numbers[0])}" + (f" and {len(empty) - 1} more" if len(empty) > 1 else ""),
            fix="drop such sequences, or correct the mask, lengths or ignored targets",
        )


def output_gradient(
    recurrence: Recurrence, objective: Objective, states: Float[Tensor, "seq time state"]
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Gradient delta_t of each sequence's loss at its states, the states being cut off as leaves.

    Returns delta (seq, time, state), the summed gradients of the head's weights, and the losses L_n.
    """
    head = {name: p.detach().requires_grad_() for name, p in recurrence.head_params.items()}
    with torch.enable_grad():
        leaves = states.detach().requires_grad_()
        losses = objective(recurrence.head(leaves, head))
        delta, *head_grads = torch.autograd.grad(losses.sum(), [leaves, *head.values()], materialize_grads=True)
    return delta, dict(zip(head, head_grads, strict=True)), losses.detach()


def check_uncoupled(recurrence: Recurrence, objective: Objective, states: Tensor) -> None:
    """Refuse a loss function whose value for one sequence depends on the others in the batch."""
    if not callable(objective.loss) or states.shape[0] < 2:
        return
    with torch.no_grad():
        output = recurrence.head(states, recurrence.head_params)  # of all: a head belongs to its whole batch
        together, alone = objective(output)[:1], objective.select(slice(0, 1))(output[:1])
    tolerance = 1e-3 if together.dtype == torch.float32 else 1e-8
    if not torch.allclose(together, alone, rtol=tolerance, atol=tolerance):
        raise InputError(
            "the loss of a sequence depends on the other sequences in the batch",
            got=f"{together.item():.6g} in a batch, {alone.item():.6g} alone",
            fix="lag gradients are defined per sequence: use a loss that treats each sequence on its own",
        )
