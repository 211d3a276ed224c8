"""Everything that is said about a run of the second study, from its two tables with fixed seeds, as the protocol has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from lagreach.errors import InputError
from studies.validation.analysis import prepare
from studies.validation.bootstrap import NOT_MEASURABLE, Estimate, estimate
from studies.validation.calibration import SEEN
from studies.validation.learning_curves import Curves, predicted_log_n
from studies.validation.matching import BASELINES, Matched, match
from studies.validation.predictor_scores import ScoredRows, difference
from studies.validation.statistics import RANKED
from studies.validation2.returned import RETURNED, UNLIMITED, WITHIN_STEPS, with_returned
from studies.validation2.tables import load_tables

PRIMARY = "forecast"  # of the protocol: the mean of the share within the steps and of that without; `RETURNED` is what users get
SHARE_PREDICTORS = (
    "readable", "reachable", "budgeted", *RETURNED, PRIMARY, "readable_data", "reachable_data", "share_now",
)  # fmt: skip
COUNTS = ("n_readable", "n_reachable", "n_forecast", "n_probe", "n_data")
SIMPLE = (*BASELINES, *RANKED)  # guesses without a network, and simple numbers of one
SHARE_LEARNED, GAIN_LEARNED = 0.5, 0.75
REPLICATES = 2000
GAIN = "loss gained of at least 0.75"
# column of the outcome, threshold, and families that are left out; all but the first were thought of after the run
READINGS: dict[str, tuple[str, float, tuple[str, ...]]] = {
    GAIN: ("gain", GAIN_LEARNED, ()),
    "slope on the lag's part (which neighbours may stand in for) of at least 0.5": ("score_best", SHARE_LEARNED, ()),
    "share of at least 0.3": ("share", 0.3, ()),
    "share of at least 0.7": ("share", 0.7, ()),
    "without parity": ("share", SHARE_LEARNED, ("parity",)),
    "without parity and series": ("share", SHARE_LEARNED, ("parity", "series")),
}
FACTOR = 3.0  # within which sequences needed should lie


@dataclass(frozen=True)
class Score:
    """How well a predictor ranks at one stage: all rows, networks on the same task, lag and N, and lags of one network."""

    predictor: str
    stage: str
    rows: int
    refused: int
    never: int
    auroc: Estimate
    networks: Estimate
    lags: Estimate


@dataclass(frozen=True)
class Needed:
    """Sequences found against sequences forecast, for curves that cross one half within the range; in decades."""

    predictor: str
    stage: str
    curves: int
    never: int
    distance: Estimate
    bias: Estimate
    within: Estimate  # share of curves within FACTOR


@dataclass(frozen=True)
class Analysis:
    """All numbers of the study; `scored` and `curves` are kept for the figures."""

    rows: Matched
    scored: ScoredRows
    curves: Curves
    scores: tuple[Score, ...]
    differences: dict[tuple[str, str, str], Estimate]  # of a predictor and another one at a stage
    readings: dict[tuple[str, str, str], Estimate]  # AUROC by reading of the outcome, predictor and stage
    by_family: dict[tuple[str, str, str], Estimate]  # AUROC by predictor, stage and family
    errors: dict[tuple[str, str], Estimate]  # median error of a share, by predictor and stage
    needed: tuple[Needed, ...]
    replicates: int

    def score(self, predictor: str, stage: str) -> Score:
        """Scores of one predictor at one stage; guesses without a network are the same at all."""
        at = self.rows.stages[0] if predictor in BASELINES else stage
        score = next((s for s in self.scores if (s.predictor, s.stage) == (predictor, at)), None)
        return score or Score(predictor, stage, 0, 0, 0, *[NOT_MEASURABLE] * 3)

    def needed_at(self, predictor: str, stage: str) -> Needed:
        """Sequences needed by one predictor at one stage."""
        return next(n for n in self.needed if (n.predictor, n.stage) == (predictor, stage))

    def best_simple(self, stage: str) -> str:
        """The simple number or guess with the highest AUROC at a stage, in hindsight."""
        return max(self.simple(stage), key=lambda name: self.score(name, stage).auroc.value)

    def simple(self, stage: str) -> list[str]:
        """Simple predictors there are at a stage; what the network has learned already is one once training runs."""
        known = [name for name in SIMPLE if not np.isnan(self.score(name, stage).auroc.value)]
        return known + (["share_now"] if stage.startswith("early") else [])


def analyse(folder: str | Path, replicates: int = REPLICATES, seed: int = 0) -> Analysis:
    """Read the tables of a run and compute everything; the same tables and seed give the same numbers."""
    return analyse_rows(match(*load_tables(folder)), replicates, seed)


def analyse_rows(rows: Matched, replicates: int = REPLICATES, seed: int = 0) -> Analysis:
    """Analyse outcomes with their predictions."""
    if not len(rows) or not rows.stages:
        raise InputError(
            "there is nothing to analyse", got=f"{len(rows)} outcomes, stages {rows.stages}", fix="run the study first"
        )
    rows = with_returned(rows)
    scored, curves = prepare(rows, rows.recovered("share"), SHARE_LEARNED, replicates, seed)
    stages = rows.stages
    scores = [_score(scored, name, stages[0]) for name in BASELINES]
    scores += [_score(scored, name, stage) for stage in stages for name in rows.predictors(stage)]
    main = (PRIMARY, *RETURNED, "readable", "reachable", "budgeted", "n_probe", "n_data", "data_per_lag")
    return Analysis(
        rows=rows,
        scored=scored,
        curves=curves,
        scores=tuple(scores),
        differences=_differences(scored),
        readings=_readings(rows, main, replicates, seed),
        by_family={
            (p, s, str(family)): _auroc(scored, p, s, rows["task"] == family)
            for s in stages
            for p in main
            if _has(rows, p, s)
            for family in np.unique(rows["task"])
        },
        errors={(p, s): share_error(scored, p, s) for s in stages for p in SHARE_PREDICTORS if _has(rows, p, s)},
        needed=tuple(
            sequences_needed(rows, curves, p, s, replicates, seed) for s in stages for p in COUNTS if _has(rows, p, s)
        ),
        replicates=replicates,
    )


def _readings(
    rows: Matched, predictors: tuple[str, ...], replicates: int, seed: int
) -> dict[tuple[str, str, str], Estimate]:
    """AUROC under other readings of the outcome: the protocol's second one, and those that were thought of after the run."""
    products, correlated = rows["task"] == "parity", rows["task"] == "series"
    readings = {}
    for reading, (column, threshold, left_out) in READINGS.items():
        scored, _ = prepare(rows, rows.recovered(column), threshold, replicates, seed)
        where = ~((products & ("parity" in left_out)) | (correlated & ("series" in left_out)))
        for stage in rows.stages:
            for name in predictors:
                if _has(rows, name, stage):
                    readings[reading, name, stage] = _auroc(scored, name, stage, where)
    return readings


