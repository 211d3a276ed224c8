"""The two passes over the data: whatever is measured of a recurrence is fed here, block by block.

1. Before directions are known: block means of the signal gradients of every lag, and what statistics collect of the states.
2. Along those directions: the noise of every sequence's gradient, and what statistics collect at the lags that the data
   depend on.

Both keep memory flat in the number of sequences, run on any share of the blocks, and merge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lagreach.diagnosis.settings import MeasureSettings
from lagreach.gradients.blocks import BlockSums, Directions
from lagreach.gradients.noise import NoiseSums, NoiseValues, unit_directions
from lagreach.gradients.significance import Significance, flip_test
from lagreach.gradients.subject import Subject
from lagreach.statistics import LagStatistic
from lagreach.statistics._statistic import DEPENDENCES, STATES

Statistics = Mapping[str, LagStatistic]
Tick = Callable[[int], None] | None
Collected = dict[str, Any]  # accumulators by the name of their statistic


@dataclass(frozen=True)
class FirstPass:
    """Block means, and what statistics collected, of some blocks."""

    means: Directions
    collected: Collected = field(default_factory=dict)

    @classmethod
    def merge(cls, parts: Sequence[FirstPass]) -> FirstPass:
        """Put parts of the data together."""
        return cls(Directions.merge(part.means for part in parts), merged([part.collected for part in parts]))


@dataclass(frozen=True)
class SecondPass:
    """Noise values, and what statistics collected at the lags found, of some blocks."""

    noise: NoiseValues
    collected: Collected = field(default_factory=dict)

    @classmethod
    def merge(cls, parts: Sequence[SecondPass]) -> SecondPass:
        """Put parts of the data together."""
        return cls(NoiseValues.merge(part.noise for part in parts), merged([part.collected for part in parts]))


@dataclass(frozen=True)
class BetweenPasses:
    """What the second pass must know of the first: directions, the test of every lag, and the lags that it names."""

    along: np.ndarray
    test: Significance
    dependences: tuple[int, ...]


def first_pass(
    subject: Subject, statistics: Statistics, blocks: Iterable[int] | None = None, tick: Tick = None
) -> FirstPass:
    """Feed the blocks (all by default) to the block means and to the statistics that read states."""
    numbers = _numbers(subject, blocks)
    means = BlockSums(subject, numbers)
    collected = _started(subject, statistics, STATES, ())
    subject.feed([means, *collected.values()], numbers, tick)
    return FirstPass(means.result(), collected)


def between_passes(subject: Subject, means: Directions, settings: MeasureSettings) -> BetweenPasses:
    """Test every lag and fix the directions that the second pass looks along."""
    along = unit_directions(means, subject.probe.group, settings.direction, np.random.default_rng(settings.seed))
    signal = means.data
    if settings.direction == "random":  # signals along the random direction, as vectors of length one
        signal = np.einsum("klp,klp->kl", means.data, along[:, 0])[..., None]
    test = flip_test(signal, flips=settings.flips, generator=np.random.default_rng(settings.seed))
    named = zip(subject.bands.lags, test.adjusted <= settings.error, strict=True)
    return BetweenPasses(along, test, tuple(lag for lag, significant in named if significant))


def second_pass(
    subject: Subject,
    between: BetweenPasses,
    statistics: Statistics,
    settings: MeasureSettings,
    blocks: Iterable[int] | None = None,
    tick: Tick = None,
) -> SecondPass:
    """Feed the blocks (all by default) to the noise values and to the statistics that ask about the lags found."""
    numbers = _numbers(subject, blocks)
    noise = NoiseSums(subject, between.along, numbers, settings.noise, settings.unit)
    collected = _started(subject, statistics, DEPENDENCES, between.dependences)
    subject.feed([noise, *collected.values()], numbers, tick)
    return SecondPass(noise.result(), collected)


def _numbers(subject: Subject, blocks: Iterable[int] | None) -> list[int]:
    return list(range(subject.plan.count)) if blocks is None else list(blocks)


def _started(subject: Subject, statistics: Statistics, source: str, dependences: Sequence[int]) -> Collected:
    reading = {name: one for name, one in statistics.items() if source in one.reads}
    started = {name: one.start(subject, dependences) for name, one in reading.items()}
    return {name: accumulator for name, accumulator in started.items() if accumulator is not None}


def merged(parts: Sequence[Collected]) -> Collected:
    """Merge accumulators by name, leaving the parts as they were."""
    whole = {name: deepcopy(accumulator) for name, accumulator in parts[0].items()} if parts else {}
    for part in parts[1:]:
        for name, accumulator in part.items():
            whole[name].merge(accumulator)
    return whole
