"""Pictures of the second study, each from an `Analysis`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lagreach._util.disk import make_folder
from lagreach.report.style import FAINT, INK, label, legend, look
from lagreach.study.figures import save_figure, sheet
from studies.validation.bootstrap import Estimate
from studies.validation.calibration import SEEN
from studies.validation.learning_curves import predicted_log_n
from studies.validation.matching import BASELINES
from studies.validation.words import STAGE_WORDS
from studies.validation2 import goals
from studies.validation2.analysis import PRIMARY, Analysis
from studies.validation2.returned import RETURNED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = (
    *RETURNED, PRIMARY, "readable", "reachable", "budgeted", "share_now", "n_probe", "n_data", "gradient_ratio", "half_life",
    *BASELINES,
)  # fmt: skip
COLOURS = 6
NEVER = 7.6  # log10 N at which "never" is drawn


def _dot(axes: Axes, estimated: Estimate, height: float, index: int, name: str = "") -> None:
    """Draw an estimate with its interval, lying."""
    if np.isnan(estimated.value):
        return
    style = look(index) | {"linestyle": "none"}
    if estimated.measured:
        axes.plot(
            [estimated.low, estimated.high],
            [height, height],
            color=style["color"],
            linewidth=1.6,
            solid_capstyle="butt",
        )
    axes.plot([estimated.value], [height], label=name or None, **style)


def _family_look(index: int, size: float) -> dict[str, Any]:
    """Marks of one family; there are more families than colours."""
    style = look(index) if index < COLOURS else {"color": INK, "marker": "x"}
    edge = 0.0 if index < COLOURS else 0.8
    return {
        "color": style["color"],
        "marker": style["marker"],
        "markersize": size,
        "markeredgewidth": edge,
        "linestyle": "none",
    }


def second_auroc(analysis: Analysis) -> Figure:
    """AUROC of forecasts, the protocol's combination, their parts, windows, simple numbers and guesses.

    With 95 % intervals; 0.5 is a coin, 1 is perfect.
    """
    stages = analysis.rows.stages
    figure, (axes,) = sheet(1, 8.4, 1.2 + 0.5 * len(SHOWN))
    for i, stage in enumerate(stages):
        for k, name in enumerate(SHOWN):
            if name in BASELINES and i:
                continue
            spread = 0.0 if name in BASELINES else (i - (len(stages) - 1) / 2) * 0.15
            _dot(axes, analysis.score(name, stage).auroc, k + spread, i, STAGE_WORDS[stage] if k == 0 else "")
    axes.axvline(0.5, color=FAINT, linewidth=1, linestyle="--")
    axes.set_xlim(0.3, 1.02)
    axes.set_yticks(range(len(SHOWN)), [goals.plain_label(name) for name in SHOWN])
    axes.set_ylim(len(SHOWN) - 0.4, -0.6)
    label(axes, "AUROC for “lag learned”", "")
    legend(axes, loc="lower center", bbox_to_anchor=(0.3, 1.0), ncols=2)
    return figure


def second_families(analysis: Analysis) -> Figure:
    """AUROC of the protocol's combination in each family of tasks, without intervals: a family has one or two tasks."""
    families = sorted({family for _, _, family in analysis.by_family})
    stages = analysis.rows.stages
    figure, (axes,) = sheet(1, 7.4, 1.0 + 0.45 * len(families))
    for i, stage in enumerate(stages):
        for k, family in enumerate(families):
            estimated = Estimate(analysis.by_family[PRIMARY, stage, family].value)
            _dot(axes, estimated, k + (i - (len(stages) - 1) / 2) * 0.12, i, STAGE_WORDS[stage] if k == 0 else "")
    axes.axvline(0.5, color=FAINT, linewidth=1, linestyle="--")
    axes.set_xlim(0.0, 1.02)
    axes.set_yticks(range(len(families)), families)
    axes.set_ylim(len(families) - 0.4, -0.6)
    label(axes, "AUROC of the protocol's combination", "")
    legend(axes, loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2)
    return figure


def second_shares(analysis: Analysis) -> Figure:
    """Share found against the share forecast after 5 % of the training, one mark a lag of a training.

    Left the protocol's combination, right its budgeted part.
    """
    rows, stage = analysis.rows, goals.FIVE
    figure, axes = sheet(2, 4.4, 4.3)
    families = np.unique(rows["task"]).tolist()
    for ax, name in zip(axes, (PRIMARY, "budgeted"), strict=True):
        for i, family in enumerate(families):
            of_family = rows["task"] == family
            said, recovered = (
                rows.values[stage, name][of_family],
                np.clip(analysis.scored.recovered[of_family], -0.1, 1.2),
            )
            ax.plot(said, recovered, alpha=0.55, rasterized=True, label=family, **_family_look(i, 3))
        ax.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle="--")
        ax.axhline(0.5, color=FAINT, linewidth=1, linestyle=":")
        ax.set_xlim(-0.03, 1.03)
        ax.set_ylim(-0.13, 1.23)
        label(ax, goals.plain_label(name), "share found at the end")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper left", frameon=False, fontsize=8.5, ncols=7)
    return figure


def second_needed(analysis: Analysis) -> Figure:
    """Sequences at which a lag was learned against those for half of the protocol's combination, for curves that cross one half.

    Right edge: said to be never.
    """
    rows, curves = analysis.rows, analysis.curves
    figure, axes = sheet(2, 4.6, 4.0)
    use = (curves.limit == "samples") & (curves.side == SEEN)
    families = rows["task"][curves.first]
    for ax, stage in zip(axes, (goals.BEFORE, goals.FIVE), strict=True):
        said = np.minimum(predicted_log_n(rows, curves, "n_forecast", stage), NEVER)
        jitter = np.random.default_rng(0).uniform(-0.15, 0.15, len(said)) * (said == NEVER)
        for i, family in enumerate(np.unique(families).tolist()):
            of_family = use & (families == family)
            ax.plot(10 ** (said + jitter)[of_family], 10 ** curves.log_n[of_family], label=family, **_family_look(i, 4))
        ends = np.array([50.0, 6e4])
        ax.plot(ends, ends, color=INK, linewidth=1, linestyle="--")
        ax.fill_between(ends, ends / 3, ends * 3, color=FAINT, alpha=0.15, linewidth=0)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlim(20, 10 ** (NEVER + 0.4))
        ax.set_ylim(70, 5e4)
        label(ax, "sequences forecast", "sequences found", STAGE_WORDS[stage])
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper left", frameon=False, fontsize=8.5, ncols=7)
    return figure


FIGURES: dict[str, Callable[[Analysis], Figure]] = {
    f.__name__: f for f in (second_auroc, second_families, second_shares, second_needed)
}


def draw_all(analysis: Analysis, folder: Path) -> list[Path]:
    """Draw every figure as PNG and SVG; return the PNG files."""
    make_folder(folder)
    made = [folder / f"{name}.png" for name in FIGURES]
    for path, draw in zip(made, FIGURES.values(), strict=True):
        save_figure(draw(analysis), path)
    return made


def caption(name: str) -> str:
    """What a figure shows."""
    return " ".join((FIGURES[name].__doc__ or name).split())
