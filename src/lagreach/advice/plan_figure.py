"""The picture of a `lagreach.advice.plan.Plan`: sequences needed against lag, with the budget and the windows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from lagreach._util.extras import require_extra
from lagreach.types import Status

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from lagreach.advice.plan import Aggregation, Plan

# Two hues that stay apart in print and for colour-blind readers; everything else is grey.
_COLOURS = {"mean": "#b3442e", "clipped": "#1f6f8b"}
_INK, _FAINT = "#2b2b2b", "#7a7a7a"
_DECADES_ABOVE = 3  # shown above the budget, so that the curves can be seen to leave it
_MOST_DECADES = 12  # shown without a budget


def plan_figure(plan: Plan) -> Figure:
    """Draw a plan on a figure of its own; nothing global is touched."""
    require_extra("report")
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    bottom, top, longest = _extent(plan)
    figure = Figure(figsize=(7.2, 4.8), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set(xscale="log", yscale="log", xlim=(1.0, longest), ylim=(bottom, top))
    axes.set_xlabel("lag", color=_INK)
    axes.set_ylabel("sequences needed", color=_INK)

    if plan.sequences is not None:
        axes.axhspan(bottom, plan.sequences, color="#f3f3f1", zorder=0)
        axes.axhline(plan.sequences, color=_INK, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.annotate(
            f"{plan.sequences:,.0f}\nsequences",
            (longest, plan.sequences),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=_INK,
        )
    lags = np.geomspace(1.0, longest, 400)
    for way in (plan.mean, plan.clipped):
        if way.growth is not None:
            axes.plot(lags, np.fmax(way.growth.required(lags), 1.0), color=_COLOURS[way.name], linewidth=2.2)
        _mark_window(axes, plan, way)
    # N grows with the lag, so the upper left corner is free for the names of the curves
    for row, way in enumerate((plan.mean, plan.clipped)):
        axes.text(
            0.025,
            0.945 - 0.062 * row,
            _name(plan, way, top),
            transform=axes.transAxes,
            color=_COLOURS[way.name],
            fontsize=10,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5},
        )

    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(which="both", colors=_FAINT, labelcolor=_INK)
    axes.grid(which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_FAINT)
    axes.set_title(_title(plan), loc="left", fontsize=12, color=_INK, pad=36)
    settings = f"envelope f(l) = {plan.formula}, signal {plan.signal:.4g}, error {plan.error:g}\nnoise {plan.noise}"
    axes.text(0.0, 1.025, settings, transform=axes.transAxes, fontsize=8.5, color=_FAINT, linespacing=1.35)
    return figure


def _title(plan: Plan) -> str:
    if plan.sequences is None:
        return "How many sequences a lag takes"
    reach = [_reach(way) for way in (plan.mean, plan.clipped)]
    return f"{plan.sequences:,.0f} sequences reach {reach[0]} by the mean, {reach[1]} with clipping"


def _reach(way: Aggregation) -> str:
    if way.window is not None:
        return f"lag {way.window:,}"
    return "any lag" if way.status is Status.WINDOW_UNBOUNDED else "no lag"


def _extent(plan: Plan) -> tuple[float, float, float]:
    """Bottom and top of the sequence axis and right end of the lag axis, so that what matters is inside."""
    growths = [way.growth for way in (plan.mean, plan.clipped) if way.growth is not None]
    starts = [float(growth.required(1.0)) for growth in growths]
    anchor = [plan.sequences] if plan.sequences is not None else []
    low = max(1.0, min([*starts, *anchor]))
    # an aggregation that starts hopelessly far up is named in the corner, not drawn
    high = max([start for start in starts if start < 1e6 * max(low, *anchor, 1.0)] + anchor)
    top = high * 10.0**_DECADES_ABOVE
    if plan.sequences is None:
        ends = [float(growth.required(plan.lags.max())) for growth in growths]
        top = min(max(top, *ends), low * 10.0**_MOST_DECADES)
    longest = np.nanmax([10.0, *(float(growth.at(top)) for growth in growths)])
    bottom = max(0.5, 10.0 ** math.floor(math.log10(low)) / 3.0)
    return bottom, top, float(min(longest, max(plan.lags.max(), 10.0)))


def _name(plan: Plan, way: Aggregation, top: float) -> str:
    words = "mean over sequences" if way.name == "mean" else f"clipped at {plan.clip:g} scales"
    if way.name == "clipped" and plan.batch > 1:
        words += f" after means of {plan.batch:,}"
    if way.growth is None:
        return f"{words}: no number suffices"
    first = float(way.growth.required(1.0))
    return f"{words}: {first:.0e} at lag 1" if first > top else words


def _mark_window(axes: Axes, plan: Plan, way: Aggregation) -> None:
    other = plan.clipped if way is plan.mean else plan.mean
    if way.window is None or way.growth is None or way.window > axes.get_xlim()[1]:
        return
    colour = _COLOURS[way.name]
    height = max(float(way.growth.required(way.window)), 1.0)
    axes.vlines(way.window, axes.get_ylim()[0], height, color=colour, linewidth=1.2, linestyle=":")
    axes.plot([way.window], [height], marker="o", markersize=6.5, color=colour, clip_on=False, zorder=5)
    # the label leans away from a neighbouring window and into the picture
    neighbour = way.window > 1 and other.window is not None and way.window < other.window < 2 * way.window
    left = neighbour or math.log(way.window) > 0.8 * math.log(axes.get_xlim()[1])
    axes.annotate(
        f"lag {way.window:,}",
        (way.window, axes.get_ylim()[0]),
        xytext=(-4 if left else 4, 5),
        textcoords="offset points",
        ha="right" if left else "left",
        color=colour,
        fontsize=9,
    )


def _tick(value: float) -> str:
    if 1 <= value < 1e5:
        return f"{value:,.0f}"
    return rf"$10^{{{round(math.log10(value))}}}$"
