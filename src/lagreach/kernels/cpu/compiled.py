"""How the functions of this package are compiled: on first use, cached on disk, without the lock of the interpreter.

No flag here lets the compiler assume that there is no NaN or infinity. Compiled functions carry ``@no_type_check``: the
run-time type checks of the tests cannot wrap them.

The cache goes by the sources of this folder: what these functions call must stand here as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, no_type_check

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from lagreach._util.compiling import kept_on_disk

LINE = 64  # bytes in a line of the cache
ORDER_FREE = {"contract", "reassoc", "nsz", "arcp"}  # sums may be regrouped, so that loops vectorise
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": ORDER_FREE, "no_cfunc_wrapper": True}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first use, per dtype."""
    return kept_on_disk(njit(**OPTIONS)(function))


def part(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for other compiled functions alone: what Python would need to call it takes long to compile, too."""
    return kept_on_disk(njit(**{**OPTIONS, "no_cpython_wrapper": True})(function))


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Write the function out wherever a compiled one calls it: compiling it by itself, with its own way in, takes longer."""
    return njit(**OPTIONS, inline="always")(function)


@intrinsic
@no_type_check
def use_whole_registers(typing_context):
    """Let loops of the function that calls this use vectors of 512 bits, where there are such.

    On processors of Intel LLVM makes them half as long, because long ones lower the clock for all else. Here that price is
    paid in any case: the products use long ones.
    """

    def call(context, builder, signature, arguments):
        # `add` of llvmlite's own set knows only attributes that all processors have in common
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), call


@inlined
@no_type_check
def aligned(rows, columns, like):
    """Room for rows of numbers that starts at a line of the cache: a vector that lies in two lines takes twice as long."""
    size = rows * columns
    room = np.empty(size + LINE // like.itemsize, like.dtype)
    start = (-room.ctypes.data) % LINE // like.itemsize
    return room[start : start + size].reshape(rows, columns)


class Weights(NamedTuple):
    """Weights of one replica, blocks side by side. Both orientations, since every product here runs along rows.

    Wt (input, width), W (width, input), Ut (unit, width), U (width, unit), b (width), and the LayerNorm's gain and shift
    (unit), which are empty without one. DiagElman's U and Ut are one row. A readout of h in the same pass has weights `read`
    (output, unit) and `offset` (output), both empty without one. `gate` and `kept` are ConstGate's s and 1 - s.
    """

    Wt: np.ndarray
    W: np.ndarray
    Ut: np.ndarray
    U: np.ndarray
    b: np.ndarray
    gain: np.ndarray
    shift: np.ndarray
    read: np.ndarray
    offset: np.ndarray
    gate: Any
    kept: Any


class Run(NamedTuple):
    """What a forward pass leaves behind, for one replica; time comes first.

    h (time, seq, unit), c (time, seq, unit; LSTM, else empty), act (time, seq, width): activations, gates folded (see
    `fold`), rh (time, seq, unit; GRU): ``r h``, normal (time, seq, unit) and inverse (time, seq): the candidate's
    pre-activation after normalisation and one over its standard deviation (LayerNorm, else empty), read (time, seq, output):
    what was read of h (else empty).
    When nothing is kept for a backward pass, all but h, c and read hold a single step.
    """

    h: np.ndarray
    c: np.ndarray
    act: np.ndarray
    rh: np.ndarray
    normal: np.ndarray
    inverse: np.ndarray
    read: np.ndarray


class Gradients(NamedTuple):
    """Where a backward pass adds the gradients of the weights, oriented as in `Weights`."""

    Wt: np.ndarray
    Ut: np.ndarray
    b: np.ndarray
    gain: np.ndarray
    shift: np.ndarray
    read: np.ndarray
    offset: np.ndarray
