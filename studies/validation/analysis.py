"""Everything that is said about a validation run, computed from its two tables with fixed seeds."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from lagreach._util.disk import write_text
from lagreach.errors import InputError
from studies.validation.ablations import Ablation, ablate
from studies.validation.bootstrap import NOT_MEASURABLE, Estimate
from studies.validation.learning_curves import Calibration, Curves, calibrate_all, learning_curves
from studies.validation.matching import Matched, match
from studies.validation.predictor_scores import (
    LIMITS,
    Difference,
    PredictorScore,
    ScoredRows,
    base_rate_brier,
    differences,
    score_all,
)
from studies.validation.tables import load_tables
from studies.validation.tails import TailEffect, tail_effects

THRESHOLD = 0.5
OTHER_THRESHOLDS = (0.3, 0.7)
REPLICATES = 400
LINE_REPLICATES = 200  # of the censored regressions, which are slower
WINDOW = ("n_probe", "n_data")  # the predictors that this package stands for


@dataclass(frozen=True)
class Counts:
    """What was trained, and how much of it was learned."""

    trainings: int
    conditions: int
    rows: int
    diverged: int  # trainings
    without_score: int  # rows left out
    learned: float  # share of rows, each training counting the same
    seeds: tuple[int, ...]
    sequences: tuple[int, ...]
    lags: tuple[int, ...]
    cells: tuple[str, ...]
    gate_inits: tuple[str, ...]
    optimisers: tuple[str, ...]
    tasks: tuple[str, ...]  # configurations
    learned_by_task: dict[str, float]
    curves_by_limit: dict[str, int]
    tail_trainings: int


@dataclass(frozen=True)
class Robustness:
    """AUROC of a predictor when "learned" is read in another way."""

    reading: str
    predictor: str
    stage: str
    auroc: Estimate


@dataclass(frozen=True)
class Analysis:
    """All numbers of the study; `scored` and `curves` are kept for the figures."""

    counts: Counts
    base_rate: Estimate  # Brier score of naming the share learned elsewhere
    scores: tuple[PredictorScore, ...]
    differences: tuple[Difference, ...]
    robustness: tuple[Robustness, ...]
    calibrations: tuple[Calibration, ...]
    tails: tuple[TailEffect, ...]
    ablations: tuple[Ablation, ...]
    replicates: int  # bootstrap draws of scores
    line_replicates: int  # and of the censored regressions
    scored: ScoredRows
    curves: Curves

    def to_dict(self) -> dict[str, Any]:
        """All numbers, ready for JSON: what cannot be measured is null."""
        names = ("counts", "base_rate", "scores", "differences", "robustness", "calibrations", "tails", "ablations")
        parts = {name: getattr(self, name) for name in names}
        return {
            "threshold": THRESHOLD,
            "replicates": self.replicates,
            "line_replicates": self.line_replicates,
            **{
                name: [_plain(v) for v in part] if isinstance(part, tuple) else _plain(part)
                for name, part in parts.items()
            },
        }

    def score(self, predictor: str, stage: str) -> PredictorScore | None:
        """Scores of one predictor at one stage."""
        return next((s for s in self.scores if (s.predictor, s.stage) == (predictor, stage)), None)

    def difference(self, predictor: str, other: str, stage: str) -> Estimate:
        """AUROC of a predictor less that of another one, or of itself at the first stage."""
        wanted = (predictor, other, stage)
        matching = (d.auroc for d in self.differences if (d.predictor, d.other, d.stage) == wanted)
        return next(matching, NOT_MEASURABLE)

    def calibration(self, predictor: str, stage: str, group: str = "all") -> Calibration | None:
        """Calibration of one predictor at one stage in one group of curves."""
        wanted = (predictor, stage, group)
        return next((c for c in self.calibrations if (c.predictor, c.stage, c.group) == wanted), None)

    def __str__(self) -> str:
        c = self.counts
        lines = [
            f"{c.trainings} trainings of {c.conditions} conditions, {c.rows} lags; {c.learned:.0%} learned, "
            f"{c.diverged} trainings diverged",
            f"base rate: Brier {self.base_rate}",
            *(str(score) for score in self.scores),
            *(str(one) for one in self.calibrations if one.group == "all"),
            *(str(one) for one in self.tails),
            *(str(one) for one in self.ablations),
        ]
        return "\n".join(lines)


def _plain(value: Any) -> Any:
    """Numbers and texts that JSON knows."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None if math.isnan(value) else str(value)
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, TailEffect):
        return _plain(asdict(value)) | {"verdict": value.verdict, "shift_verdict": value.shift_verdict}
    if isinstance(value, Ablation):
        return _plain(asdict(value)) | {"verdict": value.verdict}
    return value if isinstance(value, str | int | None) else _plain(asdict(value))


