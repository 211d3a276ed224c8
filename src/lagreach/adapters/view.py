"""How the rest of the package sees a model: a recurrence, and a way to bind it to a batch.

A model is something in front, a recurrent layer, and something behind. What stands in front only makes the layer's
input. What stands behind is a *head*: a function from the layer's states to the model's output, the states being cut
off as leaves. Binding a view to a batch runs the front once and returns both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lagreach.cells import Params
from lagreach.cells.stack import Stack
from lagreach.data.batch import Batch, refuse_one_series, zero_beyond
from lagreach.errors import InputError
from lagreach.models.gated_rnn import GatedRNN

BESIDE_MASK = (
    "a mask takes out targets, not inputs: put zeros into steps that are padding, or pass lengths=; otherwise "
)


@dataclass(frozen=True)
class Recurrence:
    """A stack of cells with its weights, and a head from states (seq, time, state) to outputs (seq, position, out)."""

    stack: Stack
    params: dict[str, Tensor]
    head: Callable[[Tensor, Params], Tensor]
    head_params: dict[str, Tensor]
    initial_state: Callable[[Tensor], Tensor]
    input_size: int

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of the weights."""
        return self._first.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._first.device

    @property
    def _first(self) -> Tensor:
        first = next(iter(self.params.values()), None)
        if first is None:
            raise InputError("a recurrence without weights has nothing to learn", expected="at least one weight")
        return first


@dataclass(frozen=True)
class BoundRecurrence:
    """A recurrence bound to a batch: the input of the recurrent layer, and how many of its steps are valid."""

    recurrence: Recurrence
    x: Float[Tensor, "seq time input"]
    lengths: Tensor | None = None


@dataclass(frozen=True)
class OwnUse:
    """Gradients of a layer's weights, by their names in the model, through the layer's own use of them.

    `elsewhere` names the weights whose whole gradient is another one: tied weights, or weights that the head reads too.
    """

    grads: dict[str, Tensor]
    elsewhere: tuple[str, ...]
    dtype: torch.dtype  # of the model's output: how precisely it computes


class View(ABC):
    """One recurrence inside a model. `name` says where; `local` whether lags are within a layer only."""

    name: str = "model"
    local: bool = False
    template: Recurrence

    @abstractmethod
    def bind(self, batch: Batch) -> BoundRecurrence:
        """Run what stands in front on a batch."""

    def trained(self, batch: Batch, losses: Callable[[Tensor], Tensor]) -> OwnUse | None:
        """Gradients of the recurrence's weights in training, by one backward pass through the user's model.

        None where there is no model beside the recurrence, or where its weights act beside the recurrence as well: the
        layer of a `ScanView` also makes gates, readings and skips of its input with them.
        """
        return None

    def learns(self, batch: Batch) -> bool:
        """Whether autograd finds a way from the model's output back to the recurrence, however small what arrives may be."""
        bound = self.bind(batch)
        recurrence = bound.recurrence
        size = self.template.stack.state_size
        with torch.enable_grad():
            states = bound.x.new_zeros(*bound.x.shape[:2], size).requires_grad_()
            output = recurrence.head(states, {name: p.detach() for name, p in recurrence.head_params.items()})
            return output.requires_grad and torch.autograd.grad(output.sum(), states, allow_unused=True)[0] is not None


def unbound_recurrence(stack: Stack, params: dict[str, Tensor], input_size: int) -> Recurrence:
    """Describe a recurrence before it has met a batch, which gives it its head and initial state; check its weights."""
    for name, weight in params.items():
        check_finite(f"the weight {name}", weight)
    return Recurrence(stack, params, _no_batch_yet, {}, _no_batch_yet, input_size)


def _no_batch_yet(*_: object) -> Tensor:
    raise RuntimeError("this recurrence is not bound to a batch")


def bind_to(
    template: Recurrence, x: Tensor, initial: Tensor, head: Callable[[Tensor], Tensor], lengths: Tensor | None
) -> BoundRecurrence:
    """Bind a recurrence to the inputs and initial states that a batch gives it, and to a head without weights of its own."""
    recurrence = replace(
        template, head=lambda states, _: head(states), initial_state=lambda _: initial, input_size=x.shape[-1]
    )
    return BoundRecurrence(recurrence, x, lengths)


def lengths_within(batch: Batch, time: int) -> Tensor | None:
    """Lengths of the sequences, for a layer that has a step for every step of its batch's inputs.

    Behind a front that strides, cuts or joins steps they say nothing about the layer's own steps, and all of these count.
    """
    return batch.lengths if batch.x.ndim > 1 and batch.x.shape[1] == time else None


