"""The figure and the page of `lagreach demo`: forecast beside outcome, for a network as it is and as advised."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lagreach._util.disk import save_figure, write_text
from lagreach._version import __version__
from lagreach.advice.advise import Advice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAID, CAME = "#b9cbe4", "#2f6db3"
PICTURE, PAGE = "demo.png", "demo.html"

TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>What a small LSTM will learn</title>
<style>
 :root {{ color-scheme: light dark; --ink: #1c2430; --paper: #ffffff; --soft: #f2f5f9; --line: #2f6db3; }}
 @media (prefers-color-scheme: dark) {{ :root {{ --ink: #e7ebf1; --paper: #14181e; --soft: #202733; --line: #7fb0ea; }} }}
 body {{ margin: 0 auto; max-width: 56rem; padding: 1rem 1.2rem 3rem; font: 17px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }}
 h1 {{ font-size: 1.5rem; line-height: 1.25; }} h2 {{ font-size: 1.1rem; }}
 img {{ width: 100%; height: auto; background: #fff; border-radius: 6px; }}
 pre {{ background: var(--soft); padding: .8rem; overflow-x: auto; border-radius: 6px; font-size: .85rem; }}
 a {{ color: var(--line); }} .small {{ font-size: .85rem; opacity: .8; }}
</style></head><body>
<h1>{headline}</h1>
<img src="data:image/png;base64,{picture}" alt="{alt}">
<h2>What to do</h2>
<p>{says}</p>
<pre tabindex="0">{code}</pre>
<h2>In numbers</h2>
<pre tabindex="0">{numbers}</pre>
<p class="small">Forecast: the share of what was read so many steps ago that the model will have learned, told before any
training, from {held_out:,} held-out sequences. After training: the share found in its answers on fresh sequences.
Now your own model:
<code>lagreach.forecast(model, data)</code>, then <code>lagreach.advise(model, data)</code>. Made by <code>lagreach demo</code>,
version {version}.</p>
</body></html>
"""


@dataclass(frozen=True)
class Panel:
    """One network: forecast and outcome of each lag, and what stands in the way."""

    lags: tuple[int, ...]
    forecast: tuple[float, ...]
    why: tuple[str, ...]
    outcome: tuple[float, ...] = ()

    def with_outcome(self, shares: Sequence[float]) -> Panel:
        """The same with what training recovered."""
        return replace(self, outcome=tuple(shares))


def draw(panels: Sequence[Panel], titles: Sequence[str]) -> Figure:
    """Draw pairs of bars by lag, one picture for each network."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (panel, title) in enumerate(zip(panels, titles, strict=True)):
        axes = figure.add_subplot(1, len(panels), place + 1)
        for shift, shares, colour, label in (
            (-0.2, panel.forecast, SAID, "forecast before training"),
            (0.2, panel.outcome, CAME, "found after training"),
        ):
            heights = [min(max(share, 0.0), 1.0) for share in shares]
            places = [i + shift for i in range(len(heights))]
            axes.bar(places, [max(height, 0.006) for height in heights], width=0.38, color=colour, label=label)
            for x, height in zip(places, heights, strict=True):
                axes.annotate(
                    f"{100 * height:.0f} %", (x, height), (0, 2), textcoords="offset points", ha="center", fontsize=9
                )
        axes.set_xticks(range(len(panel.lags)), [f"{lag} steps back" for lag in panel.lags])
        axes.set_ylim(0, 1.15)
        axes.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
        axes.set_title(title, loc="left", fontsize=12)
        axes.spines[["top", "right"]].set_visible(False)
        if place == 0:
            axes.set_ylabel("share learned")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def write_page(out: Path, figure: Figure, lines: Sequence[str], advice: Advice) -> Path:
    """Write the picture, and a page with it in one file; return the page's path."""
    save_figure(figure, out / PICTURE, dpi=140)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=140, metadata={"Software": None})
    page = TEMPLATE.format(
        headline=html.escape(f"This LSTM will not learn what was {advice.lag} steps back. One change mends it."),
        picture=base64.b64encode(picture.getvalue()).decode(),
        alt="Bars: share learned of each of the three old readings, forecast and found, before and after the advice",
        says=html.escape(advice.first.says),
        code=html.escape(advice.first.code),
        numbers=html.escape("\n".join(lines)),
        held_out=advice.forecast.available if advice.forecast is not None else 0,
        version=__version__,
    )
    write_text(out / PAGE, page)
    return out / PAGE
