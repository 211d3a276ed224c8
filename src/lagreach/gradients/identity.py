"""Lag gradients must add up to the gradient that training gets: checked on a few sequences of every diagnosis.

What a replay cannot see is a gradient that is changed on its way while values stay: `detach` inside a layer, gradients
that are scaled or cut off, weights that act elsewhere too. One backward pass through the user's model shows all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lagreach.adapters import Recurrence, View
from lagreach.cells import unroll
from lagreach.data.batch import Batch
from lagreach.errors import InputError
from lagreach.gradients.saturation import saturation_note
from lagreach.gradients.sequence_gradients import total_adjoint
from lagreach.transport.carry import Steps, weights_of
from lagreach.transport.exact import by_weight, exact_transport
from lagreach.transport.losses import Loss
from lagreach.transport.objective import Objective, make_objective, output_gradient, valid_steps
from lagreach.transport.rollout import Rollout, run

Gradients = dict[str, Tensor]

CHEAP = 2**28  # products up to which every lag is carried; beyond, the same sum is taken by its recursion
APART = {torch.float64: 1e-7, torch.float32: 1e-3}  # relative; lower precision: 0.1
SMALL = 1e-3  # weights with a gradient so much smaller than the largest are compared with that
UNSURE = 10  # times what double precision changes
ROUNDING = 100  # times what a change of the inputs by their rounding does

PART_OF_IT = "do not add up to the whole gradient"
_TIED = (
    "{} also used outside the recurrence, or under another name, or a hook changes the gradient: lag gradients are those of "
    f"the use in the recurrence, and {PART_OF_IT}"
)
_ROUNDING = (
    "gradients of {} are at the level of rounding in {}, as with saturated or dead units: what is said of its lags is not to be "
    "trusted. Scale its inputs to about one, or run the model in float64: model.double()"
)
_PADDING = (
    "the loss depends on what stands behind the lengths of short sequences: {} runs over the padding, or something in front of "
    "it reads it, as in training; steps of padding count as lags (pack_padded_sequence, or a mask, would leave it out)"
)


def identity_notes(view: View, batch: Batch, loss: Loss, steps: Any = None) -> tuple[str, ...]:
    """Compare the sum over lags with autograd's gradient on some sequences; refuse if they differ.

    Returned are sentences for the result: weights that act outside the recurrence as well, and padding that is read. For a
    gated linear layer, whose weights also act beside its scan, the gradient through the scan is what is compared.
    """
    bound = view.bind(batch)
    part = run(bound)
    seq, positions, out = part.output.shape
    time = part.x.shape[1]
    objective = make_objective(loss, batch, part.recurrence, (seq, positions, out), input_time=time, steps=steps)
    notes = [_PADDING.format(view.name)] if _reads_padding(view, batch, part, objective) else []
    nudged = replace(bound, x=_nudged(bound.x))
    trained = view.trained(batch, objective)
    if trained is None:
        delta = output_gradient(part.recurrence, objective, part.states)[0]
        piece, at_states = _last_steps(part, delta)
        notes += _compare(
            view.name,
            sum_over_lags(piece, at_states),
            through_steps(piece, at_states),
            part.recurrence.dtype,
            lambda: sum_over_lags(*_last_steps(run(nudged), delta)),
            piece,
            at_states,
        )
        return (*notes, *_tied(_of_one_tensor(part.recurrence)))
    theirs = {name: trained.grads[name] for name in part.recurrence.params}
    coarser = min((trained.dtype, part.recurrence.dtype), key=lambda dtype: dtype.itemsize)
    notes += _compare(
        view.name,
        _whole_sum(part, objective),
        theirs,
        coarser,
        lambda: _whole_sum(run(nudged), objective),
        part,
        output_gradient(part.recurrence, objective, part.states)[0],
    )
    return (*notes, *_tied([name for name in trained.elsewhere if name in part.recurrence.params]))


def sum_over_lags(part: Rollout, delta: Tensor) -> Gradients:
    """Gradients of the weights, summed over all lags and sequences, from gradients at the states."""
    total = torch.zeros_like(delta, dtype=torch.float64)
    for cotangent, _ in exact_transport(part, delta, list(range(part.x.shape[1]))):
        arrived = cotangent.double()
        total[:, : arrived.shape[1]] += arrived
    return _of_weights(part, total.to(delta.dtype))


def through_steps(part: Rollout, delta: Tensor) -> Gradients:
    """The same by autograd, through a plain loop over the steps."""
    recurrence = part.recurrence
    with torch.enable_grad():
        live = {name: weight.detach().clone().requires_grad_() for name, weight in recurrence.params.items()}
        states = unroll(recurrence.stack, part.x, part.initial, live)
        grads = torch.autograd.grad((states * delta).sum(), list(live.values()), materialize_grads=True)
    return dict(zip(live, grads, strict=True))


def _whole_sum(part: Rollout, objective: Objective) -> Gradients:
    """Sum over all lags; what is carried to a position over all lags obeys a recursion, which long sequences take."""
    if part.x.shape[1] <= _cheap_steps(part):
        return sum_over_lags(part, output_gradient(part.recurrence, objective, part.states)[0])
    return _of_weights(part, total_adjoint(part, objective))


def _of_weights(part: Rollout, arrived: Tensor) -> Gradients:
    """Gradients of the weights from what arrives at the state of every step."""
    params = part.recurrence.params
    names = list(params)
    return by_weight(params, names, weights_of(Steps(part, names), arrived)[0, 0])


def _cheap_steps(part: Rollout) -> int:
    """Steps over which every lag of these sequences can be carried at little cost."""
    weights = sum(weight.numel() for weight in part.recurrence.params.values()) + part.states.shape[-1]
    return max(2, math.isqrt(CHEAP // (weights * len(part.x))))


def _last_steps(part: Rollout, delta: Tensor) -> tuple[Rollout, Tensor]:
    """The end of the sequences, where every loss looks, short enough for every lag and for memory."""
    time = part.states.shape[1]
    count = min(time, _cheap_steps(part))
    before = part.previous[:, time - count]
    piece = replace(part, x=part.x[:, -count:], initial=before, states=part.states[:, -count:], lengths=None)
    return piece, delta[:, -count:]


def _nudged(x: Tensor) -> Tensor:
    """Inputs that differ from these by rounding."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(x)
    return x * (1 + torch.finfo(x.dtype).eps * noise)


