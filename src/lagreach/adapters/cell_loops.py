"""Loops over `torch.nn.RNNCell`, `GRUCell` and `LSTMCell` whose next state is the previous output."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from lagreach.adapters.calling import Call, as_output, captured, replaced, untouched
from lagreach.adapters.own_use import own_use, run_with_own_weights
from lagreach.adapters.torch_cells import ROLES, cell_of
from lagreach.adapters.view import Bound, OwnUse, View, bind_to, lengths_within, unbound
from lagreach.cells.stack import Stack
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError


class CellLoopView(View):
    """A cell module that the model calls once per step."""

    def __init__(self, model: nn.Module, path: str, module: nn.RNNCellBase, call: Call, alone: bool) -> None:
        self._model, self._path, self._module, self._call = model, path, module, call
        self.name, self.local = path or type(module).__name__, not alone
        own = dict(module.named_parameters(recurse=False, remove_duplicate=False))
        names = {role: f"{path}.{role}".lstrip(".") for role in ROLES if role in own}
        stack = Stack((cell_of(module),), module.hidden_size, (names,))
        params = {name: own[role].detach() for role, name in names.items()}
        self.template = unbound(stack, params, module.input_size)

    def bind(self, batch: Batch) -> Bound:
        """Run the model, and put the calls of the cell together into one sequence."""
        with untouched(self._model), torch.no_grad(), captured([self._module]) as calls:
            self._call(self._model, batch)
        inputs, initial = self._read(calls[self._module])
        lengths = lengths_within(batch, inputs.shape[1])
        return bind_to(self.template, inputs, initial, lambda states: self._run(batch, states)[0], lengths)

    def trained(self, batch: Batch, losses: Callable[[Tensor], Tensor]) -> OwnUse:
        """Gradients of the layer's weights, by one backward pass through the model."""
        return own_use(self._model, self._path, self._call, batch, self.bind(batch).x.shape[1], losses)

    def _run(self, batch: Batch, states: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Run the model with given states; also return the inputs that the cell was then given."""
        step, seen = iter(range(states.shape[1])), []

        def forward(x: Tensor, hx: Any = None) -> Any:
            seen.append(x)
            now = next(step, None)
            if now is None:
                raise UnsupportedError(
                    f"how often {self.name} is called depends on its own states",
                    got=f"more than {states.shape[1]} calls when it is replayed",
                    fix="run the loop over a number of steps that is fixed by the data",
                )
            blocks = self.template.stack.cells[0].split(states[:, now])
            return blocks if len(blocks) > 1 else blocks[0]

        with untouched(self._model), replaced(self._module, forward):
            return as_output(self._call(self._model, batch), batch, states.shape[1]), seen

    def _read(self, calls: list[tuple[tuple[Any, ...], dict[str, Any], Any]]) -> tuple[Tensor, Tensor]:
        if not calls:
            raise UnsupportedError(
                f"{self.name} is not called when the model runs",
                fix="take the unused layer out of the model, or pass call= that uses it",
            )
        inputs, before = [], []
        for args, kwargs, _ in calls:
            inputs.append(args[0] if args else kwargs["input"])
            before.append(_joined(args[1] if len(args) > 1 else kwargs.get("hx")))
        if inputs[0].ndim != 2:
            raise UnsupportedError(
                "a cell without a batch axis",
                got=f"input of shape {tuple(inputs[0].shape)}",
                expected="(seq, input) at every step",
            )
        after = [_joined(result) for *_, result in calls]
        for t in range(1, len(calls)):
            previous, given = after[t - 1], before[t]
            if given is None or previous is None or not torch.equal(given, previous):
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
        given = [args[1] if len(args) > 1 else kwargs.get("hx") for args, kwargs, _ in calls[self._module]]
        cuts = [t for t, state in enumerate(given) if t and not _in_graph(state)]
        if not cuts:
            return
        edges = [0, *cuts, time]
        reach = max(stop - start for start, stop in pairwise(edges))
        shown = ", ".join(map(str, cuts[:4])) + (", ..." if len(cuts) > 4 else "")
        raise UnsupportedError(
            f"the state of {self.name} is cut from the graph within a sequence: training gets lags 0 to {reach - 1} only",
            got=f"a state without gradient (detach or no_grad) before step {shown} of {time}",
            expected="gradients that can flow from the last step to the first",
            fix=f"give sequences of {reach} steps to see the lags that training gets; or take the cut out while you diagnose, "
            "to see what backpropagation through all steps would need",
        )


def _in_graph(state: Any) -> bool:
    """Whether gradients can flow into every part of a state."""
    parts = state if isinstance(state, tuple) else (state,)
    return all(isinstance(part, Tensor) and part.requires_grad for part in parts)


def _joined(state: Any) -> Tensor | None:
    if state is None:
        return None
    return torch.cat(state, dim=-1) if isinstance(state, tuple) else state
