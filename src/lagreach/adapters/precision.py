"""Models in half precision: they are looked at in single precision, on a copy.

Eight bits of a bfloat16 do not carry a gradient over many steps, and a layer that is replayed step by step rounds differently
from one that runs at once. The weights are the same numbers in float32.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn

from lagreach.errors import UnsupportedError

HALF = (torch.float16, torch.bfloat16)
Module = TypeVar("Module", bound=nn.Module)


def half_precision(model: object) -> torch.dtype | None:
    """Type of a model's weights in half precision; None if it has none."""
    if not isinstance(model, nn.Module):
        return None
    return next((weight.dtype for weight in model.parameters() if weight.dtype in HALF), None)


def in_single_precision(model: Module) -> Module:
    """Return the model itself, or a copy in float32 if some of its weights are in half precision.

    >>> in_single_precision(nn.Linear(2, 1).bfloat16()).weight.dtype
    torch.float32
    """
    half = half_precision(model)
    if half is None:
        return model
    try:
        return deepcopy(model).float()
    except Exception as error:  # modules may hold anything
        raise UnsupportedError(
            "a model in half precision is diagnosed on a copy in float32, and this one cannot be copied",
            got=f"weights of type {half}; {type(error).__name__}: {error}",
            fix="pass model.float()",
        ) from error


def single_precision(weight: Tensor) -> Tensor:
    """Return a weight as it is, or in float32 if it is in half precision."""
    return weight.float() if weight.dtype in HALF else weight


def refuse_half(dtype: torch.dtype) -> None:
    """Refuse a finished recurrence in half precision, which nobody could copy."""
    if dtype in HALF:
        raise UnsupportedError(
            "a recurrence in half precision cannot be carried back",
            got=f"weights of type {dtype}",
            expected="float32 or float64",
            fix="build it from weights in float32: weight.float()",
        )


def precision_note(model: object) -> str | None:
    """What a reader has to know about a model in half precision."""
    half = half_precision(model)
    name = str(half).removeprefix("torch.")
    return (
        None
        if half is None
        else f"the model is in {name}: it was diagnosed on a copy in float32, with the same weights"
    )
