"""Run a recurrent model once and keep the states, which is all that transport needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lagreach._util.room import room
from lagreach.adapters import BoundRecurrence, Recurrence, View, as_view
from lagreach.adapters.as_it_was import leaves_as_it_was
from lagreach.data.batch import Batch
from lagreach.errors import InputError
from lagreach.kernels import scan_stack

CHUNK_BYTES = 64 * 2**20  # of states per chunk; a dozen tensors of this size are alive at the peak


@dataclass(frozen=True)
class Rollout:
    """States of one batch of sequences: `states[:, t]` after step t, `previous[:, t]` before it."""

    recurrence: Recurrence
    x: Float[Tensor, "seq time input"]
    initial: Float[Tensor, "seq state"]
    states: Float[Tensor, "seq time state"]
    lengths: Tensor | None = None

    @cached_property
    def previous(self) -> Float[Tensor, "seq time state"]:
        """States before each step."""
        return torch.cat((self.initial[:, None], self.states[:, :-1]), dim=1)

    @cached_property
    def output(self) -> Tensor:
        """What the head makes of the states."""
        with torch.no_grad():
            return self.recurrence.head(self.states, self.recurrence.head_params)


@leaves_as_it_was
def rollout(
    model: nn.Module | Recurrence | View, x: Float[Tensor, "seq time input"], chunk: int | None = None
) -> Rollout:
    """Run the model on `x` once, `chunk` sequences at a time, and keep the states.

    Examples
    --------
    >>> from lagreach import GatedRNN
    >>> model = GatedRNN("lstm", input_size=2, hidden_size=3, output_size=1)
    >>> rollout(model, torch.zeros(5, 7, 2)).states.shape
    torch.Size([5, 7, 6])
    """
    batch = Batch(x, torch.zeros(len(x)))
    return run(as_view(model, batch).bind(batch), chunk)


def run(bound: BoundRecurrence, chunk: int | None = None) -> Rollout:
    """Run a recurrence on the batch it is bound to."""
    recurrence, x = bound.recurrence, bound.x
    with torch.no_grad():
        initial = recurrence.initial_state(x)
        parts = [
            scan_stack(recurrence.stack, x[rows], initial[rows], recurrence.params)
            for rows in chunks(recurrence, x.shape, chunk)
        ]
        states = parts[0] if len(parts) == 1 else torch.cat(parts)
    _check_states(states, bound.lengths)
    return Rollout(recurrence, x, initial, states, bound.lengths)


def _check_states(states: Float[Tensor, "seq time state"], lengths: Tensor | None) -> None:
    """Refuse states that have left the range of numbers within their sequences."""
    if torch.isfinite(states.sum()):  # a sum of something else is no number either
        return
    finite = torch.isfinite(states)
    if finite.all():
        return
    if lengths is not None and len(lengths) == len(states):  # what lies beyond may be anything
        steps = torch.arange(states.shape[1], device=states.device)
        finite = finite | (steps >= lengths.to(states.device)[:, None])[..., None]
    bad = (~finite).nonzero()
    if len(bad):
        row, step, unit = bad[0].tolist()
        raise InputError(
            "the states of the recurrence overflow",
            got=f"{states[row, step, unit].item()} after step {step}, in {str(states.dtype).removeprefix('torch.')}",
            expected="finite states",
            fix="scale the inputs, lower the recurrent weights, shorten the sequences, or run in float64: model.double()",
        )


def chunks(recurrence: Recurrence, shape: Sequence[int], chunk: int | None = None) -> Iterator[slice]:
    """Slices of sequences whose states stay small (or that hold `chunk` sequences)."""
    if chunk is None:
        per_sequence = shape[1] * recurrence.stack.state_size * recurrence.dtype.itemsize
        chunk = max(1, room(recurrence.device, CHUNK_BYTES) // max(per_sequence, 1))
    elif chunk < 1:
        raise InputError("chunk must be a positive number of sequences", got=chunk)
    for start in range(0, shape[0], chunk):
        yield slice(start, min(start + chunk, shape[0]))
