"""What inputs, radii and probabilities must look like, said in the user's words."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.arrays import Number
from lagreach.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")
_ROUNDING = 8 * torch.finfo(torch.float64).eps  # a vector divided by its own norm may miss 1 by this much


def within_range(bound: Callable[P, T]) -> Callable[P, T]:
    """Say so where arguments are so extreme that a power or quotient of them is no number any more."""

    @functools.wraps(bound)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return bound(*args, **kwargs)
        except (OverflowError, ZeroDivisionError) as error:
            raise InputError(
                "these sizes are too extreme to compute with",
                got=", ".join(f"{name}={value!r}" for name, value in kwargs.items()),
                fix="use sizes nearer to 1",
            ) from error

    return checked


def check_inputs(x: Float[Tensor, "seq time input"], x_bound: Number = 1.0) -> None:
    """Refuse inputs that are not finite, or longer than the theory's bound on ``|X_t|``."""
    if x.ndim != 3 or 0 in x.shape:
        raise InputError(
            "inputs have axes (seq, time, input), none of them empty",
            got=f"shape {tuple(x.shape)}",
            expected="at least one sequence, step and coordinate",
        )
    largest = float(torch.linalg.vector_norm(x, dim=-1).max())
    if not largest <= float(x_bound) * (1 + _ROUNDING):
        raise InputError(
            "the theory needs inputs of bounded length",
            got=f"a step with |x| = {largest:.6g}",
            expected=f"|x| <= {float(x_bound):g} at every step",
            fix=f"divide the inputs by {largest:.6g}, or pass x_bound={largest:.6g} and accept larger constants",
        )


def check_targets(x: Float[Tensor, "seq time input"], y: Float[Tensor, "seq time"]) -> None:
    """Refuse targets that do not give one finite number per step."""
    if y.shape != x.shape[:2]:
        raise InputError(
            "targets have one number per step",
            got=f"shape {tuple(y.shape)} for inputs {tuple(x.shape)}",
            expected=f"shape {tuple(x.shape[:2])}",
        )
    if not bool(torch.isfinite(y).all()):
        raise InputError("targets must be finite", got="NaN or inf", fix="remove or fill those steps")


def check_pair(name: str, pair: tuple[Number, Number]) -> tuple[float, float]:
    """Refuse a pair (of W and of U) that is not two nonnegative numbers."""
    if len(pair) != 2 or not all(float(value) >= 0 for value in pair):
        raise InputError(
            f"{name} is a pair of sizes, one for W and one for U", got=pair, expected="two nonnegative numbers"
        )
    return float(pair[0]), float(pair[1])


def check_positive(**values: Number) -> None:
    """Refuse what is not positive and finite."""
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise InputError(f"{name} must be positive", got=value)


def check_probability(delta: Number) -> None:
    """Refuse a probability of failure outside (0, 1)."""
    if not 0 < delta < 1:
        raise InputError("delta is the probability that the bound may fail", got=delta, expected="0 < delta < 1")
