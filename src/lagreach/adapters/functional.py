"""A bare step function as a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear

from lagreach.adapters.precision import single_precision
from lagreach.adapters.view import GatedView, Recurrence
from lagreach.cells import Cell, Params
from lagreach.cells.stack import Stack


@dataclass(frozen=True)
class FunctionCell(Cell):
    """A cell around ``step(x, s, params) -> s``; everything else comes from autodiff."""

    name: ClassVar[str] = "function"

    function: Callable[..., Any]
    weights: Mapping[str, Tensor]

    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights that were given; the sizes are theirs."""
        return {name: tuple(weight.shape) for name, weight in self.weights.items()}

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Call the function."""
        return self.function(x, s, params)


def functional_view(
    step: Callable[..., Any], params: Mapping[str, Tensor], readout: tuple[Tensor, Tensor], state_size: int
) -> GatedView:
    """View a step function with its weights and a linear readout (weight, bias) of the state."""
    weights = {name: single_precision(torch.as_tensor(weight).detach()) for name, weight in params.items()}
    cell = FunctionCell(step, weights)
    stack = Stack((cell,), state_size, ({name: name for name in weights},))
    head_params = {
        f"readout.{name}": single_precision(v.detach()) for name, v in zip(("weight", "bias"), readout, strict=True)
    }

    def head(states: Tensor, weights: Params) -> Tensor:
        return linear(states, weights["readout.weight"], weights["readout.bias"])

    def initial_state(x: Tensor) -> Tensor:
        return torch.zeros(len(x), state_size, dtype=x.dtype, device=x.device)

    return GatedView(Recurrence(stack, weights, head, head_params, initial_state, input_size=-1))
