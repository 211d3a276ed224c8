"""What a state of this size can hold of one lag at most, if it works linearly."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from lagreach.statistics._statistic import WINDOW, LagCurve, LagStatistic, Measured


class Capacity(LagStatistic):
    """``H / (l + 1)``, at most 1: a linear network that holds lag l holds the shorter ones as well."""

    name: ClassVar[str] = "capacity"
    title: ClassVar[str] = "Largest linear memory at this lag"
    unit: ClassVar[str] = "R^2"
    reads: ClassVar[frozenset[str]] = frozenset({WINDOW})
    column: ClassVar[str] = ""
    tracked: ClassVar[str] = ""

    def curve(self, measured: Measured) -> LagCurve | None:
        """From the size of the state; none where there is no state of one size."""
        window = measured.window
        if window.memory.bound == 0:
            return None
        return self.make(window.lags, np.minimum(1.0, window.memory.bound / (window.lags + 1)))
