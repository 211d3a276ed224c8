"""Numbers far outside the float range: sums and products with a carried power of two.

Transport over long lags leaves float32 near lag 100 and float64 near lag 1000. Mantissas and integer exponents
are kept apart, so that nothing under- or overflows and logarithms stay finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LOG10_2 = math.log10(2.0)
# A gradient too small for float64 is held at this power of two: its direction can still be told, and N is out of all reach
KEPT = -960
LOWEST = torch.iinfo(torch.int32).min // 4  # exponent of an exact zero: it must not set the scale of a sum


def times_power_of_two(x: Tensor, exponent: Tensor) -> Tensor:
    """``x * 2**exponent``, without the overflow of ``2**exponent`` on its own (`torch.ldexp` uses float32 there)."""
    half = torch.div(exponent, 2, rounding_mode="floor")
    return x * torch.exp2(half.to(x.dtype)) * torch.exp2((exponent - half).to(x.dtype))


def times_two_to_the(exponent: int, x: Tensor) -> Tensor:
    """The same for one exponent.

    >>> times_two_to_the(-1100, torch.tensor(2.0**1000, dtype=torch.float64)).log2()
    tensor(-100., dtype=torch.float64)
    """
    half = exponent // 2
    first, second = (math.inf if part > 1023 else math.ldexp(1.0, part) for part in (half, exponent - half))
    return x * first * second


def size_in_powers_of_two(values: Tensor) -> float:
    """Return the power of two just above the largest entry (1 if all are zero): what to divide by, so that float32 holds them."""
    return sizes_in_powers_of_two([values])[0]


def sizes_in_powers_of_two(every: Sequence[Tensor]) -> list[float]:
    """`size_in_powers_of_two` of each; a GPU is waited for once."""
    exponents = torch.frexp(torch.stack([values.abs().max() for values in every])).exponent
    return [2.0**exponent for exponent in exponents.tolist()]


def lift(largest: Tensor, exponent: int) -> int:
    """Powers of two to add to ``largest * 2**exponent`` so that it stays within the range of float64; mostly none."""
    if not bool(largest > 0):
        return 0
    return max(0, KEPT - exponent - int(torch.frexp(largest).exponent))


@dataclass(frozen=True)
class ScaledSum:
    """A sum of nonnegative numbers ``mantissa * 2**exponent`` (float64, int64), elementwise.

    >>> tiny = ScaledSum.of(torch.tensor([[3.0, 5.0]]), torch.tensor([[-4000, -4000]]), dim=1)
    >>> both = tiny + tiny
    >>> round(both.log10().item(), 6) == round(math.log10(16) - 4000 * math.log10(2), 6)
    True
    """

    mantissa: Tensor
    exponent: Tensor

    @classmethod
    def of(cls, values: Tensor, exponents: Tensor | None, dim: int | tuple[int, ...]) -> ScaledSum:
        """Sum ``values * 2**exponents`` over `dim`. A zero may have any exponent."""
        values = values.to(torch.float64)
        if exponents is None:
            total = values.sum(dim)
            return cls(total, torch.zeros_like(total, dtype=torch.int64))
        exponents = exponents.expand_as(values).to(torch.int64)
        top = torch.where(values > 0, exponents, LOWEST).amax(dim, keepdim=True)
        top = torch.where(top == LOWEST, 0, top)
        total = times_power_of_two(values, (exponents - top).clamp(max=0)).sum(dim)  # only zeros lie above the top
        return cls(total, top.reshape(total.shape))

    @classmethod
    def of_squares(cls, values: Tensor) -> ScaledSum:
        """Sum the squares of all values."""
        squares = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64).square()  # without a copy in float64
        return cls.of(squares, None, dim=tuple(range(squares.ndim)))

    @classmethod
    def stack(cls, sums: Sequence[ScaledSum]) -> ScaledSum:
        """Put sums side by side along a new first axis."""
        return cls(torch.stack([s.mantissa for s in sums]), torch.stack([s.exponent for s in sums]))

    def __add__(self, other: ScaledSum) -> ScaledSum:
        pair = torch.stack((self.mantissa, other.mantissa))
        return ScaledSum.of(pair, torch.stack((self.exponent, other.exponent)), dim=0)

    def log10(self) -> Tensor:
        """Base-10 logarithm; -inf for an exact zero."""
        return torch.log10(self.mantissa) + LOG10_2 * self.exponent.to(torch.float64)
