"""Whether the data depend on a lag: p-values for all lags together, and the sizes they come from."""

from __future__ import annotations

from typing import ClassVar

from lagreach.statistics._statistic import WINDOW, LagCurve, LagStatistic, Look, Measured

HELD_AND_USED = "What the data hold and what the model uses"


class AdjustedP(LagStatistic):
    """P-value of a dependence on each lag, adjusted for all of them together."""

    place: ClassVar[int] = 3
    name: ClassVar[str] = "adjusted_p"
    title: ClassVar[str] = "Adjusted p-value of a dependence in the data"
    reads: ClassVar[frozenset[str]] = frozenset({WINDOW})
    larger_is: ClassVar[str] = "worse"
    tracked: ClassVar[str] = "p"
    column: ClassVar[str] = ""

    def curve(self, measured: Measured) -> LagCurve:
        """As the window has it."""
        return self.make(measured.window.lags, measured.window.adjusted_p)


class Signal(LagStatistic):
    """Size of the mean gradient that the dependence in the data makes."""

    name: ClassVar[str] = "signal"
    title: ClassVar[str] = "Size of the signal in the data"
    reads: ClassVar[frozenset[str]] = frozenset({WINDOW})
    column: ClassVar[str] = ""
    tracked: ClassVar[str] = ""
    look: ClassVar[Look | None] = Look(
        HELD_AND_USED,
        "Dependence: size of the signal of each lag in the data, on a logarithmic axis; a filled diamond where it is "
        "significant.",
        mark="diamond",
        lines={"": "dependence"},
    )

    def curve(self, measured: Measured) -> LagCurve:
        """As the window has it."""
        return self.make(measured.window.lags, measured.window.delta)


class Noise(LagStatistic):
    """Standard deviation over sequences of the whole gradient along a lag's direction."""

    name: ClassVar[str] = "noise"
    title: ClassVar[str] = "Gradient noise along the lag's direction"
    reads: ClassVar[frozenset[str]] = frozenset({WINDOW})
    larger_is: ClassVar[str] = "worse"
    column: ClassVar[str] = ""
    tracked: ClassVar[str] = ""

    def curve(self, measured: Measured) -> LagCurve:
        """As the window has it."""
        return self.make(measured.window.lags, measured.window.noise)
