"""How often lags were learned that were forecast at such shares: what a forecast says of itself.

`track_record.json` is counted by ``python -m studies.validation2 record`` in the trainings of the second validation study.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def counts() -> dict[str, Any]:
    """Trainings, edges between shares, and lags learned and all, by kind of forecast, stage of the training and share."""
    text = files("lagreach.forecasting").joinpath("track_record.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def rates(kind: str, stage: str) -> list[str]:
    """Part of the lags that were learned, from the highest shares to the lowest.

    >>> len(rates("budgeted", "after_5_percent"))
    3
    """
    return [f"{100 * learned / of:.0f} %" for learned, of in reversed(counts()["learned_of"][kind][stage])]


def track_record(*, budgeted: bool) -> str:
    """Say what forecasts are worth; `budgeted` ones know the optimiser and its steps."""
    kind = "budgeted" if budgeted else "unlimited"
    (high, between, low), later = rates(kind, "before"), rates(kind, "after_5_percent")
    tenth, half = (f"{100 * edge:g} %" for edge in counts()["edges"])
    said = (
        f"Track record, {counts()['trainings']:,} trainings with known dependencies: of lags forecast at {half} or more before "
        f"training {high} were learned, of those at {tenth} to {half} {between}, of those below {low}; after 5 % of the training "
        f"{in_a_row(later)}."
    )
    if budgeted:
        return said
    return (
        f"{said} Forecasts that know the optimiser and its steps (optimiser=, steps=), after 5 %: "
        f"{in_a_row(rates('budgeted', 'after_5_percent'))}."
    )


def in_a_row(numbers: list[str]) -> str:
    """Join numbers.

    >>> in_a_row(["55 %", "20 %", "4 %"])
    '55 %, 20 % and 4 %'
    """
    return f"{', '.join(numbers[:-1])} and {numbers[-1]}"
