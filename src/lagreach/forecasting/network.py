"""A model as a function of its weights, and what its readout reads: all that a forecast needs to know of it.

Nothing is known of the inside of the model: any differentiable torch module will do. What its last linear layer is given are
the features of the readout; where a model does not end in one, the states of its recurrent layers stand for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lagreach._util.full_precision import full_precision
from lagreach.adapters import View, find_views
from lagreach.adapters.calling import (
    Call,
    as_output,
    captured,
    default_call,
    first_call,
    refuse_batch_norm,
    refuse_other_objects,
    untouched,
)
from lagreach.adapters.coupling import refuse_coupling
from lagreach.adapters.kept import remembered
from lagreach.adapters.straight import Straight
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError
from lagreach.kernels import scan_stack
from lagreach.models.gated_rnn import GatedRNN
from lagreach.transport.rollout import run

MOST_FEATURES = 1024  # of a readout; of more, as many random combinations are looked at


class Shown(NamedTuple):
    """Output (seq, position, out), and what the readout reads: at every position, or at every step of the input."""

    output: Tensor
    features: Tensor
    by_step: bool  # features belong to steps, not to positions of the output


class Sums(NamedTuple):
    """What is left of a run whose states are summed as they come, when a model has one output at every step."""

    output: Float[Tensor, "seq time"]
    gradient: Float[Tensor, "seq feature"]  # sums of ``share (target - output)`` times the features of the readout
    picked: Float[Tensor, "seq pick feature"]  # features at some steps


class Network(ABC):
    """A model whose weights can be moved."""

    weights: dict[str, Tensor]  # that training moves, detached
    readout: tuple[
        str, ...
    ] = ()  # names of those of the last linear layer, where the model ends in one that is trained
    readout_frozen: bool = (
        False  # whether training leaves the last linear layer as it is, though it moves other weights
    )
    notes: tuple[str, ...] = ()
    padding: Mapping[str, int] = MappingProxyType(
        {}
    )  # rows of embeddings that have no gradients, by names of their weights
    values: int = 1  # numbers in its largest activation, a sequence
    inside: int = 1  # the same, with what torch's recurrent layers make for all steps before they begin

    @abstractmethod
    def recurrences(self, sample: Batch) -> list[View]:
        """Recurrent layers of the model that are known; refuses a model without any."""

    @abstractmethod
    def show(self, batch: Batch) -> Shown:
        """Run the model."""

    def sums_as_it_runs(self, batch: Batch) -> bool:
        """Whether `sums` may know how to run the model on such sequences."""
        return False

    def sums(
        self,
        batch: Batch,
        target: Float[Tensor, "seq time"],
        share: Float[Tensor, "seq time"],
        index: Int[Tensor, "seq pick"],
    ) -> Sums | None:
        """Run the model, and keep of its features only sums and some steps; None where it cannot."""
        return None

    @abstractmethod
    def output(self, weights: Mapping[str, Tensor], batch: Batch) -> Float[Tensor, "seq position out"]:
        """Run the model with other weights, in their precision; those that are not named stay as they are."""

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Evaluation mode inside; the model is as it was afterwards."""
        yield

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return next(iter(self.weights.values())).dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(iter(self.weights.values())).device


