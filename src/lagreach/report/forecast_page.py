"""The page of a forecast: what will be learned of each lag and what binds, first as a picture, then in words and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lagreach._util.disk import as_path
from lagreach._util.extras import require_extra
from lagreach.forecasting.kinds import meanings
from lagreach.forecasting.limits import LIMITS, NONE_FOUND
from lagreach.forecasting.result import Forecast
from lagreach.forecasting.words import (
    NOT_SEEN,
    count,
    in_words,
    notes,
    nothing_found,
    record_of,
    sentence,
    spans,
    to_do,
)
from lagreach.report.forecast_figure import LEARNED
from lagreach.report.forecast_payload import NOT_TESTED, forecast_payload, packed, shown_lags
from lagreach.report.payload import two_digits
from lagreach.report.writing import write_page

SCRIPTS = ("draw.js", "bars.js", "shares.js", "theme.js", "forecast.js")
TITLE = "What will be learned"


def write_forecast(forecast: Forecast, path: str | Path, *, title: str = TITLE) -> Path:
    """Write the page; an existing one is replaced at the end, or not at all."""
    require_extra("report")
    payload = forecast_payload(forecast)
    chosen, meaning = shown_lags(forecast), meanings(forecast.kind)
    return write_page(
        "forecast.html.j2",
        SCRIPTS,
        as_path(path),
        title=title,
        about=dict(forecast.about),
        answer=first_sentence(forecast),
        in_data=_in_data(forecast),
        record=record_of(forecast),
        to_do=to_do(forecast),
        sequences=f"{forecast.available:,}",
        share=f"{100 * forecast.strength:g} %",
        sliders=payload["sliders"],
        rows=_rows(forecast, chosen),
        left_out=len(forecast.lags) - len(chosen),
        glossary=[(word, meaning[word]) for word in LIMITS if word in forecast.limits_at(forecast.available)],
        within=forecast.within is not None,
        warnings=forecast.warnings,
        notes=notes(forecast),
        facts=_facts(forecast),
        packed=packed(payload),
    )


def first_sentence(forecast: Forecast) -> str:
    """Say what will be learned from the sequences one has."""
    return f"From {forecast.available:,} sequences, {in_words(forecast)}."


def _in_data(forecast: Forecast) -> str:
    words, there = forecast.limits.values.tolist(), forecast.found
    if not any(there):
        return f"{nothing_found(forecast)} The bars say what would be learned if it did."
    lags = f"{'lags' if sum(there) > 1 else 'lag'} {spans(forecast.lags, there)}"
    return f"Your targets depend on {lags} (diamonds): {sentence(forecast.lags, words)}."


def _rows(forecast: Forecast, chosen: np.ndarray) -> list[dict[str, Any]]:
    """The table as it is without a script."""
    now = forecast.at(forecast.available)
    shares, words = now.if_present, now.limits_at(forecast.available)
    data, seen, needed = now.in_data, now.seen.values, now.needed.values
    otherwise = np.where(np.isnan(now.adjusted_p), NOT_TESTED, NONE_FOUND)
    return [
        {
            "lag": now.lags[i],
            "share": share_in_words(shares.values[i, 0]),
            "range": range_in_words(shares.low.values[i, 0], shares.high.values[i, 0]),
            "in_data": share_in_words(data.values[i, 0]) if now.found[i] else str(otherwise[i]),
            "seen": count(seen[i], NOT_SEEN),
            "needed": count(needed[i]),
            "word": words[i],
            "light": "good" if words[i] in LEARNED else "bad",
        }
        for i in chosen
    ]


def share_in_words(share: float) -> str:
    """A share as people write it: 94 %."""
    return "unknown" if np.isnan(share) else f"{100 * share:.0f} %"


def range_in_words(low: float, high: float) -> str:
    """An interval of shares."""
    return "" if np.isnan(low) or np.isnan(high) else f"({100 * low:.0f} to {100 * high:.0f})"


def _facts(forecast: Forecast) -> Mapping[str, str]:
    numbers = ", ".join(
        f"{k} = {v:.3g}" if isinstance(v, float) else f"{k} = {v}" for k, v in forecast.settings.items()
    )
    facts = {
        "settings": f"{numbers}, error = {forecast.error:g}",
        "labels": ", ".join(f"{k} = {v}" for k, v in forecast.labels.items()),
        "data fingerprint": forecast.fingerprint,
        "versions": ", ".join(f"{name} {number}" for name, number in forecast.versions.items()),
        "time": ", ".join(f"{name} {two_digits([seconds])[0]:g} s" for name, seconds in forecast.seconds.items()),
    }
    return {name: value for name, value in facts.items() if value}
