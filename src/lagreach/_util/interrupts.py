"""Interrupts (Ctrl-C) at the end of long work, and in the middle of a run of a model."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from contextvars import ContextVar
from threading import Thread
from traceback import walk_tb
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Put = Callable[[], None]

# What notes how the model that is being looked at stands, and returns what puts it back.
NOTING: ContextVar[Callable[[], Put] | None] = ContextVar("NOTING", default=None)


def despite_interrupt(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, bool]:
    """Do short work on what took long, once more if interrupted, and say whether it was; a second interrupt goes through."""
    put_back = as_it_stands()
    try:
        return work(*args, **kwargs), False
    except KeyboardInterrupt:
        put_back()
        return work(*args, **kwargs), True


def import_whole(name: str) -> None:
    """Import a package in a thread, where no interrupt stops it halfway.

    Else submodules would be left that a second import takes for known, and does not hang into the package.
    """

    def work() -> None:
        with contextlib.suppress(Exception):  # whoever uses it imports it again, and is told
            importlib.import_module(name)

    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join()  # an interrupt ends the waiting alone


def as_it_stands() -> Put:
    """What puts the model that is being looked at back to how it stands now, for work that goes on after an interrupt.

    An interrupt comes at any moment: also in the middle of exchanging weights, and in the middle of putting them back.
    """
    note = NOTING.get()
    return _nothing if note is None else note()


def close_left_open(since: BaseException | None) -> None:
    """Close contexts that interrupts kept from their end: else they end when the traceback goes, and undo what is mended.

    `since` is the exception that was being handled before.
    """
    error = sys.exc_info()[1]
    while error is not None and error is not since:
        for frame, _ in walk_tb(error.__traceback__):
            if frame.f_code.co_filename == contextlib.__file__:
                for value in frame.f_locals.values():
                    generator = getattr(value, "gen", None)
                    if isinstance(value, contextlib.AbstractContextManager) and generator is not None:
                        with contextlib.suppress(Exception):  # one that runs, or fails in its turn
                            generator.close()
        error = error.__context__


def _nothing() -> None:
    pass
