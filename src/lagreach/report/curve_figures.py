"""Figures of numbers per lag that know none of them by name, and the bars that a page opens with."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from lagreach._util.extras import require_extra
from lagreach.errors import InputError
from lagreach.report.figures import LAG, Diagnoses, each, farthest
from lagreach.report.forecast_figure import draw_bars
from lagreach.report.recovered import recovered
from lagreach.report.style import BLUE, lag_scale, new_axes, no_minor_labels
from lagreach.report.style import label as name_axes
from lagreach.statistics import LagCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3
TITLE = 36  # letters of a title in a line
WIDE = 30  # values that span more than this factor stand on a logarithmic axis


def bars(diagnoses: Diagnoses, axes: Axes | None = None) -> Axes:
    """One bar a lag: the share that training the last layer recovers, coloured by what binds; diamonds for lags in the data."""
    diagnosis = each(diagnoses)[0]
    shown = recovered(diagnosis)
    if shown is None:
        raise InputError(
            "this diagnosis holds no shares", got="lags of a whole model, a wide layer or a loss of your own",
            fix="lagreach.forecast(model, data).plot()",
        )  # fmt: skip
    marks = np.where(shown.in_data, shown.share, np.nan)
    return draw_bars(
        axes, shown.named, shown.share, shown.low, shown.high, shown.words, marks,
        title=f"What would be learned from {diagnosis.sequences:,} sequences",
    )  # fmt: skip


def curves(diagnoses: Diagnoses, *, layer: int | str | None = None) -> tuple[Axes, ...]:
    """Every number per lag of one diagnosis in a small picture of its own, whichever there are."""
    require_extra("report")
    from matplotlib.figure import Figure

    window = farthest(each(diagnoses)[0], layer).window
    drawn = [curve for curve in window.curves.values() if np.isfinite(curve.value).any()]
    rows = -(-len(drawn) // COLUMNS)
    figure = Figure(figsize=(3.6 * COLUMNS, 2.6 * rows), dpi=150, layout="constrained")
    places = np.ravel(figure.subplots(rows, COLUMNS, squeeze=False))
    for axes, curve in zip(places, drawn, strict=False):
        draw_curve(curve, axes)
    for axes in places[len(drawn) :]:
        axes.remove()
    return tuple(places[: len(drawn)])


def draw_curve(curve: LagCurve, axes: Axes | None = None) -> Axes:
    """Draw a number per lag with its interval; what spans decades stands on a logarithmic axis."""
    axes = new_axes(axes)
    axes.plot(curve.lags, np.where(np.isfinite(curve.value), curve.value, np.nan), "o-", color=BLUE, ms=3.5, lw=1.6)
    ends = np.isfinite(curve.low) & np.isfinite(curve.high) & np.isfinite(curve.value)
    if ends.any():  # bars, not a band: lags without a number lie between
        value, low, high = (numbers[ends] for numbers in (curve.value, curve.low, curve.high))
        arms = np.maximum([value - low, high - value], 0.0)
        axes.errorbar(curve.lags[ends], value, arms, fmt="none", ecolor=BLUE, elinewidth=1.0, capsize=2)
    finite = curve.value[np.isfinite(curve.value)]
    if len(finite) and finite.min() > 0 and finite.max() > WIDE * finite.min():
        axes.set_yscale("log")
    lag_scale(axes, curve.lags)
    no_minor_labels(axes)
    return name_axes(axes, LAG, curve.unit or ("log10" if curve.log10 else ""), textwrap.fill(curve.title, TITLE))