class _Called(nn.Module):
    """A model and the way to call it, so that `functional_call` replaces its weights whatever the call does."""

    def __init__(self, model: nn.Module, call: Call, in_one: bool) -> None:
        super().__init__()
        self.model, self._call, self._in_one = model, call, in_one
        self._coarse = False  # whether outputs are fewer than the steps of any sequence, behind a front with a stride

    def look(self, sample: Batch) -> None:
        """Tell a coarser rhythm from sequences that are unpacked to the longest of them: as if all were as long as x."""
        if sample.lengths is not None:
            longest = replace(sample, lengths=torch.full_like(sample.lengths, _steps(sample)))
            output = as_output(self._call(self.model, longest), replace(sample, lengths=None), _steps(sample))
            self._coarse = output.shape[1] < _steps(sample)

    def as_it_is(self, batch: Batch) -> bool:
        """Whether the output is what the model's own forward makes of the inputs, and nobody looks on."""
        hooks = (self.model._forward_hooks, self.model._forward_pre_hooks)
        beside = (batch.lengths, batch.state, batch.others)
        own = self._call is default_call and not self._in_one and "forward" not in vars(self.model)
        return own and not any(hooks) and all(part is None for part in beside)

    def forward(self, batch: Batch) -> Tensor:
        arranged = replace(batch, lengths=None) if self._coarse else batch  # lengths would fill up what is missing
        output = as_output(self._call(self.model, batch), arranged, _steps(batch))
        return output.flatten(1)[:, None] if self._in_one else output


def _steps(batch: Batch) -> int:
    return batch.x.shape[1] if batch.x.ndim > 1 else 1


