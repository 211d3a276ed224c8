"""What `lagreach.testing.check_cell` checks, one function each."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lagreach.cells import Cell, Factors, unroll
from lagreach.errors import ConformanceError, UnsupportedError
from lagreach.gradients.lag_gradients import lag_gradients
from lagreach.models.gated_rnn import GatedRNN
from lagreach.transport.dual import windows

TOLERANCE = 1e-10  # float64
INPUT, HIDDEN, SEQUENCES, TIME = 3, 4, 2, 7
DIAGNOSED = 32  # sequences of the diagnosis, all of which its gains are measured on


class CellCase:
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


def check_shapes(t: CellCase) -> None:
    """A step leaves the shape of the state as it is."""
    after = t.cell.step(t.x, t.s, t.params)
    if after.shape != t.s.shape:
        raise t.fail(
            "step changes the shape of the state",
            tuple(after.shape),
            tuple(t.s.shape),
            f"the state holds the blocks {', '.join(t.cell.blocks)} side by side, hidden_size wide each",
        )


def check_vectorises(t: CellCase) -> None:
    """Many rows at once give what each row gives alone."""
    whole = t.cell.step(t.x, t.s, t.params)
    rows = [t.cell.step(x, s, t.params) for x, s in zip(t.x.flatten(0, 1), t.s.flatten(0, 1), strict=True)]
    single = torch.stack(rows).view_as(whole)
    t.compare("step over many rows at once", whole, single, "treat all leading axes as independent rows")


def check_gates(t: CellCase) -> None:
    """The gates are those that are named, and lie in [0, 1]."""
    gates = t.cell.gates(t.x, t.s, t.params)
    if tuple(gates) != t.cell.gate_names:
        raise t.fail("gates() does not return the gates it names", tuple(gates), t.cell.gate_names)
    for name, gate in gates.items():
        low, high = gate.min().item(), gate.max().item()
        if not (low >= 0 and high <= 1):
            raise t.fail(f"the gate {name} leaves [0, 1]", f"values in [{low:.3g}, {high:.3g}]", "values in [0, 1]")


def check_diagonal(t: CellCase) -> None:
    """Retention and correction together are the diagonal of the Jacobian."""
    parts = t.cell.retention(t.x, t.s, t.params) + t.cell.correction(t.x, t.s, t.params)
    diagonal = t.cell.jacobian(t.x, t.s, t.params).diagonal(dim1=-2, dim2=-1)
    t.compare("retention + correction", parts, diagonal, "together they are the diagonal of the one-step Jacobian")


def check_claims(t: CellCase) -> None:
    """First order is what the cell says of it."""
    kinds = ("approximate", "exact", "vanishes")
    if t.cell.first_order not in kinds:
        raise t.fail("first_order is not a known kind", t.cell.first_order, " or ".join(kinds))
    jacobian, retention = t.cell.jacobian(t.x, t.s, t.params), t.cell.retention(t.x, t.s, t.params)
    if t.cell.first_order == "exact":
        t.compare("the claim that first order is exact", torch.diag_embed(retention), jacobian, "claim 'approximate'")
    if t.cell.first_order == "vanishes":
        t.compare("the claim that nothing is retained", retention, torch.zeros_like(t.s), "claim 'approximate'")


def check_first_order(t: CellCase) -> None:
    """Windows of dual numbers against explicit matrix products."""
    factors = _factors(t)
    if factors is None:
        return
    retained = torch.diag_embed(t.cell.retention(t.x, t.s, t.params))
    rest = t.cell.jacobian(t.x, t.s, t.params) - retained
    # a cell that takes part of its Jacobian for retention in another way is compared where all ways agree
    plain = factors.is_uniform or type(t.cell).factors is Cell.factors
    for window in windows(factors, list(range(1, TIME)) if plain else [1]):
        product = first_order_product(retained, rest, window.lag)
        rows = t.cell.output(product.transpose(-1, -2)).transpose(-1, -2)
        expected = t.cell.block(rows, t.cell.rate_block).diagonal(dim1=-2, dim2=-1)
        t.compare(f"the first-order rate at lag {window.lag}", window.rate(), expected, "check factors()")


def _factors(t: CellCase) -> Factors | None:
    """First-order factors of the example, each as wide as the output; None where the cell says that it has none."""
    try:
        factors = t.cell.factors(t.x, t.s, t.params)
    except UnsupportedError:
        return None
    shape = tuple(t.cell.output(t.s).shape)
    for place, dual in factors._asdict().items():
        if any(tuple(part.shape) != shape for part in dual):
            got = " and ".join(str(tuple(part.shape)) for part in dual)
            raise t.fail(f"the factor {place} has the wrong shape", got, shape, "one for each unit of the output")
    return factors


def first_order_product(retained: Tensor, rest: Tensor, lag: int) -> Tensor:
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


def check_identity(t: CellCase) -> None:
    """Lag gradients of a stack of two add up to autograd's gradient."""
    model = GatedRNN(t.cell, INPUT, HIDDEN, 2, num_layers=2, generator=t.generator, dtype=torch.float64)
    y = torch.randn(SEQUENCES, TIME, 2, generator=t.generator, dtype=torch.float64)
    total = lag_gradients(model, t.x, y).total()
    (model(t.x) - y).square().mean().backward()
    for name, parameter in model.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        t.compare(f"the sum of the lag gradients of {name}", total[name], expected, "step must be a pure function")


