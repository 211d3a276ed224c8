"""Half-lives before and after training, and biases for a wanted lag."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import lagreach
from lagreach.advice.gates import chrono
from lagreach.cells import Cell
from lagreach.errors import InputError
from tests.adapters.layers.test_mamba import Mamba
from tests.adapters.layers.test_min_gru import MinGRU
from tests.adapters.scan_cases import WIDTH, Wrapped, numbers

X = numbers(4, 30, WIDTH, dtype=torch.float32)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_retention_of_torch_layers_is_the_gate(kind):
    torch.manual_seed(0)
    layer = kind(WIDTH, 5, batch_first=True)
    state, output = (layer(X)[1], layer(X)[0])
    assert state is not None
    before = torch.cat((torch.zeros(4, 1, 5), output[:, :-1]), dim=1)
    gates = X @ layer.weight_ih_l0.T + layer.bias_ih_l0 + before @ layer.weight_hh_l0.T + layer.bias_hh_l0
    expected = torch.sigmoid(gates[..., 5:10]).detach()  # forget gate of the LSTM, update gate of the GRU: it retains
    (layer_retention,) = lagreach.retention(layer, X).layers
    assert_close(layer_retention.log_decay.exp(), expected, rtol=1e-5, atol=1e-6)
    assert not layer_retention.exact


def test_half_lives_and_gains_of_a_constant_decay():
    model = lagreach.GatedRNN("const_gate", 2, 3, 1, gate_init=0.2)
    (layer_retention,) = lagreach.retention(model, numbers(2, 12, 2)).layers
    half = math.log(2) / -math.log(0.8)
    assert_close(layer_retention.half_lives, torch.full((3,), half, dtype=torch.float64), rtol=1e-6, atol=0)
    assert layer_retention.quantiles() == pytest.approx([half] * 3, rel=1e-6)
    assert_close(
        layer_retention.log10_gain([0, 5])[:, 0],
        torch.tensor([0.0, 5 * math.log10(0.8)], dtype=torch.float64),
        rtol=1e-6,
        atol=1e-9,
    )


def test_layers_by_name():
    retention = lagreach.retention(nn.LSTM(WIDTH, 4, num_layers=2, batch_first=True), X)
    assert [layer.name for layer in retention.layers] == ["LSTM layer 0", "LSTM layer 1"]
    assert retention["LSTM layer 1"] is retention.layers[1]
    with pytest.raises(InputError, match="no such layer"):
        retention["nothing"]


def test_lengths_do_not_count_what_lies_beyond():
    lengths = torch.tensor([30, 10, 20, 5])
    (layer_retention,) = lagreach.retention(Wrapped(MinGRU()), X[..., :2], lengths=lengths).layers
    inside = torch.cat([logs[:n] for logs, n in zip(layer_retention.log_decay.double(), lengths, strict=True)])
    assert_close(layer_retention.half_lives, -math.log(2) / inside.mean(0))


@pytest.mark.parametrize("build", [
    lambda: nn.LSTM(WIDTH, 8, batch_first=True),
    lambda: nn.GRU(WIDTH, 8, num_layers=2, batch_first=True),
    lambda: nn.LSTM(WIDTH, 8, bidirectional=True, batch_first=True),
    MinGRU,
])  # fmt: skip
def test_suggested_biases_give_the_half_lives(build):
    torch.manual_seed(0)
    model = build()
    advice = lagreach.advise_gates(model, X, lag=64)
    assert all("lag 64 is carried by no unit" in text for text in advice.warnings if "longest" in text)
    assert any("longest" in text for text in advice.warnings)
    advice.apply(model)
    with torch.no_grad():  # the biases alone: no input, no recurrence
        for name, weight in model.named_parameters():
            if "weight" in name:
                weight.zero_()
    for layer in lagreach.retention(model, torch.zeros(1, 4, WIDTH)).layers:
        wanted = chrono(128, layer.half_lives.numel())
        assert_close(layer.half_lives, wanted, rtol=1e-3, atol=1e-3)
    again = lagreach.advise_gates(model, torch.zeros(1, 4, WIDTH), lag=50)
    assert not again.warnings
    assert not again.biases()


def test_collapse_over_training_is_told():
    torch.manual_seed(0)
    before, after = Mamba(), Mamba()
    with torch.no_grad():
        before.dt_proj.bias.fill_(-6.0)
        after.dt_proj.bias.fill_(3.0)
    advice = lagreach.advise_gates(before, X, 32, trained=after)
    (layer,) = advice.layers
    assert layer.after is not None
    assert layer.after[1] < layer.before[1]
    assert any("collapsed" in text for text in layer.warnings)
    assert any("training shortened" in text for text in layer.warnings)
    assert "->" in str(advice)
    assert list(layer.biases) == ["dt_proj.bias"]


def test_a_layer_that_cannot_forget_is_told():
    layer = MinGRU()
    with torch.no_grad():
        layer.linear_z.weight.zero_()
        layer.linear_z.bias.fill_(-9.0)
    advice = lagreach.advise_gates(layer, X, 10)
    assert any("no decay forgets" in text for text in advice.warnings)
    assert advice.layers[0].holds == 1.0


def test_layers_without_biases_get_no_suggestion():
    advice = lagreach.advise_gates(MinGRU(bias=False), X, 64)
    assert not advice.biases()
    assert advice.warnings


def test_a_lag_must_be_positive():
    with pytest.raises(InputError, match="positive"):
        lagreach.advise_gates(MinGRU(), X, 0)


@dataclass(frozen=True)
class TwoBlocks(Cell):
    """A cell with two parts of state that does not say what it retains."""

    name: ClassVar[str] = "two blocks"
    blocks: ClassVar[tuple[str, ...]] = ("h", "c")

    def shapes(self, input_size, hidden_size):
        return {"W_h": (hidden_size, input_size), "U_h": (hidden_size, hidden_size)}

    def state_size(self, hidden_size):
        return 2 * hidden_size

    def step(self, x, s, params):
        h, c = s.chunk(2, -1)
        new = torch.tanh(nn.functional.linear(x, params["W_h"]) + nn.functional.linear(h, params["U_h"]))
        return torch.cat((new, 0.5 * c + new), -1)


def test_a_cell_without_retention_is_said_to_have_none():
    """Its half-lives were printed as 0 / 0 / 0."""
    advice = lagreach.advise_gates(lagreach.GatedRNN(TwoBlocks(), WIDTH, 4, 1), X, lag=5)
    assert "this cell has no retention to set" in str(advice)
    assert "0 / 0 / 0" not in str(advice)
    assert advice.biases() == {}
