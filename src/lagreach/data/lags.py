"""Checking a set of lags."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from lagreach.errors import InputError


def listed_lags(lags: Iterable[int], named: str = "lags") -> list[int]:
    """Sorted lags without repeats; `named` is what the user knows them by.

    >>> listed_lags([4, 1, 4])
    [1, 4]
    """
    try:
        return sorted({operator.index(lag) for lag in lags})
    except (TypeError, ValueError, RuntimeError) as error:  # the latter two of arrays and tensors
        one = isinstance(lags, int) and not isinstance(lags, bool)
        raise InputError(
            f"{named} must be a sequence of integers",
            got=f"{named}={lags!r}",
            expected='"auto", or integers' if named == "lags" else "integers",
            fix=f"pass {named}=[{lags}] for this lag alone"
            + (f", lags=range({lags}) for all below" if named == "lags" else "")
            if one
            else f"pass {named}=" + ("range(T)" if named == "lags" else "[4, 16]"),
        ) from error


def check_lags(lags: Iterable[int], time: int) -> list[int]:
    """Sorted lags without repeats, each an integer in 0..time-1.

    >>> check_lags([4, 1, 4], time=8)
    [1, 4]
    """
    wanted = listed_lags(lags)
    if not wanted:
        raise InputError("no lags were asked for", expected=f"some of 0..{time - 1}")
    if wanted[0] < 0:
        raise InputError(
            "lags count steps back, from an output to an input before it",
            got=f"lag {wanted[0]}",
            expected=f"0 <= lag <= {time - 1}",
            fix="leave out what lies ahead; lag 0 is the input at the output's own step",
        )
    if wanted[-1] >= time:
        raise InputError(
            "lags must be shorter than the sequences",
            got=f"lag {wanted[-1]} for T = {time} steps",
            expected=f"0 <= lag <= {time - 1}",
            fix="drop the longer lags, or pass longer sequences",
        )
    return wanted
