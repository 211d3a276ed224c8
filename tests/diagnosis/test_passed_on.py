"""Lags that only other inputs pass on are not named, by forecasts as by diagnoses, where inputs change in their course."""

import pytest
import torch
from torch import nn

import lagreach
from tests.null.passed_on import HOW, KINDS, LAGS, Layer, following, later, named, noise

QUICK = ("a column that is a lag of another, zero at first", "walks from levels of their own")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.thorough) for kind in KINDS]
)
def test_lags_that_only_other_inputs_pass_on_are_not_named(kind, how):
    """Before, each of these kinds named other lags in most runs of one or the other."""
    false = 0
    for seed in range(3):
        lags, true, _ = named(kind, how, seed)
        assert true in lags
        false += lags != {true}
    assert false <= 1  # chance names a lag in one of twenty


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