def prepare(
    rows: Matched,
    recovered: Float[np.ndarray, "row"],
    threshold: float,
    replicates: int,
    seed: int,
) -> tuple[ScoredRows, Curves]:
    """Outcomes, limits and bootstrap draws of some rows."""
    curves = learning_curves(rows, recovered, threshold)
    limit = (
        np.where(curves.of_row >= 0, curves.limit[curves.of_row], "unknown") if len(curves) else np.full(len(rows), "")
    )
    weights = rows.row_weights
    draws = rows.draws(replicates, seed) * weights
    return ScoredRows(rows, recovered, recovered >= threshold, limit, weights, draws), curves


def analyse(folder: str | Path, seed: int = 0, tails: str | Path | None = None) -> Analysis:
    """Read the tables of a run and compute everything; the same tables and seed give the same numbers.

    The part about tails is a run of its own, in the folder of the same name with "-tails" unless told otherwise.
    """
    folder = Path(folder)
    apart = folder.with_name(f"{folder.name}-tails") if tails is None else Path(tails)
    heavy = match(*load_tables(apart)) if tails is not None or (apart / "outcomes.parquet").exists() else None
    return analyse_rows(match(*load_tables(folder)), heavy, seed)


def analyse_rows(
    everything: Matched,
    heavy: Matched | None = None,
    seed: int = 0,
    replicates: int = REPLICATES,
    line_replicates: int = LINE_REPLICATES,
) -> Analysis:
    """Analyse outcomes with their predictions, and those of `heavy` tails.

    The main run once had a part about tails too, which could measure nothing: its rows are left out.
    """
    rows = everything.where(everything["task"] != "tails")
    if not len(rows) or not rows.stages:
        raise InputError(
            "there is nothing to analyse", got=f"{len(rows)} outcomes, stages {rows.stages}", fix="run the study first"
        )
    recovered = rows.recovered()
    scored, curves = prepare(rows, recovered, THRESHOLD, replicates, seed)
    return Analysis(
        counts=_counts(scored, curves, 0 if heavy is None else len(np.unique(heavy["training"]))),
        base_rate=base_rate_brier(scored),
        scores=score_all(scored),
        differences=differences(scored, WINDOW),
        robustness=_robustness(rows, replicates, seed),
        calibrations=calibrate_all(rows, curves, line_replicates, seed),
        tails=() if heavy is None else tail_effects(heavy, replicates, seed),
        ablations=ablate(scored),
        replicates=replicates,
        line_replicates=line_replicates,
        scored=scored,
        curves=curves,
    )


def _counts(scored: ScoredRows, curves: Curves, tail_trainings: int) -> Counts:
    rows, use = scored.rows, np.isfinite(scored.recovered)
    names, first = np.unique(rows["training"], return_index=True)

    def share(rows: np.ndarray) -> float:
        rows = rows & use
        return float(np.average(scored.learned[rows], weights=scored.weights[rows])) if rows.any() else np.nan

    def levels(name: str) -> tuple[Any, ...]:
        return tuple(np.unique(rows[name]).tolist())

    return Counts(
        trainings=len(names),
        conditions=len(np.unique(rows["condition"])),
        rows=len(rows),
        diverged=int((rows["status"][first] == "DIVERGED").sum()),
        without_score=int((~use).sum()),
        learned=share(use),
        seeds=levels("seed"),
        sequences=levels("sequences"),
        lags=levels("lag"),
        cells=levels("cell"),
        gate_inits=levels("gate_init"),
        optimisers=levels("optimiser"),
        tasks=levels("task_name"),
        learned_by_task={str(task): share(rows["task"] == task) for task in np.unique(rows["task"])},
        curves_by_limit={limit: int((curves.limit == limit).sum()) for limit in LIMITS},
        tail_trainings=tail_trainings,
    )


def _robustness(rows: Matched, replicates: int, seed: int) -> tuple[Robustness, ...]:
    """AUROC of the window with other thresholds, and at the checkpoint with the lowest held-out loss."""
    readings = {f"score at least {t}": ("score", t) for t in OTHER_THRESHOLDS}
    readings[f"best checkpoint, at least {THRESHOLD}"] = ("score_best", THRESHOLD)
    robustness = []
    for reading, (column, threshold) in readings.items():
        scored, _ = prepare(rows, rows.recovered(column), threshold, replicates, seed)
        for stage in rows.stages:
            for predictor in (p for p in WINDOW if (stage, p) in rows.values):
                x = rows.score(predictor, stage)
                use = np.isfinite(scored.recovered) & ~np.isnan(x)
                robustness.append(Robustness(reading, predictor, stage, scored.auroc(x, use)))
    return tuple(robustness)


def save_analysis(analysis: Analysis, path: Path) -> None:
    """Write all numbers as JSON."""
    write_text(path, json.dumps(analysis.to_dict(), indent=1, allow_nan=False) + "\n")
