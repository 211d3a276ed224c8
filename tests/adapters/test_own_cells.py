"""Cells of a user's own, ``forward(x, state)`` called in a loop, are carried back step by step as they are."""

import pytest
import torch
from torch import nn

import lagreach
from lagreach import lag_gradients
from lagreach.adapters import find_views
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError


class Plain(nn.Module):
    """One state; its weights have names of no convention."""

    def __init__(self, inputs, units):
        super().__init__()
        self.look, self.keep = nn.Linear(inputs, units), nn.Linear(units, units, bias=False)

    def forward(self, x, h):
        return torch.tanh(self.look(x) + self.keep(h))


class Peephole(nn.Module):
    """Two states in a tuple, and gates that look at the cell's own memory."""

    def __init__(self, inputs, units):
        super().__init__()
        self.look, self.keep = nn.Linear(inputs, 4 * units), nn.Linear(units, 4 * units, bias=False)
        self.peep = nn.Parameter(torch.randn(3, units) / 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x, state):
        h, c = state
        i, f, g, o = (self.look(x) + self.keep(h)).chunk(4, -1)
        c = torch.sigmoid(f + self.peep[0] * c) * c + torch.sigmoid(i + self.peep[1] * c) * g.tanh()
        h = torch.sigmoid(o + self.peep[2] * c) * c.tanh()
        return self.drop(h), c


class Stacked(nn.Module):
    """Two cells of one step, and an output that is no state."""

    def __init__(self, inputs, units):
        super().__init__()
        self.low, self.high, self.show = Plain(inputs, units), Plain(units, units + 1), nn.Linear(units + 1, units)

    def forward(self, x, states=None, *, scale=1.0):
        if states is None:
            states = {"low": x.new_zeros(len(x), 5), "high": x.new_zeros(len(x), 6)}
        low = self.low(scale * x, states["low"])
        high = self.high(low, states["high"])
        return self.show(high * low.sum(-1, keepdim=True)), {"low": low, "high": high}


class Joint(nn.Module):
    """One weight for input and state side by side: what reads the input is no weight of its own."""

    def __init__(self, inputs, units):
        super().__init__()
        self.mix = nn.Linear(inputs + units, units)

    def forward(self, x, h):
        return torch.tanh(self.mix(torch.cat((x, h), -1)))


class Loop(nn.Module):
    def __init__(self, cell, fault=None):
        super().__init__()
        self.cell, self.read, self.fault = cell(3, 5), nn.Linear(5, 2), fault

    def forward(self, x):
        zero = x.new_zeros(len(x), 5)
        state = {Peephole: (zero, zero), Stacked: None}.get(type(self.cell), zero)
        outputs = []
        for step in range(x.shape[1]):
            now = x[:, step]
            if self.fault == "decoder":  # reads the whole input at every step
                now = x.mean(1)
            if self.fault == "smooth":
                now = x[:, max(0, step - 1) : step + 1].mean(1)
            if self.fault == "fed back" and outputs:
                now = now + outputs[-1].mean(-1, keepdim=True)
            if isinstance(self.cell, Stacked):
                shown, state = self.cell(now, states=state, scale=0.5)
            else:
                state = self.cell(now, state)
                shown = state[0] if isinstance(state, tuple) else state
            if self.fault == "cut":
                state = state.detach()
            if self.fault == "changed":
                state = 0.9 * state
            outputs.append(self.read(shown))
        return torch.stack(outputs, 1)


