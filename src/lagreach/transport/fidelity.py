"""How far first order can be trusted: its gain beside the exact gain, lag by lag (docs/theory/first-order.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lagreach.adapters import Recurrence, View
from lagreach.adapters.as_it_was import leaves_as_it_was
from lagreach.adapters.calling import Call
from lagreach.data.lags import check_lags
from lagreach.errors import UnsupportedError
from lagreach.transport.exact import exact_transport
from lagreach.transport.first_order import first_order_norms
from lagreach.transport.losses import Loss
from lagreach.transport.objective import output_gradient
from lagreach.transport.prepare import prepare
from lagreach.transport.rollout import Rollout
from lagreach.transport.scaled import ScaledSum
from lagreach.types import Status

DISAGREEMENT = 3.0  # factor beyond which the verdict says that first order misleads


@dataclass(frozen=True)
class Fidelity:
    """Root-mean-square gain of the loss gradient over each lag, exact and to first order.

    ``G(l)^2 = sum |lambda_{t,l}|^2 / sum |lambda_{t,0}|^2`` over the anchors that reach back l steps. `ratio` is
    first order over exact.
    """

    lags: Int[Tensor, "lag"]
    log10_exact: Float[Tensor, "lag"]
    log10_first_order: Float[Tensor, "lag"]
    status: Status
    status_by_lag: tuple[Status, ...]

    @property
    def exact(self) -> Float[Tensor, "lag"]:
        """Exact gain; zero below the range of float64 (use `log10_exact` there)."""
        return 10.0**self.log10_exact

    @property
    def first_order(self) -> Float[Tensor, "lag"]:
        """Gain to first order."""
        return 10.0**self.log10_first_order

    @property
    def ratio(self) -> Float[Tensor, "lag"]:
        """First order over exact."""
        return 10.0 ** (self.log10_first_order - self.log10_exact)

    @property
    def verdict(self) -> str:
        """One sentence in plain words."""
        misled = [
            lag
            for lag, status in zip(self.lags.tolist(), self.status_by_lag, strict=True)
            if status in (Status.FIRST_ORDER_MISLEADS, Status.FIRST_ORDER_VANISHES)
        ]
        if not misled:
            return str(self.status)
        return f"{self.status} (from lag {misled[0]}, {len(misled)} of {len(self.lags)} lags)"

    def __str__(self) -> str:
        rows = zip(self.lags.tolist(), self.log10_exact.tolist(), self.log10_first_order.tolist(), strict=True)
        table = [f"{lag:6d} {exact:13.3f} {first:19.3f}" for lag, exact, first in rows]
        return "\n".join([self.verdict, "   lag   log10 exact   log10 first order", *table])


@leaves_as_it_was
def fidelity(
    model: nn.Module | Recurrence | View,
    x: Tensor,
    y: Tensor,
    lags: Sequence[int],
    loss: Loss = "mse",
    *,
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    steps: str | Sequence[int] | Tensor | None = None,
    state: Any = None,
    others: Any = None,
    name: str = "x",
    chunk: int | None = None,
    call: Call | None = None,
) -> Fidelity:
    """Compare the first-order gain of the loss gradient with the exact one at the given lags.

    `call` is how to run the model on a batch, if ``model(x)`` is not it.

    Examples
    --------
    >>> from lagreach import GatedRNN
    >>> model = GatedRNN("diag_elman", input_size=2, hidden_size=3, output_size=1)
    >>> x, y = torch.randn(2, 9, 2), torch.randn(2, 9, 1)
    >>> fidelity(model, x, y, lags=[1, 2, 4]).verdict
    "first order is exact for this cell: the step's Jacobian is diagonal"
    """
    prepared = prepare(model, x, y, mask=mask, lengths=lengths, state=state, others=others, name=name, call=call)
    kind = prepared.view.template.stack.first_order
    wanted = check_lags(lags, prepared.time)
    objective = prepared.objective(loss, steps)
    sums: list[list[ScaledSum]] = []
    for rows, part in prepared.parts(chunk):
        delta = output_gradient(part.recurrence, objective.select(rows), part.states)[0]
        exact = [c.square_norm() for c, _ in exact_transport(part, delta, wanted)]
        first = exact if kind == "exact" else _first_order_norms(part, delta, wanted)
        start = _start_norms(delta, wanted)
        new = [exact, first, start]
        sums = (
            new
            if not sums
            else [[a + b for a, b in zip(x1, x2, strict=True)] for x1, x2 in zip(sums, new, strict=True)]
        )
    log_exact, log_first, log_start = (torch.stack([s.log10() for s in column]).cpu() for column in sums)
    gains = (log_exact - log_start) / 2, (log_first - log_start) / 2
    by_lag = tuple(_status(kind, *triple) for triple in zip(wanted, *(g.tolist() for g in gains), strict=True))
    return Fidelity(torch.tensor(wanted), *gains, _overall(kind, by_lag), by_lag)


def _start_norms(delta: Float[Tensor, "seq time state"], lags: Sequence[int]) -> list[ScaledSum]:
    """Sums of squares over the anchors that reach back so many steps."""
    squares = torch.linalg.vector_norm(delta, dim=-1, dtype=torch.float64).square()
    return [ScaledSum.of(squares[:, lag:], None, dim=(0, 1)) for lag in lags]


def _first_order_norms(part: Rollout, delta: Tensor, lags: list[int]) -> list[ScaledSum]:
    """Return the norms to first order, or NaN for a layer that has no first order."""
    try:
        return first_order_norms(part, delta, lags)
    except UnsupportedError:
        missing = ScaledSum(torch.tensor(math.nan, dtype=torch.float64), torch.tensor(0))
        return [missing] * len(lags)


def _status(kind: str, lag: int, log_exact: float, log_first: float) -> Status:
    if lag == 0:
        return Status.OK
    if math.isnan(log_exact):  # no anchor, or no gradient there
        return Status.NO_ANCHOR
    if math.isnan(log_first):
        return Status.FIRST_ORDER_UNAVAILABLE
    if kind == "exact":
        return Status.FIRST_ORDER_EXACT
    if kind == "vanishes" and lag > 1:
        return Status.FIRST_ORDER_VANISHES
    close = log_first == log_exact or abs(log_first - log_exact) <= math.log10(DISAGREEMENT)  # both may be -inf
    return Status.OK if close else Status.FIRST_ORDER_MISLEADS


def _overall(kind: str, by_lag: tuple[Status, ...]) -> Status:
    for worst in (
        Status.FIRST_ORDER_UNAVAILABLE,
        Status.FIRST_ORDER_VANISHES,
        Status.FIRST_ORDER_MISLEADS,
        Status.NO_ANCHOR,
    ):
        if worst in by_lag:
            return worst
    return Status.FIRST_ORDER_EXACT if kind == "exact" else Status.FIRST_ORDER_FAITHFUL
