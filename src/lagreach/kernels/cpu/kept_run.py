"""A run whose steps can be linearised from what it leaves behind: products and nonlinearities are not made again."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.buffers import empty
from lagreach.cells import Cell, Params
from lagreach.cells._pullback import RowForm
from lagreach.kernels.cpu import lstm, passes, torch_gru

GATES = {"lstm": ("ifgo", "ifgo"), "torch_gru": ("zrn", "nzr")}  # in the order of recurrent and of input weights


class KeptRun:
    """A run of a cell that a kernel knows: its states, and the form of its steps' pullback."""

    def __init__(
        self, cell: Cell, x: Float[Tensor, "step row input"], s0: Float[Tensor, "row state"], params: Params
    ) -> None:
        weights = {name: weight.detach()[None] for name, weight in params.items()}
        done = passes.forward(cell, x.transpose(0, 1)[None], s0[None], weights, keep=True)
        self._cell, self._run, self._h0, self._c0 = cell, done.run, done.h0[0], done.c0[0]
        recurrent, reads = GATES[cell.name]
        gain = params.get("ln_gain", s0[0, :0]).detach()
        self._weights = (
            torch.cat([params[f"U_{gate}"].detach() for gate in recurrent]),
            gain.reshape(-1, done.h0.shape[2]),
        )
        self._reads = torch.cat([params[f"W_{gate}"].detach() for gate in reads])

    @cached_property
    def states(self) -> Float[Tensor, "step row state"]:
        """States after each step."""
        blocks = [torch.from_numpy(block[0]) for block in (self._run.h, self._run.c)[: len(self._cell.blocks)]]
        return torch.cat(blocks, dim=-1) if len(blocks) > 1 else blocks[0]

    @property
    def outputs(self) -> Float[Tensor, "step row unit"]:
        """Outputs after each step."""
        return torch.from_numpy(self._run.h[0])

    @property
    def outputs_before(self) -> Float[Tensor, "step row unit"]:
        """Outputs before each step."""
        return torch.cat((torch.from_numpy(self._h0)[None], self.outputs[:-1]))

    def form(self, steps: slice) -> RowForm:
        """What leads gradients back over some steps, as `Cell.pullback` would have it; rows are ordered by step."""
        h, c, act = self._run.h[0], self._run.c[0], self._run.act[0]
        rows, units = h.shape[1:]
        lstm_cell = self._cell.name == "lstm"
        states, initial = (c, self._c0) if lstm_cell else (h, self._h0)
        sizes = [units] * 6 if lstm_cell else [2 * units, units, 2 * units]
        count = (steps.stop - steps.start) * rows
        arrays = [empty((count, size), h.dtype) for size in sizes]
        for some in (slice(steps.start, min(1, steps.stop)), slice(max(1, steps.start), steps.stop)):
            if some.stop > some.start:
                before = initial if some.start == 0 else _rows(states[some.start - 1 : some.stop - 1])
                place = slice((some.start - steps.start) * rows, (some.stop - steps.start) * rows)
                here = _rows(act[some]), before, *([_rows(c[some])] if lstm_cell else [])
                (lstm if lstm_cell else torch_gru).slopes(*here, *(array[place] for array in arrays))
        normed = len(self._weights[1])
        if not lstm_cell:
            arrays.insert(1, empty((count, 0), h.dtype))  # nothing is shared
        arrays.append(self._run.normal[0, steps].reshape(count, normed * units))
        arrays.append(self._run.inverse[0, steps].reshape(count, normed))
        kernel = "lstm" if lstm_cell else "elementwise"
        return RowForm(kernel, tuple(torch.from_numpy(array) for array in arrays), self._weights, self._reads)


def _rows(steps: np.ndarray) -> np.ndarray:
    return steps.reshape(-1, steps.shape[-1])


def knows(cell: Cell) -> bool:
    """Whether `KeptRun` can run a cell, if its kernel can."""
    return cell.name in GATES
