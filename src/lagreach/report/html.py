"""One self-contained HTML page: answer, traffic lights, sliders, figures, settings. It works from disk, without network."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from lagreach._util.disk import Write, as_path, is_file, write_whole
from lagreach._util.extras import require_extra
from lagreach.diagnosis.result import Diagnosis, LayerDiagnosis
from lagreach.errors import InputError
from lagreach.report.lag_table import cells, columns
from lagreach.report.payload import bars_payload, make_payload, to_json, verdict
from lagreach.report.pictures import caption, logarithmic, pictures
from lagreach.report.recovered import first_sentence, recovered, what_to_do
from lagreach.report.text import HELD_OUT
from lagreach.report.words import (
    CLOCKS,
    LIGHTS,
    NO_FORECAST,
    advice,
    answer,
    count,
    depends,
    named,
    retained,
    sentence,
    share,
    short,
    span,
    technical,
    time_scales,
)
from lagreach.report.writing import write_page
from lagreach.statistics.memory import Memory
from lagreach.types import Status

TITLE = "lagreach report"
MOST_BARS = 4  # models whose shares a page opens with
SCRIPTS = ("draw.js", "bars.js", "what_if.js", "charts.js", "theme.js", "page.js")
CLAIM = ("claim", "printed", "obtained", "interval", "verdict", "why")
UNTESTED = "not tested"
NAMED = 3  # models, and kinds of data, at the head of a page of several
FEW_CLAIMS = 6  # that are named, if they were not tested
VERDICTS = {"reproduced": "good", "holds": "good", "partly": "fair", "not reproduced": "bad", "fails": "bad"}


def write_report(
    diagnoses: Diagnosis | Sequence[Diagnosis],
    path: str | Path,
    *,
    names: Sequence[str] | None = None,
    title: str = TITLE,
) -> Path:
    """Write the page of one diagnosis, or of several side by side; an existing one is replaced at the end, or not at all.

    Diagnoses with a label "epoch" or "step" (see `Diagnosis.labelled`) also give the window over training.
    """
    several = (diagnoses,) if isinstance(diagnoses, Diagnosis) else tuple(diagnoses)
    if not several:
        raise InputError("there is nothing to report", expected="one diagnosis or more")
    return _write(as_path(path), title=title, **_about(several, named(several, names)))


def study_page(
    title: str,
    diagnoses: Sequence[Diagnosis],
    claims: str | Iterable[Any],
    figures: Iterable[tuple[str, str | Path]] = (),
    out: str | Path = "report.html",
    *,
    names: Sequence[str] | None = None,
    answer: Sequence[str] = (),
    write: Write = write_whole,
) -> Path:
    """Write the page of a study: its claims, its pictures, and its diagnoses side by side, if there are any.

    Parameters
    ----------
    claims
        Records or mappings with claim, printed, obtained, interval, verdict and why; or a text, shown in paragraphs.
    figures
        Captions and PNG files; the pictures are stored in the page.
    answer
        Sentences for the top of the page; by default what the diagnoses say.
    write
        Puts the page onto the disk.
    """
    several = tuple(diagnoses)
    about = _about(several, named(several, names)) if several else {"answer": [], "settings": {}}
    paragraphs = [part.strip() for part in claims.split("\n\n")] if isinstance(claims, str) else []
    rows = [] if isinstance(claims, str) else [_claim(row) for row in claims]
    tested = [row for row in rows if row["verdict"] != UNTESTED]
    untested = _untested([row for row in rows if row["verdict"] == UNTESTED])
    pictures = [{"caption": caption, "source": _inline(Path(file))} for caption, file in figures]
    about["answer"] = list(answer) or about["answer"] or [title]
    return _write(
        Path(out),
        write,
        title=title,
        claims=tested,
        untested=untested,
        text=paragraphs,
        pictures=pictures,
        study=True,
        **about,
    )


def _write(path: Path, write: Write = write_whole, **content: Any) -> Path:
    return write_page("report.html.j2", SCRIPTS if content.get("views") else (), path, write, **content)


def _about(diagnoses: tuple[Diagnosis, ...], names: list[str]) -> dict[str, Any]:
    """Everything the template shows about diagnoses."""
    require_extra("report")
    from markupsafe import Markup

    panels = _panels(diagnoses)
    payload = make_payload(diagnoses, names) | {"pictures": [panel["title"] for panel in panels]}
    several = len(diagnoses) > 1
    timed = [clock for clock in CLOCKS if sum(clock in one.labels for one in diagnoses) > 1]
    notes = [
        f"{name}: {note}" if several else note for d, name in zip(diagnoses, names, strict=True) for note in d.warnings
    ]
    views = [
        {"id": f"{i}-{j}", "name": _view_name(diagnosis, layer, name, several), **_view(diagnosis, layer)}
        for i, (diagnosis, name) in enumerate(zip(diagnoses, names, strict=True))
        for j, layer in enumerate(diagnosis.layers)
    ]
    bars = _bars(diagnoses, names, views)
    alone = None if several or not bars else bars[0]["shown"]
    opening = [] if alone is None else [first_sentence(diagnoses[0], alone)]
    notes = list(dict.fromkeys(notes))
    return {
        "answer": _comparison(diagnoses, names) if several else [*opening, answer(diagnoses[0])],
        "about": {part: _joined(d.about.get(part, "") for d in diagnoses) for part in ("model", "data", "date")},
        "bars": bars,
        "to_do": [] if several else what_to_do(diagnoses[0], alone),
        "no_forecast": NO_FORECAST,
        "convergence": [
            {"name": name, "text": str(d.convergence["text"])}
            for d, name in zip(diagnoses, names, strict=True)
            if d.convergence is not None
        ],
        "warnings": [note for note in notes if not technical(note)],
        "technical_notes": [note for note in notes if technical(note)],
        "views": views,
        "models": names,
        "clock": timed[0] if timed else None,
        "panels": panels,
        "sliders": payload["sliders"],
        "data": Markup(to_json(payload | {"bars": [{"id": one["id"]} | bars_payload(one["shown"]) for one in bars]})),
        "definition": diagnoses[0].layers[0].window.definition,
        "held_out": HELD_OUT,
        "settings": {name: _facts(diagnosis) for diagnosis, name in zip(diagnoses, names, strict=True)},
    }


def _panels(diagnoses: tuple[Diagnosis, ...]) -> list[dict[str, Any]]:
    """Title and caption of every picture that numbers per lag share, of any layer."""
    shown = {title: curves for d in diagnoses for one in d.layers for title, curves in pictures(one.window).items()}
    return [
        {"title": title, "caption": caption(curves), "logarithmic": logarithmic(curves)}
        for title, curves in shown.items()
    ]


def _bars(diagnoses: tuple[Diagnosis, ...], names: list[str], views: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shares by lag that the page opens with: of each model that has them; of very many, of the first and the last."""
    have = [(i, shown) for i, diagnosis in enumerate(diagnoses) if (shown := recovered(diagnosis)) is not None]
    kept = have if len(have) <= MOST_BARS else [have[0], have[-1]]
    first_view = {view["id"]: view for view in views}
    return [
        {
            "id": "bars" if place == 0 else f"bars-{place}",
            "shown": shown,
            "name": names[i] if len(diagnoses) > 1 else None,
            "share": first_view[f"{i}-0"]["share"],
            "sequences": first_view[f"{i}-0"]["sequences"],
        }
        for place, (i, shown) in enumerate(kept)
    ]


