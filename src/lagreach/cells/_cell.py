"""The cell protocol: one step of a recurrence, and what the theory needs to know about it.

A cell is a small frozen object without weights. Weights come in as a mapping from names to tensors, states as
one tensor whose last axis holds the blocks named in `Cell.blocks` side by side. To add a cell, write one file
with a subclass that defines `shapes` and `step`; everything else has a default that uses autodiff.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.cells._pullback import Pullback
from lagreach.errors import InputError, UnsupportedError

Params = Mapping[str, Tensor]


class Dual(NamedTuple):
    """A dual number ``real + e * slope`` with ``e**2 = 0``: retention and its first-order correction."""

    real: Tensor
    slope: Tensor


class Factors(NamedTuple):
    """The dual factors whose product over a window of steps is the first-order transport (docs/theory/first-order.md).

    The transport over lag l anchored at t is ``newest(t) * middle(t-1) * ... * middle(t-l+2) * oldest(t-l+1)``,
    and ``single(t)`` at lag 1. For most cells all four are the same factor; the LSTM's block from c to h is not.
    """

    newest: Dual
    middle: Dual
    oldest: Dual
    single: Dual

    @classmethod
    def uniform(cls, factor: Dual) -> Factors:
        """Use the same factor at every place in the window."""
        return cls(factor, factor, factor, factor)

    @property
    def is_uniform(self) -> bool:
        """Whether every place in the window has the same factor."""
        return self.newest is self.middle


class Cell(ABC):
    """One step ``s_t = step(x_t, s_{t-1}; params)`` of a recurrence.

    Class attributes describe the cell to users and to generic code:

    name : how users ask for it
    equations : equation numbers of the paper (Livi 2025), or where the form comes from
    gate_names : names of the gates that `gates` returns; a gate ``k`` owns the weights ``W_k, U_k, b_k``
    blocks : names of the state blocks, each `hidden_size` wide; the first is the cell's output
    rate_block : the state block a first-order rate leads to (the one that retains)
    first_order : "approximate", "exact" (diagonal Jacobian) or "vanishes" (no retention path)
    retention_bias : the bias that sets retention and the sign with which it does
    gate_option : the option that holds a gate which is fixed rather than learned
    """

    name: ClassVar[str]
    equations: ClassVar[str] = ""
    gate_names: ClassVar[tuple[str, ...]] = ()
    blocks: ClassVar[tuple[str, ...]] = ("h",)
    rate_block: ClassVar[str] = "h"
    first_order: ClassVar[str] = "approximate"
    retention_bias: ClassVar[tuple[str, int] | None] = None
    gate_option: ClassVar[str | None] = None

    @abstractmethod
    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the weights."""

    @abstractmethod
    def step(
        self, x: Float[Tensor, "*batch input"], s: Float[Tensor, "*batch state"], params: Params
    ) -> Float[Tensor, "*batch state"]:
        """Advance the state by one step; all leading axes are independent."""

    def gates(
        self, x: Float[Tensor, "*batch input"], s: Float[Tensor, "*batch state"], params: Params
    ) -> dict[str, Tensor]:
        """Gate activations by name, in the order of `gate_names`."""
        return {}

    def retention(
        self, x: Float[Tensor, "*batch input"], s: Float[Tensor, "*batch state"], params: Params
    ) -> Float[Tensor, "*batch unit"]:
        """Diagonal a_t of the retention part T_t of the Jacobian, over all blocks. Default: no retention path."""
        return torch.zeros_like(s)

    def correction(
        self, x: Float[Tensor, "*batch input"], s: Float[Tensor, "*batch state"], params: Params
    ) -> Float[Tensor, "*batch unit"]:
        """Diagonal r_t of the rest R_t = J_t - T_t, over all blocks. Default: by autodiff."""
        return jacobian_diagonal(self, x, s, params) - self._retained(x, s, params)

    def _retained(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Retention, which must have the shape of the state."""
        retained = self.retention(x, s, params)
        if retained.shape != s.shape:
            raise InputError(
                f"retention() of {type(self).__name__} must have the shape of the state",
                got=tuple(retained.shape),
                expected=f"{tuple(s.shape)}: the blocks {', '.join(self.blocks)} side by side",
                fix="fill blocks that retain nothing with zeros",
            )
        return retained

    def factors(
        self, x: Float[Tensor, "seq time input"], s: Float[Tensor, "seq time state"], params: Params
    ) -> Factors:
        """First-order factors at every step of whole sequences, for each unit of the output, from the states before each step.

        Default: with T the retention and R the rest, ``T..T + sum_p T..T R_p T..T`` from the output to `rate_block`. Where
        these are two blocks, the output must retain nothing of its own: what came through it then came in the newest step.
        """
        retained, rest = self._retained(x, s, params), self.correction(x, s, params)
        if self.rate_block == self.blocks[0]:
            return Factors.uniform(Dual(self.output(retained), self.output(rest)))
        if bool((self.output(retained) != 0).any()):
            raise UnsupportedError(
                f"first order of {type(self).__name__} is not known: both its output and its block "
                f"{self.rate_block} retain",
                fix="write its factors(), or use the exact gain",
            )
        kept = Dual(self.block(retained, self.rate_block), self.block(rest, self.rate_block))
        shown = jacobian_diagonal(self, x, s, params, self.blocks[0], self.rate_block)
        enters = Dual(torch.zeros_like(shown), shown)
        return Factors(newest=enters, middle=kept, oldest=kept, single=enters)

    def channels(
        self, x: Float[Tensor, "seq time input"], s: Float[Tensor, "seq time state"], params: Params
    ) -> dict[str, Tensor]:
        """Return further per-step factors that the paper sums into the rates (``form="paper"``), by name."""
        return {}

    def pullback(self, x: Float[Tensor, "row input"], s: Float[Tensor, "row state"], params: Params) -> Pullback | None:
        """Return the transposed Jacobians of these steps in closed form. Default: None, autodiff is used instead."""
        return None

    def plain(self, params: Params) -> tuple[Cell, Params]:
        """Return the cell of this package that computes the same, with its weights: what fused kernels know.

        Linear in the weights, so that it maps directions too. Default: the cell itself.
        """
        return self, params

    # Derived quantities, the same for every cell.

    def state_size(self, hidden_size: int) -> int:
        """Width of the state: `hidden_size` for every block unless a cell says otherwise."""
        return len(self.blocks) * hidden_size

    def role(self, name: str) -> str:
        """What a weight does: "input", "recurrent", "bias" or "other", by the first letters of its name."""
        roles = {"W": "input", "U": "recurrent", "u": "recurrent", "b": "bias", "c": "bias"}
        return roles.get(name.partition("_")[0], "other")

    def split(self, s: Float[Tensor, "*batch state"]) -> tuple[Tensor, ...]:
        """Blocks of the state, in the order of `blocks`; equally wide unless a cell says otherwise."""
        return s.chunk(len(self.blocks), dim=-1)

    def block(self, s: Float[Tensor, "*batch state"], name: str) -> Float[Tensor, "*batch unit"]:
        """Return one block of the state, such as ``"c"`` of an LSTM."""
        return self.split(s)[self.blocks.index(name)]

    def output(self, s: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch unit"]:
        """What the cell shows to the layer above: the first block."""
        return s if len(self.blocks) == 1 else self.split(s)[0]

    def example(
        self,
        generator: torch.Generator,
        *,
        input_size: int = 3,
        hidden_size: int = 4,
        sequences: int = 2,
        time: int = 7,
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Random float64 inputs (seq, time, input), states before each step, and weights: a point to test at."""

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        params = {name: 0.5 * draw(*shape) for name, shape in self.shapes(input_size, hidden_size).items()}
        return draw(sequences, time, input_size), draw(sequences, time, self.state_size(hidden_size)) / 2, params

    def jacobian(
        self, x: Float[Tensor, "*batch input"], s: Float[Tensor, "*batch state"], params: Params
    ) -> Float[Tensor, "*batch state state"]:
        """One-step Jacobian ``J_t = ds_t/ds_{t-1}`` by autodiff; for checks, not for transport."""
        flat_x, flat_s = x.reshape(-1, x.shape[-1]), s.reshape(-1, s.shape[-1])
        one = torch.func.jacrev(lambda state, inp: self.step(inp, state, params))
        return torch.func.vmap(one)(flat_s, flat_x).reshape(*s.shape, s.shape[-1])


def jacobian_diagonal(
    cell: Cell, x: Tensor, s: Tensor, params: Params, after: str | None = None, before: str | None = None
) -> Tensor:
    """Diagonal of the one-step Jacobian by autodiff, one pullback per unit and no H x H matrix per step.

    Or of the part that leads from a block of the state `before` to one `after` the step.
    """
    with torch.enable_grad():
        state = s.detach().requires_grad_()
        reached = cell.step(x.detach(), state, {name: p.detach() for name, p in params.items()})
        rows = reached if after is None else cell.block(reached, after)
        pulled = (
            torch.autograd.grad(rows[..., q].sum(), state, retain_graph=True, materialize_grads=True)[0]
            for q in range(rows.shape[-1])
        )
        columns = [(g if before is None else cell.block(g, before))[..., q] for q, g in enumerate(pulled)]
    return torch.stack(columns, dim=-1)


@runtime_checkable
class Steps(Protocol):
    """Anything with a step: a cell or a stack of them."""

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Advance the state by one step."""
        ...


def unroll(
    cell: Steps, x: Float[Tensor, "seq time input"], s0: Float[Tensor, "seq state"], params: Params
) -> Float[Tensor, "seq time state"]:
    """States after each step, by the plain loop over time."""
    s, states = s0, []
    for x_t in x.unbind(1):
        s = cell.step(x_t, s, params)
        states.append(s)
    return torch.stack(states, dim=1)
