"""The first-order envelope f(l): effective learning rates summed over units (Livi 2025)."""

from __future__ import annotations

from typing import ClassVar

from lagreach.statistics._statistic import RATES, LagCurve, LagStatistic, Look, Measured
from lagreach.statistics.gain import ARRIVES


class Envelope(LagStatistic):
    """First-order envelope, as a decimal logarithm."""

    place: ClassVar[int] = 5
    name: ClassVar[str] = "log10_envelope"
    title: ClassVar[str] = "First-order envelope"
    reads: ClassVar[frozenset[str]] = frozenset({RATES})
    log10: ClassVar[bool] = True
    column: ClassVar[str] = ""
    tracked: ClassVar[str] = ""
    look: ClassVar[Look | None] = Look(
        ARRIVES,
        "The envelope is the paper's, beside its first value.",
        lines={"": "envelope f(l) / f(0)"},
        relative=True,
    )

    def curve(self, measured: Measured) -> LagCurve | None:
        """From `lagreach.effective_rates`; None where first order has no meaning."""
        rates = measured.rates
        return None if rates is None else self.make(rates.lags.numpy(), rates.log10_envelope.numpy())
