"""Budgets of steps: whose optimiser it is, what binds, and what a budget does not count."""

import torch

import lagreach
from tests.forecasting.models import Recurrent, data


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
