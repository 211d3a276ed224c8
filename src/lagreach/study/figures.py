"""Pictures of a study, from its rows of numbers: the paper's four figures for every group, and what lies behind them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lagreach._util.disk import Write, write_whole
from lagreach._util.extras import require_extra
from lagreach.report.style import FAINT, SHADE, label, legend, look, new_axes
from lagreach.study.group_tables import GroupTables, reach, stacked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = 96
DPI = 110  # of the pictures in the page; the SVG files are for print
FLOOR = -12.0  # log10; below it an envelope is of no use to anyone
PRINTED = {  # what the paper shows in the figure beside ours
    "envelopes": "Figure 1: exponential with tau 1.2 (ConstGate) and 1.8 (SharedGate), l^-1 for DiagGate (tau 46, r2 0.98)",
    "windows": "Figure 2: no growth for ConstGate and SharedGate; DiagGate 32, then 64, nearly 100",
    "scaling": "Figure 3: log N against -log f is nearly linear for DiagGate, slope alpha",
    "spectra": "Figure 4: single peaks at 1.2 and 1.8; DiagGate broad, most below 3, one of 60",
}


def band(axes: Axes, x: np.ndarray, values: np.ndarray, index: int, name: str, **options: Any) -> None:
    """Median over seeds with the range of all of them."""
    with np.errstate(invalid="ignore"):
        usable = np.isfinite(values).any(0)
    if not usable.any():
        return
    x, values = x[usable], values[:, usable]
    style = look(index) | options
    axes.plot(x, np.nanmedian(values, 0), label=name, **style)
    axes.fill_between(x, np.nanmin(values, 0), np.nanmax(values, 0), color=style["color"], alpha=SHADE, linewidth=0)


def sheet(columns: int, width: float = 4.4, height: float = 3.5) -> tuple[Figure, list[Axes]]:
    """Several axes in a row, in the house style."""
    require_extra("report")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height), dpi=DPI, layout="constrained")
    return figure, [new_axes(figure.add_subplot(1, columns, k + 1)) for k in range(columns)]


def plain_numbers(axes: Axes) -> None:
    """Write 1, 10, 100 on a logarithmic axis of lags, not powers."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def envelopes(tables: GroupTables) -> Figure:
    """First-order envelope (retention, as the paper fits it) and exact gain, on three scales."""
    figure, axes = sheet(3)
    for i, role in enumerate(tables.roles()):
        rows = tables.rows(role, "exact")
        if not rows or rows[0].get("log10_retention") is None:
            continue
        lags = np.array(rows[0]["lags"], dtype=float)
        printed, exact = stacked(rows, "log10_retention"), stacked(rows, "log10_gain")
        for ax in axes:
            for values, name, dash in ((printed, role, "-"), (exact, "", ":")):
                seen = np.where(values > FLOOR, values, np.nan)
                band(ax, lags, np.power(10.0, seen), i, name, linestyle=dash, markersize=3)
    axes[1].set_yscale("log")
    axes[2].set_yscale("log")
    axes[2].set_xscale("log")
    for ax, title in zip(axes, ("linear", "semi-logarithmic", "log-log"), strict=True):
        label(ax, "lag", "envelope f(lag), gain", title)
    legend(axes[0], title="solid: first order\ndotted: exact gain", title_fontsize=8.5)
    return figure


def windows(tables: GroupTables) -> Figure:
    """H_N against N, ours and by the printed recipe."""
    figure, axes = sheet(2)
    for ax, recipe, title in zip(axes, ("exact", "paper"), ("corrected (exact)", "as printed"), strict=True):
        for i, role in enumerate(tables.roles()):
            rows = tables.rows(role, recipe)
            if rows:
                band(ax, np.array(tables.budgets, dtype=float), reach(rows), i, role)
        ax.set_xscale("log")
        label(ax, "sequences N", "window H_N (lag)", title)
        legend(ax)
    return figure


