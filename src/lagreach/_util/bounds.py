"""Arguments that are numbers within bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real

from lagreach.errors import InputError

_Fits = Callable[[float], bool]
_EXPECTED: dict[str, tuple[str, _Fits]] = {
    "error": ("a probability, more than 0 and below one half", lambda value: 0 < value < 0.5),
    "strength": ("a share of the target's variance, more than 0 and at most 1", lambda value: 0 < value <= 1),
    "directions": ("a positive whole number", lambda value: value >= 1 and value == int(value)),
    "sequences": ("a positive number; left out, as many as the data hold", lambda value: value >= 1),
    "planned": ("a positive number of steps, whole", lambda value: value >= 1 and value == int(value)),
    "steps": ("a positive number of steps, whole", lambda value: value >= 1 and value == int(value)),
    "budget": ("seconds, more than 0; left out, no limit", lambda value: value > 0),
    "total": ("seconds, 0 or more; left out, no limit", lambda value: value >= 0),
    "memory": ("bytes, more than 0; left out, a share of what is there", lambda value: value > 0),
    "pilot": ("steps, 0 or more", lambda value: value >= 0 and value == int(value)),
}
_NEEDED = ("error", "strength", "pilot")


def is_number(value: object) -> bool:
    """Whether this is one number, also one of numpy's."""
    return isinstance(value, Real) and not math.isnan(value)


def check_bounds(**values: object) -> None:
    """Refuse arguments, by their names, that are no such number; None is left out where an argument may be.

    >>> check_bounds(budget=2.5, memory=None)
    """
    for name, value in values.items():
        words, fits = _EXPECTED[name]
        if value is None and name not in _NEEDED:
            continue
        if not (isinstance(value, Real) and math.isfinite(value) and fits(value)):  # type: ignore[arg-type]
            raise InputError(f"{name} is {'out of range' if isinstance(value, Real) else 'not a number'}",
                             got=f"{name}={value!r}", expected=words)  # fmt: skip


def counts_of(sequences: object) -> tuple[int, ...]:
    """Numbers of sequences, one or several.

    >>> counts_of(5), counts_of([10, 1e3])
    ((5,), (10, 1000))
    """
    listed = [sequences] if isinstance(sequences, Real) else sequences
    try:
        found = [] if isinstance(listed, str | bytes) else [float(n) for n in listed]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        found = []
    if not found or not all(math.isfinite(n) and n >= 1 and n == int(n) for n in found):
        raise InputError(
            "sequences are positive whole numbers", got=repr(sequences), expected="such as (100, 1000, 10000)"
        )
    return tuple(int(n) for n in found)
