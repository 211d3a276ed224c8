"""Run a recurrent model once and keep the states, which is all that transport needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lagreach.cells import Params, unroll
from lagreach.cells.stack import Stack
from lagreach.errors import InputError, UnsupportedError
from lagreach.model import GatedRNN

CHUNK_BYTES = 64 * 2**20  # of states per chunk; a dozen tensors of this size are alive at the peak


@dataclass(frozen=True)
class Recurrence:
    """A model as transport sees it: a stack of cells, its weights, and a head from states to outputs."""

    stack: Stack
    params: dict[str, Tensor]
    head: Callable[[Tensor, Params], Tensor]
    head_params: dict[str, Tensor]
    initial_state: Callable[[Tensor], Tensor]
    input_size: int

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of the weights."""
        return next(iter(self.params.values())).dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(iter(self.params.values())).device


@dataclass(frozen=True)
class Rollout:
    """States of one batch of sequences: `states[:, t]` after step t, `previous[:, t]` before it."""

    recurrence: Recurrence
    x: Float[Tensor, "seq time input"]
    initial: Float[Tensor, "seq state"]
    states: Float[Tensor, "seq time state"]

    @property
    def previous(self) -> Float[Tensor, "seq time state"]:
        """States before each step."""
        return torch.cat((self.initial[:, None], self.states[:, :-1]), dim=1)

    @property
    def output(self) -> Tensor:
        """What the head makes of the states."""
        with torch.no_grad():
            return self.recurrence.head(self.states, self.recurrence.head_params)


def as_recurrence(model: nn.Module | Recurrence) -> Recurrence:
    """Look at a model as a recurrence; its weights are detached, not copied."""
    if isinstance(model, Recurrence):
        return model
    if not isinstance(model, GatedRNN):
        raise UnsupportedError(
            "this model is not one that lagreach can take apart yet",
            got=type(model).__name__,
            expected="lagreach.GatedRNN",
            fix="write the recurrence as a Cell and build a GatedRNN from it",
        )
    weights = {name: p.detach() for name, p in model.named_parameters()}
    for name, weight in weights.items():
        check_finite(f"the weight {name}", weight)

    def head(states: Tensor, params: Params) -> Tensor:
        return nn.functional.linear(model.stack.output(states), params["readout.weight"], params["readout.bias"])

    return Recurrence(
        stack=model.stack,
        params={n: w for n, w in weights.items() if n.startswith("layers.")},
        head=head,
        head_params={n: w for n, w in weights.items() if n.startswith("readout.")},
        initial_state=model.initial_state,
        input_size=model.input_size,
    )


def rollout(model: nn.Module | Recurrence, x: Float[Tensor, "seq time input"], chunk: int | None = None) -> Rollout:
    """Run the model on `x` once, `chunk` sequences at a time, and keep the states.

    Examples
    --------
    >>> model = GatedRNN("lstm", input_size=2, hidden_size=3, output_size=1)
    >>> rollout(model, torch.zeros(5, 7, 2)).states.shape
    torch.Size([5, 7, 6])
    """
    recurrence = as_recurrence(model)
    x = check_input(recurrence, x)
    with torch.no_grad():
        initial = recurrence.initial_state(x)
        states = torch.cat(
            [
                unroll(recurrence.stack, x[rows], initial[rows], recurrence.params)
                for rows in chunks(recurrence, x, chunk)
            ]
        )
    return Rollout(recurrence, x, initial, states)


def chunks(recurrence: Recurrence, x: Tensor, chunk: int | None = None) -> Iterator[slice]:
    """Slices of sequences whose states stay within `CHUNK_BYTES` (or hold `chunk` sequences)."""
    if chunk is None:
        per_sequence = x.shape[1] * recurrence.stack.state_size * recurrence.dtype.itemsize
        chunk = max(1, CHUNK_BYTES // per_sequence)
    elif chunk < 1:
        raise InputError("chunk must be a positive number of sequences", got=chunk)
    for start in range(0, x.shape[0], chunk):
        yield slice(start, min(start + chunk, x.shape[0]))


def check_input(recurrence: Recurrence, x: Tensor) -> Tensor:
    """Check shape, type and finiteness of an input batch, and bring it to the model's type and device."""
    if not isinstance(x, Tensor):
        x = torch.as_tensor(x)
    if x.ndim != 3 or x.shape[-1] != recurrence.input_size:
        raise InputError(
            "the input does not fit the model",
            got=f"shape {tuple(x.shape)}",
            expected=f"(seq, time, {recurrence.input_size})",
            fix="check the input width and the order of the axes (sequences first)",
        )
    if x.shape[0] == 0 or x.shape[1] == 0:
        raise InputError(
            "there is nothing to run on",
            got=f"shape {tuple(x.shape)}",
            expected="at least one sequence and one step",
        )
    check_finite("the input x", x)
    return x.to(device=recurrence.device, dtype=recurrence.dtype)


def check_finite(what: str, values: Tensor) -> None:
    """Raise an error that names the first entry that is NaN or infinite."""
    if not values.is_floating_point() or torch.isfinite(values).all():
        return
    position = (~torch.isfinite(values)).nonzero()[0].tolist()
    raise InputError(
        f"{what} holds a value that is not finite",
        got=f"{values[tuple(position)].item()} at index {position} of shape {tuple(values.shape)}",
        expected="finite numbers",
        fix="clean the data or the checkpoint; nothing was computed",
    )
