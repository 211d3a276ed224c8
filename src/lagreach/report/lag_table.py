"""The table of lags: a column for every number per lag that has a head for it (`LagCurve.column`), whichever it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lagreach.diagnosis.window import Window
from lagreach.report.words import brief
from lagreach.statistics import LagCurve
from lagreach.types import Status


@dataclass(frozen=True)
class TableCell:
    """A number in the words of its unit; `ends` is its interval, or the bound where there is no number."""

    head: str
    value: str
    ends: str
    reason: bool = False  # words may be many, and wrap


def columns(window: Window) -> list[LagCurve]:
    """Numbers that have a column; what a page opens with comes first."""
    shown = [curve for curve in window.curves.values() if curve.column]
    return sorted(shown, key=lambda curve: curve.look is None or not curve.look.opens)


def in_unit(curve: LagCurve, number: float) -> str:
    """Write a number the way its unit is read, without naming the unit."""
    if curve.unit == "share":
        return f"{100 * number:.0f}"
    return brief(number) if curve.unit == "sequences" else f"{number:.3g}"


def cells(curves: Sequence[LagCurve], lag: int) -> list[TableCell]:
    """One row of the table. A reason that stands in one cell is not said again in the next."""
    row: list[TableCell] = []
    said: set[Status] = set()
    for curve in curves:
        at = curve.lags.tolist().index(lag) if lag in curve.lags else None
        row.append(TableCell(curve.column, "", "") if at is None else _cell(curve, at, said))
    return row


def _cell(curve: LagCurve, i: int, said: set[Status]) -> TableCell:
    value, low, high = (float(numbers[i]) for numbers in (curve.value, curve.low, curve.high))
    status = curve.status[i]
    if math.isfinite(value):
        percent = " %" if curve.unit == "share" else ""
        known = not (math.isnan(low) or math.isnan(high))
        ends = f"({in_unit(curve, low)} to {in_unit(curve, high)})" if known else ""
        return TableCell(curve.column, in_unit(curve, value) + percent, ends)
    bound = f"(more than {in_unit(curve, low)})" if math.isfinite(low) else ""
    if status is Status.NOT_SIGNIFICANT:
        return TableCell(curve.column, "none found", bound)
    unknown = math.isnan(value)
    words = "unknown" if unknown else "no number suffices" if curve.unit == "sequences" else in_unit(curve, value)
    if status is Status.OK or (unknown and status in said):
        return TableCell(curve.column, words, bound)
    said.add(status)
    return TableCell(curve.column, f"{words}: {status}", bound, reason=True)
