"""`torch.nn.RNN`, `GRU` and `LSTM` anywhere inside a model, by replaying them from their inputs and weights.

Inputs of a layer are always visible to a hook, its gates never are; so the recurrence is run again, step by step, from
the captured input. Whatever stands behind is left as it is: the model runs once more with the layer's output replaced.

A unidirectional module is one recurrence, all its layers together. In a bidirectional one layer k + 1 sees the future
of layer k, so there is no such step; each layer and direction is then a recurrence of its own, and its lags are local.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lagreach.adapters.calling import Call, as_output, captured, replaced, untouched
from lagreach.adapters.own_use import learns, own_use
from lagreach.adapters.torch_cells import ROLES, cell_of
from lagreach.adapters.view import BoundRecurrence, OwnUse, View, bind_to, lengths_within, unbound_recurrence
from lagreach.cells.stack import Stack
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError
from lagreach.kernels import scan


@dataclass(frozen=True)
class LayerCall:
    """What a module was given: inputs (seq, time, input) and initial states by layer and direction.

    `lengths` are those of a packed sequence, where torch stops each sequence. Without packing it runs over the whole
    batch, padding included: the last state is that of the last step, and a backward direction starts in the padding.
    """

    x: Tensor
    lengths: Tensor | None
    initial: list[Tensor]  # one (seq, state) per layer and direction, in torch's order
    packed: PackedSequence | None


class TorchRNNView(View):
    """One recurrence in an `nn.RNN`, `nn.GRU` or `nn.LSTM`: a whole stack, or one layer in one direction."""

    def __init__(
        self, model: nn.Module, path: str, module: nn.RNNBase, call: Call, part: tuple[int, int] | None, alone: bool
    ) -> None:
        self._model, self._path, self._module, self._call, self._part = model, path, module, call, part
        self.local = part is not None or not alone
        where = path or type(module).__name__
        self.name = where if part is None else f"{where} layer {part[0]} {('forward', 'backward')[part[1]]}"
        layers = range(module.num_layers) if part is None else [part[0]]
        direction = 0 if part is None else part[1]
        stack = _joined(module, [_stack(module, path, layer, direction) for layer in layers])
        weights = dict(model.named_parameters(remove_duplicate=False))
        params = {name: weights[name].detach() for *_, name in stack.weights()}
        self.template = unbound_recurrence(stack, params, params[stack.names[0]["weight_ih"]].shape[1])

    def bind(self, batch: Batch) -> BoundRecurrence:
        """Run the model, capture what the module is given, and replay what comes before this recurrence."""
        with untouched(self._model), torch.no_grad(), captured([self._module]) as calls:
            self._call(self._model, batch)
        layer_call = read_call(self._module, calls[self._module], batch)
        lower = _Replay(self._module, self._model, layer_call)
        x, initial = lower.input_of(self._part)
        time = layer_call.x.shape[1]

        def head(states: Tensor) -> Tensor:
            result = lower.result(self._part, states)
            with untouched(self._model), replaced(self._module, lambda *args, **kwargs: result):
                return as_output(self._call(self._model, batch), batch, time)

        return bind_to(self.template, x, initial, head, self._counted(layer_call, batch))

    def trained(self, batch: Batch, losses: Callable[[Tensor], Tensor]) -> OwnUse:
        """Gradients of the layer's weights, by one backward pass through the model."""
        return own_use(self._model, self._path, self._call, batch, self.bind(batch).x.shape[1], losses)

    def learns(self, batch: Batch) -> bool:
        """Whether the model's output hangs on the layer's weights, in training."""
        return learns(self._model, self._path, self._call, batch, self.bind(batch).x.shape[1])

    def _counted(self, layer_call: LayerCall, batch: Batch) -> Tensor | None:
        """How many of the recurrence's first steps hold data: all of them backward through padding, which comes first."""
        if layer_call.packed is not None:
            return layer_call.lengths
        backward = self._part is not None and self._part[1] == 1
        return None if backward else lengths_within(batch, layer_call.x.shape[1])


def stack_of(module: nn.RNNBase) -> Stack:
    """All layers of a module that has one direction, with the names of its own weights."""
    return _joined(module, [_stack(module, "", layer, 0) for layer in range(module.num_layers)])


def _joined(module: nn.RNNBase, stacks: list[Stack]) -> Stack:
    return Stack(tuple(s.cells[0] for s in stacks), module.hidden_size, tuple(s.names[0] for s in stacks))


def _stack(module: nn.RNNBase, path: str, layer: int, direction: int) -> Stack:
    """One layer in one direction, with the names of its weights in the whole model."""
    suffix = f"_l{layer}" + ("_reverse" if direction else "")
    weights = dict(module.named_parameters(recurse=False, remove_duplicate=False))
    names = {role: f"{path}.{role}{suffix}".lstrip(".") for role in ROLES if f"{role}{suffix}" in weights}
    if "weight_hh" not in names:
        raise UnsupportedError(
            "the weights of this layer are computed, not stored",
            got=f"{path or 'the model'} has no parameter weight_hh{suffix}",
            fix="remove weight_norm or other parametrisations before the diagnosis",
        )
    return Stack((cell_of(module),), module.hidden_size, (names,))


