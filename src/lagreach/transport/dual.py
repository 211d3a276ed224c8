"""Products of dual numbers over windows of steps, without logarithms, divisions or underflow.

Over a window of l steps, ``gamma0 + E gamma1 = prod_j (a_j + E r_j)`` with ``E^2 = 0``. Windows combine,
``P_{l+d}(t) = P_l(t) P_d(t-l)``, so a jump from one lag to the next costs a few products whatever its size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach.cells import Dual, Factors
from lagreach.transport.scaled import times_power_of_two

SAFE = 2.0**200  # products of two numbers within [1/SAFE, SAFE] stay normal in float64


@dataclass(frozen=True)
class LagProduct:
    """Products over windows of `lag` steps, float64: ``(real + E slope) * 2**exponent``.

    Entry i along the second axis belongs to the window over steps ``i+1 .. i+lag``: it is anchored at
    ``t = i + lag`` and leads back to the state after step i.
    """

    lag: int
    real: Float[Tensor, "seq reached unit"]
    slope: Float[Tensor, "seq reached unit"]
    exponent: Int[Tensor, "seq reached unit"] | None = None

    @classmethod
    def single_step(cls, factor: Dual) -> LagProduct:
        """Windows of one step. The first step of a sequence is never inside a window."""
        return cls(1, factor.real[:, 1:].to(torch.float64), factor.slope[:, 1:].to(torch.float64))

    def after(self, older: LagProduct) -> LagProduct:
        """Put this (newer) window behind an older one that ends where it starts."""
        lag = self.lag + older.lag
        newer_rows = slice(older.lag, None)
        older_rows = slice(0, self.real.shape[1] - older.lag)
        a, r = self.real[:, newer_rows], self.slope[:, newer_rows]
        b, q = older.real[:, older_rows], older.slope[:, older_rows]
        exponent = _sum(
            None if self.exponent is None else self.exponent[:, newer_rows],
            None if older.exponent is None else older.exponent[:, older_rows],
        )
        return LagProduct(lag, a * b, a * q + r * b, exponent)._renormalised()

    def rate(self) -> Tensor:
        """Mantissa of ``gamma0 + gamma1``."""
        return self.real + self.slope

    def _renormalised(self) -> LagProduct:
        size = torch.maximum(self.real.abs(), self.slope.abs())
        drifted = (size > 0) & ((size < 1 / SAFE) | (size > SAFE))
        if not drifted.any():
            return self
        shift = torch.where(drifted, torch.frexp(size).exponent, 0)
        return LagProduct(
            self.lag,
            times_power_of_two(self.real, -shift),
            times_power_of_two(self.slope, -shift),
            _sum(self.exponent, shift),
        )


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


class _Sweep:
    """Windows of one kind of factor at increasing lags, built from cached windows of 1, 2, 4, ... steps."""

    def __init__(self, factor: Dual) -> None:
        self._powers = [LagProduct.single_step(factor)]
        self._current: LagProduct | None = None

    def at(self, lag: int) -> LagProduct:
        while (reached := 0 if self._current is None else self._current.lag) < lag:
            # the largest cached power of two that fits into what is missing
            k = (lag - reached).bit_length() - 1
            while len(self._powers) <= k:
                self._powers.append(self._powers[-1].after(self._powers[-1]))
            # the older window is appended on the far side of the current one
            self._current = self._powers[k] if self._current is None else self._current.after(self._powers[k])
        assert self._current is not None
        return self._current


def windows(factors: Factors, lags: Sequence[int]) -> Iterator[LagProduct]:
    """First-order transport at ascending lags >= 1, with the newest and oldest factor of a window set apart."""
    if factors.is_uniform:
        sweep = _Sweep(factors.middle)
        yield from (sweep.at(lag) for lag in lags)
        return
    newest, oldest = LagProduct.single_step(factors.newest), LagProduct.single_step(factors.oldest)
    middle = _Sweep(factors.middle)
    for lag in lags:
        if lag == 1:
            yield LagProduct.single_step(factors.single)
        elif lag == 2:
            yield newest.after(oldest)
        else:
            yield newest.after(middle.at(lag - 2)).after(oldest)
