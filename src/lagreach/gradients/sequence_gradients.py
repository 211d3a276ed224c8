"""The whole gradient of each sequence on its own, and what its steps contribute to it along a direction of the weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.cells import Params
from lagreach.cells.stack import Layer
from lagreach.kernels import scan_pullback
from lagreach.kernels.packing import blocks_of, products_of
from lagreach.kernels.parallel import adjoint
from lagreach.transport.carry import one_position_back
from lagreach.transport.linear_scan import only_scan
from lagreach.transport.linearised import step_by_sequence
from lagreach.transport.objective import Objective, output_gradient
from lagreach.transport.rollout import Rollout
from lagreach.transport.scaled import size_in_powers_of_two
from lagreach.transport.sensitivity import complete_direction, immediate_sensitivity


class SequenceGradients(ABC):
    """Gradients of all sequences of a rollout."""

    @abstractmethod
    def by_sequence(self) -> Float[np.ndarray, "seq param"]:
        """Gradient of every sequence as a row of float64."""

    @abstractmethod
    def by_step(self, direction: Mapping[str, Tensor]) -> Float[Tensor, "seq reached"]:
        """What each step contributes along a direction of the weights, in float64."""


def whole_gradients(part: Rollout, objective: Objective, names: list[str]) -> SequenceGradients:
    """Gradients of every sequence's loss: in one fused pass back through time where a kernel knows all layers."""
    fused = _through_blocks(part, output_gradient(part.recurrence, objective, part.states)[0], names)
    if fused is not None:
        return fused
    return ThroughStates(SequenceLinearisation(part, names), total_adjoint(part, objective))


class _Product(NamedTuple):
    """A weight of a layer: the gradient at what it makes, and what it multiplies (None: it is added)."""

    made: Tensor  # (seq, time, unit)
    factor: Tensor | None  # (seq, time, k)

    def by_sequence(self) -> Tensor:
        """Gradient of the weight for every sequence."""
        return self.made.sum(1) if self.factor is None else torch.bmm(self.made.transpose(1, 2), self.factor)

    def by_step(self, direction: Tensor) -> Float[Tensor, "seq time"]:
        """Gradient of every step along a direction of the weight."""
        moved = direction if self.factor is None else self.factor @ direction.T
        return (self.made * moved).sum(-1, dtype=torch.float64)


class _ThroughBlocks(SequenceGradients):
    """From gradients at pre-activations, where weights multiply inputs and states."""

    def __init__(
        self, part: Rollout, layers: list[tuple[Layer, dict[str, _Product]]], names: list[str], power: float
    ) -> None:
        self._part, self._layers, self._names, self._power = part, layers, names, power

    def by_sequence(self) -> Float[np.ndarray, "seq param"]:
        gradients: dict[str, Tensor] = {}
        for (layer, products), full_names in zip(self._layers, self._part.recurrence.stack.names, strict=True):
            used = {short: layer.params[short].detach() for short, name in full_names.items() if name in self._names}
            if used:
                plain = partial(_plain_weights, layer, list(products))
                pull = torch.func.vmap(torch.func.vjp(plain, used)[1])
                (pulled,) = pull({name: product.by_sequence() for name, product in products.items()})
                gradients |= {full_names[short]: gradient for short, gradient in pulled.items()}
        flat = torch.cat([gradients[name].flatten(1) for name in self._names], dim=1)
        return (flat.double() * self._power).cpu().numpy()

    def by_step(self, direction: Mapping[str, Tensor]) -> Float[Tensor, "seq time"]:
        stack, total = self._part.recurrence.stack, torch.zeros(1, dtype=torch.float64, device=self._part.x.device)
        whole = complete_direction(self._part.recurrence, direction)
        for k, (layer, products) in enumerate(self._layers):
            along = layer.cell.plain(stack.layer_params(k, whole))[1]
            for name, product in products.items():
                total = total + product.by_step(along[name].detach())
        return total * self._power


