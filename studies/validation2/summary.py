"""The numbers of the second study as JSON, with names that need no explanation."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lagreach._util.disk import write_text
from studies.validation.bootstrap import Estimate
from studies.validation2.analysis import FACTOR, PRIMARY, READINGS, SHARE_LEARNED, Analysis
from studies.validation2.goals import is_linear, judged, not_beaten
from studies.validation2.growth_analysis import growth
from studies.validation2.returned import UNLIMITED, WITHIN_STEPS

STAGE_KEYS = {
    "init": "before",
    "pilot": "after_noise_free_pilot",
    "early_1": "after_1_percent",
    "early_5": "after_5_percent",
    "early_20": "after_20_percent",
}
RETURNED_KEYS = {UNLIMITED: "without_optimiser", WITHIN_STEPS: "with_optimiser_and_steps"}
DIGITS = 9


def plain(estimated: Estimate) -> dict[str, float | None]:
    """An estimate for JSON: null where there is no number, also where it is infinite."""
    return {name: round(v, DIGITS) if math.isfinite(v) else None for name, v in asdict(estimated).items()}


def summary(analysis: Analysis) -> dict[str, Any]:
    """All numbers."""
    rows, stages = analysis.rows, analysis.rows.stages
    learned = float(np.average(analysis.scored.learned, weights=analysis.scored.weights))
    predictors: dict[str, dict[str, Any]] = {}
    for s in analysis.scores:
        numbers = {
            "auroc": plain(s.auroc),
            "auroc_between_networks": plain(s.networks),
            "auroc_between_lags": plain(s.lags),
            "rows": s.rows,
            "refused": s.refused,
            "never": s.never,
        }
        if (s.predictor, s.stage) in analysis.errors:
            numbers["median_share_error"] = plain(analysis.errors[s.predictor, s.stage])
        predictors.setdefault(s.predictor, {})[STAGE_KEYS[s.stage]] = numbers
    main = {STAGE_KEYS[stage]: analysis.score(PRIMARY, stage) for stage in stages}
    simple = [stage for stage in stages if stage != "pilot"]
    return {
        "study": "validation2-linear" if is_linear(analysis) else "validation2",
        "trainings": len(np.unique(rows["training"])),
        "conditions": len(np.unique(rows["condition"])),
        "tasks": sorted(np.unique(rows["task_name"]).tolist()),
        "families": sorted(np.unique(rows["task"]).tolist()),
        "sequences": np.unique(rows["sequences"]).tolist(),
        "seeds": len(np.unique(rows["seed"])),
        "lags_asked": len(rows),
        "diverged": int((rows["status"] == "DIVERGED").sum()),
        "learned_means": f"share of at least {SHARE_LEARNED} at the checkpoint with the lowest held-out loss",
        "learned": round(learned, DIGITS),
        "bootstrap_draws": analysis.replicates,
        "primary": PRIMARY,
        "auroc": {stage: plain(s.auroc) for stage, s in main.items()},
        "auroc_between_networks": {stage: plain(s.networks) for stage, s in main.items()},
        "auroc_between_lags": {stage: plain(s.lags) for stage, s in main.items()},
        "median_share_error": {STAGE_KEYS[s]: plain(analysis.errors[PRIMARY, s]) for s in stages},
        "returned": as_returned(analysis),
        "sequences_needed": {
            n.predictor: {
                STAGE_KEYS[o.stage]: {
                    "curves": o.curves,
                    "said_never": o.never,
                    f"within_factor_{FACTOR:g}": plain(o.within),
                    "median_distance_in_decades": plain(o.distance),
                    "median_found_over_said_in_decades": plain(o.bias),
                }
                for o in analysis.needed
                if o.predictor == n.predictor
            }
            for n in analysis.needed
        },
        "window": {STAGE_KEYS[s]: plain(analysis.score("n_probe", s).auroc) for s in simple},
        "best_simple": {
            STAGE_KEYS[s]: {
                "name": analysis.best_simple(s),
                "auroc": plain(analysis.score(analysis.best_simple(s), s).auroc),
                "forecast_less_this": plain(analysis.differences[PRIMARY, analysis.best_simple(s), s]),
                "not_beaten": not_beaten(analysis, s),
            }
            for s in simple
        },
        "differences_of_auroc": [
            {"predictor": p, "less": o, "stage": STAGE_KEYS[s], "auroc": plain(gain)}
            for (p, o, s), gain in analysis.differences.items()
        ],
        "by_family": _nested(analysis.by_family, 1),
        "other_readings": {
            "written_before": [next(iter(READINGS))],
            "auroc": {
                reading: _nested({k[1:]: v for k, v in analysis.readings.items() if k[0] == reading}, 1)
                for reading in READINGS
            },
        },
        "predictors": predictors,
        "goals": [
            {"found" if name == "obtained" else name: value for name, value in asdict(goal).items()}
            for goal in judged(analysis)
        ],
    }


def as_returned(analysis: Analysis) -> dict[str, Any]:
    """The main numbers of what `lagreach.forecast` returns, and what an optimiser and its steps add to the AUROC."""
    stages = analysis.rows.stages
    made: dict[str, Any] = {
        key: {
            "auroc": {STAGE_KEYS[s]: plain(analysis.score(name, s).auroc) for s in stages},
            "auroc_between_networks": {STAGE_KEYS[s]: plain(analysis.score(name, s).networks) for s in stages},
            "median_share_error": {STAGE_KEYS[s]: plain(analysis.errors[name, s]) for s in stages},
        }
        for name, key in RETURNED_KEYS.items()
    }
    gains = {STAGE_KEYS[s]: plain(analysis.differences[WITHIN_STEPS, UNLIMITED, s]) for s in stages}
    return made | {"auroc_with_less_without": gains}


def interval(estimated: dict[str, float | None]) -> str:
    """A number of a summary with its interval.

    >>> interval({"value": 0.712, "low": 0.5, "high": 0.8349})
    '0.71 [0.50, 0.83]'
    """
    if estimated["value"] is None:
        return "not measurable"
    if estimated["low"] is None or estimated["high"] is None:
        return f"{estimated['value']:.2f}"
    return f"{estimated['value']:.2f} [{estimated['low']:.2f}, {estimated['high']:.2f}]"


def _nested(estimates: dict[Any, Estimate], stage_at: int) -> dict[str, Any]:
    """Keys one below the other, stages by their names here."""
    made: dict[str, Any] = {}
    for key, value in estimates.items():
        *path, last = (STAGE_KEYS[k] if i == stage_at else k for i, k in enumerate(key))
        inside = made
        for step in path:
            inside = inside.setdefault(step, {})
        inside[last] = plain(value)
    return made


def linear_folder(folder: Path) -> Path:
    """Folder of the part about linear dependencies, beside that of the study."""
    return folder.with_name(f"{folder.name}-linear")


def linear_part(folder: Path) -> dict[str, Any]:
    """The main numbers of the part about linear dependencies; empty where it was not analysed."""
    path = linear_folder(folder) / "summary.json"
    if not path.is_file():
        return {}
    linear = json.loads(path.read_text(encoding="utf-8"))
    gains = {row["stage"]: row["auroc"] for row in linear["differences_of_auroc"] if row["less"] == PRIMARY}
    kept = (
        "trainings",
        "conditions",
        "tasks",
        "learned",
        "auroc",
        "auroc_between_networks",
        "median_share_error",
        "returned",
        "window",
    )
    return {name: linear[name] for name in kept} | {
        "best_simple": linear["best_simple"],
        "pilot_less_before": gains[STAGE_KEYS["pilot"]],
        "claims": linear["goals"],
    }


def save_first_definition(analysis: Analysis, path: Path) -> None:
    """Write the main numbers of tables whose shares were defined otherwise, which the page tells beside those of now."""
    made = summary(analysis)
    about = "summary.json before shares of single inputs: the run by the protocol's first definition"
    kept = {name: made[name] for name in ("auroc", "median_share_error", "returned", "goals")}
    write_text(path, json.dumps({"about": about} | kept, indent=1, allow_nan=False) + "\n")


def save_summary(analysis: Analysis, path: Path) -> dict[str, Any]:
    """Write the summary, with the main numbers of the part about linear dependencies, and return it."""
    made = summary(analysis)
    if linear := linear_part(path.parent):
        made["linear_dependencies"] = linear
    if grown := growth(path.parent, analysis.replicates):
        made["growth"] = {
            g.way: {
                "rows": g.rows,
                "auroc": plain(g.auroc),
                "less_before_training": plain(g.over_before),
                "less_after_noise_free_pilot": plain(g.over_pilot),
                "median_share_error": plain(g.error),
            }
            for g in grown
        }
    write_text(path, json.dumps(made, indent=1, allow_nan=False) + "\n")
    return made
