"""Nothing of a wrong size reaches compiled code: it would be read and written beyond its end."""

import numpy as np
import pytest
import torch

from lagreach.cells import Dual, Factors, all_cells, make_cell
from lagreach.cells._pullback import RowForm
from lagreach.cells.activations import get_activation
from lagreach.cells.lstm import LSTM
from lagreach.errors import InputError
from lagreach.kernels import cpu, scan
from lagreach.kernels.cpu.steps import DIAGONALS, first_order_steps
from lagreach.papers.cayci import fused
from lagreach.papers.cayci.initialise import symmetric_init
from lagreach.transport.first_order_sums import LagSums

pytestmark = pytest.mark.usefixtures("_as_users_run_it")

COMPILED = [name for name in all_cells() if cpu.missing(make_cell(name), torch.device("cpu"), torch.float64) is None]
WRONG = {  # what is wrong with a call, and how it is made
    "narrow inputs": lambda x, s, p: (x[..., :-1], s, p),
    "wide inputs": lambda x, s, p: (torch.cat((x, x), -1), s, p),
    "few initial states": lambda x, s, p: (x, s[:-1], p),
    "narrow initial states": lambda x, s, p: (x, s[..., :-1], p),
    "no last weight": lambda x, s, p: (x, s, dict(list(p.items())[:-1])),
    "one weight more": lambda x, s, p: (x, s, p | {"ln_gain": torch.ones(99, dtype=x.dtype)}),
}


def example(name):
    cell = make_cell(name)
    x, s, params = cell.example(torch.Generator().manual_seed(0), sequences=3, time=6)
    return cell, x, s, params


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", COMPILED)
def test_a_scan_refuses_what_does_not_fit(name, wrong):
    cell, x, s, params = example(name)
    assert scan(cell, x, s[:, 0], params, kernel="numba").shape == s.shape
    with pytest.raises(InputError, match="do not fit together"):
        scan(cell, *WRONG[wrong](x, s[:, 0], params), kernel="numba")


@pytest.mark.parametrize("name", COMPILED)
def test_every_weight_of_a_scan_is_looked_at(name):
    cell, x, s, params = example(name)
    for weight, value in params.items():
        longer = params | {weight: torch.cat((value, value))}
        with pytest.raises(InputError, match=weight):
            scan(cell, x, s[:, 0], longer, kernel="numba")
        with pytest.raises(InputError, match=weight):
            cpu.scan_tangent(cell, *(v[None] for v in (x, s[:, 0])), _one(params), _one(longer))


def _one(params):
    return {name: p[None] for name, p in params.items()}


@pytest.mark.parametrize("name", sorted(DIAGONALS))
def test_first_order_steps_refuse_what_does_not_fit(name):
    cell, x, s, params = example(name)
    for bad in (s[:-1], s[:, :-1], s[..., :-2]):
        with pytest.raises(InputError, match="do not fit together"):
            first_order_steps(cell, x, bad, params)
    longer = {weight: torch.cat((value, value)) for weight, value in params.items()}
    for arguments in ((longer,), (params, longer)):
        with pytest.raises(InputError, match="do not fit together"):
            first_order_steps(cell, x, s, *arguments)


def test_the_sweep_over_lags_refuses_what_does_not_fit():
    ones = Factors.uniform(Dual(torch.ones(3, 5, 2), torch.zeros(3, 5, 2)))
    wide = Dual(torch.ones(3, 5, 4), torch.zeros(3, 5, 4))
    assert LagSums([1, 2], 2, "sizes").add(ones) is not None
    calls = [
        (LagSums([1, 2], 1, "sizes"), ones, {}),  # fewer sums than units: what a cell of two blocks once wrote over
        (LagSums([1, 2], 2, "sizes"), ones._replace(oldest=wide), {}),
        (LagSums([1, 2], 2, "squares"), ones, {"delta": torch.ones(3, 5, 1)}),
        (LagSums([1, 2], 2), ones, {"delta": torch.ones(3, 5, 2), "moved": torch.ones(3, 4, 2)}),
        (LagSums([1, 2], 2, "sizes"), ones, {"lengths": torch.tensor([5, 5])}),
        (LagSums([1, 2], 2, "sizes"), ones, {"lengths": torch.tensor([5, 6, 5])}),
        (LagSums([2, 1], 2, "sizes"), ones, {}),
    ]
    for sums, factors, others in calls:
        with pytest.raises(InputError, match="the sweep over lags"):
            sums.add(factors, **others)


ROWS, UNITS = 80, 3


def form_of(kernel, widths, heights, layernorm=False):
    """A form whose arrays are so wide, whose weights so high, and which reads two inputs."""
    norm = (UNITS, 1) if layernorm else (0, 0)
    arrays = [torch.rand(ROWS, width) for width in (*widths, *norm)]
    weights = [torch.rand(height, UNITS) for height in (*heights, int(layernorm))]
    return RowForm(kernel, tuple(arrays), tuple(weights), torch.rand(UNITS, 2))


