"""Small forecasts with everything that can be there or missing."""

from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import nn

import lagreach
from tests.forecasting.models import Recurrent, data, lagged


@cache
def whole():
    """Readout, all weights, and a budget of steps; the targets depend on lags 1 and 4."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(160, 24, 2, generator=generator)
    y = 0.7 * lagged(x, 1) + 0.5 * lagged(x, 4) + 0.4 * torch.randn(160, 24, 1, generator=generator)
    model = Recurrent()
    return lagreach.forecast(
        model, (x, y), lags=[0, 1, 2, 3, 4, 6, 9, 14, 20, 23], directions=24, steps=300, strength=0.1,
        optimiser=torch.optim.Adam(model.parameters(), 3e-3),
    )  # fmt: skip


@cache
def readout():
    """The readout alone, and targets that depend on nothing."""
    x, _ = data(96, 16)
    y = torch.randn(96, 16, 1, generator=torch.Generator().manual_seed(5))
    return lagreach.forecast(Recurrent("RNN"), (x, y), lags=[0, 1, 2, 5], weights="readout")


@cache
def many_lags():
    """More lags than a page has room for."""
    x, y = data(96, 200)
    return lagreach.forecast(Recurrent(), (x, y), lags=range(190), directions=16)


class Idle(nn.Module):
    """A readout of nothing but the present."""

    def __init__(self):
        super().__init__()
        self.read = nn.Linear(2, 1)

    def forward(self, x):
        return self.read(x)


@cache
def idle():
    return lagreach.forecast(Idle(), data(64, 12, lag=0), lags=[0, 1, 2], weights="readout")


@cache
def untold():
    """Windows of one short series, of which no dependence can be told."""
    made = readout()
    return replace(made, adjusted_p=np.full(len(made.lags), np.nan))


FORECASTS = {"whole": whole, "readout": readout, "many_lags": many_lags, "idle": idle, "untold": untold}
