"""Numbers per lag, one file each. `all_statistics` finds them, so a new file needs no registration."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lagreach.statistics._statistic import Accumulator, LagCurve, LagStatistic, Look, Measured, check_statistics

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
    drawn = {
        name: statistic.curve(replace(measured, collected=collected.get(name)))
        for name, statistic in statistics.items()
    }
    return {name: curve for name, curve in drawn.items() if curve is not None}
