"""The flip-flop: hold the sign of the last pulse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach.tasks._task import Task, check_count, check_lags, check_range, set_option


@dataclass(frozen=True, kw_only=True)
class FlipFlop(Task):
    """Each channel receives rare pulses -1 or 1, and its output holds the last one (Sussillo and Barak 2013).

    The first step has a pulse in every channel, later ones with probability `rate`. The score of lag l is the mean of
    output times target over the steps whose last pulse came l steps ago (NaN if there are none): a network that forgets
    after l steps has 0 there, whatever it does elsewhere.

    Examples
    --------
    >>> x, y = FlipFlop(length=32, lags=(1, 8)).sample(1, torch.Generator().manual_seed(0))
    >>> bool((y.abs() == 1).all())
    True
    """

    name: ClassVar[str] = "flip_flop"

    lags: Sequence[int] = (1, 2, 4, 8, 16, 32)
    length: int = 128
    channels: int = 1
    rate: float = 0.05
    noise_floor: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_count("length", self.length)
        check_count("channels", self.channels)
        check_range("rate", self.rate, 0.0, 1.0, open_low=True)
        set_option(self, "lags", check_lags(self.lags, self.length))

    @property
    def input_size(self) -> int:
        return self.channels

    @property
    def output_size(self) -> int:
        return self.channels

    def draw(self, sequences: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        shape, device = (sequences, self.length, self.channels), generator.device
        signs = 2.0 * torch.randint(2, shape, generator=generator, device=device) - 1.0
        fires = torch.rand(shape, generator=generator, device=device) < self.rate
        fires[:, 0] = True
        x = torch.where(fires, signs, 0.0)
        return x, x.gather(1, _last_pulse(x))

    def score(self, x: Tensor, y: Tensor, output: Tensor) -> Float[Tensor, "lag"]:
        last = _last_pulse(x)
        age = torch.arange(self.length, device=x.device)[None, :, None] - last
        agreement = output * x.gather(1, last)
        return torch.stack([agreement[age == lag].mean() for lag in self.lags]).cpu()


def _last_pulse(x: Float[Tensor, "seq time channel"]) -> Int[Tensor, "seq time channel"]:
    """Step of the last pulse at or before each step."""
    steps = torch.arange(x.shape[1], device=x.device)[None, :, None]
    return torch.where(x != 0.0, steps, 0).cummax(1).values
