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


QUICK, SLOWER = (column_of_lags, walk_from_its_own_level), (seasonal_walk, walk, trend, loudness)


@pytest.mark.parametrize("kind", [*QUICK, *(pytest.param(kind, marks=pytest.mark.thorough) for kind in SLOWER)])
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


class Tagger(nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.read, self.layer, self.name = (
            nn.Embedding(tokens, 8),
            nn.GRU(8, 16, batch_first=True),
            nn.Linear(16, tokens),
        )

    def forward(self, x):
        return self.name(self.layer(self.read(x))[0])


def chain(seed):
    """Each token stays, goes on to the next one, or is any other; targets repeat the one three steps before."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        x, y = torch.randint(6, (300, 30)), torch.randint(6, (300, 30))
        for step in range(1, 30):
            chance = torch.rand(300)
            new = torch.where(chance < 0.85, (x[:, step - 1] + 1) % 6, x[:, step])
            x[:, step] = torch.where(chance < 0.6, x[:, step - 1], new)
        y[:, 3:] = torch.where(torch.rand(300, 27) < 0.6, x[:, :-3], y[:, 3:])
        return Tagger(6), x, y


def test_tokens_of_a_chain_are_spoken_of():
    model, x, y = chain(0)
    made = lagreach.diagnose(model, (x, y), lags=range(5), loss="cross_entropy", lags_of="layers")
    assert any('lags_of="model"' in warning for warning in made.layers[0].window.warnings)
    assert "perhaps by way of others" in " ".join(str(made).split())


@pytest.mark.thorough
def test_tokens_of_a_chain_are_told_apart_as_tokens():
    named = []
    for seed in range(4):
        model, x, y = chain(seed)
        made = lagreach.diagnose(model, (x, y), lags=range(5), loss="cross_entropy", lags_of="model")
        named.append(made.layers[0].window.dependences)
    assert sum(set(lags) - {3} != set() for lags in named) <= 1
    assert sum(3 in lags for lags in named) >= 3