def _view_name(diagnosis: Diagnosis, layer: LayerDiagnosis, name: str, several: bool) -> str:
    if not several:
        return layer.name
    return name if len(diagnosis.layers) == 1 else f"{name}, {layer.name}"


def _comparison(diagnoses: tuple[Diagnosis, ...], names: list[str]) -> list[str]:
    """Who reaches farthest and who least, at the smallest number of sequences that any was made for."""
    sequences = min(diagnosis.sequences for diagnosis in diagnoses)
    strength = diagnoses[0].layers[0].window.strength
    at = {name: one.window(sequences, strength) for one, name in zip(diagnoses, names, strict=True)}
    order = sorted(names, key=lambda name: -1 if (lag := at[name].lag) is None else lag, reverse=True)

    def reach(name: str) -> str:
        ends = " to ".join("none" if end is None else str(end) for end in at[name].interval)
        return f"{'no lag' if at[name].lag is None else f'lag {at[name].lag}'} ({ends})"

    head = f"With {count(sequences)} sequences and a dependency explaining {share(strength)} of the target: "
    tail = "; ".join(f"{name} reaches {reach(name)}" for name in order)
    if len(order) > 4:
        tail = f"farthest {reach(order[0])}, {order[0]}; shortest {reach(order[-1])}, {order[-1]}"
    said = [depends(diagnosis) for diagnosis in diagnoses]
    return [f"{head}{tail}.", *([said[0]] if len(set(said)) == 1 else [])]


def _view(diagnosis: Diagnosis, layer: LayerDiagnosis) -> dict[str, Any]:
    """Table and words of one layer."""
    window = layer.window
    lags = window.lags.tolist()
    limits = [window.limit(lag, diagnosis.sequences) for lag in lags]
    memory, best = window.memory, layer.regimes.best
    rows = [_row(diagnosis, layer, i, limit) for i, limit in enumerate(limits)]
    return {
        "scope": "lags within this layer" if layer.local else "lags of the whole model",
        "sequences": count(diagnosis.sequences),
        "share": share(window.strength),
        "rows": rows,
        "columns": columns(window),
        "retained": sentence(retained(layer)) if any("gate bias" in row["advice"] for row in rows) else "",
        "glossary": {short(limit): str(limit).removeprefix(f"{short(limit)}: ") for limit in LIGHTS if limit in limits},
        "notes": [note for note in window.warnings if not technical(note)],
        "technical_notes": [note for note in window.warnings if technical(note)],
        "fidelity": sentence(layer.fidelity.verdict),
        "shape": str(layer.regimes.status)
        if best is None
        else f"{best.law}, weight {best.weight:.2f}, r² {best.r2:.3f}",
        "memory": _memory(memory),
        "scales": _scales(layer),
        "noise": verdict(layer),
    }