def _through_blocks(part: Rollout, delta: Tensor, names: list[str]) -> _ThroughBlocks | None:
    """Lead gradients at the states back through the layers, from the top one down; None where some weight needs another way."""
    recurrence, power = part.recurrence, size_in_powers_of_two(delta)
    stack = recurrence.stack
    gradients, initial = stack.split(delta / power), stack.split(part.initial)
    layers: list[tuple[Layer, dict[str, _Product]]] = []
    for k, layer in reversed(list(enumerate(stack.layers(part.x, part.previous, part.states, recurrence.params)))):
        known = layer.cell.plain(layer.params)[0]
        used = _used(layer, [short for short, name in stack.names[k].items() if name in names])
        products = products_of(known) if blocks_of(known) else {}
        places = {name: (bias, which) for bias, pair in products.items() for which, name in enumerate((bias, *pair))}
        pulled = None
        if all(name in places for name in used):
            pulled = scan_pullback(layer.cell, layer.x, initial[k], layer.params, gradients[k])
        if pulled is None:
            return None
        blocks, at_inputs = pulled
        factors = None, layer.x, known.output(layer.previous)
        layers.append((layer, {name: _Product(blocks[places[name][0]], factors[places[name][1]]) for name in used}))
        if k > 0:  # the input is the output of the layer below
            gradients[k - 1][..., : at_inputs.shape[-1]] += at_inputs
    return _ThroughBlocks(part, layers[::-1], names, power)


def _plain_weights(layer: Layer, names: list[str], weights: Params) -> Params:
    """The named weights of the plain cell, where some of the layer's are these."""
    plain = layer.cell.plain({**layer.params, **weights})[1]
    return {name: plain[name] for name in names}


def _used(layer: Layer, names: list[str]) -> list[str]:
    """Weights of the plain cell that these weights of the layer go into; linear as that is, ones show it."""
    ones = {name: torch.full_like(weight, float(name in names)) for name, weight in layer.params.items()}
    return [name for name, weight in layer.cell.plain(ones)[1].items() if bool(weight.any())]


class ThroughStates(SequenceGradients):
    """From what arrives at the states of the first positions, by the step linearised with weights of every sequence's own."""

    def __init__(self, linearisation: SequenceLinearisation, arrived: Float[Tensor, "seq reached state"]) -> None:
        self._linearisation, self._arrived = linearisation, arrived

    def by_sequence(self) -> Float[np.ndarray, "seq param"]:
        """Gradient of every sequence as a row of float64."""
        return self._linearisation.pull(self._arrived)

    def by_step(self, direction: Mapping[str, Tensor]) -> Float[Tensor, "seq reached"]:
        """What each step contributes along a direction of the weights, in float64."""
        moved = immediate_sensitivity(self._linearisation.part, direction).double()
        return (self._arrived.double() * moved[:, : self._arrived.shape[1]]).sum(-1)


def total_adjoint(part: Rollout, objective: Objective) -> Float[Tensor, "seq time state"]:
    """``dL_n/ds_t`` through everything that follows: the sum over lags of what is carried to each position."""
    delta = output_gradient(part.recurrence, objective, part.states)[0]
    recurrence = part.recurrence
    if (cell := only_scan(part)) is not None:
        with torch.no_grad():
            keep, _ = cell.affine(part.x, recurrence.stack.layer_params(0, recurrence.params))
        return adjoint(keep, delta)
    total = delta.transpose(0, 1).contiguous()  # position by position, what arrives from all later ones is added up
    step_back, arrived = one_position_back(part), torch.empty_like(total[0])
    for position in range(len(total) - 1, 0, -1):
        step_back(position, total[position], arrived)
        total[position - 1] += arrived
    return total.transpose(0, 1)


class SequenceLinearisation:
    """`step` at all steps of a rollout, with weights of its own for every sequence, its graph kept."""

    def __init__(self, part: Rollout, names: list[str]) -> None:
        self.part, self.time = part, part.x.shape[1]
        self.states, self.weights = step_by_sequence(part.recurrence, part.x, part.previous, names)

    def pull(self, carried: Float[Tensor, "seq reached state"]) -> Float[np.ndarray, "seq param"]:
        """Gradient of every sequence as a row of float64, scaled so that float32 models do not underflow."""
        power = size_in_powers_of_two(carried)
        missing = self.time - carried.shape[1]
        cotangent = torch.nn.functional.pad((carried / power).to(self.states.dtype), (0, 0, 0, missing))
        grads = torch.autograd.grad(
            self.states, self.weights, grad_outputs=cotangent, retain_graph=True, materialize_grads=True
        )
        return (torch.cat([g.flatten(1) for g in grads], dim=1).double() * power).cpu().numpy()
