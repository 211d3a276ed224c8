"""Sequences that the dependences found in the data need: inf, with a lower bound, where none was found."""

from __future__ import annotations

from typing import ClassVar

from lagreach.statistics._statistic import WINDOW, LagCurve, LagStatistic, Measured


class Required(LagStatistic):
    """N(l) of the dependence in the data (`lagreach.detection.law`)."""

    place: ClassVar[int] = 2
    name: ClassVar[str] = "required"
    title: ClassVar[str] = "Sequences needed for the dependence in the data"
    unit: ClassVar[str] = "sequences"
    reads: ClassVar[frozenset[str]] = frozenset({WINDOW})
    larger_is: ClassVar[str] = "worse"
    column: ClassVar[str] = "N in the data"
    tracked: ClassVar[str] = ""

    def curve(self, measured: Measured) -> LagCurve:
        """As the window has it."""
        needed = measured.window.required
        return self.make(
            needed.lags, needed.sequences, needed.low, needed.high, needed.status,
            pessimistic=needed.pessimistic, robust=needed.robust,
        )  # fmt: skip
