"""How the runs with exchanged inputs are dealt to the lags: so many for every pair, however many lags there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from lagreach.whole_model.measurement_plan import WholeModelPlan

MOST_ANCHORS = 4  # of a pair, for each lag: every one of them is a run of its own
RUNS = 4  # with inputs exchanged that a pair takes part in, for all lags together


@dataclass(frozen=True)
class Rounds:
    """Which lag each pair exchanges its inputs at: `columns` (round, pair) number the lags; every round has some anchors.

    All pairs exchange at every lag as long as the lags are few. Many lags share the same runs, each with a part of the pairs
    of every block, and `scale` (pair, lag) is how many pairs of its block each of these stands for, 0 if it takes no part.
    """

    columns: Int[np.ndarray, "round pair"]
    anchors: int
    scale: Float[np.ndarray, "pair lag"]

    @classmethod
    def planned(cls, plan: WholeModelPlan, lags: int) -> Rounds:
        """Deal the lags: by a pair's place in its block alone, so that neither targets nor shards decide."""
        blocks, most = plan.block_plan.blocks, min(MOST_ANCHORS, plan.anchors)
        size = np.bincount(blocks, minlength=plan.block_plan.count)
        fewest = max(RUNS, -(-lags // max(1, int(size[size > 0].min()))))  # so that every block has every lag
        if lags <= fewest:
            columns = np.repeat(np.arange(lags)[:, None], len(blocks), axis=1)
            return cls(columns, max(1, min(most, RUNS // lags)), np.ones((len(blocks), lags)))
        order = np.argsort(blocks, kind="stable")
        place = np.empty(len(blocks), dtype=np.int64)
        place[order] = np.arange(len(blocks)) - np.repeat(np.cumsum(size) - size, size)
        columns = (place * fewest + np.arange(fewest)[:, None]) % lags
        takes_part = np.zeros((len(blocks), lags))
        takes_part[np.arange(len(blocks)), columns] = 1.0
        counted = np.zeros((len(size), lags))
        np.add.at(counted, blocks, takes_part)
        return cls(columns, 1, takes_part * (size[:, None] / np.maximum(counted, 1))[blocks])

    def rows(self, pairs: np.ndarray) -> list[int]:
        """Anchors of both sequences of some pairs, at each lag."""
        return (2 * self.anchors * (self.scale[pairs] > 0).sum(0)).tolist()
