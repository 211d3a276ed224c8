"""Several cells on top of each other as one recurrence whose state is all of theirs side by side.

What lies between the layers is local in time, so the stack is itself a step ``s_t = step(x_t, s_{t-1})``; lags
measured on it are lags of the whole model. (Lags measured inside one layer would not be: a dependency carried
by layer 2 shows up in layer 1 at lag 0.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.cells._cell import Cell, Params


class Layer(NamedTuple):
    """One layer of a stack seen on its own: its cell, weights, inputs and the states before each step."""

    cell: Cell
    params: Params
    x: Tensor
    previous: Tensor


@dataclass(frozen=True)
class Stack:
    """Layers of cells. `names[k]` maps the weights of layer k to their names in the whole model."""

    cells: tuple[Cell, ...]
    hidden_size: int
    names: tuple[Mapping[str, str], ...]

    @property
    def state_size(self) -> int:
        """Width of the whole state."""
        return sum(cell.state_size(self.hidden_size) for cell in self.cells)

    @property
    def first_order(self) -> str:
        """Kind of first-order expansion; stacking couples the layers, so it is exact for one layer only."""
        if len(self.cells) == 1:
            return self.cells[0].first_order
        return "vanishes" if all(c.first_order == "vanishes" for c in self.cells) else "approximate"

    def split(self, s: Float[Tensor, "*batch state"]) -> tuple[Tensor, ...]:
        """State of each layer."""
        return s.split([cell.state_size(self.hidden_size) for cell in self.cells], dim=-1)

    def layer_params(self, k: int, params: Params) -> dict[str, Tensor]:
        """Weights of layer k under their own names."""
        return {short: params[name] for short, name in self.names[k].items()}

    def weights(self) -> Iterator[tuple[int, Cell, str, str]]:
        """Layer, cell, the cell's own name and the model's name of every weight."""
        for k, cell in enumerate(self.cells):
            for short, name in self.names[k].items():
                yield k, cell, short, name

    def step(self, x: Float[Tensor, "*batch input"], s: Float[Tensor, "*batch state"], params: Params) -> Tensor:
        """Advance all layers by one step, each fed by the new output of the one below."""
        after = []
        for k, (cell, state) in enumerate(zip(self.cells, self.split(s), strict=True)):
            after.append(cell.step(x, state, self.layer_params(k, params)))
            x = cell.output(after[-1])
        return torch.cat(after, dim=-1) if len(after) > 1 else after[0]

    def output(self, s: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch unit"]:
        """Output of the top layer."""
        return self.cells[-1].output(self.split(s)[-1])

    def layers(self, x: Tensor, previous: Tensor, states: Tensor, params: Params) -> Iterator[Layer]:
        """Each layer on its own, from the bottom, given the states before and after every step."""
        befores, afters = self.split(previous), self.split(states)
        for k, cell in enumerate(self.cells):
            yield Layer(cell, self.layer_params(k, params), x, befores[k])
            x = cell.output(afters[k])
