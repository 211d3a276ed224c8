"""Large arrays whose memory is used again: fresh memory costs a page fault for every few kilobytes that are written.

A buffer goes back to the pool when the last array or tensor that looks at it is gone, so nobody ever sees it change.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

LARGE = 2**20  # bytes; smaller arrays are left to numpy
IDLE = 2**31  # bytes that may wait to be used again; the oldest go first

_idle: deque[np.ndarray] = deque()  # appending and popping are atomic, so that a finaliser may run at any moment


class _Lease:
    """Memory on loan; numpy holds on to this object, not to the memory behind it."""

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        _idle.append(self._memory)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return an array that starts at a cache line, with whatever was there before.

    >>> empty((2, 3), np.dtype("float32")).shape
    (2, 3)
    """
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    raw = np.asarray(_Lease(_take(size + 64))) if size >= LARGE else np.empty(size + 64, np.uint8)
    start = -raw.__array_interface__["data"][0] % 64  # twice as fast as `ctypes`
    return raw[start : start + size].view(dtype).reshape(shape)


def zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return an array of zeros that starts at a cache line."""
    array = empty(shape, dtype)
    array[...] = 0
    return array


def clear() -> None:
    """Give all idle memory back to the system."""
    _idle.clear()


def _take(size: int) -> np.ndarray:
    """Take idle memory that fits without much waste, what was used last first: it may still be in a cache. Or fresh memory."""
    waiting: deque[np.ndarray] = deque()
    fitting = None
    while _idle:
        memory = _idle.pop()
        if fitting is None and size <= memory.size <= 1.25 * size:
            fitting = memory
        else:
            waiting.appendleft(memory)
    while sum(memory.size for memory in waiting) > IDLE:
        waiting.popleft()
    _idle.extendleft(reversed(waiting))
    return np.empty(size, np.uint8) if fitting is None else fitting
