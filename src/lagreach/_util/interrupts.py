"""Interrupts (Ctrl-C) at the end of long work."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def despite_interrupt(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, bool]:
    """Do short work on what took long, once more if interrupted, and say whether it was; a second interrupt goes through."""
    try:
        return work(*args, **kwargs), False
    except KeyboardInterrupt:
        return work(*args, **kwargs), True