def _above_rounding(part: Rollout, delta: Tensor, apart: dict[str, float]) -> bool:
    """Whether any of these differences is more than what double precision changes in a plain loop over the steps.

    Of units that are nearly saturated, single precision leaves hardly more than its own rounding.
    """
    recurrence = part.recurrence
    precise = replace(recurrence, params={name: _double(weight) for name, weight in recurrence.params.items()})
    doubled = replace(part, recurrence=precise, x=_double(part.x), initial=_double(part.initial))
    single, double = through_steps(part, delta), through_steps(doubled, _double(delta))
    return any(apart[weight] > UNSURE * _norm(_double(single[weight]) - double[weight]) for weight in apart)


def _double(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float64))


def _compare(
    name: str,
    ours: Gradients,
    theirs: Gradients,
    dtype: torch.dtype,
    of_nudged: Callable[[], Gradients],
    part: Rollout,
    delta: Tensor,
) -> list[str]:
    """Refuse gradients that differ by more than rounding explains; say so where they are nothing but rounding.

    `of_nudged` gives ours for inputs nudged by rounding; `delta` are the gradients at the states of `part`.
    """
    apart = {weight: _norm(ours[weight].double() - theirs[weight].double()) for weight in theirs}
    sizes = {weight: max(_norm(ours[weight]), _norm(theirs[weight])) for weight in theirs}
    largest, allowed = max(sizes.values()), APART.get(dtype, 0.1)
    wrong = [weight for weight in theirs if apart[weight] > allowed * max(sizes[weight], SMALL * largest)]
    if not wrong or not math.isfinite(sum(sizes.values())):
        return []  # what is not finite is refused elsewhere, by name
    moved = of_nudged()  # chaotic networks blow rounding up
    wrong = [weight for weight in wrong if apart[weight] > ROUNDING * _norm(moved[weight] - ours[weight])]
    if not wrong:
        return []
    if saturation_note(name, part) is not None or not _above_rounding(part, delta, {w: apart[w] for w in wrong}):
        return [_ROUNDING.format(name, str(dtype).removeprefix("torch."))]
    worst = max(wrong, key=lambda weight: apart[weight] / sizes[weight])
    raise InputError(
        f"the lag gradients of {name} do not add up to the gradient that training gets",
        got=f"for {worst} they are {apart[worst] / sizes[worst]:.2g} times its size apart",
        expected=f"at most {allowed:g}, for rounding",
        fix="something inside the layer changes gradients but no output: detach(), no_grad, scaled gradients, a backward "
        "hook? Take it out while you diagnose, or describe the whole step as a Cell and use GatedRNN",
    )


def _norm(values: Tensor) -> float:
    return values.double().norm().item()


def _tied(weights: list[str]) -> list[str]:
    names = " and ".join(filter(None, (", ".join(weights[:-1]), *weights[-1:])))
    return [_TIED.format(f"{names} {'is' if len(weights) == 1 else 'are'}")] if weights else []


def _of_one_tensor(recurrence: Recurrence) -> list[str]:
    """Weights of a recurrence that are one tensor under several names."""
    weights = recurrence.params | recurrence.head_params
    places = [weight.data_ptr() for weight in weights.values() if weight.numel()]
    return [n for n, w in recurrence.params.items() if w.numel() and places.count(w.data_ptr()) > 1]


def _reads_padding(view: View, batch: Batch, part: Rollout, objective: Objective) -> bool:
    """Whether losses change with what stands behind the sequences' lengths, here with copies of their first steps."""
    if batch.lengths is None or batch.x.ndim < 2:
        return False
    inside = valid_steps(batch.lengths, len(batch), batch.x.shape[1], batch.x.device)
    inside = inside.reshape(*inside.shape, *[1] * (batch.x.ndim - 2))
    if bool(inside.all()):
        return False
    other = run(view.bind(replace(batch, x=torch.where(inside, batch.x, batch.x[:, :1]))))
    losses, changed = (objective(one.output) for one in (part, other))
    return not torch.allclose(losses, changed, rtol=APART.get(losses.dtype, 0.1), atol=0.0, equal_nan=True)
