"""Lags that only other inputs pass on are not named, by forecasts as by diagnoses, where inputs change in their course."""

import pytest
import torch
from torch import nn
from torch.nn.functional import pad

import lagreach

LAGS = [0, 1, 2, 3, 4, 5, 6, 7, 10, 13]


class Layer(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.layer, self.read = nn.LSTM(inputs, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, x):
        return self.read(self.layer(x)[0])


def later(x, lag):
    return pad(x[:, :-lag], (0, 0, lag, 0))


def following(sequences, time, inputs, keep):
    x = torch.randn(sequences, time + 100, inputs)
    for step in range(1, time + 100):
        x[:, step] += keep * x[:, step - 1]
    return x[:, 100:]


def noise(sequences, time):
    return torch.randn(sequences, time, 1)


def column_of_lags():
    """A column is another one three steps later, and zero before."""
    x = following(300, 40, 1, 0.7)
    return torch.cat((x, later(x, 3) + 0.3 * noise(300, 40)), dim=2), later(x, 5) + noise(300, 40), 5


def seasonal_walk():
    """Each step is the one seven steps before and a little more, and is forecast from its own past."""
    x = 3 * torch.randn(200, 50, 1)
    for step in range(7, 50):
        x[:, step] = x[:, step - 7] + torch.randn(200, 1)
    return x[:, 7:49], x[:, 8:50], 6


def walk():
    x = noise(200, 30).cumsum(1)
    return x, later(x, 3) + noise(200, 30), 3


def walk_from_its_own_level():
    x = noise(200, 30).cumsum(1) + 10 * noise(200, 1)
    return x, later(x, 3) + noise(200, 30), 3


def trend():
    x = noise(200, 40) + 3 * noise(200, 1) * torch.arange(40.0)[:, None] / 40
    return x, later(x, 4) + noise(200, 40), 4


def loudness():
    x = torch.randn(250, 1, 2).exp() * following(250, 40, 2, 0.8)
    return x, later(x[..., :1], 4) + noise(250, 40), 4


@pytest.mark.parametrize("kind", [column_of_lags, seasonal_walk, walk, walk_from_its_own_level, trend, loudness])
def test_lags_that_only_other_inputs_pass_on_are_not_named(kind):
    """Before, each of these kinds named other lags in most runs of one or the other."""
    false = {"diagnose": 0, "forecast": 0}
    for seed in range(3):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            x, y, true = kind()
            model = Layer(x.shape[2])
        window = lagreach.diagnose(model, (x, y), lags=LAGS).layers[0].window
        forecast = lagreach.forecast(model, (x, y), [len(x)], LAGS, weights="readout")
        named = {
            "diagnose": set(window.dependences),
            "forecast": {lag for lag, found in zip(forecast.lags, forecast.found, strict=True) if found},
        }
        for how, lags in named.items():
            assert true in lags
            false[how] += lags != {true}
    assert max(false.values()) <= 1  # chance names a lag in one of twenty


def test_a_mask_alone_tells_where_sequences_end():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x, length = following(250, 40, 2, 0.9), torch.randint(12, 41, (250, 1))
        length[0] = 40
        mask = (torch.arange(40) < length).float()
        x, model = x * mask[..., None], Layer(2)
        y = (later(x[..., :1], 4) + noise(250, 40)) * mask[..., None]
    forecast = lagreach.forecast(model, {"x": x, "y": y, "mask": mask}, [250], LAGS, weights="readout")
    given = {"x": x, "y": y, "mask": mask, "lengths": length[:, 0]}
    whole = lagreach.forecast(model, given, [250], LAGS, weights="readout")
    assert [lag for lag, found in zip(forecast.lags, forecast.found, strict=True) if found] == [4]
    assert forecast.found == whole.found
    assert not any("in one part of the sequences" in warning for warning in forecast.warnings)
