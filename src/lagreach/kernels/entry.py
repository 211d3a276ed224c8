"""What stands before every compiled call.

Compiled code does not check its indices: an array that is too small is read and written beyond its end, which corrupts the
memory of the whole process. So sizes and types are compared in Python, once a call, where it costs microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from torch import Tensor

from lagreach.cells import Cell, Params
from lagreach.errors import InputError

Sized: TypeAlias = np.ndarray | Tensor


def check_arrays(
    where: str,
    arrays: Mapping[str, tuple[Sized | None, tuple[int, ...]]],
    *,
    dtype: object = None,
    fix: str | None = None,
) -> None:
    """Compare arrays with the shapes that compiled code takes for granted; what is None is not there.

    Parameters
    ----------
    where
        What is about to run, for the message.
    arrays
        Each array and its shape, by name.
    dtype
        Type of all of them, if it has to be one.

    Examples
    --------
    >>> import torch
    >>> check_arrays("a sum over units", {"rates": (torch.zeros(2, 3), (2, 3)), "moved": (None, (2, 3))})
    >>> check_arrays("a sum over units", {"rates": (torch.zeros(2, 6), (2, 3))}, fix="check the cell's factors()")
    Traceback (most recent call last):
    lagreach.errors.InputError: a sum over units was given arrays that do not fit together
      got:      rates of shape (2, 6)
      expected: rates of shape (2, 3)
      to do:    check the cell's factors()
    """
    for name, (array, shape) in arrays.items():
        if array is None:
            continue
        if array.shape != shape:
            raise _misfit(where, f"{name} of shape {tuple(array.shape)}", f"{name} of shape {shape}", fix)
        if dtype is not None and array.dtype != dtype:
            raise _misfit(where, f"{name} of type {array.dtype}", f"{name} of type {dtype}", fix)


def check_scan(cell: Cell, x: Sized, s0: Sized, params: Params, what: str = "the weight") -> None:
    """Compare inputs (replica, seq, time, input), initial state and weights with what the cell says of their shapes."""
    where, (replica, seq, _, width), state = f"the kernel of {cell.name}", x.shape, s0.shape[-1]
    hidden = state // len(cell.blocks)
    if hidden < 1 or cell.state_size(hidden) != state:
        raise _misfit(where, f"a state of width {state}", f"the blocks {', '.join(cell.blocks)}, equally wide")
    shapes = cell.shapes(width, hidden)
    if params.keys() != shapes.keys():
        raise _misfit(where, f"the weights {', '.join(sorted(params))}", ", ".join(sorted(shapes)))
    arrays = {f"{what} {name}": (params[name], (replica, *shape)) for name, shape in shapes.items()}
    check_arrays(
        where,
        arrays | {"the initial state": (s0, (replica, seq, state))},
        dtype=x.dtype,
        fix="check the width of the input and of the state, and the weights against the cell's shapes()",
    )


def _misfit(where: str, got: str, expected: str, fix: str | None = None) -> InputError:
    return InputError(f"{where} was given arrays that do not fit together", got=got, expected=expected, fix=fix)
