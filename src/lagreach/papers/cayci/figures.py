"""Figures of the experiments (matplotlib): medians with the range over starts, and the predicted slope as a dashed line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lagreach._util.disk import save_figure
from lagreach._util.extras import require_extra
from lagreach.papers.cayci.curves import Curve, Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def figure(experiment: Experiment, file: str | Path | None = None) -> Figure:
    """Draw an experiment, one panel per axis (and one of their own for the certified quantities of "memory").

    Parameters
    ----------
    experiment
        What `lagreach.papers.cayci.experiments.run` gave.
    file
        Where to save it (png, svg or pdf); None to save nothing.
    """
    require_extra("report")
    from matplotlib.figure import Figure

    panels = _panels(experiment)
    drawn = Figure(figsize=(5.2 * len(panels), 4.8), layout="constrained")
    for axes, curves in zip(np.atleast_1d(drawn.subplots(1, len(panels))), panels, strict=True):
        _draw(axes, curves)
        if experiment.name == "memory":
            axes.axvline(experiment.facts["cut-off"], color="0.6", linestyle=":", label="cut-off")
        axes.legend(fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.15))
    drawn.suptitle(f"{experiment.question[0].upper()}{experiment.question[1:]}")
    if file is not None:
        save_figure(drawn, Path(file))
    return drawn


def _panels(experiment: Experiment) -> list[list[Curve]]:
    """Curves that share an axis share a panel; certified numbers dwarf measured ones and get their own."""
    groups: dict[Any, list[Curve]] = {}
    for curve in experiment.curves:
        certain = experiment.name == "memory" and (curve.name.startswith("certified") or curve.name == "mu_T")
        by_what = curve.name.rsplit(": ", 1)[-1] if experiment.name == "projection" else ""
        groups.setdefault((curve.against, certain, by_what), []).append(curve)
    return list(groups.values())


def _draw(axes: Axes, curves: list[Curve]) -> None:
    for k, curve in enumerate(curves):
        colour = f"C{k}"
        with np.errstate(invalid="ignore"):
            middle = np.ma.masked_invalid(curve.typical)
            low, high = (np.ma.masked_invalid(part) for part in (curve.values.min(1), curve.values.max(1)))
        label = curve.name if curve.predicted is None else f"{curve.name}, {curve.slope}"
        axes.plot(curve.x, middle, color=colour, marker="o", markersize=3, label=label)
        axes.fill_between(curve.x, low, high, color=colour, alpha=0.15, linewidth=0)
        if curve.predicted is not None:
            k0 = curve.fit_from
            line = middle[k0] * (curve.x[k0:] / curve.x[k0]) ** curve.predicted
            axes.plot(curve.x[k0:], line, color=colour, linestyle="--", linewidth=1)
    if curves[0].against != "alpha":
        axes.set_xscale("log")
        axes.set_xticks(curves[0].x, labels=[f"{x:.4g}" for x in curves[0].x])
        axes.minorticks_off()
    axes.set_yscale("log")
    axes.set_xlabel(curves[0].against)
