"""Gradients on their way back through time, with a carried power of two per anchor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach.transport.scaled import LOWEST, ScaledSum, lift, times_power_of_two

SAFE_EXPONENT = {torch.float32: 40, torch.float64: 400}


@dataclass(frozen=True)
class Cotangent:
    """``lambda_{t,l}`` at position ``t-l``: values ``mantissa * 2**exponent``, one exponent per anchor."""

    lag: int
    mantissa: Float[Tensor, "seq reached state"]
    exponent: Int[Tensor, "seq reached 1"] | None = None

    def value(self) -> Float[Tensor, "seq reached state"]:
        """Plain values; zero where they leave the float range."""
        return self.mantissa if self.exponent is None else times_power_of_two(self.mantissa, self.exponent)

    def double(self) -> Float[Tensor, "seq reached state"]:
        """Values in float64, whose range is wide enough for whatever statistics can use."""
        values = self.mantissa.double()
        return values if self.exponent is None else times_power_of_two(values, self.exponent)

    def kept(self) -> Float[Tensor, "seq reached state"]:
        """Values in float64, held at the lower end of its range where they lie below, so that their direction is not lost."""
        values = self.mantissa.double()
        if self.exponent is None:
            return values
        sizes = values.abs().amax(-1, keepdim=True)
        highest = int(torch.where(sizes > 0, torch.frexp(sizes).exponent + self.exponent, LOWEST).max())
        raised = self.exponent + (0 if highest == LOWEST else lift(torch.tensor(0.5), highest))
        return times_power_of_two(values, raised)

    def square_norm(self) -> ScaledSum:
        """Sum over sequences and anchors of ``|lambda|^2``."""
        squares = torch.linalg.vector_norm(self.mantissa, dim=-1, dtype=torch.float64).square()  # without a copy
        return ScaledSum.of(squares, None if self.exponent is None else 2 * self.exponent[..., 0], dim=(0, 1))

    @classmethod
    def aligned(cls, lag: int, values: Tensor, exponents: Int[Tensor, "seq reached state"]) -> Cotangent:
        """Build one from values whose units have exponents of their own."""
        top = torch.where(values == 0, LOWEST, exponents).amax(-1, keepdim=True)
        top = torch.where(top == LOWEST, 0, top)
        mantissa = times_power_of_two(values, (exponents - top).clamp(max=0))
        return cls(lag, mantissa, top if top.any() else None)
