"""The study's predictors as numbers per lag: some are the package's own, some only this study has.

A predictor is a `LagStatistic`, so that `predictors.predict` draws curves and knows none by name. Those below draw theirs from
one number that is measured beside the window; a further candidate is one more class here (or in `lagreach.statistics`).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from lagreach.statistics import LagCurve, LagStatistic, Measured
from lagreach.statistics.gain import GradientRatio
from lagreach.statistics.required import Required
from lagreach.statistics.required_if_present import RequiredIfPresent
from lagreach.study.summary import SHORT_NAMES


class PaperWindow(LagStatistic):
    """Sequences needed by the paper's own recipe."""

    name: ClassVar[str] = "paper_window"
    title: ClassVar[str] = "Sequences needed as printed"
    unit: ClassVar[str] = "sequences"
    larger_is: ClassVar[str] = "worse"

    def curve(self, measured: Measured) -> LagCurve:
        """Collected are the numbers themselves."""
        return self.make(measured.window.lags, measured.collected)


class Lyapunov(LagStatistic):
    """Growth of a random gradient over the lag, as a natural logarithm; collected is the growth per step."""

    name: ClassVar[str] = "lyapunov"
    title: ClassVar[str] = "Growth of a random gradient"
    unit: ClassVar[str] = "log"

    def curve(self, measured: Measured) -> LagCurve:
        """Growth per step times steps."""
        return self.make(measured.window.lags, measured.collected * measured.window.lags)


class LongestTimeScale(LagStatistic):
    """Largest time scale of the first-order rates, in lags; collected in steps."""

    name: ClassVar[str] = "tau_max"
    title: ClassVar[str] = "Longest time scale, in lags"

    def curve(self, measured: Measured) -> LagCurve:
        """Per step of the lag."""
        return self.make(measured.window.lags, measured.collected / np.maximum(measured.window.lags, 1))


class LongestHalfLife(LagStatistic):
    """Longest half-life of what gates keep (`lagreach.advice.retention`), in lags; collected in steps."""

    name: ClassVar[str] = "half_life"
    title: ClassVar[str] = "Longest half-life of the gates, in lags"

    def curve(self, measured: Measured) -> LagCurve:
        """Per step of the lag."""
        return self.make(measured.window.lags, measured.collected / np.maximum(measured.window.lags, 1))


class Units(LagStatistic):
    """Units for every input up to the lag; collected is the number of units. Unlike the package's bound it may exceed one."""

    name: ClassVar[str] = "capacity"
    title: ClassVar[str] = "Units for each input up to the lag"

    def curve(self, measured: Measured) -> LagCurve:
        """``H / (l + 1)``."""
        return self.make(measured.window.lags, measured.collected / (measured.window.lags + 1))


PLANTED: dict[str, LagStatistic] = {RequiredIfPresent.name: RequiredIfPresent()}
IN_DATA: dict[str, LagStatistic] = {Required.name: Required()}
IN_SEQUENCES = PLANTED | IN_DATA
STATISTICS = IN_SEQUENCES | {
    one.name: one
    for one in (PaperWindow(), LongestTimeScale(), GradientRatio(), Lyapunov(), Units(), LongestHalfLife())
}


def predictor_name(statistic: str) -> str:
    """Name of a statistic in the study's tables.

    >>> predictor_name("required"), predictor_name("gradient_ratio")
    ('n_data', 'gradient_ratio')
    """
    return SHORT_NAMES.get(statistic, statistic)


# what a predictor's values are: sequences, decimal logarithms ("log10"), natural ones ("log"), or plain sizes
UNITS = {predictor_name(name): one.unit for name, one in STATISTICS.items()}
# in sequences: "learned" is predicted where the value is at most N; inf says never, NaN that it was refused. The last two are
# the data's own with another signal and another noise
NEEDED = (*(name for name, unit in UNITS.items() if unit == "sequences"), "n_gradient", "n_lag_noise")
# by rank: the larger the value, the sooner the lag should be learned
RANKED = tuple(name for name in UNITS if name not in NEEDED)
