"""How the runs with exchanged inputs are dealt to the lags: so many for every pair, however many lags there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from lagreach.whole_model.measurement_plan import WholeModelPlan

MOST_ANCHORS = 4  # of a pair, for each lag: every one of them is a run of its own
MORE_RUNS = 4  # times as many runs of a pair as one lag has, for all lags together,
MORE_UNCONTROLLED = 6  # or so many, where swapped targets do not take off what few pairs say by chance


def runs_of_a_lag(plan: WholeModelPlan) -> int:
    """Runs with inputs exchanged that a pair takes part in if there is one lag alone: one for each of its anchors."""
    return min(MOST_ANCHORS, plan.anchors)


@dataclass(frozen=True)
class Rounds:
    """Which lag each pair exchanges its inputs at in each of its runs: `columns` (run, pair) number the lags.

    Few lags have a run for each of their anchors. Many lags share as many runs as are allowed, in turns, so that every block
    has all of them equally often, or nearly; where there are fewer runs than lags, some pairs take no part at a lag. `scale`
    (pair, lag) is how many pairs of its block each of the others stands for, 0 if it takes no part.
    """

    columns: Int[np.ndarray, "run pair"]
    scale: Float[np.ndarray, "pair lag"]

    @classmethod
    def planned(cls, plan: WholeModelPlan, lags: int, *, controlled: bool = True) -> Rounds:
        """Deal the lags: by a pair's place in its block alone, so that neither targets nor shards decide."""
        blocks, most = plan.block_plan.blocks, runs_of_a_lag(plan)
        size = np.bincount(blocks, minlength=plan.block_plan.count)
        allowed = (MORE_RUNS if controlled else MORE_UNCONTROLLED) * most
        fewest = -(-lags // max(1, int(size[size > 0].min())))  # so that every block has every lag
        runs = max(min(allowed, lags * most), fewest)
        order = np.argsort(blocks, kind="stable")
        place = np.empty(len(blocks), dtype=np.int64)
        place[order] = np.arange(len(blocks)) - np.repeat(np.cumsum(size) - size, size)
        columns = (place * runs + np.arange(runs)[:, None]) % lags
        takes_part = np.zeros((len(blocks), lags))
        takes_part[np.arange(len(blocks)), columns] = 1.0
        counted = np.zeros((len(size), lags))
        np.add.at(counted, blocks, takes_part)
        return cls(columns, takes_part * (size[:, None] / np.maximum(counted, 1))[blocks])

    @property
    def part(self) -> float:
        """Part of the pairs that exchange inputs at a lag."""
        return float((self.scale > 0).mean())

    @property
    def anchors(self) -> Int[np.ndarray, "pair lag"]:
        """Anchors of each pair at each lag: the runs that it has there."""
        lags = np.arange(self.scale.shape[1])
        return (self.columns[:, :, None] == lags).sum(0)

    def number(self, run: int) -> int:
        """Which of a pair's anchors at its lag a run has: lags take turns."""
        return run // self.scale.shape[1]

    def rows(self, pairs: np.ndarray) -> list[int]:
        """Anchors of both sequences of some pairs, at each lag."""
        return (2 * self.anchors[pairs].sum(0)).tolist()
