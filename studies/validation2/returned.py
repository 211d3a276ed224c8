"""What `lagreach.forecast` returns, from the shares of the study: `Forecast.if_present`, without and with an optimiser.

The protocol's predictor is another combination of the same shares, which no forecast returns.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from studies.validation.matching import Matched

UNLIMITED, WITHIN_STEPS = "if_present", "if_present_within_steps"
RETURNED = (UNLIMITED, WITHIN_STEPS)
LAST_PART = "budgeted"  # of readable, reachable and budgeted, in the order of the tables


def returned(rows: Matched, stage: str) -> dict[str, np.ndarray]:
    """Shares as `Forecast.if_present` has them at a stage; NaN where there is none."""
    readable, reachable, budgeted = (rows.values[stage, name] for name in ("readable", "reachable", LAST_PART))
    unlimited = np.fmax(readable, reachable)
    return {UNLIMITED: unlimited, WITHIN_STEPS: np.minimum(unlimited, budgeted)}


def with_returned(rows: Matched) -> Matched:
    """The same rows with what a forecast returns as two more predictors, behind the shares that they are made of."""
    values: dict[tuple[str, str], np.ndarray] = {}
    offered = dict(rows.offered)
    for (stage, name), value in rows.values.items():
        values[stage, name] = value
        if name == LAST_PART:
            for one, share in returned(rows, stage).items():
                values[stage, one], offered[stage, one] = share, rows.offered[stage, name]
    return replace(rows, values=values, offered=offered)
