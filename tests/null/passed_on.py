"""Inputs that pass on what others say, differently in the course of their sequences: which lags are named?

Targets depend on one lag, or on none; what is said of it is compared by `tests.reliability.passed_on` in many draws.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

import lagreach
from lagreach._util.threads import one_thread
from lagreach.report.words import in_doubt

LAGS = [0, 1, 2, 3, 4, 5, 6, 7, 10, 13]
HOW = ("diagnose", "forecast")
Drawn = tuple[Tensor, Tensor, int]


class Layer(nn.Module):
    """A layer of torch with a readout."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layer, self.read = nn.LSTM(inputs, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.layer(x)[0])


def later(x: Tensor, lag: int) -> Tensor:
    """Values so many steps later, zero before."""
    return pad(x[:, :-lag], (0, 0, lag, 0))


def following(sequences: int, time: int, inputs: int, keep: float) -> Tensor:
    """Autoregressions, after a run-in."""
    x = torch.randn(sequences, time + 100, inputs)
    for step in range(1, time + 100):
        x[:, step] += keep * x[:, step - 1]
    return x[:, 100:]


def noise(sequences: int, time: int) -> Tensor:
    """One column of independent numbers."""
    return torch.randn(sequences, time, 1)


def column_of_lags() -> Drawn:
    """A column is another one three steps later, and zero before."""
    x = following(300, 40, 1, 0.7)
    return torch.cat((x, later(x, 3) + 0.3 * noise(300, 40)), dim=2), later(x, 5) + noise(300, 40), 5


def seasonal_walk() -> Drawn:
    """Each step is the one seven steps before and a little more, and is forecast from its own past."""
    x = 3 * torch.randn(200, 50, 1)
    for step in range(7, 50):
        x[:, step] = x[:, step - 7] + torch.randn(200, 1)
    return x[:, 7:49], x[:, 8:50], 6


def walk() -> Drawn:
    """Walks that begin at zero."""
    x = noise(200, 30).cumsum(1)
    return x, later(x, 3) + noise(200, 30), 3


def walk_from_its_own_level() -> Drawn:
    """Walks, each from a level of its own."""
    x = noise(200, 30).cumsum(1) + 10 * noise(200, 1)
    return x, later(x, 3) + noise(200, 30), 3


def trend() -> Drawn:
    """A trend of every sequence's own beside noise."""
    x = noise(200, 40) + 3 * noise(200, 1) * torch.arange(40.0)[:, None] / 40
    return x, later(x, 4) + noise(200, 40), 4


def loudness() -> Drawn:
    """Steady, but each sequence with a loudness of its own."""
    x = torch.randn(250, 1, 2).exp() * following(250, 40, 2, 0.8)
    return x, later(x[..., :1], 4) + noise(250, 40), 4


KINDS: dict[str, Callable[[], Drawn]] = {
    "a column that is a lag of another, zero at first": column_of_lags,
    "a season with a walk of its own": seasonal_walk,
    "walks": walk,
    "walks from levels of their own": walk_from_its_own_level,
    "trends": trend,
    "loudness": loudness,
}


@one_thread()
def named(kind: str, how: str, seed: int, planted: bool = True) -> tuple[set[int], int, bool]:
    """Lags that are named, the true one, and whether it is said that some may only pass on what others say.

    Unless a dependence is `planted`, the targets are those of other draws.
    """
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        x, y, true = KINDS[kind]()
        model = Layer(x.shape[2])
        if not planted:
            y = KINDS[kind]()[1]
        if how == "diagnose":
            window = lagreach.diagnose(model, (x, y), lags=LAGS).layers[0].window
            return set(window.dependences), true, in_doubt(window)
        forecast = lagreach.forecast(model, (x, y), [len(x)], LAGS, weights="readout")
    return {lag for lag, found in zip(forecast.lags, forecast.found, strict=True) if found}, true, False
