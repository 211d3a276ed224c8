"""Every predictor at every stage, scored against what was learned, with intervals over conditions and seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from studies.validation.bootstrap import NOT_MEASURABLE, Estimate, estimate
from studies.validation.matching import BASELINES, Matched
from studies.validation.scoring import auroc, brier, out_of_task, spearman
from studies.validation.statistics import NEEDED

LIMITS = ("samples", "optimisation", "capacity")
NO_CAPACITY_LIMIT = "no capacity limit"
GROUPS = ("all", NO_CAPACITY_LIMIT, *LIMITS)


def in_group(limit: np.ndarray, group: str) -> Bool[np.ndarray, "row"]:
    """Which of some limits belong to one of `GROUPS`."""
    if group == "all":
        return np.ones(len(limit), dtype=bool)
    return (limit == group) | ((group == NO_CAPACITY_LIMIT) & np.isin(limit, ("samples", "optimisation")))


@dataclass(frozen=True)
class PredictorScore:
    """How well one predictor did at one stage.

    `auroc` compares all rows, `auroc_lags` the lags of one training, `auroc_networks` networks trained on the same task, lag
    and number of sequences. `brier` is of a link fitted to the other tasks, `brier_claimed` of one without intercept, which
    takes sequences needed at their word. Rows are counted: `refused` were NaN, `absent` had no prediction, `never` was inf.
    """

    predictor: str
    stage: str
    rows: int
    refused: int
    absent: int
    never: int
    auroc: Estimate
    auroc_lags: Estimate
    auroc_networks: Estimate
    brier: Estimate
    brier_claimed: Estimate
    spearman: Estimate
    by_task: dict[str, Estimate]
    by_limit: dict[str, Estimate]

    def __str__(self) -> str:
        return f"{self.predictor:<16} {self.stage:<8} AUROC {self.auroc}, Brier {self.brier}, rank {self.spearman}"


@dataclass(frozen=True)
class Difference:
    """AUROC of a predictor less that of another, on the rows that both have, by the same bootstrap draws."""

    predictor: str
    other: str
    stage: str
    other_stage: str
    rows: int
    auroc: Estimate


@dataclass(frozen=True)
class ScoredRows:
    """What scoring needs: rows, whether each was learned, which limit binds, and weights of rows and replicates."""

    rows: Matched
    recovered: Float[np.ndarray, "row"]
    learned: Bool[np.ndarray, "row"]
    limit: np.ndarray
    weights: Float[np.ndarray, "row"]
    replicates: Float[np.ndarray, "replica row"]

    def stratum(self, *names: str) -> np.ndarray:
        """Rows that share the values of some columns share a number."""
        parts = [np.unique(self.rows[name], return_inverse=True)[1] for name in names]
        return np.unique(np.stack(parts, axis=1), axis=0, return_inverse=True)[1]

    def auroc(self, x: np.ndarray, use: np.ndarray, strata: np.ndarray | None = None) -> Estimate:
        """AUROC of the rows in use, with its interval."""
        chosen = (x[use], self.learned[use])
        within = None if strata is None else strata[use]
        value = float(auroc(*chosen, self.weights[use], within))
        if np.isnan(value):
            return NOT_MEASURABLE
        return estimate(value, auroc(*chosen, self.replicates[:, use], within))


def score_predictor(scored: ScoredRows, predictor: str, stage: str) -> PredictorScore:
    """All scores of one predictor at one stage."""
    rows, learned = scored.rows, scored.learned
    x = rows.score(predictor, stage)
    use = np.isfinite(scored.recovered) & ~np.isnan(x)
    baseline = predictor in BASELINES
    offered = np.ones(len(rows), dtype=bool) if baseline else rows.offered[stage, predictor]
    w, draws, tasks = scored.weights[use], scored.replicates[:, use], rows["task"]

    def brier_of(as_claimed: bool) -> Estimate:
        probability = out_of_task(x[use], learned[use], tasks[use], w, as_claimed=as_claimed)
        if not len(probability) or np.isnan(probability).any():
            return NOT_MEASURABLE
        return estimate(float(brier(probability, learned[use], w)), brier(probability, learned[use], draws))

    rank = float(spearman(x[use], scored.recovered[use], w))
    return PredictorScore(
        predictor,
        stage,
        rows=int(use.sum()),
        refused=int((offered & np.isnan(x)).sum()),
        absent=int((~offered).sum()),
        never=int((x[use] == -np.inf).sum()),
        auroc=scored.auroc(x, use),
        auroc_lags=scored.auroc(x, use, scored.stratum("training")),
        auroc_networks=scored.auroc(x, use, scored.stratum("task_name", "lag", "sequences")),
        brier=brier_of(False),
        brier_claimed=brier_of(True) if predictor in NEEDED else NOT_MEASURABLE,
        spearman=estimate(rank, spearman(x[use], scored.recovered[use], draws)),
        by_task={str(t): scored.auroc(x, use & (tasks == t)) for t in np.unique(tasks)},
        by_limit={group: scored.auroc(x, use & in_group(scored.limit, group)) for group in GROUPS[1:]},
    )


def score_all(scored: ScoredRows) -> tuple[PredictorScore, ...]:
    """Baselines first (before any network is looked at), then every predictor at every stage."""
    first = scored.rows.stages[0]
    scores = [score_predictor(scored, name, first) for name in BASELINES]
    for stage in scored.rows.stages:
        scores += [score_predictor(scored, name, stage) for name in scored.rows.predictors(stage)]
    return tuple(scores)


def base_rate_brier(scored: ScoredRows) -> Estimate:
    """Brier score of always naming the share learned in the other tasks: what a predictor has to beat."""
    use = np.isfinite(scored.recovered)
    nothing, learned, w = np.zeros(int(use.sum())), scored.learned[use], scored.weights[use]
    probability = out_of_task(nothing, learned, scored.rows["task"][use], w)
    if not len(probability) or np.isnan(probability).any():
        return NOT_MEASURABLE
    return estimate(float(brier(probability, learned, w)), brier(probability, learned, scored.replicates[:, use]))


def difference(scored: ScoredRows, predictor: str, other: str, stage: str, other_stage: str = "") -> Difference:
    """Compare two predictors, or two stages of one, on the rows that both have."""
    other_stage = other_stage or stage
    x, y = scored.rows.score(predictor, stage), scored.rows.score(other, other_stage)
    use = np.isfinite(scored.recovered) & ~np.isnan(x) & ~np.isnan(y)
    learned, draws = scored.learned[use], scored.replicates[:, use]
    values = [float(auroc(v[use], learned, scored.weights[use])) for v in (x, y)]
    gain = values[0] - values[1]
    gained = NOT_MEASURABLE
    if not np.isnan(gain):
        gained = estimate(gain, auroc(x[use], learned, draws) - auroc(y[use], learned, draws))
    return Difference(predictor, other, stage, other_stage, int(use.sum()), gained)


def differences(scored: ScoredRows, predictors: tuple[str, ...]) -> tuple[Difference, ...]:
    """Each of a few predictors against every other one at the same stage, the baselines, and its own first stage."""
    compared = []
    first = scored.rows.stages[0]
    for stage in scored.rows.stages:
        names = scored.rows.predictors(stage)
        for predictor in (p for p in predictors if p in names):
            compared += [difference(scored, predictor, o, stage) for o in (*BASELINES, *names) if o != predictor]
            if stage != first and (first, predictor) in scored.rows.values:
                compared.append(difference(scored, predictor, predictor, stage, first))
    return tuple(compared)
