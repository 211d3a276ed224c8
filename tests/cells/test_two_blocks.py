"""Cells of the user's own with two blocks in their state: what `check_cell` lets pass, `diagnose` must be able to do."""

from typing import ClassVar

import pytest
import torch
from torch.nn.functional import linear

import lagreach
from lagreach.cells import Cell, Dual, Factors
from lagreach.errors import ConformanceError, InputError, UnsupportedError
from lagreach.testing import check_cell


class Two(Cell):
    """The least that docs/extend/adding-a-cell.md asks for."""

    name: ClassVar[str] = "two"
    blocks: ClassVar[tuple[str, ...]] = ("h", "c")

    def shapes(self, input_size, hidden_size):
        return {"W_x": (2 * hidden_size, input_size), "U_h": (2 * hidden_size, hidden_size), "b_x": (2 * hidden_size,)}

    def gate(self, x, s, params):
        return (linear(x, params["W_x"], params["b_x"]) + linear(s.chunk(2, -1)[0], params["U_h"])).chunk(2, -1)

    def step(self, x, s, params):
        enters, forget = self.gate(x, s, params)
        c = forget.sigmoid() * s.chunk(2, -1)[1] + enters.tanh()
        return torch.cat((c.tanh(), c), -1)


class Retaining(Two):
    """The same, with what c retains."""

    name: ClassVar[str] = "retaining"
    rate_block: ClassVar[str] = "c"

    def retention(self, x, s, params):
        forget = self.gate(x, s, params)[1].sigmoid()
        return torch.cat((torch.zeros_like(forget), forget), -1)


class BothRetain(Retaining):
    """An output that retains as well: first order is then no product of single factors."""

    name: ClassVar[str] = "both"

    def retention(self, x, s, params):
        return super().retention(x, s, params) + 0.5


class Narrow(Retaining):
    """Retention of one block alone."""

    def retention(self, x, s, params):
        return self.gate(x, s, params)[1].sigmoid()


class WideFactors(Two):
    """Factors for every coordinate of the state: what the default once gave."""

    def factors(self, x, s, params):
        return Factors.uniform(Dual(self.retention(x, s, params), self.correction(x, s, params)))


def data(sequences=64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sequences, 24, 2, generator=generator)
    y = torch.nn.functional.pad(x[:, :-3, :1], (0, 0, 3, 0))
    return x, y + 0.1 * torch.randn(y.shape, generator=generator)


@pytest.mark.thorough
@pytest.mark.parametrize("cell", [Two, Retaining])
def test_a_cell_of_two_blocks_is_diagnosed(cell):
    assert "diagnosis" in check_cell(cell).passed  # gains and rates against explicit Jacobians
    generator = torch.Generator().manual_seed(0)
    diagnosis = lagreach.diagnose(lagreach.GatedRNN(cell, 2, 8, 1, generator=generator), data(), lags=[0, 1, 3, 8])
    assert diagnosis.layers[0].window.dependences == (3,)
    assert diagnosis.layers[0].rates.rates.shape == (4, 8)


@pytest.mark.thorough
def test_first_order_that_no_product_gives_is_left_out():
    check_cell(BothRetain)
    diagnosis = lagreach.diagnose(lagreach.GatedRNN(BothRetain, 2, 8, 1), data(), lags=[0, 1, 3])
    assert diagnosis.layers[0].rates is None
    with pytest.raises(UnsupportedError, match="both its output and its block c retain"):
        lagreach.effective_rates(lagreach.GatedRNN(BothRetain, 2, 8, 1), data()[0], [1])


@pytest.mark.parametrize(("cell", "problem"), [(Narrow, "shape of the state"), (WideFactors, "factors")])
def test_factors_of_a_wrong_width_are_refused(cell, problem):
    with pytest.raises((ConformanceError, InputError)):
        check_cell(cell)
    model, (x, y) = lagreach.GatedRNN(cell, 2, 8, 1), data()
    calls = [
        lambda: lagreach.effective_rates(model, x, [1, 3]),
        lambda: lagreach.fidelity(model, x, y, [1, 3]),
        lambda: lagreach.diagnose(model, (x, y), lags=[0, 1]),
    ]
    for call in calls:
        with pytest.raises(InputError, match=problem):
            call()


def test_a_cell_of_a_function_is_checked_as_it_is_diagnosed():
    """Pickle does not find such classes."""

    class Local(Two):
        pass

    assert "float32" in check_cell(Local).passed


def test_a_cell_that_pickle_cannot_copy_is_refused_in_a_sentence():
    cell = Two()
    object.__setattr__(cell, "extra", lambda: None)
    with pytest.raises(ConformanceError, match="no copy can be made by pickle"):
        check_cell(cell)
