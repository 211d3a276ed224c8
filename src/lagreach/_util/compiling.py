"""Compiled code is kept on disk where there is room for it; where there is none, every process compiles anew."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any


def kept_on_disk(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of numba's keep what it compiles, as ``cache=True`` does, unless the disk refuses.

    numba raises where no folder can be written, or where the disk is full: errors in the middle of a user's training, about
    files that only save time.
    """
    if not hasattr(function, "enable_caching"):  # NUMBA_DISABLE_JIT leaves the plain function
        return function
    try:
        function.enable_caching()
    except RuntimeError:
        return function
    function._cache._guard_against_spurious_io_errors = lambda: contextlib.suppress(OSError)  # type: ignore[attr-defined]
    return function
