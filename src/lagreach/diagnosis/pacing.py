"""What pieces of work that were timed say about the time of all of it, and how much time timing may take."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

clock = time.perf_counter
FEWEST = 16  # sequences that a plan has
SHOWN = 64  # sequences whose gains are measured besides
SPENT = 0.8  # share of a budget that is planned with: the estimate is a rough one
OWN_SHARE = 0.012  # of the time expected, up to which pieces are timed: together with the rest it stays below 2 %,
OWN_SECONDS = 0.08  # or up to so many seconds: the first few pieces of a short work take more than 2 % of it
AMPLE = 2.5  # times the time expected, from which on a budget leaves nothing to be told by timing more
ROUNDING = 1e-9  # of a budget
MORE = 4  # times as many pairs in every further piece


@dataclass(frozen=True)
class Pace:
    """Seconds that do not depend on the number of sequences, seconds a sequence, and those of each of the first ones.

    `spared` (sequences, seconds): below so many, so much of what is fixed is not needed, since they lie in fewer blocks.
    """

    fixed: float = 0.0
    per_sequence: float = 0.0
    per_shown: float = 0.0
    spared: tuple[tuple[int, float], ...] = ()

    def seconds(self, sequences: int) -> float:
        """Of a diagnosis of so many.

        >>> pace = Pace(5.0, 0.1, spared=((32, 1.0), (96, 2.0)))
        >>> [round(pace.seconds(sequences), 6) for sequences in (100, 50, 20)]
        [15.0, 8.0, 4.0]
        """
        fixed = self.fixed - sum(seconds for below, seconds in self.spared if sequences < below)
        return fixed + self.per_sequence * sequences + self.per_shown * min(SHOWN, sequences)

    def affordable(self, budget: float, available: int) -> int:
        """Sequences that can be measured in `budget` seconds: all of them, or a part, but never fewer than a plan has.

        >>> Pace(0.0, 0.1).affordable(10.0, available=1000), Pace(2.0, 0.1).affordable(10.0, available=1000)
        (80, 60)
        """
        if self.seconds(available) <= SPENT * budget or self == Pace():  # which is too quick for the clock
            return available
        few, too_many = FEWEST, available
        while too_many - few > 1:
            half = (few + too_many) // 2
            few, too_many = (half, too_many) if self.seconds(half) <= SPENT * budget * (1 + ROUNDING) else (few, half)
        return few

    def times(self, factor: float) -> Pace:
        """Of work that takes so many times as long."""
        spared = tuple((below, factor * seconds) for below, seconds in self.spared)
        return Pace(factor * self.fixed, factor * self.per_sequence, factor * self.per_shown, spared)

    def __add__(self, other: Pace) -> Pace:
        return Pace(
            self.fixed + other.fixed,
            self.per_sequence + other.per_sequence,
            self.per_shown + other.per_shown,
            self.spared + other.spared,
        )


@dataclass(frozen=True)
class Allowance:
    """Time that timing may take; `part` of it, where several works are timed one after the other.

    `budget` is what the work itself may take, if it is to be fitted into that.
    """

    begun: float
    part: float = 1.0
    budget: float | None = None

    def ample(self, expected: float) -> bool:
        """Whether the budget is so much more than the work is expected to take that it need not be known any better."""
        return self.budget is not None and AMPLE * expected <= self.budget

    def left(self, expected: float) -> float:
        """Seconds that are left, if the work is expected to take so long; none if the budget is ample.

        Of work that is cut to its budget, no more is expected.
        """
        if self.ample(expected):
            return 0.0
        expected = expected if self.budget is None else min(expected, self.budget)
        return self.part * max(OWN_SECONDS, OWN_SHARE * expected / self.part) - (clock() - self.begun)


@dataclass(frozen=True)
class PieceLaw:
    """Seconds of a piece: of starting, of its bands of lags, and of its pairs, some of them for the steps carried back.

    Bands and steps are counted in shares of all of them.
    """

    start: float
    bands: float
    pair: float
    steps: float

    def seconds(self, pairs: int, bands: float = 1.0, steps: float = 1.0) -> float:
        """Of a piece of so many pairs."""
        return self.start + self.bands * bands + pairs * self.a_pair(steps)

    def a_pair(self, steps: float = 1.0) -> float:
        """Seconds of one more pair."""
        return self.pair + self.steps * steps

    @classmethod
    def fitted(cls, timed: Mapping[tuple[int, float, float], float]) -> PieceLaw:
        """Fit the seconds of pieces of (pairs, share of bands, share of steps); no part is negative.

        What pieces did not differ in cannot be told: all time is then that of their pairs, and grows with these.

        >>> law = PieceLaw.fitted({(1, 0.1, 0.2): 2.0, (1, 0.5, 0.7): 3.0, (4, 0.1, 0.2): 5.0, (4, 0.5, 0.7): 9.0})
        >>> round(law.seconds(10), 6), PieceLaw.fitted({(2, 1.0, 1.0): 3.0}).seconds(6)
        (27.0, 9.0)
        """
        pieces = np.array(list(timed), dtype=float)
        seconds = np.maximum(list(timed.values()), 1e-9)
        pairs, bands, steps = pieces.T
        differ = [len(set(pairs)) > 1, len(set(pairs)) > 1 and len(set(bands)) > 1, True, len(set(steps)) > 1]
        parts = np.stack((np.ones(len(pieces)), bands, pairs, pairs * steps), axis=1) * differ
        return cls(*_not_negative(parts / seconds[:, None], np.flatnonzero(differ)).tolist())


def _not_negative(parts: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Weights of some columns, none negative, whose sum is closest to one in every row.

    The best of all choices of columns whose plain least squares are not negative. There are at most fifteen, and scipy's nnls
    fails before 1.16 where columns nearly follow from each other.
    """
    best, closest = np.zeros(parts.shape[1]), np.inf
    for size in range(1, len(columns) + 1):
        for chosen in itertools.combinations(columns, size):
            weights = np.zeros(parts.shape[1])
            weights[list(chosen)] = np.linalg.lstsq(parts[:, chosen], np.ones(len(parts)), rcond=None)[0]
            distance = float(np.linalg.norm(parts @ weights - 1))
            if (weights >= 0).all() and distance < closest:
                best, closest = weights, distance
    return best


def timed(work: Callable[[], object]) -> float:
    """Seconds that some work takes."""
    begun = clock()
    work()
    return clock() - begun
