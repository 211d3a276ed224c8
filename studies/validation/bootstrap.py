"""Intervals over tasks, conditions and seeds: whole clusters are drawn again, because their rows stand and fall together.

A bootstrap sample is a row of weights, how often each cluster was drawn; statistics that take weights with a leading axis
then give all replicates in one call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped

LEVEL = 0.95
FEWEST_USABLE = 0.9  # share of replicates that must have an answer


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; NaN where it cannot be measured."""

    value: float
    low: float = np.nan
    high: float = np.nan

    @property
    def measured(self) -> bool:
        """Whether number and interval are there."""
        return bool(np.isfinite([self.value, self.low, self.high]).all())

    def above(self, bound: float) -> bool:
        """Whether the whole interval lies above a bound; no if it was not measured."""
        return self.measured and self.low > bound

    def below(self, bound: float) -> bool:
        """Whether the whole interval lies below a bound; no if it was not measured."""
        return self.measured and self.high < bound

    def covers(self, bound: float) -> bool:
        """Whether the interval holds a number; no if it was not measured."""
        return self.measured and self.low <= bound <= self.high

    def __str__(self) -> str:
        if np.isnan(self.value):
            return "not measurable"
        return f"{self.value:.2f}" + (f" [{self.low:.2f}, {self.high:.2f}]" if self.measured else " [no interval]")


NOT_MEASURABLE = Estimate(np.nan)


def cluster_weights(
    outer: Shaped[np.ndarray, "row"],
    inner: Shaped[np.ndarray, "row"],
    replicates: int,
    generator: np.random.Generator,
) -> Float[np.ndarray, "replica row"]:
    """How often each row is drawn: outer clusters with replacement, then inner ones within each drawn outer one.

    Rows of an inner cluster are always drawn together. Drawing twice errs on the wide side: in simulations with 12 tasks of 4
    conditions and 5 seeds, tasks outside and pairs of condition and seed inside, the 95 % interval of an AUROC covered in 96
    to 100 % of cases, whether rows shared something by task, by condition, by seed or not at all. Without drawing tasks it
    was 82 % where tasks differed, and single rows gave 54 % where conditions did.

    >>> rows = cluster_weights(np.array(["a", "a", "b"]), np.array([0, 0, 0]), 4, np.random.default_rng(0))
    >>> rows.sum(1).tolist() == (2 * rows[:, 0] + rows[:, 2]).tolist()
    True
    """
    names, place = np.unique(outer, return_inverse=True)
    drawn = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), size=replicates)
    weights = np.zeros((replicates, len(outer)))
    for k in range(len(names)):
        rows = np.flatnonzero(place == k)
        labels, part = np.unique(inner[rows], return_inverse=True)
        times = generator.multinomial(drawn[:, k] * len(labels), np.full(len(labels), 1 / len(labels)))
        weights[:, rows] = times[:, part]
    return weights


def estimate(value: float, replicates: Float[np.ndarray, "replica"], clusters: int | None = None) -> Estimate:
    """Percentile interval; none if too many replicates have no answer.

    With only a handful of `clusters`, percentiles are too narrow: Student's t with their number takes their place, around
    the value, with the standard deviation of the replicates.
    """
    usable = replicates[np.isfinite(replicates)]
    if np.isnan(value) or len(usable) < FEWEST_USABLE * len(replicates):
        return Estimate(float(value))
    if clusters is not None:
        from scipy.stats import t

        if clusters < 2:
            return Estimate(float(value))
        half = t.ppf((1 + LEVEL) / 2, clusters - 1) * usable.std() * np.sqrt(clusters / (clusters - 1))
        return Estimate(float(value), float(value - half), float(value + half))
    low, high = np.quantile(usable, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(value), float(low), float(high))
