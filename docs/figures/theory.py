"""Pictures of the theory: expansion and exact transport, tails and averages, laws, the echo, the cut-off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

import lagreach
from lagreach.papers.cayci import bounds
from lagreach.regimes import window_growth
from lagreach.report.style import FAINT, INK, label, legend, look, new_axes, no_minor_labels
from lagreach.tails import stable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def expansion() -> Figure:
    """Exact gain and first order of two networks: one where the expansion holds, one where it fails."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.2), dpi=150, layout="constrained")
    lags = list(range(0, 49, 3))
    cases = ((0.05, "gates that overwrite 5 % a step"), (0.5, "gates that overwrite half"))
    for axes, (overwritten, name) in zip(figure.subplots(1, 2), cases, strict=True):
        new_axes(axes)
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(16, 64, 4, generator=generator)
        y = torch.randn(16, 64, 1, generator=generator)
        model = lagreach.GatedRNN("diag_gate", 4, 32, 1, gate_init=overwritten, generator=generator)
        gains = lagreach.fidelity(model, x, y, lags)
        axes.plot(lags, gains.exact, label="exact", **look(0))
        axes.plot(lags, gains.first_order, label="first order", **look(1))
        axes.set_yscale("log")
        no_minor_labels(axes)
        label(axes, "lag (steps back)", "gain", name)
    legend(figure.axes[1])
    return figure


def densities() -> Figure:
    """Densities of symmetric stable laws of scale one."""
    axes = new_axes(None, (6.4, 3.4))
    at = np.geomspace(0.1, 100, 400)
    for i, alpha in enumerate((2.0, 1.8, 1.5, 1.2)):
        style = look(i) | {"marker": ""}
        axes.plot(at, np.asarray(stable.pdf(at, alpha)), label=f"alpha = {alpha:g}", **style)
    axes.set(xscale="log", yscale="log", ylim=(1e-7, 1))
    no_minor_labels(axes)
    legend(axes)
    label(axes, "size, in scales", "density", "Stable laws: the smaller alpha, the heavier the tail")
    return axes.figure


def averages() -> Figure:
    """How fast averages settle: a heavy-tailed law, and two with finite variance, one of which only looks heavy."""
    axes = new_axes(None, (6.4, 3.6))
    rng = np.random.default_rng(0)
    samples = {
        "Gaussian": rng.normal(size=8000),
        "product of two Gaussians": rng.normal(size=8000) * rng.normal(size=8000),
        "stable, alpha = 1.5": np.asarray(stable.rvs(1.5, 8000, rng)),
    }
    for i, (name, values) in enumerate(samples.items()):
        rate, fitted = lagreach.concentration(values, generator=0), lagreach.fit_tail(values, generator=0)
        sizes, spreads = np.array(rate.sizes), np.array(rate.spreads)
        words = f"{name}: fitted alpha {fitted.alpha:.2f}, measured kappa {rate.kappa:.2g}"
        axes.plot(sizes, spreads / spreads[0], label=words, **look(i))
    at = np.array([1.0, 128.0])
    axes.plot(at, at**-0.5, color=FAINT, lw=1, ls=":", label="1 / sqrt(m)")
    axes.set(xscale="log", yscale="log")
    no_minor_labels(axes)
    legend(axes, loc="lower left")
    label(axes, "sequences averaged, m", "spread of the average", "A fitted alpha does not say how averages settle")
    return axes.figure


def growth() -> Figure:
    """How far N sequences reach if the envelope follows each of the four laws."""
    axes = new_axes(None, (6.4, 3.6))
    laws = (
        ("exponential", {"tau": 10.0}, "exponential, tau = 10"),
        ("stretched", {"tau": 10.0, "b": 0.5}, "stretched, tau = 10, b = 0.5"),
        ("power", {"beta": 1.0}, "power, beta = 1"),
    )
    counts = np.geomspace(30, 1e7, 200)
    for i, (law, parameters, name) in enumerate(laws):
        grown = window_growth(law, {"c": 1.0, **parameters}, kappa=2.0, constant=10.0)
        reach = np.asarray(grown.at(counts))
        axes.plot(counts, reach, label=name, **(look(i) | {"marker": ""}))
    axes.set(xscale="log", yscale="log")
    no_minor_labels(axes)
    legend(axes)
    label(axes, "sequences", "longest lag within reach", "More data buys reach by the law of the decay")
    return axes.figure


def echo() -> Figure:
    """Significance by lag where targets have nothing to do with inputs: raw mean gradient, and swap contrast."""
    axes = new_axes(None, (6.4, 3.4))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1024, 48, 2, generator=generator)
    y = torch.randn(1024, 48, 1, generator=generator)
    model = lagreach.GatedRNN("diag_gate", 2, 24, 1, gate_init=0.2, generator=generator)
    lags = [0, 2, 4, 6, 8, 12, 16, 24]
    for i, (signal, name) in enumerate((("gradient", "raw mean gradient"), ("dependence", "swap contrast"))):
        window = lagreach.diagnose(model, (x, y), lags=lags, signal=signal).layers[0].window
        axes.plot(lags, window.adjusted_p, label=name, **look(1 - i))
    axes.axhline(0.05, color=INK, lw=1, ls=(0, (4, 3)))
    axes.text(0.99, 0.05, "5 %", transform=axes.get_yaxis_transform(), ha="right", va="bottom", fontsize=8.5)
    axes.set_yscale("log")
    no_minor_labels(axes)
    legend(axes, loc="lower right")
    label(
        axes, "lag (steps back)", "adjusted p-value", "Targets independent of the inputs: only one of the two is fooled"
    )
    return axes.figure


def cutoff() -> Figure:
    """The constant that bounds gradients of a diagonal network, against the size of its recurrent weights."""
    axes = new_axes(None, (6.4, 3.4))
    alphas = np.linspace(0.05, 1.5, 80)
    for i, steps in enumerate((5, 20, 80)):
        constants = [bounds.certified("tanh", float(alpha), steps).L for alpha in alphas]
        axes.plot(alphas, constants, label=f"{steps} steps", **(look(i) | {"marker": ""}))
    axes.axvline(1.0, color=INK, lw=1, ls=(0, (4, 3)))
    axes.set_yscale("log")
    no_minor_labels(axes)
    legend(axes, loc="upper left")
    label(axes, "size of the recurrent weights", "L", "Below the cut-off the bound does not grow with time")
    return axes.figure
