"""Sequences that a dependency of the given strength would need at each lag: the learnability window, lag by lag."""

from __future__ import annotations

from typing import ClassVar

from lagreach.statistics._statistic import WINDOW, LagCurve, LagStatistic, Measured


class RequiredIfPresent(LagStatistic):
    """N(l) of a planted dependency (`lagreach.detection.law`)."""

    place: ClassVar[int] = 1
    name: ClassVar[str] = "required_if_present"
    title: ClassVar[str] = "Sequences needed if a dependency were there"
    unit: ClassVar[str] = "sequences"
    reads: ClassVar[frozenset[str]] = frozenset({WINDOW})
    larger_is: ClassVar[str] = "worse"
    column: ClassVar[str] = "N if present"
    tracked: ClassVar[str] = "n"

    def curve(self, measured: Measured) -> LagCurve:
        """As the window has it at its strength."""
        needed = measured.window.required_if_present()
        return self.make(
            needed.lags, needed.sequences, needed.low, needed.high, needed.status,
            pessimistic=needed.pessimistic, robust=needed.robust,
        )  # fmt: skip