def scaling(tables: GroupTables) -> Figure:
    """Log N against -log f, with the line of the corrected exponent."""
    figure, axes = sheet(2)
    for ax, recipe, curve, needed in (
        (axes[0], "exact", "log10_gain", "n_probe"),
        (axes[1], "paper", "log10_envelope", "n_data"),
    ):
        for i, role in enumerate(tables.roles()):
            rows = tables.rows(role, recipe)
            if not rows:
                continue
            x, n = -stacked(rows, curve), stacked(rows, needed)
            use = np.isfinite(x) & np.isfinite(n) & (n > 0) & (n < 1e15) & (x < -FLOOR)
            style = look(i) | {"linestyle": "none"}
            ax.plot(np.power(10.0, x[use]), n[use], label=role, alpha=0.7, **style)
        if any(np.size(line.get_xdata()) for line in ax.lines):  # an empty logarithmic axis has no ends
            ax.set_xscale("log")
            ax.set_yscale("log")
            ends, heights = np.array(ax.get_xlim()), ax.get_ylim()
            guide = heights[0] * (ends / ends[0]) ** 2
            ax.plot(ends, guide, color=FAINT, linewidth=1, linestyle="--", label="slope 2")
            ax.set_xlim(*ends)
            ax.set_ylim(*heights)
        label(ax, "1 / f(lag)", "N(lag)", "corrected: probe, exact gain" if recipe == "exact" else "as printed: (34)")
        legend(ax)
    return figure


def spectra(tables: GroupTables) -> Figure:
    """Time scales of single units, one row of points for each seed."""
    figure, (ax,) = sheet(1, 6.4, 3.8)
    label(ax, "time scale of a unit (steps)", "", "one dot a unit, one row a seed")
    roles = tables.roles()
    for i, role in enumerate(roles):
        rows = [row for row in tables.rows(role, "exact") if row.get("time_scales") is not None]
        for k, row in enumerate(rows):
            tau = np.array([v for v in row["time_scales"] if v is not None and np.isfinite(v) and v > 0])
            height = i + (k - (len(rows) - 1) / 2) * 0.6 / max(1, len(rows))
            ax.plot(tau, np.full(len(tau), height), **(look(i) | {"linestyle": "none", "alpha": 0.5, "markersize": 4}))
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.set_xlim(min(low, 1.0), max(high, 10.0))
    plain_numbers(ax)
    ax.set_yticks(range(len(roles)), roles)
    return figure


def learning(tables: GroupTables) -> Figure:
    """Loss against epochs, and what was recovered of each lag in the end."""
    figure, axes = sheet(2)
    for i, role in enumerate(tables.roles()):
        rows = [row for row in tables.metrics if row["role"] == role and row["loss"] is not None]
        seeds = sorted({row["seed"] for row in rows})
        curves = [[row["loss"] for row in rows if row["seed"] == seed] for seed in seeds]
        if curves and curves[0]:
            band(axes[0], np.arange(1, len(curves[0]) + 1), np.array(curves, dtype=float), i, role, marker="")
        last = [row for row in tables.recovered if row["role"] == role]
        if last:
            final = max(row["epoch"] for row in last)
            lags = sorted({row["lag"] for row in last})
            by_seed = [
                [row["recovered"] for row in last if row["seed"] == s and row["epoch"] == final]
                for s in sorted({row["seed"] for row in last})
            ]
            band(axes[1], np.array(lags, dtype=float), np.array(by_seed, dtype=float), i, role)
    if tables.noise_floor is not None:
        axes[0].axhline(tables.noise_floor, color=FAINT, linestyle="--", linewidth=1, label="noise alone")
    axes[0].set_yscale("log")
    label(axes[0], "epoch", "training loss", "learning curves")
    label(axes[1], "planted lag", "share recovered", "after training, on fresh sequences")
    axes[1].set_xscale("log", base=2)
    plain_numbers(axes[1])
    for ax in axes:
        legend(ax)
    return figure


def tails(tables: GroupTables) -> Figure:
    """Tail indices and concentration exponents of every seed."""
    figure, axes = sheet(2)
    roles = tables.roles()
    for i, role in enumerate(roles):
        style = look(i) | {"linestyle": "none"}
        ours = tables.rows(role, "exact")
        alpha = np.array([row["alpha"] for row in ours], dtype=float)
        kappa = np.array([row["kappa"] for row in ours], dtype=float)
        hill = np.array([row["hill"] for row in tables.rows(role, "paper")], dtype=float)
        axes[0].plot(np.full(len(alpha), i - 0.1), alpha, label="stable fit" if i == 0 else None, **style)
        axes[0].plot(
            np.full(len(hill), i + 0.1), hill, label="Hill" if i == 0 else None, **(style | {"fillstyle": "none"})
        )
        axes[1].plot(np.full(len(kappa), float(i)), kappa, **style)
    axes[0].axhline(2.0, color=FAINT, linestyle="--", linewidth=1)
    for ax in axes:
        ax.set_xticks(range(len(roles)), roles)
    label(axes[0], "", "tail index alpha", "filled: stable fit, open: Hill")
    low, high = axes[1].get_ylim()
    axes[1].set_ylim(min(low, 1.8), max(high, 3.0))
    label(axes[1], "", "kappa", "how averages concentrate: N^(-1/kappa)")
    return figure


