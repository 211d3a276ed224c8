"""How many directions of the weights, and how many sequences, a budget of seconds allows: from timing a few of both."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lagreach.diagnosis.pacing import SPENT, Allowance, timed
from lagreach.forecasting.linearise import Linearisation, sequences_together
from lagreach.forecasting.plan import BLOCKS
from lagreach.forecasting.target_batches import Measurement
from lagreach.statistics import reachable
from lagreach.statistics.reachable import Directions, Weights

clock = time.perf_counter
EACH_WAY = 0.5  # of the time for timing, as there may be two ways of taking derivatives
FEWEST_DIRECTIONS = 16
PAIR = 2  # sequences of the first piece that is timed
TRIED, RUN = 4, 8  # directions and sequences of it where each direction takes a run of the model: these go together
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


class AnyDirections(Directions):
    """Directions that take as long as others, but are not drawn: that would be much of a small piece of work."""

    def chunk(self, start: int, stop: int) -> Weights:
        """The same direction again and again."""
        return {name: weight.new_ones(stop - start, *weight.shape) for name, weight in self.weights.items()}


def measured_pace(
    measurement: Measurement,
    moved: Mapping[str, Tensor],
    how: Linearisation,
    *,
    most: int,
    beside: int,
    fit: float,
    anchors: int,
    wanted: int,
    left: float,
) -> Pace:
    """Time a piece of few sequences and, unless all that are `wanted` surely fit into what is `left`, two more.

    The second has more sequences, and tells what is done once for all that go together; the third has fewer directions.
    """
    device, allowance = measurement.network.device, Allowance(clock(), EACH_WAY)
    together = min(sequences_together(measurement.network, how.alive), len(measurement.plan))

    def seconds(sequences: int, directions: int) -> float:
        part, taken = replace(measurement, plan=measurement.plan.only(sequences)), AnyDirections(moved, directions, 0)
        space, plan = part.space, part.plan
        sums = reachable.start(BLOCKS, len(taken) + beside, space, plan.lags, device, plan.coding.singled)

        def work() -> None:
            part.add_reachable(sums, taken, how)
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        return timed(work)

    if how.carried is None:
        size, some, few = min(RUN, together), min(TRIED, most), 1
    else:
        rows = anchors * measurement.space.basis.shape[1]
        together = min(together, how.carried.sequences_together(measurement.plan.time, rows))
        size, some, few = min(PAIR, together), most, FEWEST_DIRECTIONS

    def at_most(each: float) -> Pace:
        return Pace(each, 0.0, fit) if some == most else Pace(0.0, each / some, fit)

    last = first = seconds(size, some)
    each = first / size  # as if nothing was done once for all of them
    if (expected := at_most(each).seconds(wanted, most, beside)) <= left:
        return at_most(each)
    larger = min(together, max(2 * size, size + int(allowance.left(min(expected, left)) / each)))
    if larger > size:
        last = seconds(larger, some)
        if last < first:  # code was being loaded
            first = seconds(size, some)
        more = max(0.0, last - first) / (larger - size)
        each = min(last / larger, more + max(0.0, first - size * more) / together)
    if some <= few or at_most(each).seconds(wanted, most, beside) <= left:
        return at_most(each)
    direction = min(max(0.0, last - seconds(larger, few)) / (larger * (some - few)), each / some)
    return Pace(each - some * direction, direction, fit)


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
