"""The adding problem."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.tasks._task import Task, check_count, last_step, slopes


@dataclass(frozen=True, kw_only=True)
class Adding(Task):
    """Two of many numbers are marked; their sum is asked for at the last step (Hochreiter and Schmidhuber 1997).

    Inputs are a number, uniform on [0, 1], and a marker, which is 1 at one step in each half of the sequence. Always
    answering 1 costs 1/6. Marked numbers lie at every distance from the end, so distances are scored in `bins` of equal
    width: each lag is the middle of its bin, and its score the coefficient of the numbers marked there in the output.

    Examples
    --------
    >>> Adding(length=40, bins=4).lags
    (4, 14, 24, 34)
    """

    name: ClassVar[str] = "adding"

    length: int = 100
    bins: int = 4
    input_size: ClassVar[int] = 2
    noise_floor: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_count("length", self.length, 2)
        check_count("bins", self.bins)
        if self.bins > self.length // 2:
            check_count("length for this many bins", self.length, 2 * self.bins)

    @property
    def lags(self) -> tuple[int, ...]:
        # bin b begins at the first distance with `distance * bins // length == b`
        first = [-(-self.length * b // self.bins) for b in range(self.bins + 1)]
        return tuple((a + b - 1) // 2 for a, b in pairwise(first))

    def mask(self) -> Float[Tensor, "time"]:
        return last_step(self.length)

    def draw(self, sequences: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        device, half = generator.device, self.length // 2
        x = torch.zeros(sequences, self.length, 2, device=device)
        x[..., 0] = torch.rand(sequences, self.length, generator=generator, device=device)
        for low, high in ((0, half), (half, self.length)):
            step = torch.randint(low, high, (sequences, 1), generator=generator, device=device)
            x[..., 1].scatter_(1, step, 1.0)
        y = torch.zeros(sequences, self.length, 1, device=device)
        y[:, -1, 0] = (x[..., 0] * x[..., 1]).sum(1)
        return x, y

    def score(self, x: Tensor, y: Tensor, output: Tensor) -> Float[Tensor, "lag"]:
        # by distance from the end, centred so that bins are uncorrelated
        marked = ((x[..., 0] - 0.5) * x[..., 1]).flip(1)
        which = torch.arange(self.length, device=x.device) * self.bins // self.length
        binned = torch.zeros(len(x), self.bins, dtype=x.dtype, device=x.device).index_add_(1, which, marked)
        return slopes(binned, output[:, -1, 0])
