"""Delayed exclusive or."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.errors import InputError
from lagreach.tasks._task import Task, check_count, check_lags, delayed, set_option, slopes


@dataclass(frozen=True, kw_only=True)
class Xor(Task):
    """The exclusive or of two past bits, written with signs: ``y_t = b_{t-l_1} b_{t-l_2}``.

    Bits are -1 or 1, and steps without both bits do not count. The target is uncorrelated with every single bit, so no
    linear model learns anything. A product cannot be shared out between its two bits: both lags have the same score, the
    coefficient of the product in the output.

    Examples
    --------
    >>> x, y = Xor(lags=(1, 2), length=6).sample(1, torch.Generator().manual_seed(0))
    >>> bool((y[0, 2:, 0] == x[0, 1:-1, 0] * x[0, :-2, 0]).all())
    True
    """

    name: ClassVar[str] = "xor"

    lags: Sequence[int] = (4, 16)
    length: int = 64
    input_size: ClassVar[int] = 1
    noise_floor: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_count("length", self.length)
        set_option(self, "lags", check_lags(self.lags, self.length))
        if len(self.lags) != 2:
            raise InputError("the exclusive or takes two bits", got=f"{len(self.lags)} lags", expected="2 lags")

    def mask(self) -> Float[Tensor, "time"]:
        return (torch.arange(self.length) >= self.lags[-1]).float()

    def draw(self, sequences: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        shape, device = (sequences, self.length), generator.device
        bits = 2.0 * torch.randint(2, shape, generator=generator, device=device) - 1.0
        return bits[..., None], delayed(bits, self.lags).prod(-1, keepdim=True)

    def score(self, x: Tensor, y: Tensor, output: Tensor) -> Float[Tensor, "lag"]:
        seen = slice(self.lags[-1], None)
        product = delayed(x[..., 0], self.lags).prod(-1, keepdim=True)
        return slopes(product[:, seen], output[:, seen, 0]).expand(2).clone()
