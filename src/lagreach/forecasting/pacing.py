"""How many directions of the weights, and how many sequences, a budget of seconds allows: from timing a few of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from lagreach.forecasting.linearise import Linearisation
from lagreach.forecasting.plan import BLOCKS
from lagreach.forecasting.target_batches import Measurement
from lagreach.statistics import reachable
from lagreach.statistics.reachable import Directions

clock = time.perf_counter
SPENT = 0.8  # share of a budget that is planned with: the estimate is a rough one
TIMED = 0.1  # share of what is left that timing may take
FEWEST_DIRECTIONS = 16
TRIED = 2  # directions that are timed, where each takes a run of the model
GOOD_DIRECTIONS = 64  # rather than fewer than these, fewer sequences are looked at
ROWS_A_FEATURE = 4  # at least so many anchors for each feature, or fewer directions are taken
FEWEST_SEQUENCES = 32  # two for every block
FEATURES = 64  # of a fit, up to which its time hardly depends on them; beyond, it grows with their square
FITS = 2.5  # of all weights, of half the directions, and what is read from them


@dataclass(frozen=True)
class Budget:
    """Seconds that a forecast may take, counted from its beginning."""

    seconds: float
    begun: float

    @property
    def spent(self) -> float:
        """Seconds until now."""
        return clock() - self.begun

    @property
    def left(self) -> float:
        """Seconds that can still be planned with."""
        return max(0.0, SPENT * self.seconds - self.spent)


@dataclass(frozen=True)
class Pace:
    """Seconds of a sequence, of each direction of the weights in a sequence, and of a fit of few features."""

    sequence: float
    direction: float
    fit: float

    def seconds(self, sequences: int, directions: int, beside: int) -> float:
        """Of all weights, with the features of the readout `beside` them.

        >>> round(Pace(0.1, 0.01, 0.0).seconds(10, 20, beside=0), 6)
        3.0
        """
        features = max(1.0, (directions + beside) / FEATURES)
        return sequences * (self.sequence + self.direction * directions) + FITS * self.fit * features**2


def affordable(
    pace: Pace, left: float, *, most: int, fewest: int, beside: int, anchors: int, available: int
) -> tuple[int, int]:
    """Sequences and directions that so many seconds allow, from `most` directions and all that is `available`.

    Where the cost hardly depends on the directions, sequences are given up before these are.

    >>> cheap = {"most": 256, "fewest": 16, "beside": 8, "anchors": 64, "available": 256}
    >>> affordable(Pace(0.0, 1e-4, 0.0), 100.0, **cheap), affordable(Pace(0.0, 1e-4, 0.0), 2.0, **cheap)
    ((256, 256), (256, 78))
    >>> affordable(Pace(0.1, 0.0, 0.0), 10.0, **cheap), affordable(Pace(0.1, 0.0, 0.0), 0.1, **cheap)
    ((95, 256), (32, 16))
    """
    best = (min(available, FEWEST_SEQUENCES), fewest)
    sequences = available
    while sequences >= min(available, FEWEST_SEQUENCES):
        rows = max(fewest, sequences * anchors // ROWS_A_FEATURE - beside)
        fits = [k for k in range(fewest, min(most, rows) + 1) if pace.seconds(sequences, k, beside) <= left]
        if fits and fits[-1] >= min(most, rows, GOOD_DIRECTIONS):
            return sequences, fits[-1]
        if fits and fits[-1] > best[1]:
            best = sequences, fits[-1]
        sequences = sequences - max(1, sequences // 16)
    return best


@dataclass(frozen=True)
class Affordable:
    """What a budget allows by one way of taking derivatives."""

    how: Linearisation
    sequences: int
    directions: int
    seconds: float

    @property
    def worth(self) -> int:
        """More sequences, and more directions up to a good number."""
        return self.sequences * min(self.directions, GOOD_DIRECTIONS)


def measured_pace(
    measurement: Measurement,
    moved: Mapping[str, Tensor],
    how: Linearisation,
    *,
    most: int,
    beside: int,
    fit: float,
    seed: int,
    left: float,
) -> Pace:
    """Time a few sequences: ever more of them, as long as that takes a small part of what is `left`."""

    def seconds(sequences: int, directions: int) -> float:
        part = replace(measurement, plan=measurement.plan.only(sequences))
        taken = Directions(dict(moved), directions, seed)
        space, plan = measurement.space, part.plan
        sums = reachable.start(
            BLOCKS, len(taken) + beside, space, plan.lags, measurement.network.device, plan.coding.singled
        )
        return timed(lambda: part.add_reachable(sums, taken, how))

    some, size = (FEWEST_DIRECTIONS, 2) if how.carried else (TRIED, 8)  # runs take less for sequences that go together
    some, size, largest = (
        min(some, most),
        min(size, len(measurement.plan)),
        min(FEWEST_SEQUENCES, len(measurement.plan)),
    )
    each, first = seconds(size, some) / size, True
    # the first piece also takes what is done once: imports, compiled kernels
    while size < largest and 5 * each * size <= (3 if first else 1) * TIMED * left:
        size, first = min(4 * size, largest), False
        each = seconds(size, some) / size
    if how.carried is None:
        return Pace(0.0, each / some, fit)  # a run of the model for each
    if most == some or each * FEWEST_SEQUENCES > left:
        return Pace(each, 0.0, fit)
    direction = max(0.0, seconds(size, most) / size - each) / (most - some)
    return Pace(max(0.0, each - some * direction), direction, fit)


def timed(work: Callable[[], object]) -> float:
    """Seconds that some work takes."""
    begun = clock()
    work()
    return clock() - begun


def too_small(budget: Budget, seconds: float, sequences: int, directions: int) -> str | None:
    """Say that even the smallest forecast takes longer than was allowed."""
    whole = budget.spent + seconds
    if whole <= budget.seconds:
        return None
    return (
        f"the budget of {budget.seconds:.3g} s is too small: {sequences} sequences and {directions} directions of the weights, "
        f'the fewest that are looked at, take about {whole:.0f} s here; weights="readout", fewer lags or shorter sequences take '
        "less"
    )
