"""One self-contained HTML page: the answer, the table, figures, settings. No network, no scripts."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING

from lagreach.diagnosis import Diagnosis, LayerDiagnosis
from lagreach.io import write_atomically
from lagreach.report.figures import gain_figure, window_figure
from lagreach.report.text import answer, count, short
from lagreach.types import Status

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIGHTS = {
    Status.LIMIT_LEARNED: "good",
    Status.LIMIT_NO_DEPENDENCY: "plain",
    Status.LIMIT_UNDETERMINED: "fair",
    Status.LIMIT_CAPACITY: "bad",
    Status.LIMIT_SAMPLE_SIZE: "bad",
    Status.LIMIT_OUT_OF_REACH: "bad",
}


def write_report(diagnosis: Diagnosis, path: str | Path) -> None:
    """Write the page; an existing one is replaced at the end, or not at all."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("lagreach.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template("report.html.j2").render(
        answer=answer(diagnosis),
        layers=[_layer(diagnosis, layer) for layer in diagnosis.layers],
        warnings=diagnosis.warnings,
        definition=diagnosis.layers[0].window.definition,
        facts={
            "sequences": f"{diagnosis.settings['used']} measured of {diagnosis.available}, planned for {diagnosis.sequences}",
            "data fingerprint": diagnosis.fingerprint,
            "versions": ", ".join(f"{name} {number}" for name, number in diagnosis.versions.items()),
            "time": ", ".join(f"{name} {seconds:.1f} s" for name, seconds in diagnosis.seconds.items()),
            "settings": ", ".join(
                f"{k}={v}" for k, v in diagnosis.settings.items() if k not in ("lags", "params", "used")
            ),
        },
    )
    with write_atomically(Path(path)) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _layer(diagnosis: Diagnosis, layer: LayerDiagnosis) -> dict[str, object]:
    window = layer.window
    probe = window.required_if_present()
    rows = []
    for i, lag in enumerate(window.lags.tolist()):
        first, limit = int(window.required.first[i]), window.limit(lag, diagnosis.sequences)
        found = window.required.sequences[i]
        rows.append(
            {
                "lags": str(lag) if first == lag else f"{first}-{lag}",
                "planted": f"{count(probe.sequences[i])} ({count(probe.low[i])} to {count(probe.high[i])})",
                "found": "none found" if math.isinf(found) else f"{count(found)}",
                "light": LIGHTS[limit],
                "limit": short(limit),
            }
        )
    limits = {window.limit(lag, diagnosis.sequences) for lag in window.lags.tolist()}
    return {
        "glossary": {short(limit): str(limit) for limit in LIGHTS if limit in limits},
        "name": layer.name,
        "scope": "lags within this layer" if layer.local else "lags of the whole model",
        "rows": rows,
        "window": _svg(window_figure(layer, diagnosis.sequences)),
        "gain": _svg(gain_figure(layer)),
        "notes": [
            f"First order against exact: {layer.fidelity.verdict}.",
            f"Gradient noise: kappa {window.concentration.exponent:.3g} ({window.concentration.status}).",
            f"Stable fit: alpha {layer.tail.alpha:.2f} ({layer.tail.status}).",
            f"Linear memory in use: {window.memory.total:.1f} of at most {window.memory.bound}.",
            *window.warnings,
        ],
    }


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "lagreach"})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
