"""Figures of diagnoses, with matplotlib: each takes a `Diagnosis` or several and returns the Axes it drew on.

Pass `axes` to draw into a figure of your own; without it a fresh figure is made, which ``axes.figure.savefig`` writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lagreach.diagnosis.result import Diagnosis, LayerDiagnosis, NoiseSample
from lagreach.errors import InputError
from lagreach.report.pictures import lines, logarithmic, pictures
from lagreach.report.style import (
    BLUE,
    CYCLE,
    DASHES,
    FAINT,
    GREEN,
    INK,
    SHADE,
    VERMILION,
    label,
    lag_scale,
    legend,
    look,
    new_axes,
    no_minor_labels,
)  # fmt: skip
from lagreach.report.words import CLOCKS, named, share, time_scales
from lagreach.statistics import LagCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Diagnoses = Diagnosis | Sequence[Diagnosis]
LAG, REACH = "lag (steps back)", "longest lag within reach"
MOST_ABOVE = 1e6  # numbers this far above the budget are left out of the picture
BESIDE = ((GREEN, "--", ""), (BLUE, "", "s"), (INK, ":", ""))  # colour, dash and mark of curves on the right axis
TICKS = (0, *(sign * value for value in (1, 3, 10, 100, 1000, 10_000) for sign in (-1, 1)))  # of asinh axes


def each(diagnoses: Diagnoses) -> tuple[Diagnosis, ...]:
    """Return one diagnosis or several as a tuple."""
    several = (diagnoses,) if isinstance(diagnoses, Diagnosis) else tuple(diagnoses)
    if not several:
        raise InputError("there is nothing to draw", expected="one diagnosis or more")
    return several


def farthest(diagnosis: Diagnosis, layer: int | str | None = None) -> LayerDiagnosis:
    """Return the layer to draw: the given one, or the one that reaches farthest."""
    if layer is not None:
        return diagnosis.layer(layer)
    reach = [one.window.at(diagnosis.sequences).lag for one in diagnosis.layers]
    return diagnosis.layers[int(np.argmax([-1 if lag is None else lag for lag in reach]))]


def budgets(diagnoses: Sequence[Diagnosis], layer: int | str | None = None) -> np.ndarray:
    """Numbers of sequences that the windows of these diagnoses are worth drawing for."""
    needed = [farthest(one, layer).window.required_if_present().sequences for one in diagnoses]
    known = np.concatenate([numbers[np.isfinite(numbers)] for numbers in needed])
    most = max(one.sequences for one in diagnoses)
    low, high = (known.min(), known.max()) if len(known) else (1.0, most)
    return np.geomspace(max(1.0, low / 3), max(min(high, most * MOST_ABOVE), most, 10.0) * 3, 240)


def window(diagnoses: Diagnoses, axes: Axes | None = None, *, layer: int | str | None = None) -> Axes:
    """N(l) of a planted dependency with its interval, the dependences found (one diagnosis only), and the budget."""
    drawn = each(diagnoses)
    axes = new_axes(axes)
    for i, (diagnosis, name) in enumerate(zip(drawn, named(drawn), strict=True)):
        planted = farthest(diagnosis, layer).window.required_if_present()
        ends = np.isfinite(planted.low) & np.isfinite(planted.high)
        axes.fill_between(
            planted.lags, planted.low, planted.high, where=ends, color=CYCLE[i % len(CYCLE)], alpha=SHADE, lw=0
        )
        axes.plot(planted.lags, planted.sequences, label="if present" if len(drawn) == 1 else name, **look(i))
    budget = min(diagnosis.sequences for diagnosis in drawn)
    axes.axhline(budget, color=INK, lw=1.0, ls=(0, (4, 3)))
    if len(drawn) == 1:
        _mark_dependences(axes, farthest(drawn[0], layer))
    shown = [farthest(d, layer).window.required_if_present().sequences for d in drawn]
    if len(drawn) == 1:
        shown.append(farthest(drawn[0], layer).window.required.sequences)
    numbers = np.concatenate([n[np.isfinite(n)] for n in shown] + [np.array([float(budget)])])
    axes.set_yscale("log")
    axes.set_ylim(max(numbers.min(), 0.3) / 2, min(numbers.max(), max(numbers.min(), budget) * MOST_ABOVE) * 3)
    axes.text(0.01, budget, f"{budget:,} sequences", transform=axes.get_yaxis_transform(), va="bottom", fontsize=8.5)
    lag_scale(axes, np.concatenate([farthest(d, layer).window.lags for d in drawn]))
    no_minor_labels(axes)
    legend(axes, loc="upper left")
    strength = share(drawn[0].layers[0].window.strength)
    return label(axes, LAG, "sequences needed", f"What a dependency explaining {strength} of the target needs")


def _mark_dependences(axes: Axes, layer: LayerDiagnosis) -> None:
    """Mark the dependences found in the data."""
    needed = layer.window.required
    lags = [lag for lag in layer.window.dependences if np.isfinite(needed.at(lag)["sequences"])]
    if not lags:
        return
    seen = [needed.index(lag) for lag in lags]
    middle, low, high = needed.sequences[seen], needed.low[seen], needed.high[seen]
    arms = np.stack((middle - low, np.where(np.isfinite(high), high, middle) - middle)).clip(0)
    axes.errorbar(lags, middle, yerr=arms, fmt="D", color=VERMILION, ms=6, capsize=2.5, label="found in the data")


def reach(diagnoses: Diagnoses, axes: Axes | None = None, *, layer: int | str | None = None) -> Axes:
    """H_N against the number of sequences, with the window at both ends of the interval."""
    drawn = each(diagnoses)
    axes = new_axes(axes)
    grid = budgets(drawn, layer)
    for i, (diagnosis, name) in enumerate(zip(drawn, named(drawn), strict=True)):
        curve = farthest(diagnosis, layer).window.curve(grid.tolist())
        ends = np.array([[-0.12 if end is None else end for end in at.interval] for at in curve], dtype=float)
        middle = np.array([np.nan if at.lag is None else at.lag for at in curve], dtype=float)
        style = look(i) | {"marker": "", "drawstyle": "steps-post"}
        axes.fill_between(grid, ends[:, 0], ends[:, 1], step="post", color=style["color"], alpha=SHADE, lw=0)
        axes.plot(grid, middle, label=name if len(drawn) > 1 else None, **style)
    axes.set_xscale("log")
    axes.set_xlim(grid[0], grid[-1])
    lag_scale(axes, np.concatenate([farthest(d, layer).window.lags for d in drawn]), "y")
    legend(axes, loc="upper left")
    return label(axes, "sequences", REACH, "How far N sequences reach")


def gain(
    diagnoses: Diagnoses, axes: Axes | None = None, *, layer: int | str | None = None, scale: str = "semilog"
) -> Axes:
    """Exact gain; for one diagnosis also what stands beside it and the best law. `scale`: linear, semilog or loglog."""
    if scale not in ("linear", "semilog", "loglog"):
        raise InputError("unknown scale", got=repr(scale), expected="linear, semilog or loglog")
    drawn = each(diagnoses)
    axes = new_axes(axes)
    for i, (diagnosis, name) in enumerate(zip(drawn, named(drawn), strict=True)):
        result = farthest(diagnosis, layer)
        shown = [curve for curves in pictures(result.window).values() if logarithmic(curves) for curve in curves]
        alone = [(curve, *line) for curve in shown for line in lines(curve).items()]
        for k, (curve, title, log10) in enumerate(alone if len(drawn) == 1 else alone[:1]):
            keep = (curve.lags > 0 if scale == "loglog" else curve.lags >= 0) & np.isfinite(log10)
            if keep.any():
                axes.plot(
                    curve.lags[keep], 10.0 ** log10[keep], label=title if len(drawn) == 1 else name, **look(i + k)
                )
        if len(drawn) == 1:
            _best_law(axes, result, [curve for curve in shown if curve.look is not None and curve.look.fitted])
    if scale != "linear":
        axes.set_yscale("log")
    if scale == "loglog":
        axes.set_xscale("log")
    no_minor_labels(axes)
    legend(axes)
    return label(axes, LAG, "gain", "What is left of the loss gradient")


def _best_law(axes: Axes, layer: LayerDiagnosis, curves: Sequence[LagCurve]) -> None:
    """Draw the best fitted law beside the curves that it belongs to."""
    best = layer.regimes.best
    if best is None:
        return
    for curve in curves:
        past = curve.lags[curve.lags > 0]
        dense = np.geomspace(past.min(), past.max(), 200)
        axes.plot(dense, best.predict(dense), color=FAINT, lw=1.2, ls=":", label=f"{best.law} fit")


def fidelity(diagnoses: Diagnoses, axes: Axes | None = None, *, layer: int | str | None = None) -> Axes:
    """First order over exact, with the factor 3 within which they agree."""
    drawn = each(diagnoses)
    axes = new_axes(axes)
    axes.axhspan(1 / 3, 3, color=GREEN, alpha=0.1, lw=0)
    for i, (diagnosis, name) in enumerate(zip(drawn, named(drawn), strict=True)):
        gains = farthest(diagnosis, layer).fidelity
        axes.plot(gains.lags.numpy(), gains.ratio.numpy(), label=name if len(drawn) > 1 else None, **look(i))
    axes.set_yscale("log")
    lag_scale(axes, np.concatenate([farthest(d, layer).window.lags for d in drawn]))
    no_minor_labels(axes)
    legend(axes)
    return label(axes, LAG, "first order / exact", "How far first order can be trusted")


def dependence(diagnoses: Diagnoses, axes: Axes | None = None, *, layer: int | str | None = None) -> Axes:
    """Signal of each lag in the data (filled where significant) and, on the right axis, what model and state make of it."""
    measured = farthest(each(diagnoses)[0], layer).window
    axes = new_axes(axes)
    right, shown = axes.twinx(), [0.0, 1.0]
    for curve in (one for curves in pictures(measured).values() if not logarithmic(curves) for one in curves):
        for title, values in lines(curve).items():
            if curve.look is not None and curve.look.mark == "diamond":
                _diamonds(axes, curve.lags, values, measured.adjusted_p <= measured.error)
            elif np.isfinite(values).any():  # of a whole model some are not known
                colour, dash, mark = BESIDE[len(right.lines) % len(BESIDE)]
                right.plot(
                    curve.lags, values, color=colour, ls=dash, marker=mark, lw=1.5, ms=5, label=f"{title} (right)"
                )
                shown += values[np.isfinite(values)].tolist()
    axes.set_yscale("log")
    right.set_ylim(min(shown) - 0.02, max(shown) + 0.05)
    right.set_ylabel("share", color=GREEN)
    right.tick_params(colors=GREEN, labelsize=9)
    for side in right.spines.values():
        side.set_visible(False)
    lag_scale(axes, measured.lags)
    no_minor_labels(axes)
    handles, names = (
        a + b for a, b in zip(axes.get_legend_handles_labels(), right.get_legend_handles_labels(), strict=True)
    )
    axes.legend(handles, names, frameon=False, fontsize=8.5)
    return label(axes, LAG, "signal", "What the data depend on, and what the state holds")


def _diamonds(axes: Axes, lags: np.ndarray, values: np.ndarray, seen: np.ndarray) -> None:
    """Filled diamonds where the data depend on a lag, empty ones elsewhere."""
    for chosen, fill, name in ((seen, VERMILION, "found"), (~seen, "none", "not significant")):
        colour, shown = VERMILION if fill == VERMILION else FAINT, chosen & (values > 0)
        axes.plot(lags[shown], values[shown], "D", ms=6, mfc=fill, mec=colour, ls="", label=name)


def scales(diagnoses: Diagnoses, axes: Axes | None = None, *, layer: int | str | None = None) -> Axes:
    """Time scales of the units, in octaves."""
    drawn = each(diagnoses)
    axes = new_axes(axes)
    for i, (diagnosis, name) in enumerate(zip(drawn, named(drawn), strict=True)):
        spectrum = time_scales(farthest(diagnosis, layer))
        tau = np.array([]) if spectrum is None else spectrum.tau[np.isfinite(spectrum.tau)]
        if len(tau) == 0:
            continue
        edges = [2.0**k for k in range(math.floor(np.log2(tau.min())), math.floor(np.log2(tau.max())) + 2)]
        style: dict[str, Any] = {"color": CYCLE[i % len(CYCLE)], "label": name if len(drawn) > 1 else None}
        if len(drawn) == 1:
            axes.hist(tau, edges, alpha=0.75, rwidth=0.92, **style)
        else:
            axes.hist(tau, edges, histtype="step", lw=1.8, ls=DASHES[i % len(DASHES)], **style)
        axes.plot(tau, np.zeros(len(tau)), "|", color=INK, ms=9)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.5), max(high, 16))
    legend(axes)
    return label(axes, "time scale (steps)", "units", "How long the units retain")


def noise(diagnoses: Diagnoses, axes: Axes | None = None, *, layer: int | str | None = None) -> Axes:
    """Order statistics of the gradient noise against the quantiles of the fitted stable law."""
    from matplotlib.ticker import FixedLocator, NullLocator

    from lagreach.tails import stable

    result = farthest(each(diagnoses)[0], layer)
    sample = _kept(result)
    axes = new_axes(axes, (4.4, 4.2))
    fitted = np.asarray(stable.ppf(sample.levels, result.tail.alpha))
    values = (sample.values - result.tail.location) / result.tail.scale
    ends = (min(fitted.min(), values.min()), max(fitted.max(), values.max()))
    axes.plot(ends, ends, color=FAINT, lw=1.2, ls="--")
    axes.plot(fitted, values, ".", color=BLUE, ms=5)
    axes.set(xscale="asinh", yscale="asinh")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator([tick for tick in TICKS if ends[0] <= tick <= ends[1]]))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    low, high = result.tail.interval
    return label(
        axes, "fitted stable law", "measured noise", f"Noise: alpha {result.tail.alpha:.2f} ({low:.2f} to {high:.2f})"
    )


def tail(diagnoses: Diagnoses, axes: Axes | None = None, *, layer: int | str | None = None) -> Axes:
    """Share of sequences whose noise exceeds a multiple of its scale, measured and fitted."""
    from lagreach.tails import stable

    result = farthest(each(diagnoses)[0], layer)
    sample = _kept(result)
    axes = new_axes(axes, (4.4, 4.2))
    values = (sample.values - result.tail.location) / result.tail.scale
    above, below = values > 0.1, values < -0.1
    axes.plot(values[above], 1 - sample.levels[above], ".", color=BLUE, ms=5, label="upper tail")
    axes.plot(-values[below], sample.levels[below], "D", mfc="none", color=VERMILION, ms=3.5, label="lower tail")
    dense = np.geomspace(0.1, np.abs(values).max() * 1.2, 200)
    axes.plot(dense, np.asarray(stable.sf(dense, result.tail.alpha)), color=INK, lw=1.5, label="fitted stable law")
    axes.set(xscale="log", yscale="log")
    no_minor_labels(axes)
    legend(axes)
    return label(axes, "distance from the median, in scales", "share of sequences beyond", "Tails of the noise")


def _kept(layer: LayerDiagnosis) -> NoiseSample:
    if layer.noise is None:
        raise InputError("this diagnosis holds no noise sample", got=layer.name, fix="measure it again")
    if not math.isfinite(layer.tail.alpha):
        raise InputError(
            "no law was fitted to the noise",
            got=str(layer.tail.status),
            fix="draw another figure, or measure on more sequences",
        )
    return layer.noise


def comparison(diagnoses: Diagnoses, axes: Axes | None = None) -> Axes:
    """Windows of several diagnoses with their intervals, at the smallest number of sequences any was made for."""
    drawn = each(diagnoses)
    axes = new_axes(axes, (6.4, 1.2 + 0.35 * len(drawn)))
    budget = min(diagnosis.sequences for diagnosis in drawn)
    for row, diagnosis in enumerate(drawn):
        at = diagnosis.window(budget)
        if at.interval[1] is not None:
            ends = [0 if at.interval[0] is None else at.interval[0], at.interval[1]]
            axes.plot(ends, [row, row], color=BLUE, lw=5, alpha=0.4, solid_capstyle="round")
        if at.lag is not None:
            axes.plot([at.lag], [row], "o", color=BLUE, ms=7)
        else:
            axes.plot([0], [row], "x", color=VERMILION, ms=7)
    axes.set_yticks(range(len(drawn)), named(drawn))
    axes.set_ylim(len(drawn) - 0.5, -0.5)
    lag_scale(axes, np.concatenate([layer.window.lags for d in drawn for layer in d.layers]))
    return label(axes, REACH, "", f"With {budget:,} sequences")


def training(diagnoses: Diagnoses, axes: Axes | None = None) -> Axes:
    """Window over training, one line for each run; diagnoses need a label "epoch" or "step"."""
    drawn = each(diagnoses)
    clock = next((name for name in CLOCKS if all(name in one.labels for one in drawn)), None)
    if clock is None:
        raise InputError(
            "these diagnoses have no time", expected='a label "epoch" or "step" on each', fix="d.labelled(epoch=3)"
        )
    axes = new_axes(axes)
    budget = min(diagnosis.sequences for diagnosis in drawn)
    runs: dict[str, list[Diagnosis]] = {}
    for diagnosis in drawn:
        name = ", ".join(str(value) for key, value in diagnosis.labels.items() if key != clock)
        runs.setdefault(name, []).append(diagnosis)
    for i, (name, history) in enumerate(runs.items()):
        history.sort(key=lambda one: float(one.labels[clock]))
        times = [float(one.labels[clock]) for one in history]
        at = [one.window(budget) for one in history]
        ends = np.array([[0 if end is None else end for end in one.interval] for one in at], dtype=float)
        axes.fill_between(times, ends[:, 0], ends[:, 1], color=CYCLE[i % len(CYCLE)], alpha=SHADE, lw=0)
        reached = [np.nan if one.lag is None else one.lag for one in at]
        axes.plot(times, reached, label=name or None, **look(i))
    lag_scale(axes, np.concatenate([layer.window.lags for d in drawn for layer in d.layers]), "y")
    legend(axes)
    return label(axes, clock, REACH, f"The window of {budget:,} sequences over training")
