"""Every way to take derivatives of a model along directions of its weights gives the same shares, or says that it cannot."""

import numpy as np
import pytest
import torch
from torch import nn

import lagreach
from lagreach.errors import InputError
from tests.forecasting.models import Attention, Recurrent, data

LAGS = [0, 2, 9]


def gated(cell):
    options = {} if cell == "elman" else {"gate_init": 0.2}
    return lagreach.GatedRNN(cell, 2, 5, 1, generator=torch.Generator().manual_seed(0), **options)


CARRIED = {
    cell: lambda cell=cell: gated(cell) for cell in ("const_gate", "shared_gate", "diag_gate", "gru", "lstm", "elman")
}
CARRIED |= {f"nn.{kind}": lambda kind=kind: Recurrent(kind) for kind in ("GRU", "LSTM", "RNN")}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CARRIED)
def test_gradients_carried_back_agree_with_differences(name):
    """Both are derivatives along the same directions; one comes from the outputs, the other from the weights."""
    model = CARRIED[name]()
    x, y = data(48, 14)
    back, apart = (
        lagreach.forecast(model, (x, y), lags=LAGS, directions=40, derivatives=way)
        for way in ("backward", "difference")
    )
    np.testing.assert_allclose(back.reach.share, apart.reach.share, atol=3e-6)
    np.testing.assert_allclose(back.reach.noise, apart.reach.noise, rtol=1e-3)
    np.testing.assert_allclose(back.reach.in_data, apart.reach.in_data, atol=1e-4)
    assert lagreach.forecast(model, (x, y), lags=LAGS).settings["derivatives"] == "backward"  # where it is cheaper


class Doubled(nn.Module):
    """Ends in a readout of its layer's states, and yet the weights act twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.read = nn.GRU(2, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, x):
        return self.read(self.layer(x * (1 + self.layer.bias_hh_l0.mean()))[0])


@pytest.mark.thorough
def test_gradients_are_not_carried_back_where_moving_the_weights_shows_something_else():
    x, y = data(64, 24)
    assert lagreach.forecast(Recurrent(), (x, y), lags=LAGS).settings["derivatives"] == "backward"
    assert lagreach.forecast(Doubled(), (x, y), lags=LAGS).settings["derivatives"] == "difference"


@pytest.mark.thorough
def test_gradients_are_carried_back_through_a_model_that_is_called_in_its_own_way():
    class Named(Recurrent):
        def forward(self, *, inputs):
            return super().forward(inputs)

    x, y = (part.double() for part in data(48, 14))  # one of them is run by torch, the other by kernels of the package
    named = lagreach.forecast(Named().double(), (x, y), lags=LAGS, call=lambda model, batch: model(inputs=batch.x))
    assert named.settings["derivatives"] == "backward"
    plain = lagreach.forecast(Recurrent().double(), (x, y), lags=LAGS)
    np.testing.assert_allclose(named.reach.share, plain.reach.share, atol=1e-9)


class Relaid(nn.Module):
    """A model whose weights are laid out anew whenever it runs, as cuDNN does with those of its layers."""

    def __init__(self):
        super().__init__()
        self.inner = Recurrent()

    def forward(self, x):
        for weight in self.inner.parameters():
            weight.data = weight.data.clone()
        return self.inner(x)


def test_gradients_are_carried_back_wherever_the_weights_lie():
    made = lagreach.forecast(Relaid(), data(), [100], lags=[0, 2], directions=16, derivatives="backward")
    assert made.settings["derivatives"] == "backward"


@pytest.mark.thorough
def test_gradients_are_carried_back_from_classes_and_under_a_mask():
    model = lagreach.GatedRNN("lstm", 2, 4, 3, gate_init=0.3, generator=torch.Generator().manual_seed(0))
    x, _ = data(48, 10)
    classes = torch.randint(3, (48, 10), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(10) < torch.randint(4, 11, (48, 1), generator=torch.Generator().manual_seed(2))
    back, apart = (
        lagreach.forecast(model, (x, classes, mask), loss="cross_entropy", lags=LAGS, directions=40, derivatives=way)
        for way in ("backward", "difference")
    )
    np.testing.assert_allclose(back.reach.share, apart.reach.share, atol=1e-5)
    with pytest.raises(InputError, match="cannot be carried back"):
        lagreach.forecast(Attention(10), (x, x[..., :1]), lags=[0], derivatives="backward")


def test_forward_mode_and_differences_agree():
    x, y = data(96, 16)
    for model in (Recurrent("GRU"), Recurrent("LSTM")):
        ways = [
            lagreach.forecast(model, (x, y), lags=LAGS, directions=16, derivatives=way)
            for way in ("forward", "difference")
        ]
        assert [way.settings["derivatives"] for way in ways] == ["forward", "difference"]
        np.testing.assert_allclose(ways[0].reachable.values, ways[1].reachable.values, atol=1e-3)


class SingleInside(nn.Module):
    """Computes in single precision whatever it is given, and has no forward mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.read = nn.GRU(2, 8, num_layers=2, batch_first=True), nn.Linear(8, 1)

    def forward(self, x):
        class Rounded(torch.autograd.Function):
            @staticmethod
            def forward(ctx, value):
                return value.float().to(value.dtype)

            @staticmethod
            def backward(ctx, gradient):
                return gradient

        return self.read(Rounded.apply(self.layer(x)[0]))


@pytest.mark.thorough
def test_a_model_without_exact_derivatives_is_said_to_be_one():
    forecast = lagreach.forecast(SingleInside(), data(96, 16), lags=LAGS, directions=16)
    assert any("three digits" in warning for warning in forecast.warnings)
    exact = lagreach.forecast(Recurrent(num_layers=2), data(96, 16), lags=LAGS, directions=16)
    np.testing.assert_allclose(forecast.reachable.values, exact.reachable.values, atol=0.15)
