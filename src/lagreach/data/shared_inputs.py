"""What is said of inputs that all sequences share (a calendar, a position): comparing sequences does not show what they do."""

from __future__ import annotations

from collections.abc import Sequence

CANNOT = "the same in every sequence: nothing tells whether the target depends on {}"
VARYING = "on the columns of the input that vary between sequences"  # where it can be told
MOST_NAMED = 8  # columns


def shared_lags(lags: str) -> str:
    """Say it of the whole input at some lags.

    >>> shared_lags("3 to 5")
    'at lags 3 to 5 the input is the same in every sequence: nothing tells whether the target depends on it'
    """
    return f"at lags {lags} the input is {CANNOT.format('it')}"


def shared_columns(columns: Sequence[int]) -> str:
    """Say it of some columns of the input.

    >>> shared_columns([1])
    'column 1 of the input is the same in every sequence: nothing tells whether the target depends on it'
    >>> shared_columns(range(4, 20))[:46]
    'columns 4, 5, 6, 7, 8, 9, 10, 11 and 8 more of'
    """
    if len(columns) == 1:
        return f"column {columns[0]} of the input is {CANNOT.format('it')}"
    named, more = list(map(str, columns[:MOST_NAMED])), len(columns) - MOST_NAMED
    listed = f"{', '.join(named)} and {more} more" if more > 0 else f"{', '.join(named[:-1])} and {named[-1]}"
    return f"columns {listed} of the input are {CANNOT.format('them')}"


def tells_shared_columns(note: str) -> bool:
    """Whether a note is one on such columns.

    >>> tells_shared_columns(shared_columns([1])), tells_shared_columns(shared_lags("3 to 5"))
    (True, False)
    """
    return note.startswith("column") and CANNOT.partition("{")[0] in note
