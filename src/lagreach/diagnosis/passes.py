"""The two passes over the data: whatever is measured of a recurrence is fed here, block by block.

1. Before directions are known: block means of the signal gradients of every lag, how inputs differ between partners, and what
   statistics collect of the states.
2. Along those directions: the noise of every sequence's gradient, and what statistics collect at the lags that the data
   depend on.

In between, `locate` looks closer at the lags that are in question. All of it keeps memory flat in the number of sequences, runs
on any share of the blocks, and merges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lagreach.diagnosis.locate import SecondLook, locate
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.gradients.blocks import BlockMeans, BlockSums
from lagreach.gradients.lag_sketch import bands_test
from lagreach.gradients.measurement_plan import MeasurementPlan
from lagreach.gradients.noise import NoiseSums, NoiseValues, unit_directions
from lagreach.gradients.partial_inputs import InputMoments, InputSums
from lagreach.gradients.significance import Significance, flip_test
from lagreach.statistics import LagStatistic
from lagreach.statistics._statistic import DEPENDENCES, STATES

Statistics = Mapping[str, LagStatistic]
Tick = Callable[[int], None] | None
Collected = dict[str, Any]  # accumulators by the name of their statistic


@dataclass(frozen=True)
class FirstPass:
    """Block means, and what statistics collected, of some blocks."""

    means: BlockMeans
    collected: Collected = field(default_factory=dict)
    inputs: InputMoments | None = None

    @classmethod
    def merge(cls, parts: Sequence[FirstPass], means: BlockMeans | None = None) -> FirstPass:
        """Put parts of the data together; `means` are those of all parts, where they already lie in one place."""
        inputs = [part.inputs for part in parts if part.inputs is not None]
        whole = BlockMeans.merge(part.means for part in parts) if means is None else means
        return cls(whole, merged([part.collected for part in parts]), InputMoments.merge(inputs) if inputs else None)


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
    """What the second pass must know of the first: directions, the test of every band, and the lags that are named.

    `signal` (block, band, param) is what was tested. `marginal` (band,) are the p-values of the swap contrast alone, `told`
    (band,) says where inputs differ between sequences at all.
    """

    along: np.ndarray
    test: Significance
    dependences: tuple[int, ...]
    signal: np.ndarray
    marginal: np.ndarray
    told: np.ndarray
    left: float = 1.0  # share of an input's variance that its neighbours in time leave
    notes: tuple[str, ...] = ()


def first_pass(
    plan: MeasurementPlan,
    statistics: Statistics,
    blocks: Iterable[int] | None = None,
    tick: Tick = None,
    sums: BlockSums | None = None,
) -> FirstPass:
    """Feed the blocks (all by default) to the block means and to the statistics that read states.

    `sums` may be those of more blocks than these.
    """
    numbers = _numbers(plan, blocks)
    sums, inputs = BlockSums(plan, numbers) if sums is None else sums, InputSums(plan, numbers)
    collected = _started(plan, statistics, STATES, ())
    plan.feed([sums, inputs, *collected.values()], numbers, tick)
    sums.finish(numbers)
    return FirstPass(sums.means(numbers), collected, inputs.result())


def between_passes(
    plan: MeasurementPlan,
    means: BlockMeans,
    settings: MeasureSettings,
    inputs: InputMoments | None = None,
    look: SecondLook | None = None,
) -> BetweenPasses:
    """Test every band, name lags by looking closer, and fix the directions that the second pass looks along.

    Without a `look` at the sequences, lags are those of the swap contrast, which cannot tell them apart.
    """
    group, draw = plan.probe.group, lambda: np.random.default_rng(settings.seed)
    random = unit_directions(means, group, "random", draw())[0, 0] if settings.direction == "random" else None

    def project(vectors: np.ndarray, bands: Sequence[int]) -> np.ndarray:
        """Signals along the random direction, as vectors of length one."""
        return vectors if random is None else np.einsum("k...lp,lp->k...l", vectors, random[list(bands)])[..., None]

    every = range(len(plan.bands))
    sketch = means.sketch if random is None else None
    tested = bands_test(plan.bands, project(means.pairings, every), sketch, flips=settings.flips, generator=draw())
    test = tested.bands
    told: np.ndarray = np.ones(len(plan.bands), dtype=bool) if inputs is None else np.asarray(inputs.told.any(0))
    if plan.block_plan.untold:  # too few independent stretches of a series: no lag can be tested
        unknown = np.full(len(plan.bands), np.nan)
        return BetweenPasses(
            along=unit_directions(means, group, settings.direction, draw(), data=means.data),
            test=replace(test, p_value=unknown, adjusted=unknown),
            dependences=(),
            signal=project(means.data, every),
            marginal=unknown,
            told=told,
        )
    located = locate(plan, means, tested, settings, inputs=inputs, look=look, project=project)
    signal = project(located.signal, every)
    sizes = test if located.signal is means.data else flip_test(signal, flips=0, generator=draw())
    named = [lag for lag in located.lags if told[plan.bands.index(lag)]]
    return BetweenPasses(
        along=unit_directions(means, group, settings.direction, draw(), data=located.signal),
        test=replace(sizes, p_value=test.p_value, adjusted=np.where(told, located.adjusted, np.nan)),
        dependences=tuple(named),
        signal=signal,
        marginal=np.where(told, test.adjusted, np.nan),
        told=told,
        left=located.left,
        notes=located.notes,
    )


def second_pass(
    plan: MeasurementPlan,
    between: BetweenPasses,
    statistics: Statistics,
    settings: MeasureSettings,
    blocks: Iterable[int] | None = None,
    tick: Tick = None,
) -> SecondPass:
    """Feed the blocks (all by default) to the noise values and to the statistics that ask about the lags found."""
    numbers = _numbers(plan, blocks)
    noise = NoiseSums(plan, between.along, numbers, settings.noise, settings.unit)
    collected = _started(plan, statistics, DEPENDENCES, between.dependences)
    plan.feed([noise, *collected.values()], numbers, tick)
    return SecondPass(noise.result(), collected)


def _numbers(plan: MeasurementPlan, blocks: Iterable[int] | None) -> list[int]:
    return list(range(plan.block_plan.count)) if blocks is None else list(blocks)


def _started(plan: MeasurementPlan, statistics: Statistics, source: str, dependences: Sequence[int]) -> Collected:
    reading = {name: one for name, one in statistics.items() if source in one.reads}
    started = {name: one.start(plan, dependences) for name, one in reading.items()}
    return {name: accumulator for name, accumulator in started.items() if accumulator is not None}


def merged(parts: Sequence[Collected]) -> Collected:
    """Merge accumulators by name, leaving the parts as they were."""
    whole = {name: deepcopy(accumulator) for name, accumulator in parts[0].items()} if parts else {}
    for part in parts[1:]:
        for name, accumulator in part.items():
            whole[name].merge(accumulator)
    return whole
