"""Many linearised steps at once, in one compiled call or from what a compiled run has kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.adapters import Recurrence
from lagreach.cells._pullback import RowForm
from lagreach.kernels import scan_stack
from lagreach.kernels.cpu import missing, row_pass
from lagreach.kernels.cpu.buffers import empty
from lagreach.transport.linearised import Closed, Linearised, linearise

if TYPE_CHECKING:
    from lagreach.kernels.cpu.kept_run import KeptRun


class Joined:
    """Any number of steps that a kernel pulls back in one call, with sums of weights' gradients if they are asked for.

    Parameters
    ----------
    like
        Some of the steps in closed form.
    form
        That of all of them.
    factors
        What the weights multiply, of all of them; of one layer, so at most one.
    """

    def __init__(self, like: Closed, form: RowForm, factors: Sequence[Tensor]) -> None:
        compiled = row_pass(form)
        assert compiled is not None, "only what a kernel knows can be joined"
        self._row_pass, self._spread = compiled, form.arrays[0].new_empty(compiled.rows_in_work, like.width)
        self._factors, self._columns, self.flat = factors, like.columns, like.flat

    @classmethod
    def of_pieces(cls, pieces: Iterator[Linearised], rows: int) -> Joined:
        """Join so many rows that come in pieces, so that what else it takes to linearise them is needed for one at a time."""
        first = next(pieces)
        assert isinstance(first, Closed), "only what has a closed form can be joined"
        known = first.form
        assert known is not None, "only what a kernel knows can be joined"
        arrays = [_room_for(rows, array) for array in known.arrays]
        factors = [_room_for(rows, factor) for factor in first.factors]
        start = 0
        for piece in chain([first], pieces):
            assert isinstance(piece, Closed)
            assert piece.form is not None
            end = start + len(piece.form.arrays[0])
            for whole, array in zip((*arrays, *factors), (*piece.form.arrays, *piece.factors), strict=True):
                whole[start:end] = array
            start = end
        return cls(first, known._replace(arrays=tuple(arrays)), factors)

    @classmethod
    def of_run(
        cls,
        like: Linearised,
        recurrence: Recurrence,
        x: Float[Tensor, "step row input"],
        initial: Float[Tensor, "row state"],
    ) -> Joined | None:
        """Join the steps of a run by a kernel that keeps what linearising needs; None if there is none."""
        kept = _kept_run(recurrence, x, initial) if isinstance(like, Closed) else None
        return None if kept is None else cls._of_kept(like, kept, x)

    @classmethod
    def _of_kept(cls, like: Linearised, kept: KeptRun, x: Float[Tensor, "step row input"]) -> Joined:
        """Join the first steps of a run, as many as there are inputs."""
        assert isinstance(like, Closed)
        before = {"x": x, "1": x.new_ones(*x.shape[:2], 1), "h": kept.outputs_before[: len(x)]}
        factors = [torch.cat([before[name] for name in names], dim=2).flatten(0, 1) for names in like.factor_names]
        return cls(like, kept.form(slice(0, len(x))), factors)

    def back(self, cotangent: Tensor, out: Tensor, sizes: Tensor | None, first: int = 0) -> None:
        """Pull back rows from the first one on, as many as the cotangent has; see `Linearised.back`."""
        self._row_pass(cotangent, self._spread, out, whole=False, sizes=sizes, first=first)

    def back_and_sums(self, cotangent: Tensor, out: Tensor, sizes: Tensor | None, by: Tensor) -> Tensor:
        """Pull back the first rows, and return the sums over them of weights' gradients; see `Linearised.weights`."""
        from lagreach.kernels.cpu.pullback import Collect  # which loads numba

        factor = self._factors[0][: len(cotangent)]
        total = torch.zeros(by.shape[1] * factor.shape[1], self._columns, dtype=torch.float64)
        collect = Collect(by, factor, total)
        self._row_pass(cotangent, self._spread, out, whole=False, sizes=sizes, collect=collect)
        return total