def check_diagnosis(t: CellCase) -> None:
    """A whole diagnosis runs, and its gains and rates are those of explicit products."""
    from lagreach.diagnosis.diagnose import diagnose  # needs scipy, which the other checks do not

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=t.generator, dtype=torch.float64)

    model = GatedRNN(t.cell, INPUT, HIDDEN, 1, generator=t.generator, dtype=torch.float64)
    x, y = draw(DIAGNOSED, TIME, INPUT), draw(DIAGNOSED, TIME, 1)
    layer = diagnose(model, (x, y), lags=range(TIME), params="all", progress=False).layers[0]
    params = {name: p.detach() for name, p in model.stack.layer_params(0, model.recurrent_params()).items()}
    initial = x.new_zeros(DIAGNOSED, t.cell.state_size(HIDDEN))
    states = unroll(t.cell, x, initial, params).requires_grad_()
    output = nn.functional.linear(t.cell.output(states), model.readout.weight.detach(), model.readout.bias.detach())
    (carried,) = torch.autograd.grad((output - y).square().sum(), states)
    previous = torch.cat((initial[:, None], states.detach()[:, :-1]), dim=1)
    jacobian, start, gains = t.cell.jacobian(x, previous, params), carried, []
    for lag in range(TIME):
        gains.append((carried.square().sum() / start[:, lag:].square().sum()).log10() / 2)
        carried = torch.einsum("nts,ntsr->ntr", carried[:, 1:], jacobian[:, 1 : TIME - lag])
    t.compare("the gain in a diagnosis", layer.fidelity.log10_exact, torch.stack(gains), "step must be a pure function")
    if layer.rates is None:
        return
    rates = [torch.ones(HIDDEN, dtype=torch.float64)]
    for window in windows(t.cell.factors(x, previous, params), list(range(1, TIME))):
        rates.append(window.rate().abs().mean((0, 1)))
    t.compare("the rate in a diagnosis", layer.rates.rates, torch.stack(rates), "check factors()")


def check_float32(t: CellCase) -> None:
    """The cell survives a copy, and works in single precision."""
    cell = _copied(t)
    params = {name: p.float() for name, p in t.params.items()}
    after = cell.step(t.x.float(), t.s.float(), params)
    if after.dtype != torch.float32 or not torch.isfinite(after).all():
        raise t.fail("step does not work in float32", after.dtype, "finite float32", "create tensors like the inputs")


def _copied(t: CellCase) -> Cell:
    """By pickle, which only finds classes of modules; others, say of a notebook's function, are diagnosed all the same."""
    if "<locals>" in type(t.cell).__qualname__:
        return copy.deepcopy(t.cell)
    try:
        return pickle.loads(pickle.dumps(t.cell))
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise t.fail(
            "no copy can be made by pickle", error, "fields that can be copied", "keep no lambda in it"
        ) from error


CHECKS: dict[str, Callable[[CellCase], None]] = {
    "shapes": check_shapes,
    "vectorises": check_vectorises,
    "gates": check_gates,
    "diagonal": check_diagonal,
    "claims": check_claims,
    "first order": check_first_order,
    "identity": check_identity,
    "diagnosis": check_diagnosis,
    "float32": check_float32,
}
