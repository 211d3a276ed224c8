"""Numbers per lag, one file each. `all_statistics` finds them, so a new file needs no registration."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lagreach.errors import InputError
from lagreach.statistics._statistic import (
    GAINS,
    RATES,
    Accumulator,
    LagCurve,
    LagStatistic,
    Look,
    Measured,
    check_statistics,
)

__all__ = [
    "Accumulator", "LagCurve", "LagStatistic", "Look", "Measured", "all_statistics", "check_statistics", "draw_curves",
]  # fmt: skip


def all_statistics() -> dict[str, LagStatistic]:
    """Every statistic of this package, by name.

    >>> list(all_statistics())[:4]
    ['required_if_present', 'required', 'adjusted_p', 'readable']
    """
    classes = []
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for value in vars(module).values():
            defined = inspect.isclass(value) and value.__module__ == module.__name__
            if defined and issubclass(value, LagStatistic) and not inspect.isabstract(value):
                classes.append(value)
    return {cls.name: cls() for cls in sorted(classes, key=lambda cls: (getattr(cls, "place", 99), cls.name))}


def draw_curves(
    statistics: Mapping[str, LagStatistic], measured: Measured, collected: Mapping[str, Any]
) -> dict[str, LagCurve]:
    """Draw every curve that what was measured allows; `collected` holds the accumulators by name."""
    missing = {source for source, values in ((GAINS, measured.gains), (RATES, measured.rates)) if values is None}
    curves: dict[str, LagCurve] = {}
    for name, statistic in statistics.items():
        if statistic.reads & missing:
            continue
        outside = not type(statistic).__module__.startswith(__name__)
        try:
            curve = statistic.curve(replace(measured, collected=collected.get(name)))
            if curve is not None:
                if outside:
                    _check_place(curve, curves, measured.window.lags.tolist())
                curves[name] = curve
        except Exception as error:
            if not outside:
                raise
            # a fault in a number of the user's own must not cost the rest, which may have taken hours
            warnings.warn(f"the statistic {name!r} was left out: {error or type(error).__name__}", stacklevel=2)
    return curves


def _check_place(curve: LagCurve, others: Mapping[str, LagCurve], lags: list[int]) -> None:
    """Refuse a curve over other lags than those examined, and numbers that would overwrite others in a file."""
    if curve.lags.tolist() != lags:
        raise InputError(
            f"the curve of {curve.name!r} has other lags than were examined",
            got=f"lags {curve.lags.tolist()}",
            expected=f"one value for each of {lags}: NaN where there is none",
            fix="plan.bands.lags in start(), or measured.window.lags in curve(), are the lags examined",
        )
    for other in others.values():
        same = curve.numbers.keys() & other.numbers.keys()
        if same:
            raise InputError(
                "two statistics have numbers of the same name",
                got=f"{', '.join(sorted(same))} of {other.name!r} and of {curve.name!r}",
                fix="rename yours",
            )
