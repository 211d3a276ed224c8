"""Pictures that several numbers per lag share, as each asks for (`lagreach.statistics.Look`); none is known here by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lagreach.diagnosis.window import Window
from lagreach.statistics import LagCurve
from lagreach.statistics._statistic import MARKS


def pictures(window: Window) -> dict[str, list[LagCurve]]:
    """Curves by the title of the picture that they stand in."""
    shared: dict[str, list[LagCurve]] = {}
    for curve in window.curves.values():
        if curve.look is not None and curve.look.picture:
            shared.setdefault(curve.look.picture, []).append(curve)
    return {title: sorted(curves, key=_order) for title, curves in shared.items()}


def _order(curve: LagCurve) -> int:
    return MARKS.index(curve.look.mark) if curve.look is not None else len(MARKS)


def logarithmic(curves: Sequence[LagCurve]) -> bool:
    """Whether a picture holds logarithms only: then its lines lie on each other, else each curve has a row of its own."""
    return all(curve.log10 for curve in curves)


def caption(curves: Sequence[LagCurve]) -> str:
    """What the curves of a picture mean."""
    return " ".join(curve.look.meaning for curve in curves if curve.look is not None)


def lines(curve: LagCurve) -> dict[str, np.ndarray]:
    """What a curve draws in its picture, by label."""
    if curve.look is None:
        return {}
    drawn = {label: curve.more[name] if name else curve.value for name, label in curve.look.lines.items()}
    if not curve.look.relative:
        return drawn
    known = {label: values[np.isfinite(values)][:1] for label, values in drawn.items()}
    beside = (lambda values, first: values - first) if curve.log10 else (lambda values, first: values / first)
    return {label: beside(values, known[label]) if len(known[label]) else values for label, values in drawn.items()}


def opening(window: Window) -> LagCurve | None:
    """The number that a page opens with, one bar for each lag; None where it is not known."""
    return next((curve for curve in window.curves.values() if curve.look is not None and curve.look.opens), None)
