"""How long a diagnosis takes: a little of the work is done and timed, and its time is fitted (`pacing.py`).

Pieces of the passes over the data are some pairs of sequences, carried back over some bands of lags. The first are one pair
over few lags; the largest follows that keeps all timing below 2 % of the time that is then expected, or a tenth of a second. Of
a budget that is far larger than the first pieces need, no more are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lagreach.data.bands import Bands
from lagreach.diagnosis import pacing
from lagreach.diagnosis.layer import gains_and_rates
from lagreach.diagnosis.measure import GROUP
from lagreach.diagnosis.pacing import FEWEST, MORE, Allowance, Pace, PieceLaw, timed
from lagreach.diagnosis.passes import Statistics, first_pass
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.gradients.measurement_plan import GROUP_ROWS, MeasurementPlan
from lagreach.gradients.noise import noise_values
from lagreach.statistics import all_statistics
from lagreach.statistics.memory import directions_read

SEVERAL = 8  # pairs of the larger ones of the first pieces,
FEW_PAIRS = 2  # and of one before them where they may take long, which tells whether they do
FEW = 1 / 5  # of the steps that are carried back, in the first pieces; half, where only few pairs go together
ODD = 8  # times as long as the first pass, from which on another piece of work is timed once more for the same reason
MISSES = 1.25  # times as long as few lags tell it: the sums of all of them lie in no cache
LESS = 0.7  # gains grow less with the lags than the first pass
LATER = 2  # passes like that over the noise: where a lag is found, its input is exchanged as well
SETTLING = 0.4  # seconds of tests and fits afterwards, whatever the model,
PER_VALUE = 2e-8  # for every value of block gradients and covariances, which they go through several times,
PER_CUBE = 1.5e-10  # and for the directions of every covariance, which take the cube of its size
FEWER = (FEWEST, 24, 32, 48, 64, 96, 128, 192)  # sequences, between which blocks and the groups in them grow


def measured_pace(
    plans: list[MeasurementPlan],
    settings: MeasureSettings,
    begun: float,
    statistics: Statistics | None = None,
    budget: float | None = None,
) -> Pace:
    """Time pieces of the recurrences, one after the other; set-up, since it was `begun`, is part of the work.

    Where that has taken its time already, of further recurrences one piece is timed, and all of their work is taken to be as
    much slower than that of the one before. Of a `budget`, each has an equal part: what fits into that by far is timed no more.
    """
    total, before = Pace(pacing.clock() - begun), list[tuple[Pace, float]]()
    for number, plan in enumerate(plans, 1):
        pieces = _Pieces(plan, settings, all_statistics() if statistics is None else statistics)
        allowance = Allowance(begun, number / len(plans), None if budget is None else budget / len(plans))
        if before and allowance.left(number / (number - 1) * total.seconds(plan.block_plan.sequences)) <= 0:
            pace, seconds = before[-1]
            now = pieces.lags(1, pieces.few)
            made = pace.times(now / seconds), now
        else:
            made = _pace(pieces, allowance)
        before.append(made)
        total = total + made[0]
    return total


def _pace(pieces: _Pieces, allowance: Allowance) -> tuple[Pace, float]:
    """What was timed of a recurrence, put together, and the seconds of a piece of one pair over few lags."""
    plan = pieces.plan
    few, every, several = pieces.few, len(plan.bands), pieces.several
    lags = {(1, bands): pieces.lags(1, bands) for bands in dict.fromkeys((1, few))}
    longest = lags[1, few]  # of the other pieces of one pair
    if allowance.ample((most := pieces.pace(lags, {1: longest}, longest)).seconds(plan.block_plan.sequences)):
        return most, longest
    if lags[1, few] <= lags[1, 1]:  # code was still being loaded for the first piece
        lags[1, 1] = pieces.lags(1, 1)
    left = allowance.left(most.seconds(plan.block_plan.sequences))
    longer = several * sum(lags.values())
    if several > 1 and (several == FEW_PAIRS or longer > left):
        lags[FEW_PAIRS, few] = pieces.lags(FEW_PAIRS, few)
        longer = longest + (several - 1) * max(0.0, lags[FEW_PAIRS, few] - longest)
    if several > FEW_PAIRS and longer <= max(left, 2 * longest):
        lags |= {(several, bands): pieces.lags(several, bands) for bands in dict.fromkeys((1, few))}
    else:
        several = min(several, FEW_PAIRS)
    noise = {several: _warm(lambda: pieces.noise(several), ODD * lags[1, few])}
    gains = lags[1, few]  # which take about as long, if there is no time to see
    if gains <= allowance.left(pieces.pace(lags, noise, gains).seconds(plan.block_plan.sequences)):
        gains = _warm(lambda: pieces.gains(few), ODD * lags[1, few])
    left = allowance.left(pieces.pace(lags, noise, gains).seconds(plan.block_plan.sequences))
    law = pieces.law(lags)
    for pairs in _larger(pieces.together):
        if law.seconds(pairs, *pieces.shares(every)) <= left:
            lags[pairs, every] = pieces.lags(pairs, every)
            break
    return pieces.pace(lags, noise, gains), lags[1, few]


def _warm(work: Callable[[], float], longest: float) -> float:
    """Seconds of some work; those of the second time, if the first took strangely long."""
    seconds = work()
    return seconds if seconds <= longest else min(seconds, work())


def _larger(most: int) -> Iterator[int]:
    """Numbers of pairs of a last piece over all lags, the most that are carried back together first: it tells most."""
    while most:
        yield most
        most //= MORE


@dataclass(frozen=True)
class _Pieces:
    """Pieces of the work of a plan, each done and timed: some pairs, some of the bands, from the first on."""

    plan: MeasurementPlan
    settings: MeasureSettings
    statistics: Statistics

    @property
    def few(self) -> int:
        """Bands over which few of the steps are carried back."""
        share = FEW if self.together >= MORE else FEW / 2
        return next(bands for bands in range(1, len(self.plan.bands) + 1) if self.shares(bands)[1] >= share)

    @property
    def several(self) -> int:
        """Pairs of the larger ones of the first pieces, which are few where few are carried back together."""
        return min(SEVERAL if self.together >= MORE else FEW_PAIRS, self.together)

    @property
    def chunks(self) -> int:
        """Times that sequences are run."""
        groups = -(-self.plan.block_plan.count // GROUP)
        return max(groups, -(-len(self.plan.block_plan.pairs) // self.plan.pairs_together))

    @property
    def bundles(self) -> int:
        """Times that sequences are carried back, together as many as the cache holds."""
        if self.plan.view.template.device.type == "cuda":
            return self.chunks
        count = self.plan.block_plan.count
        return count * -(-self.plan.block_plan.sequences * self.plan.time // (GROUP_ROWS * count))

    @property
    def together(self) -> int:
        """Pairs that are carried back together."""
        return max(1, len(self.plan.block_plan.pairs) // self.bundles)

    def shares(self, bands: int) -> tuple[float, float]:
        """Shares of all bands, and of the steps that gradients are carried back over to the far edge of the last of these."""

        def carried(count: int) -> float:
            lags = self.plan.bands.lags[count - 1] + 1
            return lags * (self.plan.time - (lags - 1) / 2)

        return bands / len(self.plan.bands), carried(bands) / carried(len(self.plan.bands))

    def law(self, lags: dict[tuple[int, int], float]) -> PieceLaw:
        """What the first pass takes, from the seconds of pieces of it."""
        return PieceLaw.fitted({(pairs, *self.shares(bands)): seconds for (pairs, bands), seconds in lags.items()})

    def pace(self, lags: dict[tuple[int, int], float], noise: dict[int, float], gains: float) -> Pace:
        """Put together what was timed of the first pass, of the noise, and of the gains of one pair over few lags."""
        plan, bands = self.plan, len(self.plan.bands)
        law = self.law(lags)
        if not any(pairs > 1 and count == bands for pairs, count in lags):
            law = replace(law, bands=MISSES * law.bands, steps=MISSES * law.steps)
        later = PieceLaw.fitted({(count, 1.0, 1.0): seconds for count, seconds in noise.items()})
        as_slow = LESS * gains / law.seconds(1, *self.shares(self.few))  # they are carried back like the first pass
        size = directions_read(plan.view.template.stack.state_size, bands) + 1
        solving = PER_VALUE * 2 * bands * size**2 + PER_CUBE * bands * size**3
        fixed = self.of_blocks(law, later) + as_slow * (law.start + law.bands) + SETTLING + solving
        return Pace(
            fixed, (law.a_pair() + LATER * later.a_pair()) / 2, as_slow * law.a_pair() / 2, self.spared(law, later)
        )

    def of_blocks(self, law: PieceLaw, later: PieceLaw) -> float:
        """Seconds of starting the passes again and again, and of going through what blocks have collected."""
        plan = self.plan
        first = (self.bundles + self.chunks) / 2 * law.start + self.bundles * law.bands  # some is done by run
        values = plan.block_plan.count * (plan.pairings + len(plan.probe.group)) * len(plan.bands) * plan.width
        return first + LATER * self.chunks * later.start + PER_VALUE * values

    def spared(self, law: PieceLaw, later: PieceLaw) -> tuple[tuple[int, float], ...]:
        """How much of that fewer sequences do without."""
        sizes = [*self.fewer, self.plan.block_plan.sequences]
        seconds = [one.of_blocks(law, later) for one in (*self.fewer.values(), self)]
        return tuple((sizes[i + 1], seconds[i + 1] - seconds[i]) for i in range(len(self.fewer)))

    @cached_property
    def fewer(self) -> dict[int, _Pieces]:
        """The same work on fewer sequences."""
        block_plan = self.plan.block_plan
        less = {few: block_plan.subsample(few) for few in FEWER if few < block_plan.sequences}
        return {few: replace(self, plan=replace(self.plan, block_plan=one)) for few, one in less.items()}

    def lags(self, pairs: int, bands: int) -> float:
        """Seconds of the first pass."""
        small = self._small(pairs, bands)
        return timed(lambda: first_pass(small, self.statistics, [0]))

    def noise(self, pairs: int) -> float:
        """Seconds of the noise, along any directions."""
        chosen = self.settings
        bands = 1 if chosen.noise == "gradient" and chosen.unit == "sequence" else len(self.plan.bands)
        small, signals = self._small(pairs, bands), 1 + len(self.plan.probe.group)
        along = np.broadcast_to(self.plan.width**-0.5, (2, signals, bands, self.plan.width))
        return timed(lambda: noise_values(small, along, noise=chosen.noise, unit=chosen.unit, blocks=[0]))

    def gains(self, bands: int) -> float:
        """Seconds of the gains and rates of one pair."""
        small = self._small(1, bands)
        alone = replace(small.block_plan, pairs=small.block_plan.pairs[:1], blocks=small.block_plan.blocks[:1])
        return timed(lambda: gains_and_rates(replace(small, block_plan=alone)))

    def _small(self, pairs: int, bands: int) -> MeasurementPlan:
        home = (np.arange(len(self.plan.block_plan.pairs)) >= pairs).astype(np.int64)  # the first are a block alone
        block_plan = replace(self.plan.block_plan, blocks=home, count=2)
        return replace(self.plan, block_plan=block_plan, bands=Bands(self.plan.bands.edges[:bands]))
