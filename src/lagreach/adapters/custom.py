"""A layer of the user's own, described by a cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from lagreach.adapters.calling import Call, as_output, captured, default_call, replaced, untouched
from lagreach.adapters.coupling import refuse_coupling
from lagreach.adapters.own_use import learns, own_use
from lagreach.adapters.precision import in_single_precision
from lagreach.adapters.view import (
    BoundRecurrence,
    OwnUse,
    View,
    bind_to,
    check_step,
    lengths_within,
    unbound_recurrence,
)
from lagreach.cells import Cell, unroll
from lagreach.cells.stack import Stack
from lagreach.data.batch import Batch
from lagreach.errors import InputError, UnsupportedError


class CustomView(View):
    """A module that maps (seq, time, input) to (seq, time, hidden) and computes what a cell says.

    The module's parameters must have the names that the cell's `shapes` gives them, and start from a zero state.
    """

    def __init__(self, model: nn.Module, path: str, cell: Cell, sample: Batch, call: Call, alone: bool) -> None:
        modules = dict(model.named_modules())
        if path not in modules:
            raise InputError(
                "there is no such module", got=repr(path), expected=f"one of {', '.join(filter(None, modules))}"
            )
        self._model, self._path, self._module, self._call = model, path, modules[path], call
        self.name, self.local = path or type(model).__name__, not alone
        weights = dict(self._module.named_parameters(remove_duplicate=False))
        x, output = self._input_and_output(sample)
        hidden = output.shape[-1]
        wanted = cell.shapes(x.shape[-1], hidden)
        wrong = {
            name: shape for name, shape in wanted.items() if name not in weights or tuple(weights[name].shape) != shape
        }
        if wrong:
            raise InputError(
                f"the weights of {self.name} are not those of {type(cell).__name__}",
                got=", ".join(f"{name} {tuple(p.shape)}" for name, p in weights.items()),
                expected=", ".join(f"{name} {shape}" for name, shape in wanted.items()),
            )
        names = {name: f"{path}.{name}".lstrip(".") for name in wanted}
        params = {full: weights[name].detach() for name, full in names.items()}
        stack = Stack((cell,), hidden, (names,))
        self.template = unbound_recurrence(stack, params, x.shape[-1])
        check_step(stack, params, x.shape[-1])
        replayed = stack.output(unroll(stack, x, x.new_zeros(len(x), stack.state_size), params))
        tolerance = 1e-8 if x.dtype == torch.float64 else 1e-4
        if not torch.allclose(replayed, output, rtol=tolerance, atol=tolerance):
            raise InputError(
                f"{self.name} does not compute what {type(cell).__name__} says",
                got=f"a difference of {(replayed - output).abs().max().item():.3g} after replaying it from a zero state",
                fix="mend the step of the Cell until it gives what the module gives",
            )
        refuse_coupling(model, call, sample, x.shape[1])

    def _input_and_output(self, batch: Batch) -> tuple[Tensor, Tensor]:
        with untouched(self._model), torch.no_grad(), captured([self._module]) as calls:
            self._call(self._model, batch)
        module_calls = calls[self._module]
        if len(module_calls) != 1:
            raise UnsupportedError(
                f"{self.name} is called {len(module_calls)} times in one run of the model", expected="one call"
            )
        args, kwargs, output = module_calls[0]
        x = args[0] if args else next(iter(kwargs.values()), None)
        if not isinstance(x, Tensor) or not isinstance(output, Tensor) or output.ndim != 3 or x.ndim != 3:
            raise UnsupportedError(
                f"{self.name} must map (seq, time, input) to (seq, time, hidden)",
                got=f"{_form(x)} to {_form(output)}",
                fix="let the described module return the output sequence alone",
            )
        return x.detach(), output.detach()

    def bind(self, batch: Batch) -> BoundRecurrence:
        """Run the model and capture what the module is given."""
        x, _ = self._input_and_output(batch)
        stack = self.template.stack

        def head(states: Tensor) -> Tensor:
            shown = stack.output(states)
            with untouched(self._model), replaced(self._module, lambda *args, **kwargs: shown):
                return as_output(self._call(self._model, batch), batch, x.shape[1])

        initial = x.new_zeros(len(x), stack.state_size)
        return bind_to(self.template, x, initial, head, lengths_within(batch, x.shape[1]))

    def trained(self, batch: Batch, losses: Callable[[Tensor], Tensor]) -> OwnUse:
        """Gradients of the layer's weights, by one backward pass through the model."""
        return own_use(self._model, self._path, self._call, batch, self.bind(batch).x.shape[1], losses)

    def learns(self, batch: Batch) -> bool:
        """Whether the model's output hangs on the layer's weights, in training."""
        return learns(self._model, self._path, self._call, batch, self.bind(batch).x.shape[1])


def _form(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def custom_views(model: nn.Module, cells: Mapping[str, Cell], sample: Batch, call: Call | None = None) -> list[View]:
    """View the named modules of a model through the cells that describe them."""
    alone, model = len(cells) == 1, in_single_precision(model)
    return [CustomView(model, path, cell, sample, call or default_call, alone) for path, cell in cells.items()]
