"""Recovered score against the number of sequences: where each curve crosses the threshold, and which limit binds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from studies.validation.bootstrap import NOT_MEASURABLE, Estimate, estimate
from studies.validation.calibration import ABOVE, BELOW, SEEN, calibration_line, crossing, measurable
from studies.validation.matching import Matched
from studies.validation.predictor_scores import GROUPS, in_group
from studies.validation.statistics import NEEDED


@dataclass(frozen=True)
class Curves:
    """One entry for each condition, seed and lag: log10 of the empirical N, its side, and the limit that binds.

    The limit is "capacity" where the design says so; else "optimisation" where the lag is not learned at the largest N;
    else "samples". `rows` are the rows of a curve, and `of_row` is the curve of each row (-1 for none).
    """

    first: Int[np.ndarray, "curve"]
    rows: tuple[np.ndarray, ...]
    of_row: Int[np.ndarray, "row"]
    log_n: Float[np.ndarray, "curve"]
    side: Int[np.ndarray, "curve"]
    limit: np.ndarray
    log_largest: Float[np.ndarray, "curve"]

    def __len__(self) -> int:
        return len(self.first)


def learning_curves(rows: Matched, recovered: Float[np.ndarray, "row"], threshold: float) -> Curves:
    """Curves of all conditions, seeds and lags that were trained with at least two numbers of sequences."""
    keys = [np.unique(rows[name], return_inverse=True)[1] for name in ("condition", "seed", "lag")]
    _, of_row = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)
    parts = [np.flatnonzero((of_row == k) & np.isfinite(recovered)) for k in range(of_row.max(initial=-1) + 1)]
    parts = [part for part in parts if len(part) >= 2]
    place = np.full(len(rows), -1)
    log_n, side = np.empty(len(parts)), np.empty(len(parts), dtype=int)
    for k, part in enumerate(parts):
        place[part] = k
        log_n[k], side[k] = crossing(np.log10(rows["sequences"][part].astype(float)), recovered[part], threshold)
    first = np.array([part[0] for part in parts], dtype=int)
    capacity = rows["capacity_binds"][first].astype(bool)
    limit = np.where(capacity, "capacity", np.where(side == ABOVE, "optimisation", "samples"))
    largest = np.array([np.log10(float(rows["sequences"][part].max())) for part in parts])
    return Curves(first, tuple(parts), place, log_n, side, limit, largest)


def predicted_log_n(rows: Matched, curves: Curves, predictor: str, stage: str) -> Float[np.ndarray, "curve"]:
    """log10 of the sequences needed, for each curve: the (lower) median over its trainings; NaN if all are refused.

    At the start the trainings of a curve share a network; later each number of sequences has its own.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.log10(rows.values[stage, predictor])
    medians = np.full(len(curves), np.nan)
    for k, part in enumerate(curves.rows):
        finite = np.sort(values[part][~np.isnan(values[part])])
        if len(finite):
            medians[k] = finite[(len(finite) - 1) // 2]
    return medians


@dataclass(frozen=True)
class Calibration:
    """Empirical N against predicted N, in decades, for one predictor, stage and group of curves.

    ``log10 N_found = intercept + slope log10 N_predicted`` with residuals of `spread`; `offset` is the mean of
    ``log10(N_found / N_predicted)`` if the slope is taken to be 1. Censored curves (`below` the smallest N, `above` the
    largest) enter as such. Curves that are `never` learned according to the predictor have no place on a line: of those,
    `never_but_learned` is the share learned within the range. `promised` is the share of curves predicted to be learned at
    the largest N, and `kept` the share of those that were.
    """

    predictor: str
    stage: str
    group: str
    curves: int
    seen: int
    below: int
    above: int
    never: int
    refused: int
    never_but_learned: Estimate
    promised: Estimate
    kept: Estimate
    slope: Estimate
    intercept: Estimate
    offset: Estimate
    spread: Estimate

    def __str__(self) -> str:
        return f"{self.predictor:<14} {self.stage:<8} {self.group:<18} slope {self.slope}, offset {self.offset}"


def calibrate(
    rows: Matched, curves: Curves, predictor: str, stage: str, group: str, replicates: int, seed: int
) -> Calibration:
    """Calibration of one predictor; slopes are NaN where too few curves cross the threshold within the range."""
    inside = in_group(curves.limit, group)
    predicted = predicted_log_n(rows, curves, predictor, stage)
    # the first one is the sample itself
    weights = np.concatenate([np.ones((1, len(curves))), rows.draws(replicates, seed, curves.first)])
    use = inside & np.isfinite(predicted)
    side = curves.side[use]
    estimates = [NOT_MEASURABLE] * 4
    if measurable(side, predicted[use]):
        line = calibration_line(predicted[use], curves.log_n[use], side, weights[:, use])
        estimates = [estimate(float(v[0]), v[1:]) for v in (line.slope, line.intercept, line.offset, line.spread)]
    known, learned = inside & ~np.isnan(predicted), curves.side != ABOVE
    never, promised = known & (predicted == np.inf), known & (predicted <= curves.log_largest)
    return Calibration(
        predictor,
        stage,
        group,
        curves=int(inside.sum()),
        seen=int((side == SEEN).sum()),
        below=int((side == BELOW).sum()),
        above=int((side == ABOVE).sum()),
        never=int(never.sum()),
        refused=int((inside & np.isnan(predicted)).sum()),
        never_but_learned=_share(learned, never, weights),
        promised=_share(promised, known, weights),
        kept=_share(learned, promised, weights),
        slope=estimates[0],
        intercept=estimates[1],
        offset=estimates[2],
        spread=estimates[3],
    )


def _share(what: np.ndarray, among: np.ndarray, weights: np.ndarray) -> Estimate:
    """Share of some curves, with its interval; the first row of weights is the sample itself."""
    with np.errstate(invalid="ignore"):
        shares = weights @ (what & among) / (weights @ among)
    return estimate(float(shares[0]), shares[1:])


def calibrate_all(rows: Matched, curves: Curves, replicates: int, seed: int) -> tuple[Calibration, ...]:
    """Every predictor in sequences, at every stage, for all groups of curves."""
    return tuple(
        calibrate(rows, curves, predictor, stage, group, replicates, seed)
        for stage in rows.stages
        for predictor in rows.predictors(stage)
        if predictor in NEEDED
        for group in GROUPS
    )
