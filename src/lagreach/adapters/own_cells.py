"""Cell modules of the user's own, called as ``forward(x, state)`` once for each step: nothing has to be rewritten.

A module is such a cell if it is given, from its second call on, what it returned the call before. A step is then the module
itself, run with weights that come from outside; whatever else it returns is carried in the state, where nobody reads it, so
that gradients through it are found too. Everything else comes from autodiff.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from lagreach.adapters.calling import Call, captured, first_call, untouched
from lagreach.cells import Cell, Params
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError

Calls = Sequence[tuple[tuple[Any, ...], dict[str, Any], Any]]


@dataclass(frozen=True)
class OwnCalls:
    """How a module of the user's own is called, and what of its result it is given again.

    `widths` are those of the tensors it returns, and `handed` says for each tensor behind the input which of them it is.
    """

    passed: TreeSpec
    returned: TreeSpec
    widths: tuple[int, ...]
    handed: tuple[int, ...]
    fixed: tuple[Any, ...]  # what is no tensor among the arguments, by place; tensors are None

    def input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """What a step reads."""
        return _tensors((args, kwargs))[0]

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The state that a call is given; None if it is left to the module."""
        states = _tensors((args, kwargs))[1:]
        if len(states) != len(self.handed):
            return None
        parts = [states[0].new_zeros(len(states[0]), width) for width in self.widths]
        for place, state in zip(self.handed, states, strict=True):
            parts[place] = state
        return torch.cat(parts, dim=-1)

    def after(self, result: Any) -> Tensor:
        """The state that a call leaves."""
        return torch.cat(_tensors(result), dim=-1)

    def handed_on(self, state: Tensor) -> Tensor:
        """What of a state the next call is given."""
        parts = state.split(self.widths, dim=-1)
        return torch.cat([parts[place] for place in self.handed], dim=-1)

    def result(self, state: Tensor) -> Any:
        """What the module returns in a state."""
        return tree_unflatten(list(state.split(self.widths, dim=-1)), self.returned)

    def in_graph(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[bool]:
        """Whether gradients can flow into each part of the state that a call is given."""
        return [state.requires_grad for state in _tensors((args, kwargs))[1:]]

    def arguments(self, x: Tensor, state: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the module is called with."""
        parts = state.split(self.widths, dim=-1)
        tensors = iter((x, *(parts[place] for place in self.handed)))
        leaves = [next(tensors) if value is None else value for value in self.fixed]
        args, kwargs = tree_unflatten(leaves, self.passed)
        return args, kwargs


@dataclass(frozen=True)
class OwnCell(Cell):
    """A cell around a module ``forward(x, state)``. Its weights are told apart by what makes their gradients vanish."""

    name: ClassVar[str] = "own"
    equations: ClassVar[str] = "a module of the user's own"
    first_order: ClassVar[str] = "vanishes"

    module: nn.Module = field(repr=False)
    calls: OwnCalls = field(repr=False)
    roles: Mapping[str, str] = field(repr=False, default_factory=dict)

    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the module's weights; the sizes are theirs."""
        return {name: tuple(weight.shape) for name, weight in self.module.named_parameters()}

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Call the module."""
        args, kwargs = self.calls.arguments(x, s)
        return self.calls.after(torch.func.functional_call(self.module, dict(params), args, kwargs))

    def role(self, name: str) -> str:
        """What a weight does, from its gradients."""
        return self.roles.get(name, "other")

    def state_size(self, hidden_size: int) -> int:
        """Width of all that the module returns."""
        return sum(self.calls.widths)

    def output(self, s: Tensor) -> Tensor:
        """What the module returns first."""
        return s.split(self.calls.widths, dim=-1)[0]


def own_cell(module: nn.Module, calls: Calls, name: str) -> OwnCell:
    """Describe a module from how it was called, and check that autodiff gets through it row by row."""
    understood = _understood(calls)
    if isinstance(understood, str):
        raise UnsupportedError(
            f"{name} is not called as a cell, forward(x, state)",
            got=understood,
            expected="an input (seq, width) and a state that is what the call before returned",
            fix='leave lags_of out: lags of the whole model need no cell; or describe it as a Cell and pass cell={"path": ...}',
        )
    resting = deepcopy(module).eval().requires_grad_(False)
    params = {local: weight.detach() for local, weight in resting.named_parameters()}
    x = understood.input(*calls[0][:2]).detach()
    states = torch.stack([understood.after(result) for *_, result in calls]).detach()[-1]
    cell = OwnCell(resting, understood)
    try:
        cell.jacobian(x[:2], states[:2], params)
    except Exception as error:  # whatever the user's module raises
        raise UnsupportedError(
            f"{name} cannot be differentiated one row at a time",
            got=f"{type(error).__name__}: {error}",
            expected="a module that treats every row of x on its own, and does not look at values to decide what to do",
            fix='leave lags_of out, or pass lags_of="model"',
        ) from error
    return OwnCell(resting, understood, _roles(cell, x, states, params))


def own_cell_paths(model: nn.Module, sample: Batch, call: Call, only: str | None = None) -> list[str]:
    """Paths of the modules that are called as cells are, once for each step of the data; of nested ones the outermost.

    With `only`, of those at or inside that path.

    A first run counts calls alone, so that a large model without a loop over steps keeps nothing.
    """
    steps = sample.x.shape[1] if sample.x.ndim > 1 else 1
    counts: dict[str, int] = {}

    def count(path: str) -> Any:
        return lambda *_: counts.update({path: counts.get(path, 0) + 1})

    inside = [(path, module) for path, module in model.named_modules() if not only or f"{path}.".startswith(f"{only}.")]
    handles = [module.register_forward_hook(count(path)) for path, module in inside]
    try:
        with untouched(model), torch.no_grad():
            first_call(model, sample, call)
    finally:
        for handle in handles:
            handle.remove()
    modules = dict(inside)
    looped = [path for path, number in counts.items() if number == steps > 1 and not _of_torch(modules[path])]
    if not looped:
        return []
    with untouched(model), torch.no_grad(), captured([modules[path] for path in looped]) as calls:
        call(model, sample)
    cells = [path for path in looped if not isinstance(_understood(calls[modules[path]]), str)]
    return [path for path in cells if not any(path.startswith(f"{other}.") for other in cells)]


def reads_own_steps(model: nn.Module, path: str, sample: Batch, call: Call) -> bool:
    """Whether a cell is given at its call t what the model was given at step t, and nothing else.

    One step of the first sequence is exchanged with the second's: the cell's input may change in that call alone. Behind
    attention, a convolution or a loop over something else, steps of the cell are no lags of the model.
    """
    step = _differing_step(sample)
    if step is None:
        return False
    module, runs = model.get_submodule(path), []
    changed = sample.x.clone()
    changed[0, step] = sample.x[1, step]
    for batch in (sample, sample.with_x(changed)):
        with untouched(model), torch.no_grad(), captured([module]) as calls:
            call(model, batch)
        runs.append([_tensors((args, kwargs))[0] for args, kwargs, _ in calls[module]])
    differs = [number for number, pair in enumerate(zip(*runs, strict=False)) if not torch.equal(*pair)]
    return len(runs[0]) == len(runs[1]) and differs == [step]


def _differing_step(sample: Batch) -> int | None:
    """A step in the middle at which the first two sequences are given something else."""
    if len(sample) < 2 or sample.x.ndim < 2:
        return None
    differs = (sample.x[0] != sample.x[1]).reshape(sample.x.shape[1], -1).any(1).nonzero().flatten().tolist()
    shortest = sample.x.shape[1] if sample.lengths is None else int(sample.lengths[:2].min())
    usable = [step for step in differs if step < shortest]
    return usable[len(usable) // 2] if usable else None


def _of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.")


def _understood(calls: Calls) -> OwnCalls | str:
    """How a module is called, or why it is no cell."""
    if len(calls) < 2:
        return f"{len(calls)} calls"
    tensors = [_tensors((args, kwargs)) for args, kwargs, _ in calls]
    results = [_tensors(result) for *_, result in calls]
    if any(len(received) < 2 for received in tensors[1:]):
        return "no state among its arguments"
    values = [value for received in (*tensors, *results) for value in received]
    if any(value.ndim != 2 or not value.is_floating_point() for value in values):
        shapes = sorted({f"{tuple(value.shape)} {value.dtype}" for value in values})
        return f"tensors of {', '.join(shapes[:4])}"
    handed = [next((i for i, one in enumerate(results[0]) if _same(one, state)), None) for state in tensors[1][1:]]
    fixed = {repr(_others((args, kwargs))) for args, kwargs, _ in calls[1:]}
    if None in handed or len(fixed) > 1:
        return "arguments that are neither its input nor what it returned before"
    places = [place for place in handed if place is not None]
    if [len(value) for value in tensors[0]] != [len(tensors[0][0])] * len(tensors[0]):
        return "tensors of different numbers of rows"
    for before, received in zip(results, tensors[1:], strict=False):
        if len(received) != 1 + len(places) or not all(
            _same(before[place], state) for place, state in zip(places, received[1:], strict=True)
        ):
            return "a state that is changed between steps"
    widths = tuple(one.shape[1] for one in results[0])
    if any(tuple(one.shape[1] for one in result) != widths for result in results):
        return "results whose widths change"
    args, kwargs, result = calls[1]
    leaves, passed = tree_flatten((args, kwargs))
    kept = tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    return OwnCalls(passed, tree_flatten(result)[1], widths, tuple(places), kept)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _others(value: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(value) if not isinstance(leaf, Tensor)]


def _same(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and torch.equal(one, other))


def _roles(cell: OwnCell, x: Tensor, state: Tensor, params: Params) -> dict[str, str]:
    """Weights that multiply the input have no gradient where it is zero, those that multiply the state none where that is."""
    some, nothing = _gradients(cell, x, state, params), torch.zeros_like
    by_input, by_state = _gradients(cell, nothing(x), state, params), _gradients(cell, x, nothing(state), params)
    roles = {}
    for name, weight in params.items():
        of_input, of_state = (some[name] and not gradients[name] for gradients in (by_input, by_state))
        alone = "bias" if weight.ndim == 1 and some[name] and not (of_input or of_state) else "other"
        roles[name] = alone if of_input == of_state else "input" if of_input else "recurrent"
    return roles


def _gradients(cell: OwnCell, x: Tensor, state: Tensor, params: Params) -> dict[str, bool]:
    """Whether each weight has a gradient at this input and state."""
    with torch.enable_grad():
        weights = {name: weight.detach().requires_grad_() for name, weight in params.items()}
        after = cell.step(x, state, weights)
        along = torch.randn(after.shape, generator=torch.Generator().manual_seed(0)).to(after)
        gradients = torch.autograd.grad(after, list(weights.values()), along, materialize_grads=True)
    return {name: bool((gradient != 0).any()) for name, gradient in zip(weights, gradients, strict=True)}
