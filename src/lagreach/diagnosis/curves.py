"""The curves of a window: those drawn from what a diagnosis has measured, also of a file written before there were curves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lagreach.diagnosis.window import Window
from lagreach.statistics import Measured, all_statistics, draw_curves

if TYPE_CHECKING:
    from lagreach.transport.fidelity import Fidelity
    from lagreach.transport.first_order import EffectiveRates


def with_curves(window: Window, gains: Fidelity | None, rates: EffectiveRates | None) -> Window:
    """Return the window with every curve that its own numbers, gains and rates give, and those it had, in their order."""
    statistics = all_statistics()
    drawn = draw_curves(statistics, Measured(window, gains, rates), {})
    collected = {
        name: replace(curve, look=statistics[name].look) if name in statistics else curve
        for name, curve in window.curves.items()
        if name not in drawn
    }
    return replace(window, curves=drawn | collected)