def noise_floor(tables: GroupTables) -> Figure:
    """Signal of the data at each lag against the gradient noise along its direction."""
    figure, axes = sheet(2)
    for i, role in enumerate(tables.roles()):
        rows = tables.rows(role, "exact")
        if not rows:
            continue
        lags = np.array(rows[0]["lags"], dtype=float)
        signal, noise = stacked(rows, "signal"), stacked(rows, "noise")
        band(axes[0], lags, np.where(noise > 0, noise, np.nan), i, "", linestyle="-")
        band(axes[0], lags, np.where(signal > 0, signal, np.nan), i, "", linestyle=":", markersize=3)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where((signal > 0) & (noise > 0), signal / noise, np.nan)
        band(axes[1], lags, ratio, i, role)
    for ax, name in zip(axes, ("gradient along the lag's direction", "signal / noise of one sequence"), strict=True):
        ax.set_yscale("log")
        ax.set_xscale("log", base=2)
        plain_numbers(ax)
        label(ax, "lag", name)
    legend(axes[1])
    axes[0].set_title("solid: noise of a sequence, dotted: signal", loc="left", fontsize=11)
    axes[1].axhline(8000**-0.5, color=FAINT, linestyle="--", linewidth=1)
    axes[1].set_title("dashed: the floor of 8,000 sequences", loc="left", fontsize=11)
    return figure


def over_training(tables: GroupTables) -> Figure:
    """Sequences needed at the planted lags, and the window, at every checkpoint."""
    figure, axes = sheet(2)
    budget = tables.budgets[-2] if len(tables.budgets) > 1 else tables.budgets[-1]
    place = list(tables.budgets).index(budget)
    for i, role in enumerate(tables.roles()):
        rows = [row for row in tables.every if row["role"] == role and row["recipe"] == "exact"]
        epochs = sorted({row["epoch"] for row in rows})
        if not rows:
            continue
        seeds = sorted({row["seed"] for row in rows})
        by = {(row["seed"], row["epoch"]): row for row in rows}
        windows_at = np.array([reach([by[s, e] for e in epochs])[:, place] for s in seeds])
        band(axes[0], np.array(epochs, dtype=float), windows_at, i, role)
        longest = max(lag for lag in tables.task_lags if lag in rows[0]["lags"])
        at = rows[0]["lags"].index(longest)
        needed = np.array([[by[s, e]["n_probe"][at] for e in epochs] for s in seeds], dtype=float)
        band(
            axes[1], np.array(epochs, dtype=float), np.where(needed < 1e30, needed, np.nan), i, f"{role}, lag {longest}"
        )
    axes[1].set_yscale("log")
    label(axes[0], "epoch", f"window at N = {budget}", "window over training")
    label(axes[1], "epoch", "N for a planted dependency", "sequences needed")
    for ax in axes:
        legend(ax)
    return figure


FIGURES: dict[str, Callable[[GroupTables], Figure]] = {
    f.__name__: f for f in (envelopes, windows, scaling, spectra, learning, tails, noise_floor, over_training)
}


def save_figure(figure: Figure, path: Path, write: Write = write_whole) -> None:
    """Save a PNG in few colours (pages carry many of them) and an SVG for print beside it."""
    from PIL import Image

    plain, few, vector = io.BytesIO(), io.BytesIO(), io.BytesIO()
    figure.savefig(plain, format="png")
    Image.open(plain).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(few, format="png", optimize=True)
    write(path.with_suffix(".png"), few.getvalue())
    figure.savefig(vector, format="svg")
    write(path.with_suffix(".svg"), vector.getvalue())


def draw_all(tables: GroupTables, folder: Path, suffix: str, write: Write = write_whole) -> list[tuple[str, Path]]:
    """Draw every figure; return captions and PNG files."""
    drawn = []
    for name, draw in FIGURES.items():
        path = folder / f"{name}-{suffix}.png"
        save_figure(draw(tables), path, write)
        caption = (draw.__doc__ or name).strip().splitlines()[0]
        printed = f" Printed: {PRINTED[name]}." if name in PRINTED else ""
        drawn.append((f"{name.replace('_', ' ').capitalize()}, {suffix}. {caption}{printed}", path))
    return drawn
