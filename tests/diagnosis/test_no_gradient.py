"""Layers that training does not reach are left out by name; the others are diagnosed."""

import pytest
import torch
from torch import nn

import lagreach
from lagreach.cells.elman import Elman
from lagreach.errors import InputError


class Two(nn.Module):
    """Two layers, of which the first is cut off in some way."""

    def __init__(self, cut):
        super().__init__()
        torch.manual_seed(0)
        self.cut = cut
        self.a, self.b = nn.GRU(2, 6, batch_first=True), nn.GRU(6, 6, batch_first=True)
        self.readout = nn.Linear(6, 1)

    def forward(self, x):
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.cut != "no_grad"):
            between = self.a(x)[0]
        if self.cut == "detach":
            between = between.detach()
        if self.cut == "not used":
            between = x.repeat(1, 1, 3)
        above = self.b(between)[0]
        return self.readout(above.detach() if self.cut == "both" else above)


def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(32, 8, 2, generator=generator), torch.randn(32, 8, 1, generator=generator)


@pytest.mark.parametrize("cut", ["detach", "no_grad", "not used"])
def test_a_layer_without_gradient_is_left_out_by_name(cut):
    """It once was a RuntimeError of autograd, or the whole model was refused."""
    diagnosis = lagreach.diagnose(Two(cut), data(), lags=[0, 2])
    assert [layer.name for layer in diagnosis.layers] == ["b"]
    (said,) = [warning for warning in diagnosis.warnings if "left out" in warning]
    assert said.startswith("a is left out: it gets no gradient")
    assert lagreach.cost(Two(cut), data(), lags=[0, 2]).layers == ("b",)


def test_a_loop_without_gradient_is_left_out_by_name():
    class Loops(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.readout = nn.GRUCell(2, 4), nn.GRUCell(4, 4), nn.Linear(4, 1)

        def forward(self, x):
            below = above = x.new_zeros(len(x), 4)
            outputs = []
            for t in range(x.shape[1]):
                with torch.no_grad():
                    below = self.a(x[:, t], below)
                above = self.b(below, above)
                outputs.append(self.readout(above))
            return torch.stack(outputs, dim=1)

    diagnosis = lagreach.diagnose(Loops(), data(), lags=[0, 2])
    assert [layer.name for layer in diagnosis.layers] == ["b"]
    assert any(warning.startswith("a is left out") for warning in diagnosis.warnings)


def test_a_layer_in_use_is_not_left_out():
    diagnosis = lagreach.diagnose(Two("nowhere"), data(), lags=[0, 2], lags_of="layers")
    assert [layer.name for layer in diagnosis.layers] == ["a", "b"]
    assert not any("left out" in warning for warning in diagnosis.warnings)


@pytest.mark.parametrize("options", [{}, {"lags_of": "layers"}, {"only": "a"}])
def test_a_model_whose_recurrence_gets_no_gradient_is_refused(options):
    with pytest.raises(InputError, match="no recurrent layer of the model gets a gradient") as error:
        lagreach.diagnose(Two("both"), data(), lags=[0, 2], **options)
    assert "the weights of a" in str(error.value)


def test_a_layer_that_a_cell_describes_is_refused_too():
    class Described(nn.Module):
        def __init__(self):
            super().__init__()
            shapes = Elman().shapes(2, 4)
            for name, shape in shapes.items():
                self.register_parameter(name, nn.Parameter(0.3 * torch.ones(shape)))

        def forward(self, x):
            state, states = x.new_zeros(len(x), 4), []
            for t in range(x.shape[1]):
                state = Elman().step(x[:, t], state, dict(self.named_parameters()))
                states.append(state)
            return torch.stack(states, dim=1)

    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.readout = Described(), nn.Linear(4, 1)

        def forward(self, x):
            return self.readout(self.layer(x).detach())

    with pytest.raises(InputError, match="no recurrent layer of the model gets a gradient"):
        lagreach.diagnose(Cut(), data(), lags=[0, 2], cell={"layer": Elman()})
