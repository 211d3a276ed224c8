"""Pictures of the validation study, each from an `Analysis`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lagreach._util.disk import make_folder
from lagreach.report.style import BLUE, FAINT, GREEN, INK, SHADE, VERMILION, label, legend, look
from lagreach.study.figures import save_figure, sheet
from studies.validation import words
from studies.validation.ablations import WORTH_CHANGING
from studies.validation.analysis import THRESHOLD, WINDOW, Analysis
from studies.validation.bootstrap import Estimate
from studies.validation.calibration import ABOVE, BELOW, SEEN
from studies.validation.learning_curves import predicted_log_n
from studies.validation.matching import BASELINES
from studies.validation.predictor_scores import LIMITS
from studies.validation.scoring import out_of_task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LIMIT_LOOK = {"samples": (BLUE, "o"), "optimisation": (VERMILION, "s"), "capacity": (GREEN, "D")}
BINS = 10
FEWEST_IN_BIN = 10
FARTHEST = 4.0  # decades from the predicted border that a picture shows


def _dot(axes: Axes, estimate: Estimate, height: float, index: int, name: str = "") -> None:
    """One estimate with its interval, lying."""
    if np.isnan(estimate.value):
        return
    style = look(index) | {"linestyle": "none"}
    if estimate.measured:
        axes.plot(
            [estimate.low, estimate.high], [height, height], color=style["color"], linewidth=1.6, solid_capstyle="butt"
        )
    axes.plot([estimate.value], [height], label=name or None, **style)


def _rows(axes: Axes, names: list[str]) -> None:
    """Names of rows, from top to bottom."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)


def _legend_above(figure: Figure, axes: Axes) -> None:
    """One legend for several axes, where it hides nothing."""
    handles, names = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside upper left", frameon=False, fontsize=8.5, ncols=4)


def auroc(analysis: Analysis) -> Figure:
    """AUROC of every predictor at every stage, with 95 % intervals; 0.5 is a coin, 1 is perfect."""
    stages = analysis.scored.rows.stages
    names = list(dict.fromkeys(score.predictor for score in analysis.scores if score.predictor not in BASELINES))
    names += [name for name in BASELINES if analysis.score(name, stages[0])]
    figure, (axes,) = sheet(1, 8.0, 0.9 + 0.42 * len(names))
    for i, stage in enumerate(stages):
        first = True
        for k, name in enumerate(names):
            scored = analysis.score(name, stage)
            if scored is not None:
                spread = 0.0 if name in BASELINES else (i - (len(stages) - 1) / 2) * 0.18
                title = words.STAGE_WORDS[stage] if first and not np.isnan(scored.auroc.value) else ""
                _dot(axes, scored.auroc, k + spread, i, title)
                first = first and not title
    axes.axvline(0.5, color=FAINT, linewidth=1, linestyle="--")
    low = min((s.auroc.low for s in analysis.scores if s.auroc.measured), default=0.5)
    axes.set_xlim(min(0.45, low - 0.03), 1.02)
    _rows(axes, [words.label(name, plain=True) for name in names])
    label(axes, "AUROC for “lag learned”", "")
    legend(axes, loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2)
    return figure


def calibration(analysis: Analysis) -> Figure:
    """Sequences at which a lag was learned against the number predicted before training, one mark a curve.

    Triangles lie at the ends of the range: learned already at the smallest N, or not even at the largest.
    """
    rows, curves = analysis.scored.rows, analysis.curves
    stage = rows.stages[0]
    figure, axes = sheet(2, 4.6, 4.2)
    for ax, predictor in zip(axes, WINDOW, strict=True):
        ax.set_xscale("log")
        ax.set_yscale("log")
        label(
            ax,
            "N predicted (right edge: this many, or never)",
            "N at which it was learned",
            words.label(predictor, plain=True),
        )
        if (stage, predictor) not in rows.values or not len(curves):
            continue
        x = predicted_log_n(rows, curves, predictor, stage)
        low, high = curves.log_n.min() - 0.3, curves.log_n.max() + 0.3
        left, right = low - 2.5, high + 3.5
        inside = np.clip(np.where(np.isnan(x), np.nan, x), left, right)
        jitter = np.random.default_rng(0).uniform(-0.12, 0.12, len(x))
        for limit in LIMITS:
            colour, _ = LIMIT_LOOK[limit]
            for side, marker in ((SEEN, "o"), (BELOW, "v"), (ABOVE, "^")):
                marked = (curves.limit == limit) & (curves.side == side) & ~np.isnan(x)
                y = curves.log_n[marked] + (jitter[marked] if side != SEEN else 0)
                style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 3, "linestyle": "none"}
                ax.plot(10 ** inside[marked], 10**y, rasterized=True, markeredgewidth=0, **style)
            ax.plot([], [], color=colour, marker="o", linestyle="none", markersize=5, label=f"limit: {limit}")
        ends = np.array([10**left, 10**right])
        ax.plot(ends, ends, color=INK, linewidth=1, linestyle="--", label="as predicted")
        ax.set_xlim(10 ** (left - 0.2), 10 ** (right + 0.2))
        ax.set_ylim(10**low, 10**high)
    _legend_above(figure, axes[0])
    return figure


