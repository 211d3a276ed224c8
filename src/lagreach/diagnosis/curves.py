"""The curves of a window: those drawn from what a diagnosis has measured, also of a file written before there were curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lagreach.diagnosis.window import Window
from lagreach.statistics import LagStatistic, Measured, all_statistics, draw_curves
from lagreach.statistics._statistic import GAINS, RATES

if TYPE_CHECKING:
    from lagreach.transport.fidelity import Fidelity
    from lagreach.transport.first_order import EffectiveRates


def with_curves(
    window: Window,
    gains: Fidelity | None,
    rates: EffectiveRates | None,
    statistics: Mapping[str, LagStatistic] | None = None,
    collected: Mapping[str, Any] | None = None,
) -> Window:
    """Return the window with every curve that its own numbers, gains and rates give, and those it had, in their order.

    Of `statistics` from outside, those that read gains or rates had to wait for them; `collected` are their accumulators.
    """
    built_in = all_statistics()
    outside = {name: one for name, one in (statistics or {}).items() if name not in built_in}
    waiting = {name: one for name, one in outside.items() if one.reads & {GAINS, RATES}}
    of_waiting = {name: sums for name, sums in (collected or {}).items() if name in waiting}
    drawn = draw_curves(built_in | waiting, Measured(window, gains, rates), of_waiting)
    kept = {
        name: replace(curve, look=built_in[name].look) if name in built_in else curve
        for name, curve in window.curves.items()
        if name not in drawn
    }
    return replace(window, curves=drawn | kept)
