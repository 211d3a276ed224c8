"""Models that work in place on what their layers give, or on their input, are told the same numbers as those that do not."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import lagreach
from lagreach.callbacks import metrics

OPTIONS = {"lags": [0, 3], "outputs": "per step"}


class Behind(nn.Module):
    """Steps are mixed by a convolution behind a first layer, whose results are changed in place."""

    def __init__(self, first, change):
        super().__init__()
        self.first, self.mixing, self.readout = first, nn.Conv1d(6, 6, 4), nn.Linear(6, 1)
        self.change = change

    def forward(self, x):
        hidden = self.change(self.first(x))
        mixed = self.mixing(functional.pad(hidden.transpose(1, 2), (3, 0)))
        return self.readout(mixed.transpose(1, 2).tanh())


class Recurrent(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.layer, self.readout, self.change = nn.GRU(2, 6, batch_first=True), nn.Linear(6, 1), change

    def forward(self, x):
        return self.readout(self.change(self.layer(x)[0]))


class OnInput(nn.Module):
    def __init__(self, inside, change):
        super().__init__()
        self.inside, self.change = inside, change

    def forward(self, x):
        return self.inside(self.change(x))


def scaled(in_place):
    def scale(hidden):
        if not in_place:
            return hidden * 3.0
        hidden *= 3.0
        return hidden

    return scale


def both_sides(in_place):
    """What is read on one side was there before it is changed on the other."""

    def joined(hidden):
        before = hidden + 1
        return before + functional.relu(hidden, inplace=in_place)

    return joined


MODELS = {
    "sequential": lambda on: nn.Sequential(nn.Linear(2, 8), nn.ReLU(inplace=on), nn.Linear(8, 1)),
    "at the end": lambda on: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1), nn.LeakyReLU(inplace=on)),
    "numbers": lambda on: Behind(nn.Linear(2, 6), nn.ReLU(inplace=on)),
    "tokens": lambda on: Behind(nn.Embedding(5, 6), scaled(on)),
    "both sides": lambda on: Behind(nn.Linear(2, 6), both_sides(on)),
    "recurrent": lambda on: Recurrent(nn.ReLU(inplace=on)),
    "input of a recurrent layer": lambda on: OnInput(Recurrent(nn.Tanh()), scaled(on)),
    "input": lambda on: OnInput(Behind(nn.Linear(2, 6), nn.Tanh()), scaled(on)),
}


def numbers(kind, in_place, data):
    torch.manual_seed(0)
    model = MODELS[kind](in_place)
    found = metrics(lagreach.diagnose(model, data, **OPTIONS))
    found = {name: value for name, value in found.items() if "seconds" not in name}
    made = lagreach.forecast(model, data, 100, directions=8, **OPTIONS)
    weights = lagreach.cost(model, data, **OPTIONS).weights
    return [found, made.readable.values, made.reachable.values, weights, made.warnings]


@pytest.mark.parametrize("kind", MODELS)
def test_the_numbers_are_those_of_the_same_model_without(kind, generator):
    x = torch.randn(48, 10, 2, generator=generator)
    y = functional.pad(x[:, :-3, :1], (0, 0, 3, 0)) + 0.3 * torch.randn(48, 10, 1, generator=generator)
    if kind == "tokens":
        x = torch.randint(0, 5, (48, 10), generator=generator)
    data, before = (x, y), x.clone()
    assert str(numbers(kind, True, data)) == str(numbers(kind, False, data))
    assert torch.equal(x, before)
