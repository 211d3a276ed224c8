"""The figure and the page of `lagreach demo`: forecast beside outcome, for a network as it is and as advised."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from lagreach._util.disk import save_figure, write_text
from lagreach._version import __version__
from lagreach.advice.advise import Advice
from lagreach.advice.changes import Change

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAID, CAME = "#b9cbe4", "#2f6db3"
PICTURE, PAGE = "demo.png", "demo.html"

TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>What a small LSTM will learn</title>
<style>
 :root {{ color-scheme: light dark; --ink: #1c2430; --paper: #ffffff; --soft: #f2f5f9; --line: #c9d2de; }}
 @media (prefers-color-scheme: dark) {{ :root {{ --ink: #e7ebf1; --paper: #14181e; --soft: #202733; --line: #3b4656; }} }}
 body {{ margin: 0 auto; max-width: 60rem; padding: 1rem 1.2rem 3rem; font: 17px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }}
 h1 {{ font-size: 1.5rem; line-height: 1.25; }} h2 {{ font-size: 1.15rem; margin-top: 1.8rem; }}
 .pair {{ display: flex; flex-wrap: wrap; gap: .6rem; }}
 .pair img {{ flex: 1 1 20rem; min-width: 0; max-width: 100%; height: auto; background: #fff; border-radius: 6px; }}
 pre {{ background: var(--soft); padding: .8rem; margin: .6rem 0; border-radius: 6px; white-space: pre-wrap;
  overflow-wrap: anywhere; font-size: .95rem; }}
 table {{ border-collapse: collapse; margin: .6rem 0; }}
 th, td {{ text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }}
 summary {{ cursor: pointer; font-size: 1.15rem; font-weight: bold; margin-top: 1.8rem; }}
 summary:focus-visible {{ outline: 3px solid #2f6db3; outline-offset: 3px; }}
 caption {{ text-align: left; padding-top: .6rem; }}
 .small {{ font-size: .88rem; }}
</style></head><body><main>
<h1>{headline}</h1>
<p>{question}</p>
<div class="pair">{pictures}</div>
<h2>What to do</h2>
<p>{says}.</p>
<pre>{code}</pre>
<p class="small">{details}</p>
<details><summary>In numbers</summary>
{tables}
</details>
<p class="small">Forecast: the share of what was read so many steps ago that the model will have learned, told before any
training from {held_out:,} held-out sequences. After training: the share found in its answers on fresh sequences.
Now your own model: <code>lagreach.forecast(model, data)</code>, then <code>lagreach.advise(model, data)</code>.
Made by <code>lagreach demo</code>, version {version}, on {date}: an LSTM of torch on made-up sequences.</p>
</main></body></html>
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

    figure = Figure(figsize=(4.5 * len(panels), 3.6), layout="constrained")
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
                axes.annotate(percent(height), (x, height), (0, 2), textcoords="offset points", ha="center", fontsize=9)
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


def write_page(
    out: Path, panels: Sequence[Panel], titles: Sequence[str], question: str, says: str, advice: Advice
) -> Path:
    """Write the picture, and a page that opens with it in one file; return the page's path."""
    save_figure(draw(panels, titles), out / PICTURE, dpi=140)
    change = advice.first
    page = TEMPLATE.format(
        headline=html.escape(f"This LSTM will not learn what was read {advice.lag} steps back. One change mends it."),
        question=html.escape(question),
        pictures="".join(_picture(panel, title) for panel, title in zip(panels, titles, strict=True)),
        says=html.escape(says),
        code=html.escape(change.code),
        details=html.escape(_details(change)),
        tables="".join(_table(panel, title) for panel, title in zip(panels, titles, strict=True)),
        held_out=advice.forecast.available if advice.forecast is not None else 0,
        version=__version__,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
    )
    write_text(out / PAGE, page)
    return out / PAGE


def _details(change: Change) -> str:
    """Which entries of which weights, and how often such a change worked."""
    _, _, entries = change.says.rstrip(".").rstrip(")").partition(" (")
    sentences = [
        f"Written out: {entries}." if entries else "",
        f"This kind of change {change.record}." if change.record else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _picture(panel: Panel, title: str) -> str:
    """One network's bars as part of a page; on a phone the two stand below each other."""
    drawn = io.BytesIO()
    draw((panel,), (title,)).savefig(drawn, format="png", dpi=140, metadata={"Software": None})
    pairs = zip(panel.lags, panel.forecast, panel.outcome, strict=True)
    words = "; ".join(f"{lag} steps back: forecast {percent(said)}, found {percent(came)}" for lag, said, came in pairs)
    data = base64.b64encode(drawn.getvalue()).decode()
    return f'<img src="data:image/png;base64,{data}" alt="Share learned, {html.escape(title)}. {html.escape(words)}">'


def _table(panel: Panel, title: str) -> str:
    heads = ("steps back", "forecast", "after training", "what stands in the way")
    rows = zip(panel.lags, panel.forecast, panel.outcome, panel.why, strict=True)
    body = "".join(
        f"<tr><td>{lag}</td><td>{percent(said)}</td><td>{percent(came)}</td><td>{html.escape(why)}</td></tr>"
        for lag, said, came, why in rows
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return f"<table><caption class=small>{html.escape(title)}</caption><tr>{head}</tr>{body}</table>"


def percent(share: float) -> str:
    """A share for people; what lies beyond 0 and 1 by chance is shown at the edge.

    >>> percent(0.934), percent(1.02), percent(-0.01)
    ('93 %', '100 %', '0 %')
    """
    return f"{100 * min(max(share, 0.0), 1.0):.0f} %"
