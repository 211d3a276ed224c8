"""Numbers: how they are annotated (for static checkers, and what run-time checks should accept), and as JSON."""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Floats: TypeAlias = Any  # results: numpy.float64 for scalar arguments, otherwise a float64 array
Numbers: TypeAlias = Any  # arguments: one number, or whatever numpy.asarray takes

# PEP 484 lets an int stand for a float, run-time checkers take the word literally
if TYPE_CHECKING:
    Number: TypeAlias = float
else:
    Number = numbers.Real


def finite_or_none(value: Number) -> float | None:
    """Return the number, or None where JSON has none for it."""
    return float(value) if math.isfinite(value) else None
