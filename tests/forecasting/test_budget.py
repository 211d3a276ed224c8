"""Budgets of steps: whose optimiser it is, what binds, and what a budget does not count."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import lagreach
from lagreach.errors import InputError, UnsupportedError
from lagreach.forecasting.run import NOT_MOVED, READOUT_FROZEN, STEPS_UNKNOWN
from lagreach.forecasting.words import to_do
from lagreach.report.forecast_payload import forecast_payload
from tests.forecasting.models import Recurrent, Reservoir, Unfinished, data


def forecast(model, given, **options):
    common = {"sequences": 1000, "lags": [2], "directions": 8, "progress": False}
    return lagreach.forecast(model, given, **(common | options))


def sgd(model, lr=0.1, **options):
    return torch.optim.SGD(model.parameters(), lr, **options)


def test_the_optimiser_of_a_model_knows_its_pilot():
    def train(model, steps):
        with torch.no_grad():
            model.read.weight.mul_(1 + 0.01 * steps)

    model, given = Recurrent(), data(64, 12)
    made = forecast(model, given, train=train, pilot=20, optimiser=sgd(model), steps=100)
    piloted = Recurrent()
    train(piloted, 20)
    by_hand = forecast(piloted, given, optimiser=sgd(piloted), steps=100)
    assert made.budgeted.item() == by_hand.budgeted.item() > 0


def test_a_budget_of_steps_holds_for_the_readout_alone():
    x, y = data(256, 24, inputs=1, lag=3)
    model = Reservoir()  # of which all weights are those of its readout
    for given in (sgd(model, 0.02), torch.optim.Adam(model.parameters(), 0.01)):
        both = [
            forecast(model, (x, y), lags=[3], weights=weights, optimiser=given, steps=30)
            for weights in ("all", "readout")
        ]
        np.testing.assert_allclose(both[1].budgeted.values, both[0].budgeted.values, atol=1e-3)
        assert both[1].if_present.item() == both[1].budgeted.item() < both[1].readable.item() - 0.02


def test_a_readout_that_hardly_moves_learns_nothing():
    model = Reservoir()
    made = forecast(model, data(128, 24, inputs=1), weights="readout", optimiser=sgd(model, 1e-9), steps=1)
    assert made.readable.item() > 0.5
    assert made.if_present.item() < 1e-6
    assert made.limits_if_present.item() == "few steps"
    assert "lag 2 needs more steps" in str(made)


@pytest.mark.parametrize(
    ("model", "moved", "said"), [(Unfinished, "layer", STEPS_UNKNOWN), (Recurrent, "layer", NOT_MOVED)]
)
def test_steps_that_do_not_count_for_a_readout_are_said_to(model, moved, said):
    model = model()
    optimiser = sgd(getattr(model, moved))
    made = forecast(model, data(64, 12), weights="readout", optimiser=optimiser, steps=10)
    assert said in made.warnings
    assert made.budgeted.isnull().item() == (said == STEPS_UNKNOWN)


def test_more_sequences_are_not_advised_where_steps_bind():
    x, y = data(64, 24, inputs=1, lag=3)
    model = Reservoir()
    made = forecast(model, (x, y), lags=[3], strength=0.02, weights="readout", optimiser=sgd(model, 0.02), steps=1)
    few, many = 4, 10_000
    assert made.at(few).readable.item() < 0.5 < made.at(many).readable.item()
    assert made.limits_at(few) == made.limits_at(many) == ["few steps"]
    assert made.enough.tolist() == [np.inf]
    (line,) = to_do(replace(made, adjusted_p=np.ones(1)), few)
    assert line.startswith("Lag 3: train longer, or with larger steps, and with more sequences, ")
    long = forecast(model, (x, y), lags=[3], strength=0.02, weights="readout", optimiser=sgd(model, 0.02), steps=10**5)
    assert long.limits_at(few) == ["few sequences"]


@pytest.mark.thorough
def test_advice_about_a_budget_of_steps_is_not_more_sequences():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(300, 20, 1, generator=g)
    y = torch.nn.functional.pad(x[:, :-3], (0, 0, 3, 0)) + 2 * torch.randn(300, 20, 1, generator=g)
    model = lagreach.GatedRNN("lstm", 1, 16, 1, generator=g)
    adam = torch.optim.Adam(model.parameters(), 3e-3)
    advice = lagreach.advise(model, (x, y), 3, sequences=3, kinds=["sequences"], optimiser=adam, steps=100)
    assert advice.why == "few steps"
    assert advice.first.says == "Only more or larger steps would recover this lag."


class Taps(Reservoir):
    """A fixed recurrence and a readout, and one weight beside them."""

    def __init__(self):
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.read(self.states(x) + self.offset)


@pytest.mark.parametrize("bias", [False, True])
def test_a_frozen_readout_does_not_count(bias):
    model, given = Taps(), data(128, 24, inputs=1)
    model.read.weight.requires_grad_(False)
    model.read.bias.requires_grad_(bias)
    made = forecast(model, given)
    assert made.readable.item() > 0.5
    assert made.if_present.item() == made.reachable.item() < 0.05
    assert np.isinf(made.needed.item())
    assert made.limits_if_present.item() == "blended"
    assert READOUT_FROZEN in made.warnings
    assert forecast(model, given, optimiser=sgd(model), steps=10).if_present.item() < 0.05
    assert forecast_payload(made)["readoutCounts"] is False
    with pytest.raises(InputError, match="readout is frozen"):
        forecast(model, given, weights="readout")
    for weight in model.parameters():
        weight.requires_grad_(False)
    assert (
        READOUT_FROZEN not in forecast(model, given).warnings
    )  # all are: shares are those of a training that moves them


def largest_curvature(model, x, y):
    """Of the mean loss of a readout, in its weights: the loss is a plain square of them."""
    phi = torch.cat((model.states(x), torch.ones(*x.shape[:2], 1)), dim=2).flatten(0, 1).double()
    return float(torch.linalg.eigvalsh(2 * phi.T @ phi / len(phi))[-1])


def overshoots(made):
    return any("overshoot" in warning for warning in made.warnings)


@pytest.mark.parametrize("weights", ["all", "readout"])
@pytest.mark.parametrize(
    ("options", "steady"), [({}, 2.0), ({"momentum": 0.9}, 3.8), ({"momentum": 0.9, "nesterov": True}, 3.8 / 2.8)]
)
def test_steps_that_overshoot_are_warned_of_where_descent_runs_away(weights, options, steady):
    model, (x, y) = Reservoir(), data(96, 24, inputs=1)
    x = x + 1  # so that the bias takes part
    rate = steady / largest_curvature(model, x, y)
    for factor, runs_away in ((0.95, False), (1.05, True)):
        made = forecast(model, (x, y), weights=weights, optimiser=sgd(model, factor * rate, **options), steps=10)
        assert overshoots(made) == runs_away
        trained = copy.deepcopy(model)
        optimiser, phi = sgd(trained, factor * rate, **options), model.states(x)
        for _ in range(400):
            optimiser.zero_grad()
            loss = (trained.read(phi) - y).square().mean()
            loss.backward()
            optimiser.step()
        assert (not loss < 10) == runs_away  # or not a number


def test_decay_is_said_not_to_be_counted_where_it_matters():
    model, given = Reservoir(), data(64, 12, inputs=1)
    for decay, matters in ((1e-4, False), (0.1, True)):
        made = forecast(model, given, weights="readout", optimiser=sgd(model, 0.01, weight_decay=decay), steps=200)
        assert any("weight decay is not counted" in warning for warning in made.warnings) == matters


@pytest.mark.parametrize(
    ("options", "said"), [({"momentum": 1.0}, "never come to rest"), ({"maximize": True}, "climb")]
)
def test_steps_that_do_not_descend_are_refused(options, said):
    model = Reservoir()
    with pytest.raises((InputError, UnsupportedError), match=said):
        forecast(model, data(64, 12, inputs=1), weights="readout", optimiser=sgd(model, **options), steps=10)
