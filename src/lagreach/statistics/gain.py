"""What is left of the loss gradient after l steps back: exactly, as a rate per step, and beside the shortest lag."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from lagreach.statistics._statistic import GAINS, LagCurve, LagStatistic, Look, Measured

ARRIVES = "What arrives"  # the picture of all that is left of a gradient


class Gain(LagStatistic):
    """Exact gain of the loss gradient, as a decimal logarithm; its first-order counterpart beside it."""

    place: ClassVar[int] = 4
    name: ClassVar[str] = "log10_gain"
    title: ClassVar[str] = "Gain of the loss gradient"
    reads: ClassVar[frozenset[str]] = frozenset({GAINS})
    log10: ClassVar[bool] = True
    tracked: ClassVar[str] = "gain"
    column: ClassVar[str] = ""
    look: ClassVar[Look | None] = Look(
        ARRIVES,
        "Exact gain: root-mean-square size of the loss gradient after travelling back, relative to where it started; first "
        "order beside it.",
        lines={"": "exact gain", "first_order": "first order"},
        fitted=True,
    )

    def curve(self, measured: Measured) -> LagCurve | None:
        """From `lagreach.fidelity`."""
        gains = measured.gains
        if gains is None:
            return None
        exact, first_order = gains.log10_exact.numpy(), gains.log10_first_order.numpy()
        return self.make(gains.lags.numpy(), exact, status=gains.status_by_lag, first_order=first_order)


class Growth(LagStatistic):
    """Mean growth of the loss gradient per step over a lag, as a decimal logarithm: negative where gradients vanish."""

    name: ClassVar[str] = "growth"
    title: ClassVar[str] = "Growth of the gradient per step"
    unit: ClassVar[str] = "log10 per step"
    reads: ClassVar[frozenset[str]] = frozenset({GAINS})
    column: ClassVar[str] = ""
    tracked: ClassVar[str] = ""

    def curve(self, measured: Measured) -> LagCurve | None:
        """Gain over lag; NaN at lag 0, over which nothing grows."""
        gains = measured.gains
        if gains is None:
            return None
        lags, log10 = gains.lags.numpy(), gains.log10_exact.numpy()
        return self.make(lags, np.where(lags > 0, log10 / np.maximum(lags, 1), np.nan))


class GradientRatio(LagStatistic):
    """Gain relative to the shortest lag above 0, as a decimal logarithm: what plots of gradient norms show."""

    name: ClassVar[str] = "gradient_ratio"
    title: ClassVar[str] = "Gradient beside that of the shortest lag"
    unit: ClassVar[str] = "log10"
    reads: ClassVar[frozenset[str]] = frozenset({GAINS})
    column: ClassVar[str] = ""
    tracked: ClassVar[str] = ""

    def curve(self, measured: Measured) -> LagCurve | None:
        """Gain less the first one."""
        gains = measured.gains
        if gains is None or not bool((gains.lags > 0).any()):
            return None
        lags, log10 = gains.lags.numpy(), gains.log10_exact.numpy()
        with np.errstate(invalid="ignore"):  # nothing beside nothing, where no gradient gets beyond lag 0
            return self.make(lags, log10 - log10[lags > 0][0])
