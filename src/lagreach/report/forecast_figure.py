"""The picture of a forecast: what will be recovered of each lag and what binds, above the sequences that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lagreach._util.extras import require_extra
from lagreach.errors import InputError
from lagreach.forecasting.limits import (
    BLENDED,
    FEW_SEQUENCES,
    FEW_STEPS,
    LIMITS,
    NONE_FOUND,
    REACHABLE,
    READABLE,
    UNKNOWN,
    UNSEEN,
)
from lagreach.forecasting.result import Forecast
from lagreach.report.style import BLUE, FAINT, GREEN, GRID, INK, OCHRE, PURPLE, VERMILION, label, legend, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    READABLE: GREEN,
    REACHABLE: BLUE,
    FEW_SEQUENCES: OCHRE,
    FEW_STEPS: PURPLE,
    BLENDED: VERMILION,
    UNSEEN: FAINT,
    NONE_FOUND: GRID,
    UNKNOWN: GRID,
}
LEARNED = (READABLE, REACHABLE)
BRIEFLY = {  # beside its colour
    READABLE: "readable: the state holds it",
    REACHABLE: "reachable: training gets there",
    FEW_SEQUENCES: "few sequences: more data would do",
    FEW_STEPS: "few steps: longer training would do",
    BLENDED: "blended: mixed up with its neighbours",
    UNSEEN: "unseen: no trace of it",
    NONE_FOUND: "none found in the data",
    UNKNOWN: "unknown: no target has an input that old, or it cannot be told",
}
MOST_TICKS = 26
SURE = 10.0  # numbers that are known to no better a factor are not drawn


def forecast_figure(forecast: Forecast, sequences: int | None = None) -> Figure:
    """Draw bars and curves of one forecast, over the same lags."""
    require_extra("report")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 6.4), dpi=150, layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 2), sharex=True)
    recovered(forecast, upper, sequences=sequences)
    upper.set_xlabel("")
    takes(forecast, lower, sequences=sequences)
    return figure


def recovered(forecast: Forecast, axes: Axes | None = None, *, sequences: int | None = None) -> Axes:
    """One bar a lag: the share that will be recovered, coloured by what binds; diamonds for the lags in the data."""
    count = _number(forecast, sequences)
    now = forecast.at(count)
    shares, words = now.if_present, now.limits_at(count)
    values, low, high = (part[:, 0] for part in (shares.values, shares.low.values, shares.high.values))
    in_data = np.where(forecast.adjusted_p <= forecast.error, now.in_data.values[:, 0], np.nan)
    title = f"What will be learned from {count:,} sequences"
    return draw_bars(axes, [str(lag) for lag in forecast.lags], values, low, high, words, in_data, title=title)


def draw_bars(
    axes: Axes | None,
    lags: Sequence[str],
    values: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    words: Sequence[str],
    in_data: np.ndarray,
    *,
    title: str,
) -> Axes:
    """Draw shares by lag with their intervals, coloured by what binds; `in_data` are shares of what is in the data, or NaN."""
    axes = new_axes(axes, (7.2, 4.0))
    place, known = np.arange(len(values)), np.isfinite(values)
    for word in LIMITS:
        chosen = np.array([one == word for one in words]) & known
        if chosen.any():
            solid = word in LEARNED
            axes.bar(
                place[chosen], np.maximum(values[chosen], 0.004), 0.78, color=COLOURS[word] if solid else "white",
                edgecolor=COLOURS[word], hatch=None if solid else "////", lw=1.2, label=BRIEFLY[word],
            )  # fmt: skip
    arms = np.maximum([values - low, high - values], 0.0)
    axes.errorbar(place[known], values[known], arms[:, known], fmt="none", ecolor=INK, elinewidth=0.9, capsize=1.5)
    there = np.isfinite(in_data)
    if there.any():
        axes.plot(place[there], in_data[there], "D", ms=6, mfc="white", mec=INK, mew=1.4, ls="", label="in the data")
    axes.axhline(0.5, color=FAINT, lw=0.9, ls="--")
    axes.set_ylim(0, 1.05)
    _name_lags(axes, lags)
    legend(axes, loc="upper right")
    return label(axes, "lag (steps back)", "share recovered", title)


def takes(forecast: Forecast, axes: Axes | None = None, *, sequences: int | None = None) -> Axes:
    """Sequences from which a lag is seen, half of it is readable, and half of it is reachable."""
    count = _number(forecast, sequences)
    axes = new_axes(axes, (7.2, 3.0))
    place = np.arange(len(forecast.lags))
    for name, colour, dash, marker in (
        ("seen", FAINT, ":", "s"), (READABLE, GREEN, "-", "o"), (REACHABLE, BLUE, "--", "D"),
    ):  # fmt: skip
        numbers = forecast.takes(name)
        if numbers is None:
            continue
        shown = np.isfinite(numbers.value[:, 0])
        if name == "seen":
            with np.errstate(invalid="ignore"):
                shown &= numbers.high[:, 0] / numbers.value[:, 0] <= SURE
        values = np.where(shown, np.maximum(numbers.value[:, 0], 1.0), np.nan)
        titled = name if name == "seen" else f"half of it {name}"
        axes.plot(place, values, color=colour, ls=dash, marker=marker, ms=4, lw=1.7, label=titled)
    axes.axhline(count, color=INK, lw=1.0, ls="--")
    axes.text(0.0, count, f" {count:,} sequences", transform=axes.get_yaxis_transform(), va="bottom", fontsize=8.5)
    axes.set_yscale("log")
    top = axes.get_ylim()[1]
    axes.set_ylim(0.7, min(max(top, 3.0 * count), 1e7 * max(1.0, count / 1e4)))
    _name_lags(axes, [str(lag) for lag in forecast.lags])
    legend(axes, loc="lower right")
    return label(axes, "lag (steps back)", "sequences", "")


def _number(forecast: Forecast, sequences: int | None) -> int:
    count = forecast.available if sequences is None else sequences
    if count < 1:
        raise InputError("sequences are a positive number", got=sequences, expected="1 or more")
    return count


def _name_lags(axes: Axes, lags: Sequence[str]) -> None:
    """Every lag has a place of the same width; of many, some are named."""
    every = -(-len(lags) // MOST_TICKS)
    named = range(0, len(lags), every)
    axes.set_xticks(list(named), [lags[i] for i in named])
    axes.set_xlim(-0.7, len(lags) - 0.3)
    axes.grid(visible=False, axis="x")
