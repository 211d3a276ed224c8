"""The conformance kit: it runs on your own cell, adapter or estimator what the package's tests run on theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lagreach._util.generators import seeded
from lagreach.adapters import find_views
from lagreach.adapters.calling import Call
from lagreach.cells import Cell, make_cell
from lagreach.data.batch import Batch
from lagreach.errors import InputError
from lagreach.testing.adapter_checks import AdapterCase, checks_of, scan_views
from lagreach.testing.cell_checks import CHECKS, CellCase

if TYPE_CHECKING:
    from lagreach.statistics import LagStatistic
    from lagreach.tails.fit import Estimator


@dataclass(frozen=True)
class ConformanceReport:
    """Names of the checks that a cell, an adapter or an estimator has passed."""

    cell: str
    passed: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.cell}: passed {len(self.passed)} checks ({', '.join(self.passed)})"


def check_cell(cell: str | type[Cell] | Cell, *, seed: int = 0) -> ConformanceReport:
    """Check a cell against its protocol; raise `ConformanceError` at the first thing that is wrong.

    Examples
    --------
    >>> print(check_cell("const_gate"))
    const_gate: passed 9 checks (shapes, vectorises, gates, diagonal, claims, first order, identity, diagnosis, float32)
    """
    built = make_cell(cell)
    case = CellCase(built, seeded(seed))
    for check in CHECKS.values():
        check(case)
    return ConformanceReport(built.name, tuple(CHECKS))


def check_adapter(model: nn.Module, x: Tensor, *, call: Call | None = None, seed: int = 0) -> list[ConformanceReport]:
    """Check the adapter of every gated linear layer in a model; raise `ConformanceError` at the first thing wrong.

    Finding the layers already replays each from its input, and compares its output with the layer's own. Then: shapes,
    the step's Jacobian against autodiff, products of decays against gradients carried step by step, lag gradients
    against autograd, independence of the batch, and that the model is left as it was.

    Examples
    --------
    >>> class MinGRU(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.linear_h, self.linear_z = nn.Linear(3, 4), nn.Linear(3, 4)
    ...     def forward(self, x):
    ...         h, states = x.new_zeros(len(x), 4), []
    ...         for x_t in x.unbind(1):
    ...             z = torch.sigmoid(self.linear_z(x_t))
    ...             h = (1 - z) * h + z * self.linear_h(x_t)
    ...             states.append(h)
    ...         return torch.stack(states, 1)
    >>> print(*check_adapter(MinGRU(), torch.randn(2, 6, 3)))
    minGRU: passed 7 checks (replay, shapes, Jacobian, products, identity, batches, traces)
    """
    batch = Batch(x, torch.zeros(len(x)))
    views = scan_views(find_views(model, batch, call))
    if not views:
        raise InputError("no gated linear layer was found in the model", fix="register an adapter for it")
    for view in views:
        case = AdapterCase.of(view, model, batch, seed)
        for check in checks_of(view).values():
            check(case)
    return [ConformanceReport(view.layer.family, ("replay", *checks_of(view))) for view in views]


def check_estimator(
    estimate: Estimator, *, alphas: Sequence[float] = (1.2, 1.5, 1.8), tolerance: float = 0.1, seed: int = 0
) -> ConformanceReport:
    """Check an estimator of stable laws; raise `ConformanceError` at the first thing that is wrong.

    Checked: that it returns an `Estimate` whose interval holds its alpha, that order and sign of the samples do not matter,
    that it follows a change of units, that wider levels give wider intervals, that it recovers `alphas` within
    `tolerance` on samples of stable laws, and that its 95 % intervals cover.

    Examples
    --------
    >>> from lagreach.tails import mcculloch
    >>> print(check_estimator(mcculloch.estimate))
    estimate: passed 6 checks (result, order and sign, units, levels, recovery, coverage)
    """
    from lagreach.tails.conformance import checks_of  # needs scipy, which cells and adapters do not

    checks = checks_of(tuple(alphas), tolerance, seed)
    for check in checks.values():
        check(estimate)
    return ConformanceReport(getattr(estimate, "__name__", type(estimate).__name__), tuple(checks))


def check_statistic(statistic: LagStatistic, *, seed: int = 0) -> str:
    """Check a number per lag of your own; raise `AssertionError` at the first thing that is wrong.

    It is measured on a small model as `lagreach.diagnose` does it: whole, in shards that are merged in another order, and one
    pair at a time. All must give the same curve, over the examined lags, which a file must hold.

    Examples
    --------
    >>> from lagreach.statistics import all_statistics
    >>> check_statistic(all_statistics()["memory"])
    'memory: ok (curve, shards merged, small pieces, pickles, file)'
    """
    from lagreach.testing.statistic_checks import check

    return check(statistic, seed)
