"""How long the slowest unit keeps half of what it holds, beside the lag."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from lagreach.regimes import timescales
from lagreach.statistics._statistic import RATES, LagCurve, LagStatistic, Measured
from lagreach.types import Status


class HalfLife(LagStatistic):
    """Longest half-life among the units, in units of the lag: above one, some unit keeps half over the lag."""

    name: ClassVar[str] = "half_life"
    title: ClassVar[str] = "Longest half-life, in lags"
    reads: ClassVar[frozenset[str]] = frozenset({RATES})
    column: ClassVar[str] = ""
    tracked: ClassVar[str] = ""

    def curve(self, measured: Measured) -> LagCurve | None:
        """From the time scales of the first-order rates; inf if some rate does not fall, 0 if nothing is retained."""
        if measured.rates is None:
            return None
        lags = measured.rates.lags.numpy()
        scales = timescales(lags, log10_rates=measured.rates.log10_rates.numpy())
        if Status.NO_DECAY in scales.status:
            longest = np.inf
        else:
            longest = max(scales.tau[np.isfinite(scales.tau)].tolist(), default=0.0) * math.log(2)
        return self.make(lags, np.where(lags > 0, longest / np.maximum(lags, 1), np.nan))