def _has(rows: Matched, predictor: str, stage: str) -> bool:
    return predictor in BASELINES or (stage, predictor) in rows.values


def _score(scored: ScoredRows, predictor: str, stage: str) -> Score:
    rows = scored.rows
    x = rows.score(predictor, stage)
    use = np.isfinite(scored.recovered) & ~np.isnan(x)
    return Score(
        predictor,
        stage,
        rows=int(use.sum()),
        refused=int(np.isnan(x).sum()),
        never=int((x[use] == -np.inf).sum()),
        auroc=scored.auroc(x, use),
        networks=scored.auroc(x, use, scored.stratum("task_name", "lag", "sequences")),
        lags=scored.auroc(x, use, scored.stratum("training")),
    )


def _auroc(scored: ScoredRows, predictor: str, stage: str, where: Bool[np.ndarray, "row"] | None = None) -> Estimate:
    x = scored.rows.score(predictor, stage)
    use = np.isfinite(scored.recovered) & ~np.isnan(x)
    return scored.auroc(x, use if where is None else use & where)


def _differences(scored: ScoredRows) -> dict[tuple[str, str, str], Estimate]:
    """Compare the primary predictor with every other one at the same stage, and with itself before training.

    So too what a forecast returns: with an optimiser less without, and each with itself before training.
    """
    rows = scored.rows
    gains: dict[tuple[str, str, str], Estimate] = {}
    for stage in rows.stages:
        names = rows.predictors(stage)
        if PRIMARY in names:
            others = [*BASELINES, *(name for name in names if name != PRIMARY)]
            gains |= {(PRIMARY, o, stage): difference(scored, PRIMARY, o, stage).auroc for o in others}
        if WITHIN_STEPS in names:
            gains[WITHIN_STEPS, UNLIMITED, stage] = difference(scored, WITHIN_STEPS, UNLIMITED, stage).auroc
        if stage != rows.stages[0]:
            for name in (PRIMARY, *RETURNED):
                if name in names:
                    gains[name, name, stage] = difference(scored, name, name, stage, rows.stages[0]).auroc
    return gains


def weighted_median(
    values: Float[np.ndarray, "row"], weights: Float[np.ndarray, "replica row"]
) -> Float[np.ndarray, "replica"]:
    """Smallest value with at least half of the weight at or below it, for each row of weights; NaN without any weight.

    >>> weighted_median(np.array([3.0, 1.0, 2.0]), np.array([[1.0, 1.0, 1.0], [5.0, 1.0, 1.0]])).tolist()
    [2.0, 3.0]
    """
    order = np.argsort(values)
    below = np.cumsum(weights[:, order], axis=1)
    total = below[:, -1]
    place = (below < total[:, None] / 2).sum(1)
    return np.where(total > 0, values[order][np.minimum(place, len(values) - 1)], np.nan)


def share_error(scored: ScoredRows, predictor: str, stage: str) -> Estimate:
    """Median distance of a forecast share from the share found, cut to 0 ... 1."""
    said = scored.rows.values[stage, predictor]
    use = np.isfinite(scored.recovered) & ~np.isnan(said)
    apart = np.abs(np.clip(said[use], 0, 1) - np.clip(scored.recovered[use], 0, 1))
    value = weighted_median(apart, scored.weights[None, use])[0]
    return estimate(float(value), weighted_median(apart, scored.replicates[:, use]))


def sequences_needed(rows: Matched, curves: Curves, predictor: str, stage: str, replicates: int, seed: int) -> Needed:
    """Distance of the N found from the N said where samples bind and the curve crosses one half within the range."""
    said = predicted_log_n(rows, curves, predictor, stage)
    use = (curves.limit == "samples") & (curves.side == SEEN) & ~np.isnan(said)
    count = int(use.sum())
    if not count:
        return Needed(predictor, stage, 0, 0, NOT_MEASURABLE, NOT_MEASURABLE, NOT_MEASURABLE)
    bias = curves.log_n[use] - said[use]  # -inf where it was said to be never
    draws = np.concatenate((np.ones((1, count)), rows.draws(replicates, seed, curves.first)[:, use]))
    distance, middle = (weighted_median(v, draws) for v in (np.abs(bias), bias))
    with np.errstate(invalid="ignore"):
        within = draws @ (np.abs(bias) <= np.log10(FACTOR)) / draws.sum(1)
    return Needed(
        predictor,
        stage,
        count,
        int(np.isinf(said[use]).sum()),
        *(estimate(float(v[0]), v[1:]) for v in (distance, middle, within)),
    )
