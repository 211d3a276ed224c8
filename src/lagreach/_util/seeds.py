"""Seeds of random numbers."""

from __future__ import annotations

import operator

from lagreach.errors import InputError

LARGEST = 2**63 - 1


def check_seed(seed: object) -> int:
    """Return a seed as an int; refuse what no generator takes.

    >>> check_seed(7)
    7
    """
    try:
        number = -1 if isinstance(seed, bool) else operator.index(seed)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number <= LARGEST:
        raise InputError("seed is a whole number", got=repr(seed), expected="0 to 2**63 - 1", fix="leave it out for 0")
    return number
