"""Does it help to let a network grow before it is forecast? AUROC of each way, and paired differences, as the protocol has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from studies.validation.analysis import prepare
from studies.validation.bootstrap import Estimate
from studies.validation.matching import Matched, match
from studies.validation.predictor_scores import difference
from studies.validation2.analysis import PRIMARY, REPLICATES, SHARE_LEARNED, share_error
from studies.validation2.tables import load_growth, load_tables

BEFORE, PILOT, NUDGE = "init", "pilot", "nudge"
FARTHER = 15.0  # a nudge is so small a part of the pilot
WAYS = {
    "newton": "six Gauss-Newton steps in 256 random directions",
    "motion": "the share's motion over 20 steps of the pilot, carried on to 300",
}


@dataclass(frozen=True)
class Grown:
    """One way of growth: how well the forecast ranks after it, and how much better than before training and after the pilot."""

    way: str
    rows: int
    auroc: Estimate
    over_before: Estimate
    over_pilot: Estimate
    error: Estimate

    @property
    def helps(self) -> bool:
        """Whether it is better than the forecast before training beyond doubt."""
        return self.over_before.above(0)


def growth(folder: str | Path, replicates: int = REPLICATES, seed: int = 0) -> tuple[Grown, ...]:
    """Judge every way of growth in a folder; none where there are no numbers."""
    grown = load_growth(folder)
    if grown is None:
        return ()
    outcomes, predictors = load_tables(folder)
    rows, moved = match(outcomes, predictors), match(outcomes, grown)
    values = dict(rows.values) | {
        ("newton", PRIMARY): moved.values["newton", PRIMARY],
        ("motion", PRIMARY): carried_on(moved),
    }
    scored, _ = prepare(
        Matched(rows.columns, values, rows.offered), rows.recovered("share"), SHARE_LEARNED, replicates, seed
    )
    judged = []
    for way in WAYS:
        x = scored.rows.score(PRIMARY, way)
        use = np.isfinite(scored.recovered) & ~np.isnan(x)
        over_before, over_pilot = (difference(scored, PRIMARY, PRIMARY, way, other).auroc for other in (BEFORE, PILOT))
        judged.append(
            Grown(way, int(use.sum()), scored.auroc(x, use), over_before, over_pilot, share_error(scored, PRIMARY, way))
        )
    return tuple(judged)


def carried_on(moved: Matched) -> np.ndarray:
    """Shares before training, moved on as far as their first steps point."""
    before, after = (moved.values[stage, PRIMARY] for stage in (BEFORE, NUDGE))
    return np.clip(before + FARTHER * (after - before), 0.0, 1.0)
