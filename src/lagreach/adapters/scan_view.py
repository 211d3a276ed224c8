"""A gated linear layer inside a model, seen as a recurrence.

Every such layer is a recurrence of its own: what lies between layers (norms, residual paths, attention) and the layers
above belong to the head, and one ordinary backward pass gives the loss gradient at the layer's states. So lags are
steps within the layer's scan. Its short convolution belongs to the step: it counts as instantaneous.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lagreach.adapters.calling import Call, agreement, as_output, captured, frozen, replaced, untouched
from lagreach.adapters.scan_layer import ScanInputs, ScanLayer
from lagreach.adapters.scan_reach import refuse_truncation
from lagreach.adapters.view import BoundRecurrence, View, bind_to, lengths_within, unbound_recurrence
from lagreach.cells.stack import Stack
from lagreach.data.batch import Batch
from lagreach.errors import InputError, UnsupportedError
from lagreach.kernels import scan, scan_stack


class ScanView(View):
    """One gated linear layer of a model."""

    def __init__(self, model: nn.Module, path: str, layer: ScanLayer, call: Call, alone: bool) -> None:
        self._model, self._path, self._call, self.layer = model, path, call, layer
        self.name, self.local = path or type(layer.module).__name__, not alone
        self._looping: list[ScanLayer] = []
        self._settle()

    def _settle(self) -> None:
        """Describe the recurrence by the layer's cell."""
        weights = self.layer.weights()
        names = {name: f"{self._path}.{name}".lstrip(".") for name in weights}
        params = {names[name]: weight for name, weight in weights.items()}
        stack = Stack((self.layer.cell,), self.layer.hidden_size, (names,))
        self.template = unbound_recurrence(stack, params, -1)

    def replay_beside(self, layers: Sequence[ScanLayer]) -> None:
        """Let layers, each checked to compute what its replay does, be replayed whenever the model is run.

        Where no fused kernel serves them, packages loop over time: thousands of small kernels, for which a GPU waits.
        """
        self._looping = list(layers)

    def loops(self, sample: Batch) -> bool:
        """Whether the layer, on a GPU, runs a loop over time: its graph has more operations than there are steps."""
        if self.template.device.type != "cuda":
            return False
        args, kwargs, _ = self._called(sample)
        with untouched(self._model), torch.enable_grad():
            return many_operations(_first_tensor(self.layer.module(*args, **kwargs)), most=2 * sample.x.shape[1])

    def scan_inputs(self, batch: Batch) -> ScanInputs:
        """Run the model and read what the layer was given."""
        args, kwargs, _ = self._called(batch, replayed=True)
        with torch.no_grad():
            return self.layer.read_call(*args, **kwargs)

    def _capture(self, batch: Batch) -> tuple[ScanInputs, Any]:
        """What the layer was given, and what it returned."""
        args, kwargs, result = self._called(batch)
        with torch.no_grad():
            return self.layer.read_call(*args, **kwargs), result

    def _called(self, batch: Batch, *, replayed: bool = False) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """Arguments and result of the layer's one call; the result is the module's, or may be that of a replay if `replayed`."""
        module = self.layer.module
        with untouched(self._model), torch.no_grad(), captured([module]) as calls, ExitStack() as stack:
            for layer in self._looping:
                if layer is not self.layer or replayed:
                    stack.enter_context(replaced(layer.module, partial(replay, layer)))
            self._call(self._model, batch)
            seen = calls[module]
            if len(seen) != 1:
                raise UnsupportedError(
                    f"{self.name} is called {len(seen)} times in one run of the model",
                    expected="one call with the whole sequence",
                    fix="feed whole sequences, not one step after the other",
                )
            return seen[0]

    def bind(self, batch: Batch) -> BoundRecurrence:
        """Run the model and bind the recurrence to what the layer was given."""
        scan_inputs = self.scan_inputs(batch)
        time = scan_inputs.x.shape[1]

        def head(states: Tensor) -> Tensor:
            output, model = self.layer.output(scan_inputs, states), self._model

            def forward(*args: Any, **kwargs: Any) -> Any:
                return self.layer.returned(output, states, args, kwargs)

            with untouched(model), frozen(model), replaced(self.layer.module, forward), ExitStack() as stack:
                for other in (layer for layer in self._looping if layer is not self.layer):
                    stack.enter_context(replaced(other.module, partial(replay, other)))
                return as_output(self._call(model, batch), batch, time)

        return bind_to(self.template, scan_inputs.x, scan_inputs.initial, head, lengths_within(batch, time))

    def check_replay(self, sample: Batch) -> None:
        """Replay the layer from its input, as the first of its variants whose output is the layer's own."""
        scan_inputs, result = self._capture(sample)
        wanted, differences = _first_tensor(result), []
        for cell in self.layer.variants():
            self.layer.cell = cell
            self._settle()
            differences.append(self._difference(scan_inputs, wanted))
            if differences[-1] <= scan_tolerance(wanted.dtype):
                return
        raise InputError(
            f"{self.name} looks like {self.layer.family}, but does not compute what that would",
            got=f"a relative difference of {min(differences):.3g} after replaying it",
            fix="write a ScanLayer for it and register it (lagreach.adapters.register), or describe it as a Cell",
        )

    def refuse_truncation(self, sample: Batch) -> None:
        """Refuse a layer inside which gradients stop."""
        args, kwargs, _ = self._called(sample)
        with untouched(self._model):
            refuse_truncation(self.layer, self.name, args, kwargs)

    def _difference(self, scan_inputs: ScanInputs, wanted: Tensor) -> float:
        """Largest difference of the replayed output from the layer's, relative to its size, over steps that count."""
        with torch.no_grad():
            states = scan_stack(self.template.stack, scan_inputs.x, scan_inputs.initial, self.template.params)
            ours = self.layer.output(scan_inputs, states).to(wanted.dtype)
        if ours.shape != wanted.shape:
            return torch.inf
        apart = (ours - wanted).abs() / (1 + wanted.abs())
        return apart[scan_inputs.valid].max().item()


def replay(layer: ScanLayer, *args: Any, **kwargs: Any) -> Any:
    """What a layer returns, computed for all steps at once; also differentiable."""
    scan_inputs = layer.read_call(*args, **kwargs)
    states = scan(layer.cell, scan_inputs.x, scan_inputs.initial, layer.weights())
    return layer.returned(layer.output(scan_inputs, states), states, args, kwargs)


def many_operations(result: Tensor, most: int) -> bool:
    """Whether a tensor's graph has more than so many operations."""
    seen: set[object] = set()
    ahead = [result.grad_fn]
    while ahead and len(seen) <= most:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [before for before, _ in node.next_functions]
    return len(seen) > most


def scan_tolerance(dtype: torch.dtype) -> float:
    """Such layers compute their scans in single precision, also in a model of double precision."""
    return max(agreement(dtype), agreement(torch.float32))


def _first_tensor(result: Any) -> Tensor:
    while isinstance(result, (tuple, list)):
        result = result[0]
    return result
