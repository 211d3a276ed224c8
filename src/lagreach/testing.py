"""The conformance kit: it runs on your own cell, adapter or estimator what the package's tests run on theirs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lagreach.adapter_checks import Subject, checks_of, scan_views
from lagreach.adapters import find_views
from lagreach.adapters.calling import Call
from lagreach.batch import Batch
from lagreach.cells import Cell, make_cell
from lagreach.errors import ConformanceError, InputError
from lagreach.gradients.lag_gradients import lag_gradients
from lagreach.model import GatedRNN
from lagreach.transport.dual import windows

if TYPE_CHECKING:
    from lagreach.tails.fit import Estimator

TOLERANCE = 1e-10  # float64
INPUT, HIDDEN, SEQUENCES, TIME = 3, 4, 2, 7


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
    const_gate: passed 8 checks (shapes, vectorises, gates, diagonal, claims, first order, identity, float32)
    """
    built = make_cell(cell)
    subject = _Subject(built, torch.Generator().manual_seed(seed))
    checks: dict[str, Callable[[_Subject], None]] = {
        "shapes": _check_shapes,
        "vectorises": _check_vectorises,
        "gates": _check_gates,
        "diagonal": _check_diagonal,
        "claims": _check_claims,
        "first order": _check_first_order,
        "identity": _check_identity,
        "float32": _check_float32,
    }
    for check in checks.values():
        check(subject)
    return ConformanceReport(built.name, tuple(checks))


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
        subject = Subject.of(view, model, batch, seed)
        for check in checks_of(view).values():
            check(subject)
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


class _Subject:
    """A cell at a random point: inputs, states before each step of short sequences, and weights."""

    def __init__(self, cell: Cell, generator: torch.Generator) -> None:
        self.cell, self.generator = cell, generator
        self.x, self.s, self.params = cell.example(
            generator, input_size=INPUT, hidden_size=HIDDEN, sequences=SEQUENCES, time=TIME
        )

    def fail(self, problem: str, got: object, expected: object, fix: str | None = None) -> ConformanceError:
        return ConformanceError(f"{type(self.cell).__name__}: {problem}", got=got, expected=expected, fix=fix)

    def compare(self, what: str, got: Tensor, expected: Tensor, fix: str) -> None:
        if got.shape != expected.shape:
            raise self.fail(f"{what} has the wrong shape", tuple(got.shape), tuple(expected.shape), fix)
        error = (got - expected).abs().max().item()
        if not error <= TOLERANCE:  # also when it is NaN
            raise self.fail(f"{what} is wrong", f"an error of {error:.3g}", f"at most {TOLERANCE:g}", fix)


def _check_shapes(t: _Subject) -> None:
    after = t.cell.step(t.x, t.s, t.params)
    if after.shape != t.s.shape:
        raise t.fail(
            "step changes the shape of the state",
            tuple(after.shape),
            tuple(t.s.shape),
            f"the state holds the blocks {', '.join(t.cell.blocks)} side by side, hidden_size wide each",
        )


def _check_vectorises(t: _Subject) -> None:
    whole = t.cell.step(t.x, t.s, t.params)
    rows = [t.cell.step(x, s, t.params) for x, s in zip(t.x.flatten(0, 1), t.s.flatten(0, 1), strict=True)]
    single = torch.stack(rows).view_as(whole)
    t.compare("step over many rows at once", whole, single, "treat all leading axes as independent rows")


def _check_gates(t: _Subject) -> None:
    gates = t.cell.gates(t.x, t.s, t.params)
    if tuple(gates) != t.cell.gate_names:
        raise t.fail("gates() does not return the gates it names", tuple(gates), t.cell.gate_names)
    for name, gate in gates.items():
        low, high = gate.min().item(), gate.max().item()
        if not (low >= 0 and high <= 1):
            raise t.fail(f"the gate {name} leaves [0, 1]", f"values in [{low:.3g}, {high:.3g}]", "values in [0, 1]")


def _check_diagonal(t: _Subject) -> None:
    parts = t.cell.retention(t.x, t.s, t.params) + t.cell.correction(t.x, t.s, t.params)
    diagonal = t.cell.jacobian(t.x, t.s, t.params).diagonal(dim1=-2, dim2=-1)
    t.compare("retention + correction", parts, diagonal, "together they are the diagonal of the one-step Jacobian")


def _check_claims(t: _Subject) -> None:
    kinds = ("approximate", "exact", "vanishes")
    if t.cell.first_order not in kinds:
        raise t.fail("first_order is not a known kind", t.cell.first_order, " or ".join(kinds))
    jacobian, retention = t.cell.jacobian(t.x, t.s, t.params), t.cell.retention(t.x, t.s, t.params)
    if t.cell.first_order == "exact":
        t.compare("the claim that first order is exact", torch.diag_embed(retention), jacobian, "claim 'approximate'")
    if t.cell.first_order == "vanishes":
        t.compare("the claim that nothing is retained", retention, torch.zeros_like(t.s), "claim 'approximate'")


def _check_first_order(t: _Subject) -> None:
    """Windows of dual numbers against explicit matrix products."""
    factors = t.cell.factors(t.x, t.s, t.params)
    jacobian = t.cell.jacobian(t.x, t.s, t.params)
    lags = range(1, TIME) if factors.is_uniform else [1]
    for window in windows(factors, list(lags)):
        if factors.is_uniform:
            retained = torch.diag_embed(t.cell.retention(t.x, t.s, t.params))
            expected = _first_order_product(retained, jacobian - retained, window.lag).diagonal(dim1=-2, dim2=-1)
        else:  # a block of the Jacobian: from the block that retains to the output
            row = t.cell.output(jacobian.transpose(-1, -2)).transpose(-1, -2)
            expected = t.cell.block(row, t.cell.rate_block).diagonal(dim1=-2, dim2=-1)[:, 1:]
        t.compare(f"the first-order rate at lag {window.lag}", window.rate(), expected, "check factors()")


def _first_order_product(retained: Tensor, rest: Tensor, lag: int) -> Tensor:
    """``T..T + sum_p T..T R_p T..T`` over every window of `lag` steps, newest on the left."""
    products = []
    for oldest in range(1, retained.shape[1] - lag + 1):
        steps = range(oldest, oldest + lag)
        total = torch.zeros_like(retained[:, 0])
        for corrected in [None, *steps]:
            product = torch.eye(retained.shape[-1], dtype=retained.dtype).expand_as(total)
            for j in steps:
                product = (rest if j == corrected else retained)[:, j] @ product
            total = total + product
        products.append(total)
    return torch.stack(products, dim=1)


def _check_identity(t: _Subject) -> None:
    model = GatedRNN(t.cell, INPUT, HIDDEN, 2, num_layers=2, generator=t.generator, dtype=torch.float64)
    y = torch.randn(SEQUENCES, TIME, 2, generator=t.generator, dtype=torch.float64)
    total = lag_gradients(model, t.x, y).total()
    (model(t.x) - y).square().mean().backward()
    for name, parameter in model.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        t.compare(f"the sum of the lag gradients of {name}", total[name], expected, "step must be a pure function")


def _check_float32(t: _Subject) -> None:
    cell = pickle.loads(pickle.dumps(t.cell))
    params = {name: p.float() for name, p in t.params.items()}
    after = cell.step(t.x.float(), t.s.float(), params)
    if after.dtype != torch.float32 or not torch.isfinite(after).all():
        raise t.fail("step does not work in float32", after.dtype, "finite float32", "create tensors like the inputs")
