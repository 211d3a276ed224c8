"""Figures 1 to 4 of the paper, from diagnoses of any models: envelopes, windows, scaling, spectra of time scales."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from lagreach._util.extras import require_extra
from lagreach.errors import InputError
from lagreach.report.figures import LAG, REACH, Diagnoses, budgets, each, farthest
from lagreach.report.style import BLUE, CYCLE, FAINT, INK, SHADE, label, legend, look, new_axes, no_minor_labels
from lagreach.report.words import named, time_scales

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST_SPREAD = 0.02  # of log time scales: below, all units share one and a density means nothing


def _panels(count: int, size: tuple[float, float]) -> tuple[Axes, ...]:
    require_extra("report")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * count, size[1]), dpi=150, layout="constrained")
    return tuple(new_axes(axes) for axes in np.ravel(figure.subplots(1, count)))


def figure_1(diagnoses: Diagnoses) -> tuple[Axes, ...]:
    """Envelopes f(l) of the effective learning rates: linear, semi-logarithmic and log-log, with the best law of each."""
    shown = each(diagnoses)
    panels = _panels(3, (4.0, 3.4))
    for i, (diagnosis, name) in enumerate(zip(shown, named(shown), strict=True)):
        rates = farthest(diagnosis).rates
        if rates is None:
            continue
        past = rates.lags.numpy() > 0
        for axes in panels:
            axes.plot(rates.lags.numpy()[past], rates.envelope.numpy()[past], label=name, **look(i))
    for axes, title in zip(panels, ("(a) linear", "(b) semi-log", "(c) log-log"), strict=True):
        label(axes, LAG, "envelope f(l)", title)
    for axes in panels[1:]:
        axes.set_yscale("log")
    panels[2].set_xscale("log")
    for axes in panels:
        no_minor_labels(axes)
    legend(panels[0])
    return panels


def figure_2(diagnoses: Diagnoses, axes: Axes | None = None) -> Axes:
    """Empirical learnability windows H_N against the number of independent sequences N."""
    shown = each(diagnoses)
    axes = new_axes(axes)
    grid = budgets(shown)
    for i, (diagnosis, name) in enumerate(zip(shown, named(shown), strict=True)):
        curve = farthest(diagnosis).window.curve(grid.tolist())
        style = look(i) | {"marker": "", "drawstyle": "steps-post"}
        ends = np.array([[0 if end is None else end for end in at.interval] for at in curve], dtype=float)
        axes.fill_between(grid, ends[:, 0], ends[:, 1], step="post", color=style["color"], alpha=SHADE, lw=0)
        axes.plot(grid, [0 if at.lag is None else at.lag for at in curve], label=name, **style)
    axes.set_xscale("log")
    axes.set_xlim(grid[0], grid[-1])
    axes.set_ylim(bottom=0)
    legend(axes, loc="upper left")
    return label(axes, "sequences N", REACH, "Empirical learnability windows")


def figure_3(diagnoses: Diagnoses, axes: Axes | None = None) -> Axes:
    """Scaling N(l) against 1/f(l) on logarithmic axes; the slope of the line is the exponent."""
    shown = each(diagnoses)
    axes = new_axes(axes, (4.8, 4.2))
    drawn = 0
    for i, (diagnosis, name) in enumerate(zip(shown, named(shown), strict=True)):
        layer = farthest(diagnosis)
        if layer.rates is None:
            continue
        needed = layer.window.required_if_present()
        x, y = -layer.rates.log10_envelope.numpy(), np.log10(needed.sequences)
        kept = np.isfinite(x) & np.isfinite(y) & (needed.lags > 0)
        if kept.sum() < 3:
            continue
        slope, offset = np.polyfit(x[kept], y[kept], 1)
        style = look(i)
        axes.plot(10 ** x[kept], 10 ** y[kept], ls="", label=f"{name}: slope {slope:.2f}", **_points(style))
        ends = np.array([x[kept].min(), x[kept].max()])
        axes.plot(10**ends, 10 ** (offset + slope * ends), color=style["color"], lw=1.2, ls=style["linestyle"])
        drawn += 1
    if not drawn:
        raise InputError("no diagnosis has three lags with a finite N and an envelope", fix="examine more lags")
    axes.set(xscale="log", yscale="log")
    no_minor_labels(axes)
    legend(axes, loc="upper left")
    return label(axes, "1 / f(l)", "sequences needed N(l)", "Scaling of the sample complexity")


def _points(style: dict[str, Any]) -> dict[str, Any]:
    return {name: style[name] for name in ("color", "marker", "markersize")}


def figure_4(diagnoses: Diagnoses) -> tuple[Axes, ...]:
    """Distribution of the units' time scales, one panel for each diagnosis; a line where all units share one."""
    shown = each(diagnoses)
    panels = _panels(len(shown), (3.4, 3.2))
    pairs = zip(shown, named(shown), panels, strict=True)
    for i, (diagnosis, name, axes) in enumerate(pairs):
        scales = time_scales(farthest(diagnosis))
        tau = np.array([]) if scales is None else scales.tau[np.isfinite(scales.tau)]
        label(axes, "time scale (steps)", "density", name)
        axes.set_xscale("log")
        if len(tau) == 0:
            axes.text(0.5, 0.5, "no unit has a time scale", transform=axes.transAxes, ha="center", color=FAINT)
            continue
        _density(axes, tau, CYCLE[i % len(CYCLE)])
        axes.plot(tau, np.zeros(len(tau)), "|", color=INK, ms=9)
        axes.set_ylim(bottom=0)
    return panels


def _density(axes: Axes, tau: np.ndarray, colour: str = BLUE) -> None:
    """Density over the logarithm of time scales."""
    logs = np.log10(tau)
    if len(tau) < 3 or logs.std() < LEAST_SPREAD:
        axes.axvline(float(np.median(tau)), color=colour, lw=2.5)
        axes.text(
            float(np.median(tau)), 0.9, f"  {np.median(tau):.2g}", transform=axes.get_xaxis_transform(), color=INK
        )
        axes.set_xlim(float(np.median(tau)) / 10, float(np.median(tau)) * 10)
        axes.set_yticks([])
        return
    from scipy.stats import gaussian_kde

    dense = np.linspace(logs.min() - 0.5, logs.max() + 0.5, 300)
    density = gaussian_kde(logs)(dense)
    axes.fill_between(10**dense, density, color=colour, alpha=SHADE, lw=0)
    axes.plot(10**dense, density, color=colour, lw=1.8)
    if math.log10(tau.max() / tau.min()) < 1:  # room for decades to show
        middle = 10 ** logs.mean()
        axes.set_xlim(middle / 10, middle * 10)