FORMS = {
    "elementwise": form_of("elementwise", (2 * UNITS, 0, UNITS, UNITS), (2 * UNITS,)),
    "shared": form_of("elementwise", (UNITS, UNITS, 1, 0), (UNITS + 1,), layernorm=True),
    "gru": form_of("gru", (UNITS,) * 5, (UNITS, 2 * UNITS), layernorm=True),
    "lstm": form_of("lstm", (UNITS,) * 6, (4 * UNITS,)),
}


@pytest.mark.parametrize("name", FORMS)
def test_transport_refuses_what_does_not_fit(name):
    form = FORMS[name]
    width = 2 * UNITS if name == "lstm" else UNITS
    after, before = torch.rand(ROWS, width), torch.empty(ROWS, width)
    spread, sizes = torch.empty(ROWS, 5 * UNITS), torch.empty(ROWS)
    run = cpu.row_pass([form])
    run(after, [spread], before, whole=True, sizes=sizes)
    run(after[:9], [spread[:9]], before[:9], whole=True, sizes=None)  # fewer rows than the form has
    good = {"after": after, "spread": spread, "before": before, "sizes": sizes}
    bad = [
        {"after": torch.rand(ROWS + 1, width), "before": torch.empty(ROWS + 1, width), "sizes": torch.empty(ROWS + 1)},
        {"after": after[:, :-1].contiguous()},
        {"before": before[:-1]},
        {"before": torch.empty(width, ROWS).T},
        {"sizes": sizes[:-1]},
        {"spread": spread[:, :2].contiguous()},
        {"spread": spread[:-1]},
        {"after": after.double()},
    ]
    for change in bad:
        with pytest.raises(InputError, match="compiled transport"):
            run(**_one_layer(good | change), whole=True)
    with pytest.raises(InputError, match="compiled transport"):
        run(**_one_layer(good | {"spread": spread[:63]}), whole=False)


def _one_layer(arguments):
    return {name: value for name, value in arguments.items() if name != "spread"} | {"spreads": [arguments["spread"]]}


@pytest.mark.parametrize("name", FORMS)
def test_forms_that_contradict_themselves_are_refused(name):
    form = FORMS[name]
    for k, array in enumerate(form.arrays):
        if not array.shape[1]:
            continue
        for bad in (array[:-1], torch.cat((array, array[:, :1]), 1), array.double()):
            arrays = (*form.arrays[:k], bad.contiguous(), *form.arrays[k + 1 :])
            if k == 0 and bad.shape[0] < ROWS:
                continue  # its rows are what the others are compared with
            with pytest.raises((InputError, TypeError), match="do not fit together"):
                cpu.pullback.RowPass([form._replace(arrays=arrays)])
    for k, weight in enumerate(form.weights):
        bad = torch.cat((weight, weight, torch.rand(2, UNITS)))
        with pytest.raises(InputError, match="do not fit together"):
            cpu.pullback.RowPass([form._replace(weights=(*form.weights[:k], bad, *form.weights[k + 1 :]))])
    for bad in (form.reads.repeat(9, 1), form.reads.double()):
        with pytest.raises(InputError, match="do not fit together"):
            cpu.pullback.RowPass([form._replace(reads=bad)])


def test_layers_of_other_steps_are_refused():
    other = FORMS["lstm"]._replace(arrays=tuple(array[:-1] for array in FORMS["lstm"].arrays))
    with pytest.raises(InputError, match="do not fit together"):
        cpu.pullback.RowPass([FORMS["lstm"], other])


def test_diagonal_networks_refuse_what_does_not_fit():
    weights, x, sigma = symmetric_init(6, 2, 0.5), torch.rand(3, 5, 2).double(), get_activation("tanh")
    assert fused.outputs(weights, x, sigma).shape == (3, 5)
    with pytest.raises(InputError, match="x of shape"):
        fused.outputs(weights, torch.rand(3, 5, 4).double(), sigma)
    with pytest.raises(InputError, match="c of shape"):
        fused.outputs(weights._replace(c=weights.c[:-1]), x, sigma)
    with pytest.raises(InputError, match="the cotangent"):
        fused.pullback(weights, x, torch.rand(3, 4).double(), sigma)


def test_gradients_of_a_scan_are_those_of_the_loop_after_the_checks():
    cell, x, s, params = LSTM(), *example("lstm")[1:]
    leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
    totals = [
        torch.autograd.grad(scan(cell, x, s[:, 0], leaves, kernel=k).square().sum(), list(leaves.values()))
        for k in ("numba", "reference")
    ]
    for one, other in zip(*totals, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