class ModuleNetwork(Network):
    """A torch module."""

    def __init__(self, model: nn.Module, sample: Batch, call: Call | None = None, *, in_one: bool = False) -> None:
        self._model, self._call, self._given_call = model, call or default_call, call
        self._called = _Called(model, self._call, in_one)
        self._found: list[View] | None = None
        self._resting = False
        self._straight: Straight | None = None
        self._keeps = False  # whether modules keep something from one call to the next, as known by now
        refuse_batch_norm(model)
        with self.at_rest():
            first_call(model, sample, self._call)
            refuse_coupling(model, self._call, sample, _steps(sample))
            with torch.no_grad():
                self._called.look(sample)
        named = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
        trained = {name: p for name, p in named.items() if p.requires_grad} or named
        if not trained:
            raise UnsupportedError(
                "the model has no weights that training could move", got=type(model).__name__, expected="parameters"
            )
        self.weights = {name: p.detach() for name, p in trained.items()}
        tables = {id(m.weight): m.padding_idx for m in model.modules() if isinstance(m, nn.Embedding)}
        padded = {name: tables.get(id(p)) for name, p in trained.items()}
        self.padding = {name: row for name, row in padded.items() if row is not None}
        self._views: list[View] | None = None
        self._last, ends = self._last_linear(sample)
        if self._last is None:
            self._views, note = self._recurrences(sample)
            self.notes = (f"the model does not end in a linear layer: {note} for what a readout reads",)
            return
        matrices = [p for p in self._last.parameters() if p.ndim > 1]
        self.readout_frozen = bool(matrices) and not {id(p) for p in matrices} & {id(p) for p in trained.values()}
        if ends:
            in_readout = {id(p) for p in self._last.parameters(recurse=False)}
            if not self.readout_frozen:
                self.readout = tuple(name for name, p in trained.items() if id(p) in in_readout)
            if self._called.as_it_is(sample):
                with self.at_rest():
                    self._straight = Straight.of(model, self._last, sample, self._call)
        else:
            self.notes = ("something follows the last linear layer: a readout on what that layer reads is judged",)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        if self._resting:  # around several runs: each begins as the first did
            with remembered(self._model) if self._keeps else nullcontext():
                yield
            return
        with untouched(self._model) as kept, full_precision():
            self._resting = True
            try:
                yield
            finally:
                self._keeps = self._keeps or bool(kept.changed())
                self._resting = False

    def output(self, weights: Mapping[str, Tensor], batch: Batch) -> Tensor:
        named = {**self.weights, **weights}
        kind = next(iter(weights.values())).dtype
        if kind != self.dtype:  # all else in the same precision
            rest = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
            rest = {**rest, **self.weights}
            named = {n: v.detach().to(kind) if v.is_floating_point() else v for n, v in rest.items()} | dict(weights)
            if self._given_call is not None:  # which may hand it on as it is
                batch = batch.in_precision(self.dtype, kind)
        return torch.func.functional_call(self._called, {f"model.{n}": v for n, v in named.items()}, (batch,))

    def show(self, batch: Batch) -> Shown:
        if self._last is None:
            return self._states(batch)
        with self.at_rest(), torch.no_grad():
            both = self._in_one_pass(batch)
            if both is not None:
                return Shown(*both, False)
            with captured([self._last]) as calls:
                output = self._called(batch).detach()  # a weight that is only expanded keeps its graph
        features = [args[0] if args else kwargs["input"] for args, kwargs, _ in calls[self._last]]
        assert self._arranged is not None
        return Shown(output, ARRANGED[self._arranged](features, *output.shape[:2]), False)

    def _in_one_pass(self, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """Output and features of a network that runs in one pass; None of others."""
        own = self._own(batch)
        return None if own is None else own.output_and_features(batch.x.to(self.device, self.dtype))

    def sums_as_it_runs(self, batch: Batch) -> bool:
        own = self._own(batch)
        return own is not None and own.readout.out_features == 1 and self.device.type == "cpu"

    def sums(self, batch: Batch, target: Tensor, share: Tensor, index: Tensor) -> Sums | None:
        own = self._own(batch)
        assert own is not None
        with self.at_rest(), torch.no_grad():
            x, target, share = (part.to(self.dtype) for part in (batch.x, target, share))
            made = own.output_and_sums(x, target, share, index)
        return None if made is None else Sums(*made)

    def _own(self, batch: Batch) -> GatedRNN | Straight | None:
        """A network that the package's own kernels run as it is; None for others."""
        model = self._model
        if not self._called.as_it_is(batch):
            return None
        if type(model) is GatedRNN:
            return model if self._last is model.readout else None
        return self._straight if self.device.type == "cpu" else None

    @property
    def model(self) -> nn.Module:
        """The module itself."""
        return self._model

    @property
    def call(self) -> Call | None:
        """How it is called, if in a way of its own."""
        return self._given_call

    def recurrences(self, sample: Batch) -> list[View]:
        if self._found is None:
            self._found = find_views(self._model, sample, self._given_call)
        return self._found

    def last_weight(self) -> Float[Tensor, "out feature"]:
        """Weights of the linear layer that the model ends in."""
        assert self._last is not None
        return self._last.weight.detach()

    def _recurrences(self, sample: Batch) -> tuple[list[View], str]:
        try:
            return self.recurrences(sample), "its recurrent states stand"
        except UnsupportedError:  # no recurrence that lagreach knows
            return [], "its output stands"

    def _states(self, batch: Batch) -> Shown:
        assert self._views is not None
        with self.at_rest(), torch.no_grad():
            output = self._called(batch).detach()
            if not self._views:
                return Shown(output, output, False)
            parts = [run(view.bind(batch)).states for view in self._views if "backward" not in view.name]
        steps = {part.shape[1] for part in parts}
        longest = _steps(batch) if batch.lengths is None else int(batch.lengths.max())
        if min(steps) >= longest:
            return Shown(output, torch.cat(parts, dim=2), True)
        if steps == {output.shape[1]}:  # layers behind a front that makes fewer steps, as the outputs do
            return Shown(output, torch.cat(parts, dim=2), False)
        return Shown(output, output, False)

    def _last_linear(self, sample: Batch) -> tuple[nn.Linear | None, bool]:
        """The linear layer that was called last, if its result has the shape of the output, and whether it is the output."""
        order: list[nn.Module] = []
        modules = list(self._model.modules())
        linear = [module for module in modules if isinstance(module, nn.Linear)]
        handles = [module.register_forward_hook(lambda layer_calls, *_: order.append(layer_calls)) for module in linear]
        try:
            with self.at_rest(), torch.no_grad(), captured(modules, apart=True) as calls:
                output = self._called(sample)
        finally:
            for handle in handles:
                handle.remove()
        parts = [part for layer_calls in calls.values() for args, _, result in layer_calls for part in (*args, result)]
        sizes = [part.numel() for part in parts if isinstance(part, Tensor)]
        self.values = max([output.numel(), *sizes]) // len(sample)
        layers = [module for module in modules if isinstance(module, nn.RNNBase)]
        gates = [len(getattr(layer, "weight_hh_l0")) for layer in layers]  # noqa: B009  not in torch's stubs
        self.inside = max([self.values, *(_steps(sample) * gate for gate in gates)])
        name, same = _arrangement(calls[order[-1]], output) if order else (None, False)
        self._arranged = name
        last = order[-1] if name is not None else None
        assert last is None or isinstance(last, nn.Linear)
        return last, same


Calls = list[tuple[tuple[Any, ...], dict[str, Any], Any]]
ARRANGED: dict[str, Callable[[list[Tensor], int, int], Tensor]] = {  # to (seq, position, value)
    "sequences first": lambda parts, seq, positions: parts[-1],
    "time first": lambda parts, seq, positions: parts[-1].transpose(0, 1),
    "once a step": lambda parts, seq, positions: torch.stack(parts, dim=1),
    "in one axis": lambda parts, seq, positions: parts[-1].reshape(seq, positions, -1),
}


def _arrangement(calls: Calls, output: Tensor) -> tuple[str | None, bool]:
    """In which order a layer was given what, and whether its result is the output itself; None if it cannot be told."""
    seq, positions, out = output.shape
    features = [args[0] if args else kwargs.get("input") for args, kwargs, _ in calls]
    results = [result for *_, result in calls]
    if not all(isinstance(part, Tensor) for part in (*features, *results)):
        return None, False
    shape = tuple(results[-1].shape)
    if shape == (seq, positions, out):
        name = "sequences first"
    elif shape == (positions, seq, out):
        name = "time first"
    elif len(calls) == positions > 1 and all(tuple(result.shape) == (seq, out) for result in results):
        name = "once a step"
    elif shape[-1:] == (out,) and results[-1].numel() == output.numel():
        name = "in one axis"
    else:
        return None, False
    return name, torch.equal(ARRANGED[name](results, seq, positions), output)


class ViewNetwork(Network):
    """A recurrence with its head, such as `diagnose_step` takes: the states of its top layer are what a readout reads."""

    def __init__(self, view: View, sample: Batch, *, in_one: bool = False) -> None:
        self._view, self._in_one = view, in_one
        recurrence = view.bind(sample).recurrence
        self.weights = {name: p.detach() for name, p in {**recurrence.params, **recurrence.head_params}.items()}
        self.values = self.inside = _steps(sample) * recurrence.stack.state_size

    def output(self, weights: Mapping[str, Tensor], batch: Batch) -> Tensor:
        bound = self._view.bind(batch)
        recurrence, named = bound.recurrence, {**self.weights, **weights}
        kind = next(iter(weights.values())).dtype
        named = {name: weight.to(kind) for name, weight in named.items()}
        x, initial = bound.x.to(kind), recurrence.initial_state(bound.x).to(kind)
        states = scan_stack(recurrence.stack, x, initial, {name: named[name] for name in recurrence.params})
        return self._as_given(recurrence.head(states, {name: named[name] for name in recurrence.head_params}))

    def show(self, batch: Batch) -> Shown:
        part = run(self._view.bind(batch))
        return Shown(self._as_given(part.output), part.recurrence.stack.output(part.states), True)

    def recurrences(self, sample: Batch) -> list[View]:
        return [self._view]

    def _as_given(self, output: Tensor) -> Tensor:
        return output.flatten(1)[:, None] if self._in_one else output


def as_network(model: nn.Module | View, sample: Batch, call: Call | None = None, *, in_one: bool = False) -> Network:
    """See a model as a function of its weights; with `in_one`, all of its outputs as the values of one at the end."""
    if isinstance(model, View):
        return ViewNetwork(model, sample, in_one=in_one)
    refuse_other_objects(model)
    return ModuleNetwork(model, sample, call, in_one=in_one)