class GatedView(View):
    """A `GatedRNN`, or a finished recurrence: nothing in front, and a head that is the same for every batch."""

    def __init__(self, recurrence: Recurrence) -> None:
        self.template = recurrence

    def bind(self, batch: Batch) -> BoundRecurrence:
        """Check the input and bring it to the model's type and device."""
        x = batch.x
        if batch.lengths is not None and x.ndim == 3:  # what lies beyond the lengths may hold anything
            inside = torch.arange(x.shape[1]) < torch.as_tensor(batch.lengths)[:, None].cpu()
            x = torch.where(inside[..., None].to(x.device), x, 0)
        return BoundRecurrence(self.template, check_input(self.template, x), batch.lengths)


def gated_view(model: GatedRNN) -> GatedView:
    """View a `GatedRNN`; its weights are detached, not copied."""
    weights = {name: p.detach() for name, p in model.named_parameters(remove_duplicate=False)}
    for name, weight in weights.items():
        check_finite(f"the weight {name}", weight)

    def head(states: Tensor, params: Params) -> Tensor:
        return nn.functional.linear(model.stack.output(states), params["readout.weight"], params["readout.bias"])

    params = {n: w for n, w in weights.items() if n.startswith("layers.")}
    check_step(model.stack, params, model.input_size)
    recurrence = Recurrence(
        stack=model.stack,
        params=params,
        head=head,
        head_params={n: w for n, w in weights.items() if n.startswith("readout.")},
        initial_state=model.initial_state,
        input_size=model.input_size,
    )
    return GatedView(recurrence)


def check_step(stack: Stack, params: Params, input_size: int) -> None:
    """Try one step of each layer on zeros: cells of users' own may return a state of another width than they are given."""
    if not params:
        return
    x = next(iter(params.values())).new_zeros(1, input_size)
    for k, cell in enumerate(stack.cells):
        size, name = cell.state_size(stack.hidden_size), type(cell).__name__
        try:
            with torch.no_grad():
                after = cell.step(x, x.new_zeros(1, size), stack.layer_params(k, params))
        except RuntimeError as error:
            raise InputError(
                f"the step of {name} does not run",
                got=f"{type(error).__name__}: {error}, for x of width {x.shape[-1]} and a state of width {size}",
                fix="lagreach.testing.check_cell tells what is wrong with a cell",
            ) from error
        if after.shape != (1, size):
            raise InputError(
                f"the step of {name} returns a state of another shape than it is given",
                got=f"{tuple(after.shape)} for a state of shape (1, {size})",
                expected=f"(1, {size}): hidden_size, or what the cell's state_size says",
                fix="lagreach.testing.check_cell tells what is wrong with a cell",
            )
        x = cell.output(after)


def check_input(recurrence: Recurrence, x: Tensor) -> Tensor:
    """Check shape, type and finiteness of an input batch, and bring it to the model's type and device."""
    if not isinstance(x, Tensor):
        x = torch.as_tensor(x)
    refuse_one_series(x, "the model", recurrence.input_size)
    if x.ndim != 3 or recurrence.input_size not in (x.shape[-1], -1):  # -1: any width
        raise InputError(
            "the input does not fit the model",
            got=f"shape {tuple(x.shape)}",
            expected=f"(seq, time, {recurrence.input_size})",
            fix="check the input width and the order of the axes (sequences first)",
        )
    if x.shape[0] == 0 or x.shape[1] == 0:
        raise InputError(
            "there is nothing to run on", got=f"shape {tuple(x.shape)}", expected="at least one sequence and one step"
        )
    check_finite("the input x", x)
    return x.to(device=recurrence.device, dtype=recurrence.dtype)


def check_inputs(batch: Batch) -> None:
    """Refuse inputs that are not finite within their lengths, before a model makes something else of them."""
    x = zero_beyond(batch.with_x(torch.as_tensor(batch.x))).x
    left_out = batch.lengths is None and batch.mask is not None
    check_finite("the input x", x, batch.numbers, BESIDE_MASK if left_out else "")


def check_finite(what: str, values: Tensor, numbers: Tensor | None = None, beside: str = "") -> None:
    """Raise an error that names the first entry that is NaN or infinite; `numbers` are those of the rows in the data."""
    # a sum is finite only if all its terms are, and is sooner known
    if not values.is_floating_point() or values.sum().isfinite() or torch.isfinite(values).all():
        return
    position = (~torch.isfinite(values)).nonzero()[0].tolist()
    value = values[tuple(position)].item()
    if numbers is not None:
        position[0] = int(numbers[position[0]])
    raise InputError(
        f"{what} holds a value that is not finite",
        got=f"{value} at index {position}"
        + (" of the data" if numbers is not None else f" of shape {tuple(values.shape)}"),
        expected="finite numbers",
        fix=f"{beside}clean the data or the checkpoint; nothing was computed",
    )
