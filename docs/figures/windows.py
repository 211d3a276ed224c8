"""Pictures for practitioners: how a gradient fades, how it drowns in noise, and what a window is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

import lagreach
from lagreach.detection import detection_error
from lagreach.report import figures
from lagreach.report.style import BLUE, FAINT, GREEN, INK, VERMILION, label, legend, look, new_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLANTED = ((3, 0.8), (12, 0.5), (40, 0.4))  # lags of the example's target, and their weights


def planted_lags(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of 64 steps whose target depends on the lags above."""
    x = torch.randn(count, 64, 2, generator=generator)
    y = 0.3 * torch.randn(count, 64, 1, generator=generator)
    for lag, weight in PLANTED:
        y[:, lag:, 0] += weight * x[:, :-lag, 0]
    return x, y


def example() -> lagreach.diagnosis.result.Diagnosis:
    """A small LSTM before training; its report is the one the documentation links to."""
    generator = torch.Generator().manual_seed(1)
    data = planted_lags(600, generator)
    model = lagreach.GatedRNN("lstm", 2, 16, 1, generator=generator)
    lags = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48]
    diagnosis = lagreach.diagnose(model, data, lags=lags, sequences=8000)
    return diagnosis.labelled(cell="lstm")


def fading() -> Figure:
    """What is left of the loss gradient after some steps back, for three forget biases."""
    axes = new_axes(None, (6.4, 3.4))
    lags = list(range(0, 61, 3))
    for i, bias in enumerate((0.0, 0.5, 1.0)):
        generator = torch.Generator().manual_seed(0)
        x, y = planted_lags(32, generator)
        model = lagreach.GatedRNN("lstm", 2, 32, 1, forget_bias=bias, generator=generator)
        gain = lagreach.fidelity(model, x, y, lags).exact
        axes.plot(lags, gain, label=f"forget bias {bias:g}", **look(i))
    axes.set_yscale("log")
    legend(axes)
    label(axes, "lag (steps back)", "share of the gradient left", "A gradient fades on its way back through an LSTM")
    return axes.figure


def drowning() -> Figure:
    """The average gradient along a lag's direction, with and without the dependency, for three numbers of sequences."""
    from matplotlib.figure import Figure

    signal, noise = 0.3, 1.0
    figure = Figure(figsize=(8.4, 2.9), dpi=150, layout="constrained")
    for axes, count in zip(figure.subplots(1, 3, sharey=True), (10, 120, 500), strict=True):
        new_axes(axes)
        spread = noise / np.sqrt(count)
        at = np.linspace(-0.9, 1.2, 600)
        for centre, colour, name in ((0.0, FAINT, "absent"), (signal, BLUE, "present")):
            # a stable law of index 2 is the normal law, with standard deviation scale * sqrt(2)
            density = np.asarray(lagreach.stable.pdf((at - centre) / (spread / np.sqrt(2)), 2.0))
            axes.fill_between(at, density / density.max(), color=colour, alpha=0.35, lw=0, label=name)
        axes.axvline(signal / 2, color=INK, lw=1, ls=(0, (4, 3)))
        wrong = float(detection_error(count, signal, noise))
        axes.set_yticks([])
        shown = f"in {wrong:.0%}" if wrong > 0.001 else "in under 0.1%"
        label(axes, "average gradient along the lag", "", f"{count} sequences: wrong {shown}")
    legend(figure.axes[0], loc="upper left")
    return figure


def needed() -> Figure:
    """N(l) of the example with the budget, and the window where they meet."""
    diagnosis = example()
    axes = figures.window(diagnosis)
    reach = diagnosis.window(8000).lag
    axes.axvspan(-0.12, reach, color=GREEN, alpha=0.10, lw=0)
    axes.annotate(
        f"the window of 8,000\nsequences: lag {reach}",
        (reach, 8000),
        xytext=(0.70, 0.05),
        textcoords="axes fraction",
        fontsize=9,
        color=GREEN,
        arrowprops={"arrowstyle": "->", "color": GREEN},
    )
    return axes.figure


def training() -> Figure:
    """Sequences needed before and after training on lags 3 and 12: training opens some lags and closes others."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(count, 48, 2, generator=generator)
        y = 0.3 * torch.randn(count, 48, 1, generator=generator)
        y[:, 3:, 0] += 0.7 * x[:, :-3, 0]
        y[:, 12:, 0] += 0.7 * x[:, :-12, 0]
        return x, y

    model = lagreach.GatedRNN("lstm", 2, 16, 1, forget_bias=1.0, generator=generator)
    held_out, lags = draw(400), [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    before = lagreach.diagnose(model, held_out, lags=lags, sequences=5000)
    for _ in range(400):
        x, y = draw(32)
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    after = lagreach.diagnose(model, held_out, lags=lags, sequences=5000)
    axes = figures.window([before.labelled(checkpoint="untrained"), after.labelled(checkpoint="after 400 steps")])
    for lag in (3, 12):
        axes.axvline(lag, color=VERMILION, lw=1, ls=":")
    legend(axes, loc="lower right")
    return axes.figure
