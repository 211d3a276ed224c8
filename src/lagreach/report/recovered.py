"""What a diagnosis tells of the shares that training will recover: the bars that its page and figures open with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from lagreach.diagnosis.result import Diagnosis, LayerDiagnosis
from lagreach.forecasting.kinds import GATED, OTHER, remedies
from lagreach.forecasting.limits import BLENDED, limits
from lagreach.forecasting.result import A_LITTLE
from lagreach.forecasting.words import NOTHING_TO_DO, spans
from lagreach.forecasting.words import sentence as in_words
from lagreach.report.pictures import opening
from lagreach.report.words import advice, listed, sentence, span
from lagreach.types import Status

MOST_ADVICE = 4


@dataclass(frozen=True)
class Recovered:
    """One share a lag, with its interval, and what binds there; of several layers the best."""

    lags: tuple[int, ...]
    named: tuple[str, ...]  # bands of lags as they are written
    share: Float[np.ndarray, "lag"]
    low: Float[np.ndarray, "lag"]
    high: Float[np.ndarray, "lag"]
    words: tuple[str, ...]
    in_data: tuple[bool, ...]  # whether the data depend on it


def recovered(diagnosis: Diagnosis) -> Recovered | None:
    """Shares by lag; None where no layer has them (lags of a whole model, very wide layers, losses of one's own)."""
    rows: dict[int, dict[str, Any]] = {}
    for layer in diagnosis.layers:
        for row in _rows(diagnosis, layer):
            before = rows.get(row["lag"])
            if before is None or row["share"] > before["share"]:
                rows[row["lag"]] = row
    if not rows:
        return None
    ordered = [rows[lag] for lag in sorted(rows)]
    depends = {lag for layer in diagnosis.layers for lag in layer.window.dependences}
    columns = {name: [row[name] for row in ordered] for name in ordered[0]}
    return Recovered(
        lags=tuple(columns["lag"]),
        named=tuple(columns["named"]),
        share=np.array(columns["share"]),
        low=np.array(columns["low"]),
        high=np.array(columns["high"]),
        words=tuple(columns["word"]),
        in_data=tuple(any(lag in depends for lag in range(row["first"], row["lag"] + 1)) for row in ordered),
    )


def _rows(diagnosis: Diagnosis, layer: LayerDiagnosis) -> list[dict[str, Any]]:
    window = layer.window
    curve = opening(window)
    if curve is None:
        return []
    needed = window.required_if_present()
    ample = curve.more.get("ample", curve.value)
    with np.errstate(invalid="ignore"):
        shown = (needed.sequences <= diagnosis.sequences) | (ample >= A_LITTLE)
    words = limits(curve.value, None, ample, None, shown)
    return [
        {
            "lag": int(lag), "first": int(first), "named": span(int(first), int(lag)), "word": word,
            "share": float(curve.value[i]), "low": float(curve.low[i]), "high": float(curve.high[i]),
        }
        for i, (lag, first, word) in enumerate(zip(window.lags, needed.first, words, strict=True))
        if not np.isnan(curve.value[i])
    ]  # fmt: skip


def first_sentence(diagnosis: Diagnosis, bars: Recovered) -> str:
    """Say what will be learned from the sequences that are planned for."""
    return f"From {diagnosis.sequences:,} sequences, {in_words(bars.lags, bars.words)}."


def what_to_do(diagnosis: Diagnosis, bars: Recovered | None) -> list[str]:
    """Advice for the lags that the data depend on and that are not learned; else for the lags that would not be."""
    remedy = remedies(GATED if all(layer.local for layer in diagnosis.layers) else OTHER)
    word_at = {} if bars is None else dict(zip(bars.lags, bars.words, strict=True))
    asked: dict[str, list[int]] = {}  # lags by what helps
    for layer in diagnosis.layers:
        window = layer.window
        for lag in window.dependences:
            limit = window.limit(lag, diagnosis.sequences)
            if limit is Status.LIMIT_LEARNED:
                continue
            line = advice(diagnosis, layer, lag)
            if limit is Status.LIMIT_UNDETERMINED and word_at.get(lag) == BLENDED:
                line = f"train all weights on; where that does not do, {remedy[BLENDED]}"
            asked.setdefault(line, []).append(lag)
    if asked:
        rows = [f"{sentence(listed(sorted(set(lags))))}: {line}." for line, lags in asked.items()]
        return rows[:MOST_ADVICE]
    if bars is None:
        return []
    lines = []
    for word, helps in remedy.items():
        chosen = [bar == word for bar in bars.words]
        if any(chosen):
            lines.append(f"{'Lags' if sum(chosen) > 1 else 'Lag'} {spans(bars.lags, chosen)}: {helps}.")
    return lines or [NOTHING_TO_DO]