def reliability(analysis: Analysis) -> Figure:
    """Share learned against the probability said before training, in tenths; links fitted to the other tasks."""
    scored = analysis.scored
    rows, stage = scored.rows, scored.rows.stages[0]
    figure, axes = sheet(2, 4.4, 4.0)
    for ax, as_claimed in zip(axes, (True, False), strict=True):
        for i, predictor in enumerate((*WINDOW, "paper_window")):
            if (stage, predictor) not in rows.values:
                continue
            x = rows.score(predictor, stage)
            use = np.isfinite(scored.recovered) & ~np.isnan(x)
            rows_in_use = (x[use], scored.learned[use], rows["task"][use], scored.weights[use])
            said = out_of_task(*rows_in_use, as_claimed=as_claimed)
            if not len(said) or np.isnan(said).any():
                continue
            place = np.minimum((said * BINS).astype(int), BINS - 1)
            points = [
                (
                    np.average(said[b], weights=rows_in_use[3][b]),
                    np.average(rows_in_use[1][b], weights=rows_in_use[3][b]),
                )
                for b in (place == k for k in range(BINS))
                if b.sum() >= FEWEST_IN_BIN
            ]
            if points:
                ax.plot(*np.array(points).T, label=words.label(predictor, plain=True), **look(i))
        ax.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle="--")
        ax.set_xlim(-0.03, 1.03)
        ax.set_ylim(-0.03, 1.03)
        label(ax, "probability said", "share learned", "taken at its word" if as_claimed else "after recalibration")
    _legend_above(figure, axes[0])
    return figure


def recovery(analysis: Analysis) -> Figure:
    """Recovered score against N / N predicted before training: median and middle half of each task."""
    scored = analysis.scored
    rows, stage = scored.rows, scored.rows.stages[0]
    figure, axes = sheet(2, 4.6, 3.9)
    edges = np.arange(-FARTHEST, FARTHEST + 0.25, 0.5)
    for ax, predictor in zip(axes, WINDOW, strict=True):
        ax.set_xscale("log")
        label(ax, "N / N predicted", "recovered share of the lag", words.label(predictor, plain=True))
        ax.axvline(1.0, color=FAINT, linewidth=1, linestyle="--")
        ax.axhline(THRESHOLD, color=FAINT, linewidth=1, linestyle=":")
        ax.set_ylim(-0.15, 1.1)
        if (stage, predictor) not in rows.values:
            continue
        x = rows.score(predictor, stage)
        for i, task in enumerate(np.unique(rows["task"])):
            in_task = (rows["task"] == task) & np.isfinite(scored.recovered) & np.isfinite(x)
            place = np.digitize(x[in_task], edges)
            parts = [(edges[k - 1] + 0.25, scored.recovered[in_task][place == k]) for k in range(1, len(edges))]
            parts = [(middle, part) for middle, part in parts if len(part) >= FEWEST_IN_BIN]
            if not parts:
                continue
            middles = np.power(10.0, [middle for middle, _ in parts])
            low, median, high = np.array([np.quantile(part, (0.25, 0.5, 0.75)) for _, part in parts]).T
            style = look(i)
            ax.plot(middles, median, label=str(task), **style)
            ax.fill_between(middles, low, high, color=style["color"], alpha=SHADE / 2, linewidth=0)
    _legend_above(figure, axes[0])
    return figure


