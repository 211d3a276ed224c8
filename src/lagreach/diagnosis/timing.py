"""How long sequences take: a little of the work is done and timed, ever more of it, until that tells the time of the whole.

The first pieces are one pair of sequences, carried back over few lags, then over more: time grows with the steps that are
carried back. Then come more pairs, all lags: part of the time is that of starting, whatever the number of pairs. Timing ends
as soon as it has taken its share of the time that is then expected, so that it never costs much of what it tells.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from lagreach.data.bands import Bands
from lagreach.diagnosis.passes import first_pass
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.gradients.measurement_plan import GROUP_ROWS, MeasurementPlan
from lagreach.gradients.noise import noise_values, unit_directions
from lagreach.statistics import all_statistics

clock = time.perf_counter
MORE = 4  # times as many pairs in every further piece
FEWEST = 16  # sequences that a plan has
OWN_SHARE = 0.004  # of the time expected, after which timing ends: the last piece takes longer than all before it
OWN_SECONDS = 0.5  # but not before more than one pair was timed, if that is quick: the rest would be that of starting
QUICK = 0.5  # seconds of the first piece, below which all lags of a pair are timed at once
PARTS = (1 / 8, 1 / 4, 1.0)  # of the steps that are carried back, in the first pieces
SETTLING = 0.5  # seconds of tests and fits afterwards, whatever the model,
PER_VALUE = 4e-8  # and for every value of the block gradients, which they go through several times
LATER = 3  # passes like that over the noise
SHOWN, SHOWN_WORK = 64, 0.4  # sequences whose gains are measured besides, and the share of the passes' time that takes
SPENT = 0.8  # share of a budget that is planned with: the estimate is a rough one


@dataclass(frozen=True)
class Pace:
    """Seconds that do not depend on the number of sequences, and seconds a sequence."""

    fixed: float = 0.0
    per_sequence: float = 0.0

    def seconds(self, sequences: int) -> float:
        """Of a diagnosis of so many."""
        return self.fixed + self.per_sequence * sequences

    def affordable(self, budget: float, available: int) -> int:
        """Sequences that can be measured in `budget` seconds: all of them, or a part, but never fewer than a plan has.

        >>> Pace(0.0, 0.1).affordable(10.0, available=1000), Pace(2.0, 0.1).affordable(10.0, available=1000)
        (80, 60)
        """
        # this also catches sequences that take less than the clock can tell, so that nothing is divided by zero below
        if self.per_sequence * available <= SPENT * budget - self.fixed or self.per_sequence == self.fixed == 0:
            return available
        if self.per_sequence == 0:
            return FEWEST
        return max(FEWEST, int((SPENT * budget - self.fixed) / self.per_sequence))


def measured_pace(plans: list[MeasurementPlan], settings: MeasureSettings, begun: float) -> Pace:
    """Time both passes over the recurrences, one after the other; set-up, since it was `begun`, is part of the work."""
    paces, setting_up = [], clock() - begun
    for plan in plans:
        paces.append(_pace(plan, settings))
    return Pace(setting_up + SETTLING + sum(one.fixed for one in paces), sum(one.per_sequence for one in paces))


def _pace(plan: MeasurementPlan, settings: MeasureSettings) -> Pace:
    block_plan, total = plan.block_plan, _carried(plan, len(plan.bands))
    bundles = block_plan.count * -(-block_plan.sequences * plan.time // (GROUP_ROWS * block_plan.count))
    starts = (bundles - (-len(block_plan.pairs) // plan.pairs_together)) / 2  # some is done by bundle, some by piece
    shown = SHOWN_WORK * min(SHOWN, block_plan.sequences)
    values = block_plan.count * (plan.pairings + len(plan.probe.group)) * len(plan.bands) * plan.width
    spent, pace, before = 0.0, Pace(), (0, 0.0, 0.0)
    cold = _seconds(plan, settings, *next(_pieces(plan)))  # the first time is that of filling caches
    for pairs, bands in _pieces(plan, few_lags=cold > QUICK):
        seconds, carried = _seconds(plan, settings, pairs, bands), _carried(plan, bands)
        if before[0] == pairs:  # the same pair, fewer lags
            slope = max(0.0, seconds - before[2]) / (carried - before[1])
            start, a_pair = 0.0, seconds + slope * (total - carried)
        else:
            a_pair = max(0.0, seconds - before[2]) / (pairs - before[0])
            start = max(0.0, seconds - pairs * a_pair)
        pace = Pace(start * starts + shown * a_pair / 2 + PER_VALUE * values, a_pair / 2)
        spent, first, before = spent + seconds, before[0] == 0, (pairs, carried, seconds)
        enough = max(OWN_SHARE * pace.seconds(block_plan.sequences), OWN_SECONDS if pairs == 1 else 0.0)
        if not first and spent > enough:
            break
    return pace


def _pieces(plan: MeasurementPlan, *, few_lags: bool = True) -> Iterator[tuple[int, int]]:
    """Ever larger pieces of the work: numbers of pairs and of bands, beginning with `few_lags` or with all."""
    total, every = _carried(plan, len(plan.bands)), range(1, len(plan.bands) + 1)
    parts = PARTS if few_lags else PARTS[-1:]
    for bands in sorted({next(b for b in every if _carried(plan, b) >= part * total) for part in parts}):
        yield 1, bands
    pairs = MORE
    while pairs <= len(plan.block_plan.pairs):
        yield pairs, len(plan.bands)
        pairs *= MORE


def _carried(plan: MeasurementPlan, bands: int) -> float:
    """Steps that a sequence's gradients are carried back over, to the far edge of the last of these bands."""
    lags = plan.bands.lags[bands - 1] + 1
    return lags * (plan.time - (lags - 1) / 2)


def _seconds(plan: MeasurementPlan, settings: MeasureSettings, pairs: int, bands: int) -> float:
    """Run the first pairs of a plan through both passes.

    What is looked at again where lags are found, exchanging their inputs and leaving them out, takes about twice as long as
    the noise (make reliability).
    """
    home = (np.arange(len(plan.block_plan.pairs)) >= pairs).astype(np.int64)  # the first pairs are a block of their own
    small = replace(
        plan, block_plan=replace(plan.block_plan, blocks=home, count=2), bands=Bands(plan.bands.edges[:bands])
    )
    started = clock()
    means = first_pass(small, all_statistics(), [0]).means
    between = clock()
    along = unit_directions(means, plan.probe.group, "random", np.random.default_rng(settings.seed))
    noise_values(small, along, noise=settings.noise, unit=settings.unit, blocks=[0])
    return between - started + LATER * (clock() - between)