def read_call(module: nn.RNNBase, calls: list[tuple[tuple[Any, ...], dict[str, Any], Any]], batch: Batch) -> LayerCall:
    """Bring the arguments of a module to sequences first, padded to the length of the batch."""
    if len(calls) != 1:
        what = "is not called" if not calls else f"is called {len(calls)} times"
        raise UnsupportedError(
            f"{type(module).__name__} {what} in one run of the model",
            expected="one call with the whole sequence",
            fix="feed whole sequences; a loop that feeds outputs back as inputs has no fixed input to take lags from",
        )
    args, kwargs, _ = calls[0]
    sequence = args[0] if args else kwargs["input"]
    hx = args[1] if len(args) > 1 else kwargs.get("hx")
    packed = sequence if isinstance(sequence, PackedSequence) else None
    if packed is not None:
        total = batch.x.shape[1] if batch.x.ndim > 1 else None
        longest = len(packed.batch_sizes)
        x, valid = pad_packed_sequence(packed, batch_first=True, total_length=max(total or 0, longest))
        lengths: Tensor | None = valid
    elif sequence.ndim != 3:
        raise UnsupportedError(
            "a recurrent layer without a batch axis",
            got=f"input of shape {tuple(sequence.shape)}",
            expected="(seq, time, input), or (time, seq, input) without batch_first",
        )
    else:
        x, lengths = (sequence if module.batch_first else sequence.transpose(0, 1)), None
    states = _initial_states(module, hx, x)
    return LayerCall(x.detach(), None if lengths is None else lengths.to(x.device), states, packed)


def _initial_states(module: nn.RNNBase, hx: Any, x: Tensor) -> list[Tensor]:
    """One initial state per layer and direction; torch takes h_0 in the order of the sequences, also when packed."""
    count = module.num_layers * (2 if module.bidirectional else 1)
    size = cell_of(module).state_size(module.hidden_size)
    if hx is None:
        return [x.new_zeros(len(x), size) for _ in range(count)]
    parts = hx if isinstance(hx, tuple) else (hx,)
    if any(part.requires_grad for part in parts):
        raise UnsupportedError(
            "the initial state is learned outside the layer",
            got="a gradient flows into h_0",
            fix="detach the initial state, or start from zeros; its gradient belongs to no lag",
        )
    return list(torch.cat([part.detach() for part in parts], dim=-1))


class _Replay:
    """Runs any layer and direction of a module again, from a captured call."""

    def __init__(self, module: nn.RNNBase, model: nn.Module, call: LayerCall) -> None:
        self.module, self.call = module, call
        self.directions = 2 if module.bidirectional else 1
        self.cell = cell_of(module)
        time = call.x.shape[1]
        self.last = torch.full((len(call.x),), time - 1) if call.lengths is None else call.lengths - 1
        steps = torch.arange(time, device=call.x.device)
        lengths = (self.last + 1).to(call.x.device)[:, None]
        self.flip = torch.where(steps < lengths, lengths - 1 - steps, steps)

    def _reverse(self, values: Tensor) -> Tensor:
        """Turn each sequence round within its own length."""
        return values.gather(1, self.flip[..., None].expand(-1, -1, values.shape[-1]))

    def _weights(self, layer: int, direction: int) -> dict[str, Tensor]:
        suffix = f"_l{layer}" + ("_reverse" if direction else "")
        weights = dict(self.module.named_parameters(recurse=False, remove_duplicate=False))
        return {role: weights[f"{role}{suffix}"].detach() for role in ROLES if f"{role}{suffix}" in weights}

    def states(self, layer: int, direction: int, x: Tensor) -> Tensor:
        """States of one layer in one direction, in its own time."""
        initial = self.call.initial[layer * self.directions + direction]
        inputs = self._reverse(x) if direction else x
        return scan(self.cell, inputs, initial, self._weights(layer, direction))

    def _join(self, states: list[Tensor]) -> Tensor:
        """Output of a layer from the states of its directions, each in its own time."""
        outputs = [self.cell.output(s) for s in states]
        return torch.cat([outputs[0], *[self._reverse(o) for o in outputs[1:]]], dim=-1)

    def input_of(self, part: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
        """Inputs of a recurrence in its own time, and its initial state."""
        if part is None:
            return self.call.x, torch.cat(self.call.initial, dim=-1)
        layer, direction = part
        x = self.call.x
        with torch.no_grad():
            for below in range(layer):
                x = self._join([self.states(below, d, x) for d in range(self.directions)])
        return self._reverse(x) if direction else x, self.call.initial[layer * self.directions + direction]

    def result(self, part: tuple[int, int] | None, states: Tensor) -> Any:
        """What the module returns when one recurrence has these states: output, h_n and c_n in torch's form."""
        size = self.cell.state_size(self.module.hidden_size)
        if part is None:
            by_layer = [[s] for s in states.split(size, dim=-1)]
            output = self._join(by_layer[-1])
        else:
            layer, direction = part
            with torch.no_grad():
                x, by_layer = self.call.x, []
                for below in range(layer):
                    by_layer.append([self.states(below, d, x) for d in range(self.directions)])
                    x = self._join(by_layer[-1])
                both = [states if d == direction else self.states(layer, d, x) for d in range(self.directions)]
            by_layer.append(both)
            output = self._join(both)
            for above in range(layer + 1, self.module.num_layers):
                by_layer.append([self.states(above, d, output) for d in range(self.directions)])
                output = self._join(by_layer[-1])
        return self._torch_form(output, [s for layer_states in by_layer for s in layer_states])

    def _torch_form(self, output: Tensor, states: list[Tensor]) -> Any:
        rows = torch.arange(len(output), device=output.device)
        final = torch.stack([s[rows, self.last.to(output.device)] for s in states])
        blocks = [torch.stack(b) for b in zip(*[self.cell.split(s) for s in final], strict=True)]
        hidden = tuple(blocks) if len(blocks) > 1 else blocks[0]
        packed = self.call.packed
        if packed is not None:
            in_order = packed.sorted_indices is None
            lengths = (self.last + 1).cpu()
            formed: Any = pack_padded_sequence(output, lengths, batch_first=True, enforce_sorted=in_order)
        else:
            formed = output if self.module.batch_first else output.transpose(0, 1)
        return formed, hidden
