"""Forecasts early in a training: what will be learned, said after 1 % and 5 % of the planned steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lagreach._util.bounds import check_bounds
from lagreach.callbacks.flat import PREFIX
from lagreach.data.sequences import Sequences
from lagreach.errors import InputError
from lagreach.forecasting.forecast import forecast
from lagreach.forecasting.result import Forecast
from lagreach.forecasting.words import plainly

EARLY = (0.01, 0.05)  # parts of the planned steps after which a forecast is made
# what `diagnose` and `forecast` both take, and what the latter calls otherwise
SHARED = ("loss", "lags", "strength", "error", "seed", "call", "require", "outputs")
RENAMED = {"steps": "target_steps"}


class Foreteller:
    """Forecasts that are due early in a training.

    Parameters
    ----------
    planned
        Steps that the training will take.
    parts
        Parts of them after which a forecast is made.
    options
        As for `lagreach.diagnose`; those that a forecast knows are handed on.
    """

    def __init__(self, planned: int, parts: Sequence[float], options: Mapping[str, Any]) -> None:
        check_bounds(planned=planned)
        wrong = [part for part in parts if not 0 < part <= 1]
        if wrong:
            raise InputError(
                "forecasts come after parts of the training", got=wrong, expected="numbers such as 0.01 and 0.05"
            )
        self.planned = planned
        self._due = sorted({max(1, math.ceil(part * planned)) for part in parts})
        self._sequences = options.get("sequences")
        self._optimiser = options.get("optimizer")
        self._options = {name: options[name] for name in SHARED if options.get(name) is not None}
        self._options |= {new: options[old] for old, new in RENAMED.items() if options.get(old) is not None}

    def due(self, before: int, now: int) -> bool:
        """Whether one of the steps after `before` and up to `now` has a forecast."""
        return any(before < step <= now for step in self._due)

    def forecast(self, model: nn.Module, data: Sequences, now: int, budget: float | None) -> Forecast:
        """Forecast from the model as it is, for the steps that are left."""
        options = dict(self._options)
        left = self.planned - now
        if isinstance(self._optimiser, torch.optim.Optimizer) and left > 0:
            options |= {"optimiser": self._optimiser, "steps": left}
        numbers = () if self._sequences is None else (int(self._sequences),)
        return forecast(model, data, numbers or (len(data),), budget=budget, progress=False, **options)

    def say(self, made: Forecast, now: int) -> str:
        """One plain sentence about what will be learned.

        From the sequences that are planned for, else as many as were looked at.
        """
        part = _percent(now / self.planned)
        return f"forecast at step {now:,} of {self.planned:,} ({part}): {plainly(made, max(made.sequences))}"


def _percent(part: float) -> str:
    """A part in percent, in two digits where it has no more.

    >>> _percent(1), _percent(0.01), _percent(0.0025)
    ('100 %', '1 %', '0.25 %')
    """
    return f"{100 * part:.2g} %" if part < 0.1 else f"{100 * part:.0f} %"


def forecast_metrics(made: Forecast) -> dict[str, float]:
    """Share of each lag that will be recovered, as flat numbers for trackers."""
    shares = made.if_present.values[:, -1]
    return {f"{PREFIX}forecast_lag_{lag}": float(share) for lag, share in zip(made.lags, shares, strict=True)}
