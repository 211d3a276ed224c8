"""What a forecast says in words: what will be learned, what helps, and how far to trust it."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import lagreach
from lagreach.forecasting.kinds import ATTENDING, GATED, NO_RECORD, OTHER, PLAIN, kind_of, remedies
from lagreach.forecasting.limits import UNSEEN
from lagreach.forecasting.result import Forecast
from lagreach.forecasting.track_record import counts, track_record
from lagreach.forecasting.words import _enough, plainly
from tests.forecasting.models import Delays, Recurrent, data, lagged


def test_the_text_says_it_plainly():
    x, y = data(128, 24, inputs=1, lag=3, seed=1)  # of seed 0 lag 5 is named, as in one of twenty
    text = str(lagreach.forecast(Delays(6), (x, y), lags=[0, 3, 5, 12]))
    assert "lags 0, 3 and 5 will be learned; 12 is unseen" in text
    assert "In the data the target depends on lag 3: lag 3 will be learned" in text
    assert NO_RECORD[OTHER] in text  # a delay line is none of the networks that forecasts were checked with
    assert len(text.splitlines()) <= 14


def test_a_forecast_says_how_often_its_kind_came_true():
    x, y = data(64, 16, inputs=1, lag=3)
    model = Recurrent("RNN")
    x = torch.cat((x, x.roll(5, 0)), dim=-1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    budgeted = str(lagreach.forecast(model, (x, y), lags=[3], optimiser=optimiser, steps=50, directions=8))
    (learned, of) = counts()["learned_of"]["budgeted"]["before"][-1]
    assert f"forecast at 50 % or more before training {100 * learned / of:.0f} % were learned" in budgeted
    assert track_record(budgeted=False) not in budgeted


def test_what_helps_gates_is_not_said_of_networks_without():
    attends = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1)
    networks = {
        GATED: [nn.Sequential(nn.LSTM(1, 2)), lagreach.GatedRNN("gru", 1, 2, 1)],
        PLAIN: [nn.RNN(1, 2), lagreach.GatedRNN("elman", 1, 2, 1)],
        ATTENDING: [attends, nn.ModuleList([attends, nn.GRU(4, 4)])],
        OTHER: [nn.Conv1d(1, 2, 3)],
    }
    for kind, models in networks.items():
        assert [kind_of(model) for model in models] == [kind] * len(models)
        assert ("slower gates" in remedies(kind)[UNSEEN]) == (kind == GATED)
    x, y = data(64, 12, inputs=4, lag=3)
    text = str(
        lagreach.forecast(
            nn.Sequential(attends, nn.Linear(4, 1)), (x, y), lags=[0, 3], directions=8, outputs="per step"
        )
    )
    assert NO_RECORD[ATTENDING] in text
    assert "gates" not in text


def test_a_lag_that_needs_more_sequences_is_said_with_how_many():
    x, y = data(128, 24, inputs=1, lag=3)
    made = lagreach.forecast(Delays(6), (x, y), lags=[0, 12])
    said = plainly(made, 2)
    assert re.search(r"lag 0 needs more sequences: about \d+; 12 is unseen: stop, or take another start", said), said


def test_a_few_more_sequences_than_there_are_is_not_about_as_many(monkeypatch):
    """Of 1,000 sequences it was said that a lag needs more: about 1,000."""
    x, y = data(32, 24, inputs=1, lag=3)
    made = lagreach.forecast(Delays(6), (x, y), lags=[0, 12], weights="readout")
    monkeypatch.setattr(Forecast, "needed", SimpleNamespace(values=[1004.0, np.inf]))
    said = [_enough(made, [True, False], number) for number in (1000, 1003, 900, 100)]
    assert said == ["a few more than 1,000", "a few more than 1,003", "about 1,000", "about 1,000"]
    assert _enough(made, [True, True], 1000) == ""


@pytest.mark.thorough
def test_products_of_inputs_are_said_to_be_there_though_no_lag_is():
    # of seeds 1 and 2 a lag is named by chance; test_exchanged_targets.py counts how often that happens
    generator = torch.Generator().manual_seed(4)
    x = torch.sign(torch.randn(256, 24, 2, generator=generator))
    noise = 0.3 * torch.randn(256, 24, 1, generator=generator)
    options = {"lags": range(6), "directions": 400}
    product = lagreach.forecast(Recurrent(), (x, lagged(x, 1) * lagged(x, 2) + noise), **options)
    nothing = lagreach.forecast(Recurrent(), (x, noise), **options)
    for made in (product, nothing):
        assert (made.limits.values == "none found").all()
    value, low = product.reach.explained(256)
    assert 0.5 < low < value < 1
    assert nothing.settings["missed"] == pytest.approx(
        1, abs=0.01
    )  # what the untrained model says by itself is not missed
    assert (1 - nothing.reach.explained(256)[0]) * nothing.settings["missed"] == pytest.approx(1, abs=0.03)
    assert "products or other functions of several inputs" in str(product)
    assert "together" not in str(nothing)
