"""A run whose steps can be linearised from what it leaves behind: products and nonlinearities are not made again."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.cells import Cell, Params
from lagreach.cells._pullback import RowForm, elementwise
from lagreach.kernels.cpu import lstm, passes, torch_gru
from lagreach.kernels.cpu.buffers import empty

KNOWN = ("lstm", "torch_gru")  # without LayerNorm, which mixes units


class KeptRun:
    """States (step, row, state) of a cell that a kernel knows, and the form of each step's pullback."""

    def __init__(
        self, cell: Cell, x: Float[Tensor, "step row input"], s0: Float[Tensor, "row state"], params: Params
    ) -> None:
        weights = {name: weight.detach()[None] for name, weight in params.items()}
        done = passes.forward(cell, x.transpose(0, 1)[None], s0[None], weights, keep=True)
        self._cell, self._run, self._h0, self._c0 = cell, done.run, done.h0[0], done.c0[0]
        gates = "ifgo" if cell.name == "lstm" else "rzn"
        self._recurrent = torch.cat([params[f"U_{gate}"].detach() for gate in gates])
        blocks = [torch.from_numpy(block[0]) for block in (done.run.h, done.run.c)[: len(cell.blocks)]]
        self.states = torch.cat(blocks, dim=-1) if len(blocks) > 1 else blocks[0]

    def form(self, step: int) -> RowForm:
        """What leads gradients back over a step, as `Cell.pullback` would have it."""
        h, c, act = self._run.h[0], self._run.c[0], self._run.act[0, step]
        rows, units = h.shape[1:]
        if self._cell.name == "lstm":
            arrays = [empty((rows, units), h.dtype) for _ in range(6)]
            lstm.slopes(act, c[step - 1] if step else self._c0, c[step], *arrays)
            return RowForm("lstm", tuple(torch.from_numpy(array) for array in arrays), (self._recurrent,))
        slopes, retained = (empty((rows, width * units), h.dtype) for width in (4, 1))
        torch_gru.slopes(act, h[step - 1] if step else self._h0, slopes, retained)
        return elementwise(torch.from_numpy(slopes), self._recurrent, torch.from_numpy(retained))


def knows(cell: Cell) -> bool:
    """Whether `KeptRun` can run a cell, if its kernel can."""
    return cell.name in KNOWN and not getattr(cell, "layernorm", False)
