"""What a diagnosis would do here and what it would cost, before anything is measured."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from lagreach.diagnosis.measure import GROUP
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.errors import InputError
from lagreach.gradients.blocks import directions
from lagreach.gradients.exchange import ExchangePlan, affordable_positions, exchange
from lagreach.gradients.head_reach import NOTHING
from lagreach.gradients.noise import statistics, unit_directions
from lagreach.gradients.subject import Subject
from lagreach.statistics.memory import memory_bytes

PILOT = 16  # sequences that are timed to estimate the cost of the rest: eight pairs, the fewest that a plan has
SPENT = 0.8  # share of a budget that is planned with: the estimate is a rough one


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


def pilot_seconds(subjects: list[Subject], settings: MeasureSettings) -> float:
    """Seconds per sequence, from running both passes on a few sequences, and a closer look at a few lags."""
    started, timed = time.perf_counter(), PILOT
    for subject in subjects:
        small = replace(subject, plan=subject.plan.subsample(PILOT))
        found = directions(small)
        lags = sorted({subject.bands.lags[len(subject.bands) * quarter // 4] for quarter in (1, 2, 3)})
        if subject.signal == "dependence":
            exchange(small, ExchangePlan(tuple(lags), affordable_positions(lags, subject.time), NOTHING))
        along = unit_directions(found, subject.probe.group, settings.direction, np.random.default_rng(settings.seed))
        statistics(small, along, noise=settings.noise, unit=settings.unit)
        timed = small.plan.sequences  # of a series, some of every stretch
    return (time.perf_counter() - started) / timed


def within_budget(
    subjects: list[Subject],
    settings: MeasureSettings,
    available: int,
    budget: float | None,
    memory: int | None,
    *,
    timed: bool = False,
) -> tuple[list[Subject], float]:
    """Fix a fair subsample before anything is measured; also return the seconds a sequence takes, if they were `timed`."""
    check_budget(budget)
    per_sequence = pilot_seconds(subjects, settings) if budget is not None or timed else 0.0
    planned = available if budget is None else affordable(budget, per_sequence, available)
    return [replace(one, plan=one.plan.subsample(planned), memory=memory) for one in subjects], per_sequence


def check_budget(budget: float | None) -> None:
    """Refuse a budget that is no time."""
    if budget is not None and not budget > 0:
        raise InputError(
            "a budget is a time",
            got=f"budget={budget}",
            expected="seconds, more than 0",
            fix="leave it out for no limit",
        )


def affordable(budget: float, per_sequence: float, available: int) -> int:
    """Sequences that can be measured in `budget` seconds: all of them, or a part, but never fewer than were timed.

    >>> affordable(10.0, 0.1, available=1000), affordable(10.0, 0.1, available=50)
    (80, 50)
    """
    # this also catches sequences that take less than the clock can tell, so that nothing is divided by zero below
    if per_sequence * available <= SPENT * budget:
        return available
    return max(PILOT, int(SPENT * budget / per_sequence))


def memory_needed(subject: Subject) -> int:
    """Bytes of gradients by block, signal and lag (and of their directions), of covariances, and of sequences run together."""
    signals = subject.pairings + 2 * len(subject.probe.group) + 2  # every pairing and their mean; probes; directions
    blocks = subject.plan.count * signals * len(subject.bands) * subject.width * 8
    held = 1 + -(-subject.plan.count // GROUP)  # of every group of blocks, and of all together
    covariances = held * memory_bytes(subject.view.template.stack.state_size, len(subject.bands))
    return blocks + covariances + min(subject.pairs_together, len(subject.plan.pairs)) * subject.pair_bytes