def _room_for(rows: int, like: Tensor) -> Tensor:
    """So many rows of the same kind, in memory that is used again and again."""
    return torch.from_numpy(empty((rows, like.shape[1]), like.numpy().dtype))


class Windows:
    """Rows that run for a few steps, each step linearised when gradients are led back over it.

    Where a kernel keeps what it computes on the way, that is used again.

    Parameters
    ----------
    states
        States after each step but the last, if they are known already; else they are run.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        x: Float[Tensor, "step row input"],
        initial: Float[Tensor, "row state"],
        states: Float[Tensor, "known row state"] | None = None,
    ) -> None:
        self._recurrence, self._x, self._initial = recurrence, x, initial
        self.together = x.is_cuda  # all gradients in one call: starting a kernel there takes longer than what it does
        self._kept = None if states is not None else _kept_run(recurrence, x, initial)
        self._known = states

    @cached_property
    def _states(self) -> Float[Tensor, "known row state"]:
        """States after each step but the last, or after all of them."""
        if self._known is not None:
            return self._known
        if self._kept is not None:
            return self._kept.states
        recurrence = self._recurrence
        with torch.no_grad():
            run = scan_stack(recurrence.stack, self._x.transpose(0, 1), self._initial, recurrence.params)
        return run.transpose(0, 1)

    def back(self, step: int, cotangents: Iterable[Float[Tensor, "row state"]]) -> Iterator[Tensor]:
        """Lead gradients after a step on to the states before it."""
        compiled = None if self._kept is None else row_pass(self._kept.form(slice(step, step + 1)))
        if compiled is not None:
            spread = self._x.new_empty(compiled.rows_in_work, compiled.width)
            for after in cotangents:
                before = torch.empty_like(after)
                compiled(after, spread, before, whole=False, sizes=None)
                yield before
            return
        x, s = self._x[step], self._states[step - 1] if step else self._initial
        if self.together:
            after = torch.cat(list(cotangents))
            many = len(after) // len(x)
            linear, before = (
                linearise(self._recurrence, x.repeat(many, 1), s.repeat(many, 1), ()),
                torch.empty_like(after),
            )
            linear.back(after, x.new_empty(len(after), linear.width), before, whole=False)
            yield from before.chunk(many)
            return
        linear = linearise(self._recurrence, x, s, ())
        spread = x.new_empty(len(x), linear.width)
        for after in cotangents:
            before = torch.empty_like(after)
            linear.back(after, spread, before, whole=False)
            yield before

    def first_step_sums(
        self, names: Sequence[str], cotangents: Iterable[Float[Tensor, "row state"]], by: Float[Tensor, "row k"]
    ) -> list[Float[Tensor, "k param"]] | None:
        """Sums over rows, weighted in k ways, of what the weights get at the first step; None if no kernel has run the rows."""
        if self._kept is None:
            return None
        joined = Joined._of_kept(
            linearise(self._recurrence, self._x[0, :1], self._initial[:1], names), self._kept, self._x[:1]
        )
        led_on = torch.empty_like(self._initial)
        return [joined.flat(joined.back_and_sums(after, led_on, None, by)) for after in cotangents]


def _kept_run(recurrence: Recurrence, x: Tensor, initial: Tensor) -> KeptRun | None:
    """Run by a kernel that keeps what linearising needs; None if there is none for this recurrence, here and now."""
    if len(recurrence.stack.cells) > 1:
        return None
    cell, params = recurrence.stack.cells[0].plain(recurrence.stack.layer_params(0, recurrence.params))
    tensors = (x, initial, *params.values())
    if any(v.dtype != x.dtype or v.device != x.device or v.numel() == 0 for v in tensors):
        return None
    if missing(cell, x.device, x.dtype) is not None:
        return None
    from lagreach.kernels.cpu.kept_run import KeptRun, knows  # which load numba

    return KeptRun(cell, x, initial, params) if knows(cell) else None