def limits(analysis: Analysis) -> Figure:
    """Curves by what limits them: share promised before training at the largest N, and AUROC within each group."""
    stage = analysis.scored.rows.stages[0]
    figure, axes = sheet(2, 4.8, 2.9)
    for i, predictor in enumerate(WINDOW):
        score = analysis.score(predictor, stage)
        for k, limit in enumerate(LIMITS):
            result, height = analysis.calibration(predictor, stage, limit), k + (i - 0.5) * 0.3
            name = words.label(predictor, plain=True) if k == 0 else ""
            if result is not None and not np.isnan(result.promised.value):
                axes[0].barh(height, result.promised.value, 0.26, color=look(i)["color"], label=name or None)
            if score is not None:
                _dot(axes[1], score.by_limit[limit], height, i)
    names = [f"{limit}\n({analysis.counts.curves_by_limit[limit]} curves)" for limit in LIMITS]
    _rows(axes[0], names)
    _rows(axes[1], [""] * len(LIMITS))
    axes[0].set_xlim(0, 1)
    axes[1].axvline(0.5, color=FAINT, linewidth=1, linestyle="--")
    axes[1].set_xlim(0, 1.02)
    label(axes[0], "share predicted to be learned at the largest N", "")
    label(axes[1], "AUROC within the group", "")
    _legend_above(figure, axes[0])
    return figure


def tails(analysis: Analysis) -> Figure:
    """Sequences needed against Gaussian noise, and the exponent of N, by tail index; lines are the predictions."""
    figure, axes = sheet(2, 4.4, 3.6)
    for i, clipped in enumerate((False, True)):
        effects = sorted((e for e in analysis.tails if e.clipped == clipped), key=lambda e: e.alpha)
        name, shifted = ("clipped", 0.015) if clipped else ("plain", -0.015)
        style = look(i)
        for ax, measure, predicted in (
            (axes[0], "shift", "predicted_shift"),
            (axes[1], "exponent", "predicted_exponent"),
        ):
            known = [(e.alpha, getattr(e, measure)) for e in effects if not np.isnan(getattr(e, measure).value)]
            lines = [(e.alpha, getattr(e, predicted)) for e in effects]
            if lines:
                ax.plot(*np.array(lines).T, color=style["color"], linewidth=1, linestyle=style["linestyle"])
            for k, (alpha, value) in enumerate(known):
                if value.measured:
                    ax.plot([alpha + shifted] * 2, [value.low, value.high], color=style["color"], linewidth=1.6)
                marks = style | {"linestyle": "none"}
                ax.plot([alpha + shifted], [value.value], label=f"{name}, measured" if k == 0 else None, **marks)
    label(axes[0], "tail index alpha", "shift of log10 N against alpha = 2", "sequences needed")
    label(axes[1], "tail index alpha", "exponent of noise / signal", "exponent")
    legend(axes[0])
    return figure


def ablations(analysis: Analysis) -> Figure:
    """AUROC gained or lost by another choice than the default, with 95 % intervals; grey: too small to matter."""
    compared = analysis.ablations
    names = list(dict.fromkeys((a.predictor, a.factor, a.level) for a in compared))
    stages = list(dict.fromkeys(a.stage for a in compared))
    figure, (axes,) = sheet(1, 7.4, 1.2 + 0.34 * len(names))
    axes.axvspan(-WORTH_CHANGING, WORTH_CHANGING, color=FAINT, alpha=0.15, linewidth=0)
    axes.axvline(0.0, color=FAINT, linewidth=1)
    named: set[str] = set()
    for one in compared:
        i = stages.index(one.stage)
        height = names.index((one.predictor, one.factor, one.level)) + (i - (len(stages) - 1) / 2) * 0.22
        title = words.STAGE_WORDS[one.stage] if one.stage not in named and not np.isnan(one.gain.value) else ""
        _dot(axes, one.gain, height, i, title)
        if title:
            named.add(one.stage)
    _rows(axes, [f"{predictor}: {factor} = {level}" for predictor, factor, level in names])
    label(axes, "AUROC less that of the default", "")
    legend(axes, loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2)
    return figure


FIGURES: dict[str, Callable[[Analysis], Figure]] = {
    f.__name__: f for f in (auroc, calibration, reliability, recovery, limits, tails, ablations)
}
NEEDS = {"tails": "tails", "ablations": "ablations"}  # figures that there is nothing to draw for without this part


def drawn(analysis: Analysis) -> list[str]:
    """Names of the figures that can be drawn."""
    return [name for name in FIGURES if name not in NEEDS or getattr(analysis, NEEDS[name])]


def draw_all(analysis: Analysis, folder: Path) -> list[Path]:
    """Draw every figure as PNG and SVG; return the PNG files."""
    make_folder(folder)
    made = []
    for name in drawn(analysis):
        made.append(folder / f"{name}.png")
        save_figure(FIGURES[name](analysis), made[-1])
    return made


def caption(name: str) -> str:
    """What a figure shows."""
    return " ".join((FIGURES[name].__doc__ or name).split())
