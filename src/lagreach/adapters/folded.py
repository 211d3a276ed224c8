"""Layers that run on more rows than there are sequences: channels or nodes of a graph folded into the batch.

Statistics over sequences need each sequence's rows together. So the rows of a sequence become one wide state: `FoldedCell` steps
them side by side with the same weights, and `FoldedView` brings inputs, initial states and the head into that form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach.adapters.rows import NOWHERE, row_owners
from lagreach.adapters.view import BoundRecurrence, OwnUse, View, bind_to, unbound_recurrence
from lagreach.cells import Cell, Dual, Factors, Params
from lagreach.cells.stack import Stack
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError


@dataclass(frozen=True)
class FoldedCell(Cell):
    """Several rows of a cell as one: every block of the state holds that block of all rows, side by side."""

    inner: Cell
    rows: int

    def __post_init__(self) -> None:
        for name in ("name", "gate_names", "blocks", "rate_block", "first_order"):
            object.__setattr__(self, name, getattr(self.inner, name))

    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights, which all rows share."""
        return self.inner.shapes(input_size // self.rows, hidden_size // self.rows)

    def role(self, name: str) -> str:
        """What a weight does in each row."""
        return self.inner.role(name)

    def state_size(self, hidden_size: int) -> int:
        """Width of all rows together."""
        return self.rows * self.inner.state_size(hidden_size // self.rows)

    def split(self, s: Tensor) -> tuple[Tensor, ...]:
        """Blocks of the state, each of all rows."""
        narrow = self.inner.split(s.new_empty(0, s.shape[-1] // self.rows))
        return s.split([self.rows * block.shape[-1] for block in narrow], dim=-1)

    def unfold(self, s: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch row own"]:
        """Bring a state to one row after the other."""
        return torch.cat([block.unflatten(-1, (self.rows, -1)) for block in self.split(s)], dim=-1)

    def fold(self, s: Float[Tensor, "*batch row own"]) -> Float[Tensor, "*batch state"]:
        """Put rows side by side, block by block."""
        return torch.cat([block.flatten(-2) for block in self.inner.split(s)], dim=-1)

    def _apart(self, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        return x.unflatten(-1, (self.rows, -1)), self.unfold(s)

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Advance all rows."""
        return self.fold(self.inner.step(*self._apart(x, s), params))

    def gates(self, x: Tensor, s: Tensor, params: Params) -> dict[str, Tensor]:
        """Gates of all rows."""
        return {name: gate.flatten(-2) for name, gate in self.inner.gates(*self._apart(x, s), params).items()}

    def retention(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Retention of all rows."""
        return self.fold(self.inner.retention(*self._apart(x, s), params))

    def correction(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Correction of all rows."""
        return self.fold(self.inner.correction(*self._apart(x, s), params))

    def factors(self, x: Tensor, s: Tensor, params: Params) -> Factors:
        """Factors of all rows, each a sequence of its own."""
        alone_x, alone_s = (v.movedim(2, 1).flatten(0, 1) for v in self._apart(x, s))
        alone = self.inner.factors(alone_x, alone_s, params)

        def together(values: Tensor) -> Tensor:
            return values.unflatten(0, (-1, self.rows)).movedim(1, 2).flatten(2)

        duals = [Dual(together(dual.real), together(dual.slope)) for dual in alone]
        return Factors.uniform(duals[1]) if alone.is_uniform else Factors(*duals)


class FoldedView(View):
    """A view whose layer runs on `rows` rows a sequence, seen sequence by sequence.

    `inner` is the view itself, by rows. Rows of a sequence follow each other, or all first rows come before all second ones
    (`interleaved`).
    """

    def __init__(self, inner: View, rows: int, interleaved: bool) -> None:
        self.inner, self.rows, self.interleaved = inner, rows, interleaved
        self.name, self.local = inner.name, inner.local
        stack = inner.template.stack
        cells = tuple(FoldedCell(cell, rows) for cell in stack.cells)
        wide = -1 if inner.template.input_size < 0 else rows * inner.template.input_size
        self.template = unbound_recurrence(
            Stack(cells, rows * stack.hidden_size, stack.names), inner.template.params, wide
        )

    def bind(self, batch: Batch) -> BoundRecurrence:
        """Bind by rows, and put the rows of each sequence side by side."""
        met, count = self.inner.bind(batch), len(batch)
        if len(met.x) != self.rows * count:
            raise _uneven(self.name, len(met.x), count, f"{self.rows} rows for every sequence, as in the first batch")
        order = row_order(count, self.rows, self.interleaved).to(met.x.device)
        back = order.argsort()
        outer, inner = self.template.stack, self.inner.template.stack

        def folded(states: Float[Tensor, "row state"]) -> Float[Tensor, "seq wide"]:
            apart = states[order].unflatten(0, (count, self.rows))
            return torch.cat([_cell(c).fold(s) for c, s in zip(outer.cells, inner.split(apart), strict=True)], dim=-1)

        def head(states: Float[Tensor, "seq time wide"]) -> Tensor:
            apart = [_cell(c).unfold(s) for c, s in zip(outer.cells, outer.split(states), strict=True)]
            by_row = torch.cat(apart, dim=-1).movedim(2, 1).flatten(0, 1)[back]
            return met.recurrence.head(by_row, met.recurrence.head_params)

        x = met.x[order].unflatten(0, (count, self.rows)).movedim(1, 2).flatten(2)
        lengths = met.lengths
        if lengths is not None and len(lengths) != count:  # a sequence goes on as long as one of its rows does
            lengths = lengths.to(order.device)[order].unflatten(0, (count, self.rows)).amax(1)
        return bind_to(self.template, x, folded(met.recurrence.initial_state(met.x)), head, lengths)

    def trained(self, batch: Batch, losses: Callable[[Tensor], Tensor]) -> OwnUse | None:
        """Gradients of the weights: sums over rows, however these lie."""
        return self.inner.trained(batch, losses)


def _cell(cell: Cell) -> FoldedCell:
    assert isinstance(cell, FoldedCell)
    return cell


def row_order(sequences: int, rows: int, interleaved: bool) -> Int[Tensor, "row"]:
    """Numbers of the layer's rows, sequence by sequence.

    >>> row_order(2, 3, False).tolist(), row_order(2, 3, True).tolist()
    ([0, 1, 2, 3, 4, 5], [0, 2, 4, 1, 3, 5])
    """
    numbers = torch.arange(sequences * rows)
    return numbers.view(rows, sequences).T.flatten() if interleaved else numbers


def by_sequence(view: View, sample: Batch) -> View:
    """Return a view whose rows are sequences: the view itself, or its rows folded, as gradients on a sample show them to lie."""
    if isinstance(view, FoldedView):
        return view
    met, count = view.bind(sample), len(sample)
    rows, rest = divmod(len(met.x), count)
    if rows == 1 and rest == 0:
        return view
    if rest or rows == 0:
        raise _uneven(view.name, len(met.x), count, "as many rows for every sequence")
    owners = row_owners(met, count)
    for interleaved in (False, True):
        expected = torch.empty_like(owners)
        expected[row_order(count, rows, interleaved)] = torch.arange(count).repeat_interleave(rows)
        if bool(((owners == expected) | (owners == NOWHERE)).all()):
            return FoldedView(view, rows, interleaved)
    raise UnsupportedError(
        f"rows of {view.name} belong to sequences in an order that is not understood",
        got=f"sequences {owners[:12].tolist()} for its first rows",
        expected="all rows of a sequence one after the other, or every so many rows",
        fix="fold channels or nodes into the batch with reshape or flatten, in the order of the sequences",
    )


def by_row(view: View) -> View:
    """The view as its layer runs, rows being whatever they are."""
    return view.inner if isinstance(view, FoldedView) else view


def _uneven(name: str, rows: int, sequences: int, expected: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} does not run on a fixed number of rows for each sequence",
        got=f"{rows} rows for {sequences} sequences",
        expected=expected,
        fix="lag_gradients works by rows; for windows and rates, pad channels or nodes to the same number",
    )
