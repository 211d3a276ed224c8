"""Arguments that are numbers within bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real

from lagreach.errors import InputError

_Fits = Callable[[float], bool]
_EXPECTED: dict[str, tuple[str, _Fits]] = {
    "error": ("between 0 and 1", lambda value: 0 < value < 1),
    "directions": ("a positive whole number", lambda value: value >= 1 and value == int(value)),
    "sequences": ("a positive number; left out, as many as the data hold", lambda value: value >= 1),
    "budget": ("seconds, more than 0; left out, no limit", lambda value: value > 0),
    "total": ("seconds, 0 or more; left out, no limit", lambda value: value >= 0),
    "memory": ("bytes, more than 0; left out, a share of what is there", lambda value: value > 0),
    "pilot": ("steps, 0 or more", lambda value: value >= 0),
}


def check_bounds(**values: float | None) -> None:
    """Refuse arguments, by their names, that are no such number; None is left out.

    >>> check_bounds(budget=2.5, memory=None)
    """
    for name, value in values.items():
        words, fits = _EXPECTED[name]
        if value is not None and not (isinstance(value, Real) and not math.isnan(value) and fits(value)):
            raise InputError(f"{name} is out of range", got=f"{name}={value!r}", expected=words)
