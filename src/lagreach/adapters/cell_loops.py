"""Loops over `torch.nn.RNNCell`, `GRUCell` and `LSTMCell` whose next state is the previous output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lagreach.adapters.calling import Call, as_output, captured, replaced, untouched
from lagreach.adapters.torch_cells import ROLES, cell_of
from lagreach.adapters.view import Bound, View, bind_to, unbound
from lagreach.cells.stack import Stack
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError


class CellLoopView(View):
    """A cell module that the model calls once per step."""

    def __init__(self, model: nn.Module, path: str, module: nn.RNNCellBase, call: Call, alone: bool) -> None:
        self._model, self._module, self._call = model, module, call
        self.name, self.local = path or type(module).__name__, not alone
        own = dict(module.named_parameters(recurse=False))
        names = {role: f"{path}.{role}".lstrip(".") for role in ROLES if role in own}
        stack = Stack((cell_of(module),), module.hidden_size, (names,))
        params = {name: own[role].detach() for role, name in names.items()}
        self.template = unbound(stack, params, module.input_size)

    def bind(self, batch: Batch) -> Bound:
        """Run the model, and put the calls of the cell together into one sequence."""
        with untouched(self._model), torch.no_grad(), captured([self._module]) as calls:
            self._call(self._model, batch)
        inputs, initial = self._read(calls[self._module])
        time = inputs.shape[1]
        lengths = batch.lengths if time == batch.x.shape[1] else None
        return bind_to(self.template, inputs, initial, lambda states: self._run(batch, states)[0], lengths)

    def _run(self, batch: Batch, states: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Run the model with given states; also return the inputs that the cell was then given."""
        step, seen = iter(range(states.shape[1])), []

        def forward(x: Tensor, hx: Any = None) -> Any:
            seen.append(x)
            blocks = self.template.stack.cells[0].split(states[:, next(step)])
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


def _joined(state: Any) -> Tensor | None:
    if state is None:
        return None
    return torch.cat(state, dim=-1) if isinstance(state, tuple) else state
