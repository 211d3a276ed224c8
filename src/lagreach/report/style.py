"""One look for every matplotlib figure: colour-blind safe, quiet axes, nothing global touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lagreach._util.extras import require_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, darkened where they are too light for lines on white.
BLUE, VERMILION, GREEN, PURPLE, OCHRE, INDIGO = "#0072b2", "#c8500a", "#00795a", "#a8467f", "#8a6a00", "#4b4fa8"
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, OCHRE, INDIGO)
DASHES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)))
MARKERS = ("o", "D", "s", "^", "v", "P")
INK, FAINT, GRID = "#1c2430", "#66707e", "#e3e7ec"
SHADE = 0.2
NICE_LAGS = (0, *(2**k for k in range(24)))


def new_axes(axes: Axes | None, size: tuple[float, float] = (6.4, 4.0)) -> Axes:
    """Return the given axes, or fresh ones on a figure of their own, in the house style."""
    if axes is None:
        require_extra("report")
        from matplotlib.figure import Figure

        axes = Figure(figsize=size, dpi=150, layout="constrained").add_subplot()
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=FAINT, labelcolor=INK, labelsize=9)
    for name, side in axes.spines.items():
        side.set_visible(name in ("left", "bottom"))
        side.set_color(FAINT)
    return axes


def look(index: int) -> dict[str, Any]:
    """Colour, dash and marker of the i-th line: told apart in colour, in grey and by shape."""
    i = index % len(CYCLE)
    return {"color": CYCLE[i], "linestyle": DASHES[i], "marker": MARKERS[i], "markersize": 4.5, "linewidth": 1.8}


def label(axes: Axes, x: str, y: str, title: str = "") -> Axes:
    """Name the axes; the title stands at the left."""
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    if title:
        axes.set_title(title, loc="left", fontsize=11, color=INK)
    return axes


def legend(axes: Axes, **options: Any) -> None:
    """Show the legend without a frame, if there is anything to name."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8.5, **options)


def lag_scale(axes: Axes, lags: np.ndarray, which: str = "x") -> None:
    """Place lags at log(1 + lag): lag 0 has a place, and short lags have room."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    functions = (lambda lag: np.log2(1 + np.maximum(lag, -0.9)), lambda place: np.exp2(place) - 1)
    set_scale = axes.set_xscale if which == "x" else axes.set_yscale
    set_scale("function", functions=functions)
    axis = axes.xaxis if which == "x" else axes.yaxis
    last = int(np.max(lags))
    axis.set_major_locator(FixedLocator([lag for lag in NICE_LAGS if lag <= last]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ends = (-0.12, last * 1.12 + 0.2)
    (axes.set_xlim if which == "x" else axes.set_ylim)(*ends)


def no_minor_labels(axes: Axes) -> None:
    """Keep labels to the decades of logarithmic axes."""
    from matplotlib.ticker import NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            axis.set_minor_formatter(NullFormatter())