def data(generator, sequences=4, time=6):
    x = torch.randn(sequences, time, 3, generator=generator, dtype=torch.float64)
    return x, torch.randn(sequences, time, 2, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("cell", [Plain, Peephole, Stacked, Joint])
def test_lags_add_up_to_autograds_gradient(cell, generator):
    torch.manual_seed(0)
    model = Loop(cell).double().eval()
    x, y = data(generator)
    total = lag_gradients(model, x, y).total()
    (model(x) - y).square().mean().backward()
    for name, parameter in model.cell.named_parameters():
        torch.testing.assert_close(total[f"cell.{name}"], parameter.grad, rtol=1e-10, atol=1e-12)


def test_every_lag_is_that_of_a_cell_of_its_own_for_each_step(generator):
    """The slow twin: a copy of the cell for every step, and one output's loss at a time."""
    torch.manual_seed(0)
    model = Loop(Plain).double()
    x, y = data(generator)
    copies = [Plain(3, 5).double() for _ in range(x.shape[1])]
    state, outputs = x.new_zeros(len(x), 5), []
    for step, copy in enumerate(copies):
        copy.load_state_dict(model.cell.state_dict())
        state = copy(x[:, step], state)
        outputs.append(model.read(state))
    expected = torch.zeros(x.shape[1], 5, 3, dtype=torch.float64)
    for step, output in enumerate(outputs):
        loss = (output - y[:, step]).square().sum() / y.numel()
        for lag in range(step + 1):
            (part,) = torch.autograd.grad(loss, copies[step - lag].look.weight, retain_graph=True)
            expected[lag] += part
    gradients = lag_gradients(model, x, y).grads["cell.look.weight"]
    torch.testing.assert_close(gradients, expected, rtol=1e-10, atol=1e-12)


def test_weights_are_told_apart_by_what_they_multiply(generator):
    x, y = data(generator)
    (view,) = find_views(Loop(Peephole).double(), Batch(x, y))
    cell = view.template.stack.cells[0]
    roles = {name: cell.role(name) for name in ("look.weight", "look.bias", "keep.weight", "peep")}
    assert roles == {"look.weight": "input", "look.bias": "bias", "keep.weight": "recurrent", "peep": "other"}
    (view,) = find_views(Loop(Joint).double(), Batch(x, y))
    assert view.template.stack.cells[0].role("mix.weight") == "other"


def lagged(lag=3):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 16, 3, generator=generator)
    y = torch.randn(64, 16, 2, generator=generator) / 4
    y[:, lag:, :1] += x[:, :-lag, :1]
    return x, y


def test_a_diagnosis_of_an_own_cell_leaves_the_model_as_it_was():
    torch.manual_seed(0)
    model = Loop(Peephole).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    diagnosis = lagreach.diagnose(model, lagged(), lags=[0, 1, 3, 8])
    assert diagnosis.settings["lags_of"] == "layers"
    assert "cell is carried back step by step" in diagnosis.settings["lags_of_why"]
    assert diagnosis.layers[0].window.dependences == (3,)
    assert diagnosis.layers[0].window.settings["params"] == ["cell.look.weight"]
    assert model.training
    assert model.cell.drop.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: Loop(Joint), "the selection holds no weights"),
        (lambda: Loop(Plain, "fed back"), "outputs of cell are fed back"),
        (lambda: Loop(Plain, "cut"), "is cut from the graph"),
        (lambda: Loop(Plain, "changed"), "it has no recurrent layer"),
        (lambda: Loop(Plain, "decoder"), "the steps of cell are not those of the input"),
        (lambda: Loop(Plain, "smooth"), "the steps of cell are not those of the input"),
    ],
)
def test_what_cannot_be_carried_back_step_by_step_gets_lags_of_the_whole_model(model, why):
    torch.manual_seed(0)
    diagnosis = lagreach.diagnose(model(), lagged(), lags=[0, 1, 3])
    assert diagnosis.settings["lags_of"] == "model"
    assert why in diagnosis.settings["lags_of_why"]


class TwoCells(nn.Module):
    def __init__(self):
        super().__init__()
        self.low, self.high, self.read = Plain(3, 5), Plain(5, 5), nn.Linear(5, 2)

    def forward(self, x):
        low = high = x.new_zeros(len(x), 5)
        outputs = []
        for now in x.unbind(1):
            low = self.low(now, low)
            high = self.high(low, high)
            outputs.append(self.read(high))
        return torch.stack(outputs, 1)


@pytest.mark.thorough
def test_of_several_cells_one_can_be_asked_for():
    torch.manual_seed(0)
    model = TwoCells()
    assert "each of its 2 cells" in lagreach.diagnose(model, lagged(), lags=[0, 1, 3]).settings["lags_of_why"]
    diagnosis = lagreach.diagnose(model, lagged(), lags=[0, 1, 3], only="low")
    assert [layer.name for layer in diagnosis.layers] == ["low"]
    assert "only low was looked at, as asked for; left out: high" in diagnosis.warnings


def test_asked_for_layers_a_loop_that_is_none_is_refused():
    class Decides(Plain):
        def forward(self, x, h):
            return super().forward(x, h) if float(x.sum()) > -1e9 else h

    with pytest.raises(UnsupportedError, match="one row at a time"):
        lagreach.diagnose(Loop(Decides), lagged(), lags=[0, 1], lags_of="layers")
    with pytest.raises(UnsupportedError, match=r"no recurrent layer.*(\n.*)*forward\(x, state\)"):
        lagreach.diagnose(Loop(Plain, "changed"), lagged(), lags=[0, 1], lags_of="layers")
