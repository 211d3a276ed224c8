"""Lag gradients: the part ``g^(l)`` of the gradient that reaches the weights through exactly l steps."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lagreach._util.spelling import also_called
from lagreach.adapters import Recurrence, View
from lagreach.adapters.as_it_was import leaves_as_it_was
from lagreach.adapters.calling import Call
from lagreach.data.batch import sample_of
from lagreach.data.lags import check_lags
from lagreach.errors import InputError, TooLargeError
from lagreach.gradients.identity import PART_OF_IT, identity_notes
from lagreach.transport.carry import Steps, weights_of
from lagreach.transport.exact import by_weight, exact_transport
from lagreach.transport.first_order import first_order_transport
from lagreach.transport.losses import Loss
from lagreach.transport.objective import Objective, check_uncoupled, output_gradient
from lagreach.transport.prepare import Prepared, prepare
from lagreach.transport.rollout import Rollout
from lagreach.transport.sensitivity import check_direction
from lagreach.types import TRANSPORTS

LIMIT_BYTES = 2**30
GROUP_BYTES = 2**28  # of lag gradients held at once when they are reduced


@dataclass(frozen=True)
class LagGradients:
    """``g^(l)`` for each weight, averaged over sequences; their sum over all lags is the gradient.

    `grads[name]` has shape (lag, ...) followed by the weight's own shape, or (lag,) when it was reduced to norms
    or to its component along a direction. Weights of the head (readout) act at the anchor itself, so they sit in lag 0.
    `warnings` say where the sum is less than the whole gradient of a weight: one that acts outside the recurrence as well.
    """

    lags: Int[Tensor, "lag"]
    grads: dict[str, Tensor]
    loss: Float[Tensor, ""]
    time: int
    transport: str
    reduction: str | None
    warnings: tuple[str, ...] = ()

    def total(self) -> dict[str, Tensor]:
        """Sum over lags: the gradient of the loss through the recurrence. Needs every lag from 0 to T-1."""
        if self.lags.tolist() != list(range(self.time)):
            raise InputError(
                "the lags do not add up to the whole gradient",
                got=f"{len(self.lags)} of {self.time} lags",
                expected=f"lags 0..{self.time - 1}",
                fix=f"ask for lags=range({self.time})",
            )
        if self.reduction == "norm":
            raise InputError("norms of lag gradients do not add", fix="leave reduce out, or pass a direction")
        for said in self.warnings:
            if PART_OF_IT in said:
                warnings.warn(said, RuntimeWarning, stacklevel=2)
        return {name: g.sum(0) for name, g in self.grads.items()}

    def __str__(self) -> str:
        size = torch.stack([g.flatten(1).square().sum(1) for g in self.grads.values()]).sum(0).sqrt()
        head = f"lag gradients ({self.transport}), {len(self.grads)} weights, loss {self.loss:.6g}"
        rows = [f"{lag:6d}   {value:.4e}" for lag, value in zip(self.lags.tolist(), size.tolist(), strict=True)]
        return "\n".join([head, "   lag   norm", *rows, *(f"  ! {warning}" for warning in self.warnings)])


@also_called("target_steps", "steps")
@leaves_as_it_was
def lag_gradients(
    model: nn.Module | Recurrence | View,
    x: Tensor,
    y: Tensor,
    loss: Loss = "mse",
    lags: Iterable[int] | None = None,
    transport: str = "exact",
    *,
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    steps: str | Sequence[int] | Tensor | None = None,
    reduce: str | None = None,
    direction: Mapping[str, Tensor] | None = None,
    state: Any = None,
    chunk: int | None = None,
    call: Call | None = None,
) -> LagGradients:
    """Split the gradient of the loss by the number of steps it travelled back.

    Parameters
    ----------
    loss
        "mse" (mean over sequences, steps and outputs), "cross_entropy", or a function
        ``loss(output, y, mask) -> (seq,)``; the total is the mean over sequences.
    lags
        Any of 0..T-1; all of them if None.
    transport
        "exact", or "first-order" for the paper's approximation.
    mask, lengths, steps
        Which steps count: weights (seq, time), valid steps per sequence, or "last" / a list of time indices.
        Targets without a time axis belong to the last valid step.
    reduce
        "norm" keeps only the norm of each weight's gradient per lag.
    direction
        Keeps only the component along these weights' directions (weights it does not name count as zero).
    state
        Initial state to hand to the model, sequences first.
    chunk
        Sequences per pass; chosen by memory if None. It does not change the result.
    call
        How to run the model on a batch, if ``model(x)`` is not it: a function of the model and a batch.

    Examples
    --------
    >>> from lagreach import GatedRNN
    >>> g = torch.Generator().manual_seed(0)
    >>> model = GatedRNN("lstm", 2, 3, 1, generator=g, dtype=torch.float64)
    >>> x, y = torch.randn(4, 6, 2, generator=g), torch.randn(4, 6, 1, generator=g)
    >>> total = lag_gradients(model, x, y).total()
    >>> (model(x.double()) - y).square().mean().backward()
    >>> all(torch.allclose(total[name], p.grad) for name, p in model.named_parameters())
    True
    """
    prepared = prepare(model, x, y, mask=mask, lengths=lengths, state=state, call=call)
    recurrence, time = prepared.view.template, prepared.time
    wanted = check_lags(range(time) if lags is None else lags, time)
    if transport not in TRANSPORTS:
        raise InputError("unknown transport", got=repr(transport), expected=" or ".join(TRANSPORTS))
    if reduce not in (None, "norm") or (reduce and direction):
        raise InputError(
            "unknown reduction", got=f"reduce={reduce!r}", expected='None or "norm", and not with a direction'
        )
    objective = prepared.objective(loss, steps)
    notes = identity_notes(prepared.view, sample_of(prepared.batch), loss, steps)
    weights = recurrence.params | recurrence.head_params
    if direction is not None:
        check_direction(direction, weights)
    per_lag = sum(w.numel() * w.element_size() for w in weights.values())
    reduced = reduce is not None or direction is not None
    if per_lag * len(wanted) > LIMIT_BYTES and not reduced:
        raise TooLargeError(
            "the lag gradients would not fit into 1 GiB",
            got=f"{len(wanted)} lags of {per_lag / 2**20:.1f} MiB each",
            fix='ask for fewer lags, or for less: reduce="norm", or direction={weight name: tensor}',
        )
    # Norms need the sum over all sequences before they are taken, so lags go in groups that fit.
    group = len(wanted) if not reduced else max(1, GROUP_BYTES // per_lag)
    parts = []
    for start in range(0, len(wanted), group):
        grads, mean_loss = _sum_over_chunks(prepared, objective, wanted[start : start + group], transport, chunk)
        parts.append(_reduced(grads, reduce, direction))
    return LagGradients(
        lags=torch.tensor(wanted),
        grads={name: torch.cat([part[name] for part in parts]) for name in parts[0]},
        loss=mean_loss,
        time=time,
        transport=transport,
        reduction="direction" if direction is not None else reduce,
        warnings=(*prepared.notes, *notes),
    )


def _sum_over_chunks(
    prepared: Prepared,
    objective: Objective,
    lags: list[int],
    transport: str,
    chunk: int | None,
) -> tuple[dict[str, Tensor], Tensor]:
    recurrence, count = prepared.view.template, len(prepared.batch)
    weights = recurrence.params | recurrence.head_params
    grads = {name: torch.zeros(len(lags), *w.shape, dtype=w.dtype, device=w.device) for name, w in weights.items()}
    total = torch.zeros((), dtype=recurrence.dtype, device=recurrence.device)
    for rows, part in prepared.parts(chunk):
        losses_of_rows = objective.select(rows)
        if rows.start == 0:
            check_uncoupled(part.recurrence, losses_of_rows, part.states)
        delta, head_grads, losses = output_gradient(part.recurrence, losses_of_rows, part.states)
        total += losses.sum() / count
        if lags[0] == 0:
            for name, grad in head_grads.items():
                grads[name][0] += grad / count
        for i, at_lag in enumerate(_weight_gradients(part, delta, lags, transport)):
            for name, grad in at_lag.items():
                grads[name][i] += grad / count
    return grads, total


def _weight_gradients(part: Rollout, delta: Tensor, lags: list[int], transport: str) -> Iterator[dict[str, Tensor]]:
    names = list(part.recurrence.params)
    if transport == "exact":
        yield from (grads for _, grads in exact_transport(part, delta, lags, params=names))
        return
    steps = Steps(part, names)
    for cotangent in first_order_transport(part, delta, lags):
        yield by_weight(part.recurrence.params, names, weights_of(steps, cotangent.value().to(delta.dtype))[0, 0])


def _reduced(grads: dict[str, Tensor], reduce: str | None, direction: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    if reduce == "norm":
        return {name: g.flatten(1).norm(dim=1) for name, g in grads.items()}
    if direction is not None:
        along = {
            name: direction[name].to(g) if name in direction else torch.zeros_like(g[0]) for name, g in grads.items()
        }
        return {name: (g * along[name]).flatten(1).sum(1) for name, g in grads.items()}
    return grads
