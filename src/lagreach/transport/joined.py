"""Many linearised steps that a compiled kernel pulls back in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.buffers import empty
from lagreach.adapters import Recurrence
from lagreach.cells._pullback import RowForm
from lagreach.kernels.cpu import missing, row_pass
from lagreach.transport.linearised import Closed, Linearised

if TYPE_CHECKING:
    from lagreach.kernels.cpu.kept_run import KeptRun


class Joined:
    """Any number of steps that a kernel pulls back in one call, with sums of weights' gradients if they are asked for.

    Parameters
    ----------
    like
        Some of the steps in closed form.
    forms
        Those of all of them, by layer.
    factors
        What the weights multiply, of all of them, by layer.
    """

    def __init__(self, like: Closed, forms: Sequence[RowForm], factors: Sequence[Tensor]) -> None:
        compiled = row_pass(forms)
        assert compiled is not None, "only what a kernel knows can be joined"
        self._row_pass, self._spreads = compiled, compiled.spreads(forms[0].arrays[0])
        self._factors, self._columns, self.flat = factors, like.columns, like.flat

    @classmethod
    def of_pieces(cls, pieces: Iterator[Linearised], rows: int) -> Joined:
        """Join so many rows that come in pieces, so that what else it takes to linearise them is needed for one at a time."""
        first = next(pieces)
        assert isinstance(first, Closed), "only what has a closed form can be joined"
        known = _forms(first)
        arrays = [[_room_for(rows, array) for array in form.arrays] for form in known]
        factors = [_room_for(rows, factor) for factor in first.factors]
        start = 0
        for piece in chain([first], pieces):
            assert isinstance(piece, Closed)
            forms = _forms(piece)
            end = start + len(forms[0].arrays[0])
            mine = chain(*(form.arrays for form in forms), piece.factors)
            for whole, array in zip(chain(*arrays, factors), mine, strict=True):
                whole[start:end] = array
            start = end
        joined = [form._replace(arrays=tuple(whole)) for form, whole in zip(known, arrays, strict=True)]
        return cls(first, joined, factors)

    @classmethod
    def of_run(
        cls,
        like: Linearised,
        recurrence: Recurrence,
        x: Float[Tensor, "step row input"],
        initial: Float[Tensor, "row state"],
    ) -> Joined | None:
        """Join the steps of a run by a kernel that keeps what linearising needs; None if there is none."""
        kept = kept_run(recurrence, x, initial) if isinstance(like, Closed) else None
        return cls.of_kept(like, kept, x) if kept is not None and isinstance(like, Closed) else None

    @classmethod
    def of_kept(cls, like: Closed, kept: Sequence[KeptRun], x: Float[Tensor, "step row input"]) -> Joined:
        """Join the first steps of a run, as many as there are inputs."""
        factors, inputs, one = [], x, x.new_ones(*x.shape[:2], 1)
        for layer, names in zip(kept, like.factor_names, strict=True):
            before = {"x": inputs, "1": one, "h": layer.outputs_before[: len(x)]}
            factors.append(torch.cat([one[..., :0], *(before[name] for name in names)], dim=2).flatten(0, 1))
            inputs = layer.outputs[: len(x)]
        return cls(like, [layer.form(slice(0, len(x))) for layer in kept], factors)

    def back(self, cotangent: Tensor, out: Tensor, sizes: Tensor | None, first: int = 0) -> None:
        """Pull back rows from the first one on, as many as the cotangent has; see `Linearised.back`."""
        self._row_pass(cotangent, self._spreads, out, whole=False, sizes=sizes, first=first)

    def back_and_sums(self, cotangent: Tensor, out: Tensor, sizes: Tensor | None, by: Tensor) -> Tensor:
        """Pull back the first rows, and return the sums over them of weights' gradients; see `Linearised.weights`."""
        from lagreach.kernels.cpu.pullback import Collect  # which loads numba

        sets, collect, totals = by.shape[1], [], []
        for factor, columns in zip(self._factors, self._columns, strict=True):
            totals.append(torch.zeros(sets * factor.shape[1], columns, dtype=torch.float64))
            collect.append(Collect(by, factor[: len(cotangent)], totals[-1]) if columns else None)
        self._row_pass(cotangent, self._spreads, out, whole=False, sizes=sizes, collect=collect)
        return torch.cat([total.view(sets, -1) for total in totals], dim=1)


def _forms(piece: Closed) -> list[RowForm]:
    known = [form for form in piece.forms if form is not None]
    assert len(known) == len(piece.forms), "only what kernels know can be joined"
    return known


def _room_for(rows: int, like: Tensor) -> Tensor:
    """So many rows of the same kind, in memory that is used again and again."""
    return torch.from_numpy(empty((rows, like.shape[1]), like.numpy().dtype))


def kept_run(recurrence: Recurrence, x: Tensor, initial: Tensor) -> list[KeptRun] | None:
    """Run by kernels that keep what linearising needs, layer by layer; None if there is one without, here and now."""
    stack = recurrence.stack
    plain = [cell.plain(stack.layer_params(k, recurrence.params)) for k, cell in enumerate(stack.cells)]
    tensors = (x, initial, *(weight for _, params in plain for weight in params.values()))
    if any(v.dtype != x.dtype or v.device != x.device or v.numel() == 0 for v in tensors):
        return None
    if any(missing(cell, x.device, x.dtype) is not None for cell, _ in plain):
        return None
    from lagreach.kernels.cpu.kept_run import KeptRun, knows  # which load numba

    if not all(knows(cell) for cell, _ in plain):
        return None
    kept: list[KeptRun] = []
    for (cell, params), state in zip(plain, stack.split(initial), strict=True):
        kept.append(KeptRun(cell, kept[-1].outputs if kept else x, state, params))
    return kept
