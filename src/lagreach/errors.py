"""What lagreach raises. Every message says what was got, what was expected and what to do next."""

from __future__ import annotations


class LagreachError(Exception):
    """Base class of all errors raised on purpose.

    Parameters
    ----------
    problem
        One sentence: what went wrong, in the user's words.
    got, expected, fix
        Optional parts, printed on lines of their own.

    Examples
    --------
    >>> print(LagreachError("lags must be smaller than the sequence length",
    ...                     got="lag 12 for T = 10", expected="0 <= lag <= 9", fix="pass lags=range(10)"))
    lags must be smaller than the sequence length
      got:      lag 12 for T = 10
      expected: 0 <= lag <= 9
      to do:    pass lags=range(10)
    """

    def __init__(self, problem: str, *, got: object = None, expected: object = None, fix: str | None = None) -> None:
        lines = [problem]
        for label, part in (("got:      ", got), ("expected: ", expected), ("to do:    ", fix)):
            if part is not None:
                lines.append(f"  {label}{part}")
        super().__init__("\n".join(lines))


class InputError(LagreachError, ValueError):
    """Bad data or arguments: shapes, lags, NaN, unknown options."""


class UnsupportedError(LagreachError, NotImplementedError):
    """A combination that has no meaning or no implementation, refused by name."""


class UnstableModelError(UnsupportedError):
    """A model whose output for a sequence is not its own: random, kept from an earlier call, or mixed with other sequences."""


class TooLargeError(LagreachError, MemoryError):
    """A result that would not fit; the message names what to use instead."""


class RunError(LagreachError, RuntimeError):
    """A run that cannot start or go on: its folder is in use, finished, damaged, or the disk is full."""


class ConformanceError(LagreachError, AssertionError):
    """A cell, adapter or estimator that breaks its protocol (see `lagreach.testing`)."""
