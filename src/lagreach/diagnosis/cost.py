"""What a diagnosis would do here and what it would cost, before anything is measured."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from lagreach.diagnosis.measure import GROUP
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.errors import InputError
from lagreach.gradients.blocks import block_means
from lagreach.gradients.exchange import ExchangePlan, affordable_positions, exchange
from lagreach.gradients.head_reach import NOTHING
from lagreach.gradients.measurement_plan import MeasurementPlan
from lagreach.gradients.noise import noise_values, unit_directions
from lagreach.statistics.memory import memory_bytes

PILOT = 16  # sequences that are timed at once of a model as a whole: the fewest that a plan has
LONG = 0.5  # seconds from which one group of sequences tells the time of all; quicker ones are timed again, and several
# of the seconds a sequence takes in one group alone, and in a few: among many it takes about that (make reliability)
TOGETHER, AMONG_MORE = 0.75, 0.9
SETTLING = 0.5  # seconds of tests and fits afterwards, on a common core: they hardly depend on the model
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
            return PILOT
        return max(PILOT, int((SPENT * budget - self.fixed) / self.per_sequence))


@dataclass(frozen=True)
class DiagnosisCost:
    """What a diagnosis would do, and what it would cost here."""

    layers: tuple[str, ...]
    available: int
    sequences: int
    lags: str
    weights: int
    seconds: float
    memory: int

    def __str__(self) -> str:
        widening = (self.available / self.sequences) ** 0.5
        cost = "" if self.sequences == self.available else f" (intervals {widening:.2f} times as wide as with all)"
        return "\n".join(
            [
                f"recurrences: {', '.join(self.layers)}",
                f"sequences:   {self.sequences} of {self.available}{cost}",
                f"lags:        {self.lags}",
                f"weights:     {self.weights} looked at",
                f"time:        about {self.seconds:.0f} s",
                f"memory:      about {self.memory / 2**20:.0f} MiB on top of the model",
            ]
        )


def measured_pace(plans: list[MeasurementPlan], settings: MeasureSettings) -> Pace:
    """Time both passes and a closer look at a few lags, on as few sequences as tell.

    Whole groups of the plan are run, as in the diagnosis itself. One group is enough where it takes long; where it is quick,
    much of its time is that of starting, and more groups tell the two apart.
    """
    fixed, per_sequence = SETTLING, 0.0
    for plan in plans:
        block_plan, groups = plan.block_plan, len(plan.block_plan.groups)
        alone = _seconds(plan, settings, 1)
        if alone < LONG and groups > 1:
            alone = min(alone, _seconds(plan, settings, 1))  # the first time is that of filling caches, too
            several = min(groups, 1 + max(1, int(LONG / max(alone, 1e-3))))
            more = AMONG_MORE * max(0.0, _seconds(plan, settings, several) - alone) / (several - 1)
            pieces = -(-len(block_plan.pairs) // plan.pairs_together)
            fixed, alone = fixed + max(0.0, alone - more) * pieces, more
        else:
            alone *= TOGETHER if groups > 1 else 1.0
        per_sequence += alone / block_plan.members
    return Pace(fixed, per_sequence)


def _seconds(plan: MeasurementPlan, settings: MeasureSettings, groups: int) -> float:
    """Run the first groups of a plan through everything that depends on the number of sequences."""
    pairs = plan.block_plan.pairs[: groups * plan.block_plan.members // 2]
    small = replace(
        plan, block_plan=replace(plan.block_plan, pairs=pairs, blocks=np.zeros(len(pairs), np.int64), count=1)
    )
    started = time.perf_counter()
    means = block_means(small)
    lags = sorted({plan.bands.lags[len(plan.bands) * quarter // 4] for quarter in (1, 2, 3)})
    if plan.signal == "dependence":
        exchange(small, ExchangePlan(tuple(lags), affordable_positions(lags, plan.time), NOTHING))
    along = unit_directions(means, plan.probe.group, "random", np.random.default_rng(settings.seed))
    noise_values(small, along, noise=settings.noise, unit=settings.unit)
    return time.perf_counter() - started


def within_budget(
    plans: list[MeasurementPlan],
    settings: MeasureSettings,
    available: int,
    budget: float | None,
    memory: int | None,
    *,
    timed: bool = False,
) -> tuple[list[MeasurementPlan], Pace]:
    """Fix a fair subsample before anything is measured; also return the time that sequences take, if they were `timed`."""
    check_budget(budget)
    pace = measured_pace(plans, settings) if budget is not None or timed else Pace()
    planned = available if budget is None else pace.affordable(budget, available)
    return [replace(one, block_plan=one.block_plan.subsample(planned), memory=memory) for one in plans], pace


def beyond_budget(budget: float | None, pace: Pace, sequences: int) -> tuple[str, ...]:
    """Say that even the fewest sequences take longer than was allowed."""
    if budget is None or sequences > PILOT or pace.seconds(sequences) <= budget:
        return ()
    return (
        f"the budget of {budget:g} s is too small: {sequences} sequences, the fewest that can be measured, take about "
        f"{pace.seconds(sequences):.0f} s here; fewer lags or shorter sequences take less",
    )


def check_budget(budget: float | None) -> None:
    """Refuse a budget that is no time."""
    if budget is not None and not budget > 0:
        raise InputError(
            "a budget is a time",
            got=f"budget={budget}",
            expected="seconds, more than 0",
            fix="leave it out for no limit",
        )


def memory_needed(plan: MeasurementPlan) -> int:
    """Bytes of gradients by block, signal and lag (and of their directions), of covariances, and of sequences run together."""
    signals = plan.pairings + 2 * len(plan.probe.group) + 2  # every pairing and their mean; probes; directions
    blocks = plan.block_plan.count * signals * len(plan.bands) * plan.width * 8
    if plan.sketch is not None:
        blocks += (
            2 * plan.block_plan.count * plan.pairings * len(plan.sketch.lags) * plan.sketch.size * 8
        )  # sums, means
    held = 1 + -(-plan.block_plan.count // GROUP)  # of every group of blocks, and of all together
    covariances = held * memory_bytes(plan.view.template.stack.state_size, len(plan.bands))
    return blocks + covariances + min(plan.pairs_together, len(plan.block_plan.pairs)) * plan.pair_bytes
