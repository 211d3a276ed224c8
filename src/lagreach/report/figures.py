"""Figures of a diagnosis, with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lagreach.diagnosis import LayerDiagnosis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#1f5fa8", "#d2691e", "#8a8f98"


def window_figure(layer: LayerDiagnosis, sequences: float) -> Figure:
    """N(l) for a planted dependency with its interval, the dependences found, and the budget line."""
    from matplotlib.figure import Figure

    window = layer.window
    probe = window.required_if_present()
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    lags = window.lags
    axes.fill_between(
        lags, probe.low, np.where(np.isfinite(probe.high), probe.high, probe.sequences), color=BLUE, alpha=0.18, lw=0
    )
    axes.plot(lags, probe.sequences, color=BLUE, lw=1.8, label=f"needed for {100 * window.strength:g} % of the target")
    found = np.isin(lags, window.dependences)
    if found.any():
        seen = window.required
        middle, low, high = seen.sequences[found], seen.low[found], seen.high[found]
        high = np.where(np.isfinite(high), high, middle)
        error = np.maximum(np.stack((middle - low, high - middle)), 0.0)
        axes.errorbar(
            lags[found], middle, yerr=error, fmt="o", color=ORANGE, ms=6, capsize=3, label="found in the data"
        )
    axes.axhline(sequences, color=GREY, lw=1.2, ls="--", label=f"{sequences:,.0f} sequences")
    reach = window.at(sequences).lag
    if reach is not None:
        axes.axvline(reach, color=GREY, lw=0.8, ls=":")
    axes.set_yscale("log")
    axes.set_xscale("symlog", linthresh=4, linscale=0.7)
    axes.set_xlim(0, lags[-1])
    axes.set(xlabel="lag (steps back)", ylabel="sequences needed", title=f"{layer.name}: what each lag needs")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="upper left")
    return figure


def gain_figure(layer: LayerDiagnosis) -> Figure:
    """Exact and first-order gain over lag."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axes = figure.subplots()
    lags = layer.fidelity.lags.numpy()
    axes.plot(lags, layer.fidelity.log10_exact, color=BLUE, lw=1.8, label="exact")
    first = layer.fidelity.log10_first_order.numpy()
    finite = np.isfinite(first)
    if finite.any():
        axes.plot(lags[finite], first[finite], color=ORANGE, lw=1.4, ls="--", label="first order")
    axes.set(
        xlabel="lag (steps back)", ylabel="log10 of the gain", title=f"{layer.name}: what is left of the loss gradient"
    )
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    return figure
