"""Shared vocabulary: axis names and the `Status` of a result.

Axes, always in this order where several occur: ``seq`` (independent sequences), ``time`` (steps),
``lag`` (steps back), ``unit`` (state coordinates), ``param`` (entries of one parameter tensor).
"""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """How far a number can be trusted; the value is advice for the reader.

    Results carry a status instead of sentinel numbers: what is missing is NaN or inf *and* says why.

    Examples
    --------
    >>> print(Status.OK)
    ok
    >>> Status.OK.usable
    True
    """

    OK = "ok"

    # transport
    FIRST_ORDER_EXACT = "first order is exact for this cell: the step's Jacobian is diagonal"
    FIRST_ORDER_VANISHES = (
        "this cell has no retention path, so the first-order expansion is zero beyond lag 1; use the exact gain"
    )
    FIRST_ORDER_FAITHFUL = "first order and exact transport agree within a factor of 3 at every lag"
    FIRST_ORDER_MISLEADS = (
        "first order and exact transport differ by more than a factor of 3; trust the exact gain"
    )
    NO_ANCHOR = "no sequence reaches back this far, or the loss ignores those steps; nothing can be said"

    def __str__(self) -> str:
        return self.value

    @property
    def usable(self) -> bool:
        """Whether the number beside this status may be used as it stands."""
        return self not in _NOT_USABLE


_NOT_USABLE = frozenset({Status.NO_ANCHOR, Status.FIRST_ORDER_VANISHES})
