"""A model and data, checked and paired before anything is computed: what transport runs on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from lagreach.adapters import Recurrence, View, as_view
from lagreach.adapters.calling import Call
from lagreach.adapters.folded import FoldedView, by_sequence, row_order
from lagreach.adapters.fresh_state import from_fresh_state
from lagreach.adapters.view import check_finite
from lagreach.data.batch import Batch, check_steps, check_values, sample_of
from lagreach.errors import InputError
from lagreach.transport.losses import Loss
from lagreach.transport.objective import Objective, make_objective, valid_steps
from lagreach.transport.rollout import Rollout, chunks, run


@dataclass(frozen=True)
class Prepared:
    """A model and checked data: the sequences, their number of steps, and the shape of one sequence's output.

    `notes` say how the model is run, where that is not plain.
    """

    view: View
    batch: Batch
    time: int
    output_shape: tuple[int, int]
    notes: tuple[str, ...] = ()

    def parts(self, chunk: int | None = None) -> Iterator[tuple[slice, Rollout]]:
        """Run the model on chunks of sequences."""
        shape = (len(self.batch), self.time)
        for rows in chunks(self.view.template, shape, chunk):
            yield rows, run(self.view.bind(self.batch.select(rows)), chunk)

    def anchors(self, rows: slice, part: Rollout) -> Bool[Tensor, "row time"]:
        """Which steps lie within the lengths, for every row that the layer runs on in a part of the sequences."""
        chosen = self.batch.select(rows)
        if len(part.x) == len(chosen):  # the layer itself says where its sequences end
            return valid_steps(part.lengths, len(part.x), self.time, part.x.device)
        valid = valid_steps(chosen.lengths, len(chosen), self.time, part.x.device)
        folded = self.by_sequence().view
        assert isinstance(folded, FoldedView)
        spread = torch.empty(len(part.x), self.time, dtype=torch.bool, device=valid.device)
        spread[row_order(len(chosen), folded.rows, folded.interleaved)] = valid.repeat_interleave(folded.rows, dim=0)
        return spread

    def by_sequence(self) -> Prepared:
        """The same with one row a sequence, where the layer runs on several."""
        return replace(self, view=by_sequence(self.view, self.batch.select(slice(0, 2))))

    def objective(self, loss: Loss, steps: str | Sequence[int] | Tensor | None) -> Objective:
        """Return the losses of all sequences."""
        shape = (len(self.batch), *self.output_shape)
        return make_objective(loss, self.batch, self.view.template, shape, input_time=self.time, steps=steps)


def prepare(
    model: nn.Module | Recurrence | View,
    x: Tensor,
    y: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    state: Any = None,
    others: Any = None,
    name: str = "x",
    call: Call | None = None,
) -> Prepared:
    """Check a model and its data before anything is computed.

    `others` are inputs beside x, among which x is called `name`. A model that keeps a state between calls is run from a fresh
    one, or as `call` says.
    """
    x = torch.as_tensor(x)
    if x.ndim < 2 or 0 in x.shape[:2]:
        raise InputError(
            "there is nothing to run on",
            got=f"x of shape {tuple(x.shape)}",
            expected="(seq, time, input) with at least one sequence and one step",
        )
    check_steps(x)
    check_values(x)
    valid = valid_steps(lengths, x.shape[0], x.shape[1], x.device)
    inside = valid.reshape(*valid.shape, *[1] * (x.ndim - 2))
    check_finite("the input x", torch.where(inside, x, 0))
    targets = torch.zeros(len(x)) if y is None else torch.as_tensor(y)
    check_values(targets)
    if targets.ndim == 0 or len(targets) != len(x):
        raise InputError(
            "x and y hold different numbers of sequences",
            got=f"{len(x)} and {len(targets) if targets.ndim else 'a single number'}",
            expected="the sequences on the first axis of both",
        )
    checked_lengths = None if lengths is None else valid.sum(1)
    batch = Batch(x, targets, None if mask is None else torch.as_tensor(mask), checked_lengths, state, others, name)
    call, notes = from_fresh_state(model, sample_of(batch), call)
    view = as_view(model, sample_of(batch), call)
    sample = run(view.bind(batch.select(slice(0, 1))))
    positions, out = sample.output.shape[1:]
    return Prepared(view, batch, sample.x.shape[1], (positions, out), notes)