def _memory(memory: Memory) -> str:
    if memory.bound == 0:
        return "Linear memory is that of a recurrent layer's state; a whole model has none of one size."
    applies = "." if memory.independent_inputs else "; inputs are correlated in time, so the bound does not apply."
    return f"Linear memory in use: {memory.total:.1f} of at most {memory.bound} inputs{applies}"


def _row(diagnosis: Diagnosis, layer: LayerDiagnosis, i: int, limit: Status) -> dict[str, Any]:
    window = layer.window
    lag = int(window.lags[i])
    learned = window.learned(lag)
    return {
        "lags": span(int(window.required.first[i]), lag),
        "cells": cells(columns(window), lag),
        "light": LIGHTS[limit],
        "limit": short(limit) + (f", {learned:.0%}" if limit is Status.LIMIT_LEARNED and learned >= 0 else ""),
        "advice": advice(diagnosis, layer, lag),
        "idle": limit in (Status.LIMIT_LEARNED, Status.LIMIT_NO_DEPENDENCY, Status.LIMIT_MAY_BE_MISSED),
    }


def _joined(words: Iterable[str]) -> str:
    """What several diagnoses are of, each named once; of many, the first.

    >>> _joined(["an LSTM", "a GRU", "an LSTM"]), _joined("abcde")
    ('an LSTM; a GRU', 'a; b; c and 2 more')
    """
    listed = list(dict.fromkeys(word for word in words if word))
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return "; ".join(listed[:NAMED]) + more


def _scales(layer: LayerDiagnosis) -> str:
    """Return the spectrum in words, with the reasons of units that have none."""
    scales = time_scales(layer)
    if scales is None:
        return f"{sentence(str(Status.FIRST_ORDER_UNAVAILABLE))}."
    missing = [status for status in dict.fromkeys(scales.status) if status is not Status.OK]
    words = [f"{scales.status.count(status)} units have none: {status}." for status in missing]
    if Status.OK in scales.status:
        seen = scales.spectrum()
        low, middle, high, longest = (seen.quantiles[level] for level in (0.1, 0.5, 0.9, 1.0))
        words.insert(
            0,
            f"{seen.n_units} units: median {middle:.3g} steps, from {low:.3g} to {high:.3g} for eight in ten, longest "
            f"{longest:.3g}; spread like {seen.effective_number:.1f} octaves.",
        )
    return " ".join(words)


def _facts(diagnosis: Diagnosis) -> dict[str, str]:
    hidden = ("lags", "params", "used")
    facts = {
        "sequences": f"{diagnosis.settings.get('used', diagnosis.available)} measured of {diagnosis.available}, "
        f"planned for {diagnosis.sequences}",
        "settings": ", ".join(f"{k} = {v}" for k, v in diagnosis.settings.items() if k not in hidden),
        "weights": ", ".join(map(str, diagnosis.settings.get("params", ()))),
        "labels": ", ".join(f"{k} = {v}" for k, v in diagnosis.labels.items()),
        "data fingerprint": diagnosis.fingerprint,
        "versions": ", ".join(f"{name} {number}" for name, number in diagnosis.versions.items()),
        "time": ", ".join(f"{name} {seconds:.1f} s" for name, seconds in diagnosis.seconds.items()),
    }
    return {name: value for name, value in facts.items() if value}


def _claim(row: Any) -> dict[str, str]:
    values: Mapping[str, Any] = asdict(row) if is_dataclass(row) and not isinstance(row, type) else row
    missing = [name for name in CLAIM if name not in values]
    if missing:
        raise InputError("a claim has no " + ", ".join(missing), got=", ".join(values), expected=", ".join(CLAIM))
    shown = {name: "" if values[name] is None else str(values[name]) for name in CLAIM}
    return shown | {"light": VERDICTS.get(shown["verdict"].lower(), "plain")}


def _untested(rows: list[dict[str, str]]) -> str:
    """One line for all claims that were not tested."""
    if not rows:
        return ""
    many = len(rows) > 1
    reasons = list(dict.fromkeys(row["why"] for row in rows if row["why"]))
    names = "; ".join(row["claim"] for row in rows) if len(rows) <= FEW_CLAIMS else "; ".join(reasons[:1])
    return f"{len(rows)} claim{'s were' if many else ' was'} not tested here{f': {names}' if names else ''}."


def _inline(file: Path) -> str:
    if not is_file(file):
        raise InputError("there is no such picture", got=str(file), expected="a PNG file")
    return "data:image/png;base64," + base64.b64encode(file.read_bytes()).decode()
