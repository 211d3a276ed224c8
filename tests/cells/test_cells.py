"""The cell protocol, the conformance kit, and cells that live outside the package."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import lagreach
from lagreach import Cell, GatedRNN
from lagreach.cells import make_cell
from lagreach.cells.diag_gate import DiagGate
from lagreach.errors import ConformanceError, InputError, UnsupportedError
from lagreach.testing import check_cell
from tests.cases import CELLS, WITH_LAYERNORM


def test_names_are_promises():
    assert set(CELLS) == {
        "const_gate", "shared_gate", "diag_gate", "gru", "lstm", "elman", "diag_elman", "torch_gru", "min_gru",
    }  # fmt: skip


@pytest.mark.parametrize("name", CELLS)
def test_package_cells_conform(name):
    assert "identity" in check_cell(name).passed


@pytest.mark.thorough
@pytest.mark.parametrize("name", WITH_LAYERNORM)
def test_layernorm_cells_conform(name):
    check_cell(make_cell(name, layernorm=True))


class MinGRU(Cell):
    """A user's cell: gate from the input alone, linear candidate. Only step, shapes and retention are written."""

    name: ClassVar[str] = "my_min_gru"
    gate_names: ClassVar[tuple[str, ...]] = ("z",)
    first_order: ClassVar[str] = "exact"

    def shapes(self, input_size, hidden_size):
        return {"W_z": (hidden_size, input_size), "W_h": (hidden_size, input_size)}

    def step(self, x, s, params):
        z = torch.sigmoid(x @ params["W_z"].T)
        return (1 - z) * s + z * (x @ params["W_h"].T)

    def gates(self, x, s, params):
        return {"z": torch.sigmoid(x @ params["W_z"].T)}

    def retention(self, x, s, params):
        return 1 - self.gates(x, s, params)["z"]


class OnlyStep(Cell):
    """The least a user can write: no gates, no retention; everything else comes from autodiff."""

    name: ClassVar[str] = "only_step"

    def shapes(self, input_size, hidden_size):
        return {"W_h": (hidden_size, input_size), "U_h": (hidden_size, hidden_size)}

    def step(self, x, s, params):
        return torch.tanh(x @ params["W_h"].T + s @ params["U_h"].T)


@pytest.mark.parametrize("cell", [MinGRU, OnlyStep])
def test_a_cell_from_outside_needs_no_registration(cell, generator):
    check_cell(cell)
    model = GatedRNN(cell, 3, 4, 1, num_layers=2, generator=generator, dtype=torch.float64)
    x = torch.randn(2, 6, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(2, 6, 1, generator=generator, dtype=torch.float64)
    total = lagreach.lag_gradients(model, x, y).total()
    (model(x) - y).square().mean().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(total[name], parameter.grad, rtol=1e-10, atol=1e-12)
    assert cell.name not in lagreach.all_cells()


@dataclass(frozen=True)
class WrongCorrection(DiagGate):
    def correction(self, x, s, params):
        return 1.1 * super().correction(x, s, params)


class WrongGateNames(MinGRU):
    gate_names: ClassVar[tuple[str, ...]] = ("s",)


class GateOutOfRange(MinGRU):
    def gates(self, x, s, params):
        return {"z": 1 + torch.sigmoid(x @ params["W_z"].T)}


class NotExact(OnlyStep):
    first_order: ClassVar[str] = "exact"


class CouplesRows(MinGRU):
    def step(self, x, s, params):
        return super().step(x, s, params) + (x.mean() if x.ndim > 1 else 0)


class WrongShape(MinGRU):
    def step(self, x, s, params):
        return super().step(x, s, params)[..., :-1]


class OnlyDouble(MinGRU):
    def step(self, x, s, params):
        return super().step(x, s, params).double()


class WrongFactors(MinGRU):
    def factors(self, x, s, params):
        a = self.retention(x, s, params)
        return lagreach.cells.Factors.uniform(lagreach.cells.Dual(a * a, torch.zeros_like(a)))


@pytest.mark.parametrize(
    ("cell", "complaint"),
    [
        (WrongCorrection, "retention \\+ correction is wrong"),
        (WrongGateNames, "does not return the gates"),
        (GateOutOfRange, "leaves \\[0, 1\\]"),
        (NotExact, "claim that first order is exact"),
        (CouplesRows, "many rows at once"),
        (WrongShape, "changes the shape"),
        (OnlyDouble, "float32"),
        (WrongFactors, "first-order rate at lag"),
    ],
)
def test_conformance_finds_what_is_wrong(cell, complaint):
    with pytest.raises(ConformanceError, match=complaint):
        check_cell(cell)


def test_unknown_cell_lists_the_known_ones():
    with pytest.raises(InputError, match="diag_gate"):
        make_cell("gruu")


def test_layernorm_is_refused_where_it_has_no_meaning():
    with pytest.raises(UnsupportedError, match="DiagElman does not support layernorm"):
        GatedRNN("diag_elman", 2, 3, 1, layernorm=True)


def test_options_of_a_finished_cell_cannot_change():
    with pytest.raises(InputError, match="already built"):
        GatedRNN(DiagGate(), 2, 3, 1, layernorm=True)
    assert GatedRNN(DiagGate(layernorm=True), 2, 3, 1).cell.layernorm


@pytest.mark.usefixtures("_as_users_run_it")
def test_not_a_cell_at_all():
    with pytest.raises(InputError, match="not a cell"):
        make_cell(dict)
