"""Models and data that cannot be diagnosed: whichever function meets them says what is wrong, and where."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

import lagreach
from lagreach.cells import Cell
from lagreach.errors import InputError, UnsupportedError


class Recurrent(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.layer, self.read, self.norm = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 1), norm

    def forward(self, x):
        hidden = self.layer(x)[0]
        return self.read(hidden if self.norm is None else self.norm(hidden.transpose(1, 2)).transpose(1, 2))


class Convolution(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.layer, self.read, self.norm = nn.Conv1d(2, 4, 3), nn.Linear(4, 1), norm

    def forward(self, x):
        hidden = self.layer(nn.functional.pad(x.transpose(1, 2), (2, 0)))
        return self.read((hidden if self.norm is None else self.norm(hidden)).transpose(1, 2))


class Around(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        return self.inside(x)


asks = pytest.mark.parametrize("ask", [lagreach.diagnose, lagreach.cost, lagreach.forecast])
kinds = pytest.mark.parametrize("kind", [Recurrent, Convolution])


def series(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(40, 10, 2, generator=generator), torch.randn(40, 10, 1, generator=generator)


@pytest.mark.filterwarnings("ignore")  # of torch about tracing
@asks
@kinds
def test_torchscript_is_refused_by_name(ask, kind):
    x, _ = series()
    scripted = (torch.jit.script(kind()), torch.jit.trace(kind(), x), Around(torch.jit.script(kind())))
    for model, name in zip(scripted, ("the model", "the model", "inside"), strict=True):
        with pytest.raises(UnsupportedError, match=f"TorchScript.*\n.*{name}: "):
            ask(model, series())


@asks
@kinds
@pytest.mark.parametrize("training", [True, False])
def test_a_batch_norm_without_statistics_is_not_sent_to_evaluation_mode(ask, kind, training):
    model = kind(nn.BatchNorm1d(4, track_running_stats=False)).train(training)
    with pytest.raises(UnsupportedError, match="without running statistics") as refused:
        ask(model, series())
    assert "eval()" not in str(refused.value)


@pytest.mark.parametrize("ask", [lagreach.diagnose, lagreach.forecast])
@kinds
@pytest.mark.parametrize("sequence", [0, 33])
@pytest.mark.parametrize("lengths", [False, True])
def test_a_value_that_is_not_finite_is_found_where_the_data_have_it(ask, kind, sequence, lengths):
    parts = ("x", "y") if sequence else ("x",)
    for part in parts:
        x, y = series()
        (x if part == "x" else y)[sequence, 3, 0] = torch.nan
        data = {"x": x, "y": y} | ({"lengths": torch.full((40,), 9)} if lengths and kind is Recurrent else {})
        with pytest.raises(
            InputError, match=rf"{part} holds a value.*\n.*nan at index \[{sequence}, 3, 0\] of the data"
        ):
            ask(kind(), data)


@dataclass(frozen=True)
class TooWide(Cell):
    """A cell whose step returns one unit more than it is given."""

    name: ClassVar[str] = "too wide"

    def shapes(self, input_size, hidden_size):
        return {"W_h": (hidden_size + 1, input_size), "U_h": (hidden_size + 1, hidden_size)}

    def step(self, x, s, params):
        return torch.tanh(nn.functional.linear(x, params["W_h"]) + nn.functional.linear(s, params["U_h"]))


@dataclass(frozen=True)
class TooNarrow(TooWide):
    """A cell whose weights do not fit each other."""

    name: ClassVar[str] = "too narrow"

    def shapes(self, input_size, hidden_size):
        return {"W_h": (hidden_size, input_size), "U_h": (hidden_size - 2, hidden_size)}


@pytest.mark.parametrize(("cell", "said"), [(TooWide, "returns a state of another shape"), (TooNarrow, "does not run")])
def test_a_cell_whose_step_has_the_wrong_width_is_refused(cell, said):
    """It was an error of torch about matrices."""
    x, model = torch.randn(32, 8, 2), lagreach.GatedRNN(cell(), 2, 4, 1)
    for ask in (lagreach.diagnose, lagreach.cost):
        with pytest.raises(InputError, match=f"the step of {cell.__name__} {said}"):
            ask(model, (x, x[..., :1]), lags=[0, 1])
