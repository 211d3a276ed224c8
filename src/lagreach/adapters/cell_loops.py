"""Loops over cell modules, of `torch.nn` or a user's own, whose next state is the previous output."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lagreach.adapters.calling import Call, as_output, captured, replaced, untouched
from lagreach.adapters.own_cells import own_cell
from lagreach.adapters.own_use import learns, own_use, run_with_own_weights
from lagreach.adapters.torch_cells import ROLES, cell_of
from lagreach.adapters.view import BoundRecurrence, OwnUse, View, bind_to, lengths_within, unbound_recurrence
from lagreach.cells.stack import Stack
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError


@runtime_checkable
class CellCalls(Protocol):
    """How a cell module is called and what it returns; states are (seq, state) with all parts side by side."""

    def input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """What a step reads."""
        ...

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The state that a call is given; None if it is left to the module."""
        ...

    def after(self, result: Any) -> Tensor:
        """The state that a call leaves."""
        ...

    def handed_on(self, state: Tensor) -> Tensor:
        """What of a state the next call is given."""
        ...

    def result(self, state: Tensor) -> Any:
        """What the module returns in a state."""
        ...

    def in_graph(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[bool]:
        """Whether gradients can flow into each part of the state that a call is given."""
        ...


class TorchCalls:
    """Calls of `torch.nn.RNNCell`, `GRUCell` and `LSTMCell`: ``cell(input, hx)``."""

    def __init__(self, parts: int) -> None:
        self._parts = parts

    def input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """What a step reads."""
        x: Tensor = args[0] if args else kwargs["input"]
        return x

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The state that a call is given; None if it is left to the module."""
        state = args[1] if len(args) > 1 else kwargs.get("hx")
        return None if state is None else self.after(state)

    def after(self, result: Any) -> Tensor:
        """The state that a call leaves."""
        state: Tensor = torch.cat(result, dim=-1) if isinstance(result, tuple) else result
        return state

    def handed_on(self, state: Tensor) -> Tensor:
        """All of it."""
        return state

    def result(self, state: Tensor) -> Any:
        """One tensor, or h and c."""
        return state.chunk(self._parts, dim=-1) if self._parts > 1 else state

    def in_graph(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[bool]:
        """Whether gradients can flow into h and c."""
        state = args[1] if len(args) > 1 else kwargs.get("hx")
        parts = state if isinstance(state, tuple) else (state,)
        return [isinstance(part, Tensor) and part.requires_grad for part in parts]


class CellLoopView(View):
    """A cell module that the model calls once per step."""

    def __init__(
        self, model: nn.Module, path: str, stack: Stack, calls: CellCalls, input_size: int, call: Call, alone: bool
    ) -> None:
        self._model, self._path, self._module, self._call = model, path, model.get_submodule(path), call
        self._calls = calls
        self.name, self.local = path or type(self._module).__name__, not alone
        weights = dict(self._module.named_parameters(remove_duplicate=False))
        params = {name: weights[role].detach() for role, name in stack.names[0].items()}
        self.template = unbound_recurrence(stack, params, input_size)

    def bind(self, batch: Batch) -> BoundRecurrence:
        """Run the model, and put the calls of the cell together into one sequence."""
        with untouched(self._model), torch.no_grad(), captured([self._module]) as calls:
            self._call(self._model, batch)
        inputs, initial = self._read(calls[self._module])
        lengths = lengths_within(batch, inputs.shape[1])
        return bind_to(self.template, inputs, initial, lambda states: self._run(batch, states)[0], lengths)

    def trained(self, batch: Batch, losses: Callable[[Tensor], Tensor]) -> OwnUse:
        """Gradients of the layer's weights, by one backward pass through the model."""
        return own_use(self._model, self._path, self._call, batch, self.bind(batch).x.shape[1], losses)

    def learns(self, batch: Batch) -> bool:
        """Whether the model's output hangs on the layer's weights, in training."""
        return learns(self._model, self._path, self._call, batch, self.bind(batch).x.shape[1])

    def _run(self, batch: Batch, states: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Run the model with given states; also return the inputs that the cell was then given."""
        step, seen = iter(range(states.shape[1])), []

        def forward(*args: Any, **kwargs: Any) -> Any:
            seen.append(self._calls.input(args, kwargs))
            now = next(step, None)
            if now is None:
                raise UnsupportedError(
                    f"how often {self.name} is called depends on its own states",
                    got=f"more than {states.shape[1]} calls when it is replayed",
                    fix="run the loop over a number of steps that is fixed by the data",
                )
            return self._calls.result(states[:, now])

        with untouched(self._model), replaced(self._module, forward):
            return as_output(self._call(self._model, batch), batch, states.shape[1]), seen

    def _read(self, calls: list[tuple[tuple[Any, ...], dict[str, Any], Any]]) -> tuple[Tensor, Tensor]:
        if not calls:
            raise UnsupportedError(
                f"{self.name} is not called when the model runs",
                fix="take the unused layer out of the model, or pass call= that uses it",
            )
        inputs = [self._calls.input(args, kwargs) for args, kwargs, _ in calls]
        before = [self._calls.before(args, kwargs) for args, kwargs, _ in calls]
        if inputs[0].ndim != 2:
            raise UnsupportedError(
                "a cell without a batch axis",
                got=f"input of shape {tuple(inputs[0].shape)}",
                expected="(seq, input) at every step",
            )
        after = [self._calls.after(result) for *_, result in calls]
        for t in range(1, len(calls)):
            received = before[t]
            if received is None or not torch.equal(
                *(self._calls.handed_on(state) for state in (received, after[t - 1]))
            ):
                raise UnsupportedError(
                    f"the state of {self.name} is changed between steps",
                    got=f"at step {t} the cell is not given its own last output",
                    fix="describe the whole step, with what happens in between, as a Cell and use GatedRNN",
                )
        first = before[0]
        if first is None:
            size = self.template.stack.state_size
            first = inputs[0].new_zeros(len(inputs[0]), size)
        return torch.stack([x.detach() for x in inputs], dim=1), first.detach()

    def refuse_feedback(self, sample: Batch) -> None:
        """Refuse a loop in which what the cell is given depends on what it returned before."""
        x = self.bind(sample).x
        with torch.enable_grad():
            states = torch.zeros(*x.shape[:2], self.template.stack.state_size).to(x).requires_grad_()
            seen = self._run(sample, states)[1]
            total = sum((x.sum() for x in seen), torch.zeros(()).to(states))
            fed_back = total.requires_grad and torch.autograd.grad(total, states, allow_unused=True)[0] is not None
        if fed_back:
            raise UnsupportedError(
                f"outputs of {self.name} are fed back as inputs",
                got="its inputs depend on its own earlier states",
                fix="describe the whole step, feedback included, as a Cell and use GatedRNN",
            )

    def refuse_truncation(self, sample: Batch) -> None:
        """Refuse a loop that cuts the state from the graph on its way: gradients do not get past such steps in training."""
        time = self.bind(sample).x.shape[1]
        with captured([self._module]) as calls:
            run_with_own_weights(self._model, self._path, self._call, sample, time)
        if not any(self._calls.after(result).requires_grad for *_, result in calls[self._module]):
            return  # nothing of it learns, which is no matter of lags
        parts = [self._calls.in_graph(args, kwargs) for args, kwargs, _ in calls[self._module]]
        cuts = [t for t, uncut in enumerate(parts) if t and not any(uncut)]
        narrowed = [t for t, uncut in enumerate(parts) if t and not all(uncut)]
        if not cuts and narrowed:  # gradients get past by the other part
            raise UnsupportedError(
                f"a part of the state of {self.name} is cut from the graph within a sequence",
                got=f"a part without gradient (detach or no_grad) before step {_first_few(narrowed)} of {time}",
                expected="gradients that can flow through the whole state",
                fix="take the cut out while you diagnose; or leave lags_of out, to see what arrives in spite of it",
            )
        if not cuts:
            return
        edges = [0, *cuts, time]
        reach = max(stop - start for start, stop in pairwise(edges))
        raise UnsupportedError(
            f"the state of {self.name} is cut from the graph within a sequence: training gets lags 0 to {reach - 1} only",
            got=f"a state without gradient (detach or no_grad) before step {_first_few(cuts)} of {time}",
            expected="gradients that can flow from the last step to the first",
            fix=f"give sequences of {reach} steps to see the lags that training gets; or take the cut out while you diagnose, "
            "to see what backpropagation through all steps would need",
        )


def _first_few(steps: list[int]) -> str:
    return ", ".join(map(str, steps[:4])) + (", ..." if len(steps) > 4 else "")


def torch_cell_loop(model: nn.Module, path: str, module: nn.RNNCellBase, call: Call, alone: bool) -> CellLoopView:
    """View a loop over one of torch's cells."""
    weights = dict(module.named_parameters(recurse=False, remove_duplicate=False))
    names = {role: f"{path}.{role}".lstrip(".") for role in ROLES if role in weights}
    cell = cell_of(module)
    stack = Stack((cell,), module.hidden_size, (names,))
    return CellLoopView(model, path, stack, TorchCalls(len(cell.blocks)), module.input_size, call, alone)


def own_cell_loop(model: nn.Module, path: str, sample: Batch, call: Call, alone: bool) -> CellLoopView:
    """View a loop over a cell of the user's own, ``forward(x, state)``."""
    module = model.get_submodule(path)
    with untouched(model), torch.no_grad(), captured([module]) as calls:
        call(model, sample)
    cell = own_cell(module, calls[module], path or type(module).__name__)
    names = {name: f"{path}.{name}".lstrip(".") for name, _ in module.named_parameters()}
    stack = Stack((cell,), cell.calls.widths[0], (names,))
    args, kwargs, _ = calls[module][0]
    return CellLoopView(model, path, stack, cell.calls, cell.calls.input(args, kwargs).shape[-1], call, alone)
