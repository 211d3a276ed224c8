"""One part of a model, as asked for: its recurrent layers, or lags back to its own input."""

import pytest
import torch
from torch import nn

import lagreach
from lagreach.errors import InputError, UnsupportedError
from lagreach.whole_model.lag_gradients import model_lag_gradients


class Translator(nn.Module):
    """An encoder, attention, and a decoder that reads its own last output, which cannot be replayed."""

    def __init__(self, inputs=2, units=6):
        super().__init__()
        self.look = nn.Linear(inputs, units)
        self.encoder = nn.GRU(units, units, batch_first=True)
        self.attend = nn.MultiheadAttention(units, 1, batch_first=True)
        self.decoder = nn.GRUCell(units + 1, units)
        self.read = nn.Linear(units, 1)

    def forward(self, x):
        kept, last = self.encoder(self.look(x))
        state, shown, outputs = last[0], x.new_zeros(len(x), 1), []
        for _ in range(3):
            context = self.attend(state[:, None], kept, kept)[0][:, 0]
            state = self.decoder(torch.cat((shown, context), -1), state)
            shown = self.read(state)
            outputs.append(shown)
        return torch.stack(outputs, 1)


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, 12, 2, generator=generator)
    return x, x[:, 4:7, :1] + torch.randn(48, 3, 1, generator=generator) / 4


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Translator()


def test_the_encoder_alone_and_what_was_left_out(model, data):
    diagnosis = lagreach.diagnose(model, data, lags=[0, 1, 5], only="encoder", outputs="at the end")
    assert [layer.name for layer in diagnosis.layers] == ["encoder"]
    assert diagnosis.layers[0].local
    assert diagnosis.settings["lags_of"] == "layers"
    assert "only encoder was looked at, as asked for; left out: decoder" in diagnosis.warnings


def test_a_part_without_recurrence_counts_lags_to_its_own_input(model, data):
    diagnosis = lagreach.diagnose(model, data, lags=[0, 1, 5], only="look", outputs="at the end")
    assert diagnosis.settings["lags_of"] == "model"
    assert diagnosis.settings["input_module"] == "look"
    assert "the input of look" in diagnosis.settings["lags_of_why"]
    asked = lagreach.diagnose(model, data, lags=[0, 1, 5], only="encoder", lags_of="model", outputs="at the end")
    assert asked.settings["input_module"] == "encoder"


def test_lags_to_the_input_of_a_part_add_up(model, data):
    model = model.double()
    x, y = (part[:4].double() for part in data)
    gradients = model_lag_gradients(model, x, y, inputs="encoder", outputs="at the end")
    handles = []
    seen = []

    def watch(module, args):
        leaf = args[0].detach().requires_grad_()
        seen.append(leaf)
        return (leaf,)

    handles.append(model.encoder.register_forward_pre_hook(watch))
    (model(x) - y).square().mean().backward()
    handles[0].remove()
    leaf = seen[0]
    expected = torch.einsum("ntw,nti->wi", leaf.grad, leaf.detach())
    torch.testing.assert_close(gradients.total()["encoder.input"], expected, rtol=1e-10, atol=1e-12)


def test_parts_that_are_not_there_and_choices_that_contradict(model, data):
    with pytest.raises(InputError, match="no such part"):
        lagreach.diagnose(model, data, only="encoders")
    with pytest.raises(InputError, match="is enough"):
        lagreach.diagnose(model, data, only="encoder", inputs="look")
    with pytest.raises(UnsupportedError, match="fed back as inputs"):
        lagreach.diagnose(model, data, only="decoder", lags_of="layers", outputs="at the end")


def test_what_a_part_would_cost(model, data):
    cost = lagreach.cost(model, data, lags=[0, 1, 5], only="encoder", outputs="at the end")
    assert cost.layers == ("encoder",)
