"""Transposed one-step Jacobians in closed form: how a gradient at ``s_t`` arrives at ``s_{t-1}`` and at the weights.

A cell that offers one (`Cell.pullback`) is transported by matrix products and a few elementwise factors; for every other
cell autodiff does the same. Rows are steps, of any sequence and time: all of them are independent.

A gradient is first *spread* to what the weights make, the pre-activations ``W x + U h + b``; from there matrix products
lead on. Weights then have gradients ``spread^T [x, 1, h]``, a column block each. A row of the GRU, whose pre-activations
are those of candidate, update gate and reset gate::

    lambda at h_t    (row, h)        what arrives after the step
       |  times slopes
       v
    spread           (row, 3 h)      [ candidate | z | r ]
       |         |            |
       | @ U     | @ W        | ^T @ [x, 1, h]
       v         v            v
    + (1 - z) lambda          dW_h  dW_z  dW_r, db_..., dU_...    (uses: which columns, which factor)
    = at h_t-1   at x_t

`RowForm` is the same picture for a compiled kernel: slopes and ``1 - z`` are its arrays, U its weights, W what it reads by.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Use(NamedTuple):
    """Where a weight's gradient is found: these columns of the spread, times this factor ("x", "h", "1", ...)."""

    columns: tuple[slice, ...]
    factor: str


class RowForm(NamedTuple):
    """What a compiled kernel must know to do the same: its name, arrays with one row per step, and weights.

    ``RowForm("gru", (slope of candidate, slope of z, slope of r, r, 1 - z, n, 1 / std), (U_h, [U_z; U_r], gain), W)``, all
    arrays (row, h). The kernels are in `lagreach.kernels.cpu.pullback`, with what each of them takes. The last two arrays and
    the last weight are those of the candidate's LayerNorm (`Norm`).
    """

    kernel: str
    arrays: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    reads: Tensor


class Norm(NamedTuple):
    """A LayerNorm at some steps; without columns, and without a gain, where there is none."""

    normal: Tensor  # (row, unit): what it normalised, before gain and shift
    inverse: Tensor  # (row, 1): one over the standard deviation
    gain: Tensor  # (1, unit)

    @classmethod
    def none(cls, like: Tensor) -> Norm:
        """For cells that have none."""
        return cls(like.new_empty(len(like), 0), like.new_empty(len(like), 0), like.new_empty(0, like.shape[1]))


class Pullback(ABC):
    """``J^T`` of a cell whose state is h alone: ``retained * lambda + spread(lambda)[:, recurrent] U``.

    Parameters
    ----------
    factors
        What the weights multiply, by name, one row per step: the input "x" and the state "h".
    uses
        Where each weight's gradient is found; weights that are not named here are left to autodiff.
    width
        Number of columns of the spread. Columns that read the input come first.
    reads
        Stacked input weights (columns that read the input, input).
    recurrent, columns
        Stacked recurrent weights (columns, h) and the columns of the spread they act on.
    retained
        Elementwise factor on the gradient itself; None if nothing is retained.
    """

    form: RowForm | None = None  # if a compiled kernel knows it

    def __init__(
        self,
        factors: Mapping[str, Tensor],
        uses: Mapping[str, Use],
        *,
        width: int,
        reads: Tensor,
        recurrent: Tensor | None,
        columns: slice = slice(None),
        retained: Tensor | None = None,
    ) -> None:
        self.uses: dict[str, Use] = dict(uses)
        self.width: int = width
        self._reads, self._factors = reads, dict(factors)
        self._recurrent, self._columns, self._retained = recurrent, columns, retained

    def known(self, kernel: str, arrays: Sequence[Tensor], weights: Sequence[Tensor], norm: Norm) -> None:
        """Say which kernel knows it, and what that takes."""
        self.form = RowForm(kernel, (*arrays, norm.normal, norm.inverse), (*weights, norm.gain), self._reads)

    def elementwise(
        self,
        slopes: Tensor,
        norm: Norm | None = None,
        *,
        shared: Tensor | None = None,
        through: Tensor | None = None,
    ) -> None:
        """Say that the spread is the gradient times slopes, some blocks of them side by side, the candidate's first.

        The blocks behind are the candidate's column times what it goes `through`. If some slopes are `shared`, the row sums of
        the gradient times these are one more column.
        """
        assert self._recurrent is not None
        nothing = slopes.new_empty(len(slopes), 0)
        arrays = [slopes, *(nothing if v is None else v for v in (shared, self._retained, through))]
        units = self._recurrent.shape[1]
        self.known("elementwise", arrays, (self._recurrent,), norm or Norm.none(slopes[:, :units]))

    @abstractmethod
    def spread(self, cotangent: Tensor, out: Tensor) -> None:
        """Gradient at the pre-activations, (row, width), from the gradient at the state after each step."""

    def state(self, cotangent: Tensor, spread: Tensor, out: Tensor) -> None:
        """Gradient at the state before each step."""
        assert self._recurrent is not None
        if self._retained is None:
            torch.mm(spread[:, self._columns], self._recurrent, out=out)
        else:
            torch.mul(cotangent, self._retained, out=out)
            out.addmm_(spread[:, self._columns], self._recurrent)

    def inputs(self, spread: Tensor) -> Tensor:
        """Gradient at the input of each step."""
        return spread[:, : len(self._reads)] @ self._reads

    def places(self, names: Sequence[str]) -> dict[str, slice]:
        """Columns of each factor that the named weights multiply, in `factor`."""
        columns: dict[str, slice] = {}
        start = 0
        for name in dict.fromkeys(self.uses[name].factor for name in names):
            width = 1 if name == "1" else self._factors[name].shape[1]
            columns[name] = slice(start, start + width)
            start += width
        return columns

    def factor(self, names: Sequence[str]) -> Tensor:
        """What the named weights multiply, side by side, one row per step."""
        x = self._factors["x"]
        parts = [x.new_ones(len(x), 1) if f == "1" else self._factors[f] for f in self.places(names)]
        return torch.cat(parts, dim=1) if parts else x[:, :0]


def gate_uses(gates: str, width: int) -> dict[str, Use]:
    """Uses of ``W_k, U_k, b_k`` for gates k whose columns stand side by side in this order."""
    uses: dict[str, Use] = {}
    for place, gate in enumerate(gates):
        columns = (slice(place * width, (place + 1) * width),)
        uses |= {
            f"W_{gate}": Use(columns, "x"),
            f"U_{gate}": Use(columns, "h"),
            f"b_{gate}": Use(columns, "1"),
        }
    return uses
