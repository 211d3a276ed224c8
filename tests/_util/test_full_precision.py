"""Flags that a GPU rounds by: off inside, as they were afterwards."""

import pytest
import torch
from torch import nn

import lagreach
from lagreach._util.full_precision import full_precision
from lagreach.adapters import find_views
from lagreach.data.batch import Batch
from tests.forecasting.models import Recurrent, data


def test_nothing_is_rounded_inside_and_everything_is_as_it_was_afterwards(request):
    usual = torch.get_float32_matmul_precision()
    request.addfinalizer(lambda: torch.set_float32_matmul_precision(usual))
    torch.set_float32_matmul_precision("high")
    assert torch.backends.cudnn.allow_tf32  # torch's default

    @full_precision()
    def fails_inside():
        assert (torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()) == (False, "highest")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails_inside()
    assert (torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()) == (True, "high")


def test_settings_that_were_made_one_by_one_are_no_hindrance(request):
    """Torch's older settings cannot even be read then."""
    settings = [torch.backends.cudnn.conv, torch.backends.cuda.matmul]
    usual = [setting.fp32_precision for setting in settings]
    request.addfinalizer(lambda: [setattr(s, "fp32_precision", v) for s, v in zip(settings, usual, strict=True)])
    for setting, value in zip(settings, ("ieee", "tf32"), strict=True):
        setting.fp32_precision = value
    with pytest.raises(RuntimeError):
        torch.backends.cudnn.allow_tf32  # noqa: B018
    with full_precision():
        assert torch.backends.cudnn.rnn.fp32_precision == torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert (torch.backends.cudnn.rnn.fp32_precision, torch.backends.cuda.matmul.fp32_precision) == ("tf32", "tf32")
    model, (x, y) = Recurrent(), data()
    assert lagreach.forecast(model, (x, y), [100], lags=[0, 2], directions=4, derivatives="backward").reach
    assert lagreach.diagnose(model, (x, y), lags=[0, 2]).layers


class RoundedLayer(nn.LSTM):
    """Rounds its weights to ten bits where cuDNN may, as it does on a GPU."""

    def forward(self, x, state=None):
        if not (torch.backends.cudnn.enabled and torch.backends.cudnn.allow_tf32):
            return super().forward(x, state)
        rounded = {
            name: ((w.view(torch.int32) + 2**12) & -(2**13)).view(torch.float32) for name, w in self.named_parameters()
        }
        return torch.func.functional_call(nn.LSTM(self.input_size, self.hidden_size, batch_first=True), rounded, (x,))


class Rounded(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.read = RoundedLayer(2, 8, batch_first=True), nn.Linear(8, 1)
        for weight in self.parameters():
            weight.data *= 3

    def forward(self, x):
        return self.read(self.layer(x)[0])


def test_a_layer_that_a_gpu_rounds_is_carried_back():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 20, 2, generator=generator)
    y = torch.randn(32, 20, 1, generator=generator)
    model = Rounded()
    assert not torch.allclose(model(x), plainly(model, x), atol=1e-4)
    assert len(find_views(model, Batch(x[:2], y[:2]))) == 1
    made = lagreach.forecast(model, (x, y), lags=[0, 2], directions=16, derivatives="backward")
    assert made.settings["derivatives"] == "backward"


def plainly(model, x):
    with full_precision():
        return model(x)
