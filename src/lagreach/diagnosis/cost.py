"""What a diagnosis would do here and what it would cost, before anything is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lagreach.diagnosis.measure import GROUP
from lagreach.diagnosis.pacing import FEWEST, Pace
from lagreach.diagnosis.passes import Statistics
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.diagnosis.timing import measured_pace
from lagreach.gradients.measurement_plan import MeasurementPlan
from lagreach.statistics.memory import memory_bytes

MEANT_TO = 1.5  # factor that estimates are meant to


@dataclass(frozen=True)
class DiagnosisCost:
    """What a diagnosis would do, and what it would cost here.

    `seconds` are those of one that finds dependences. Of a whole model they hang on the lags that are found: `seconds` are for
    one or two, `seconds_if_many` for four or more, and `seconds_if_nothing` for none, which needs no exchanges.
    """

    layers: tuple[str, ...]
    available: int
    sequences: int
    lags: str
    weights: int
    seconds: float
    seconds_if_nothing: float
    seconds_if_many: float
    memory: int

    def __str__(self) -> str:
        widening = (self.available / self.sequences) ** 0.5
        cost = "" if self.sequences == self.available else f" (intervals {widening:.2f} times as wide as with all)"
        few, many, least = (f"{s:.0f} s" for s in (self.seconds, self.seconds_if_many, self.seconds_if_nothing))
        either = (
            ""
            if few == many == least
            else f" if one or two lags show something, {many} if many do, {least} if none does"
        )
        return "\n".join(
            [
                f"recurrences: {', '.join(self.layers)}",
                f"sequences:   {self.sequences} of {self.available}{cost}",
                f"lags:        {self.lags}",
                f"weights:     {self.weights} looked at",
                f"time:        about {few}{either}",
                f"memory:      about {self.memory / 2**20:.0f} MiB on top of the model",
            ]
        )


def within_budget(
    plans: list[MeasurementPlan],
    settings: MeasureSettings,
    available: int,
    budget: float | None,
    memory: int | None,
    *,
    begun: float,
    timed: bool = False,
    statistics: Statistics | None = None,
) -> tuple[list[MeasurementPlan], Pace]:
    """Fix a fair subsample before anything is measured; also return the time that sequences take, if they were `timed`.

    `begun` is when setting up was, by `pacing.clock`.
    """
    pace = measured_pace(plans, settings, begun, statistics, budget) if budget is not None or timed else Pace()
    planned = available if budget is None else pace.affordable(budget, available)
    return [replace(one, block_plan=one.block_plan.subsample(planned), memory=memory) for one in plans], pace


def beyond_budget(budget: float | None, pace: Pace, sequences: int) -> tuple[str, ...]:
    """Say that even the fewest sequences take longer than was allowed, by more than the estimate may be off."""
    if budget is None or sequences > FEWEST or pace.seconds(sequences) <= MEANT_TO * budget:
        return ()
    return (
        f"the budget of {budget:g} s is too small: {sequences} sequences, the fewest that can be measured, take about "
        f"{pace.seconds(sequences):.0f} s here; fewer lags or shorter sequences take less",
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
