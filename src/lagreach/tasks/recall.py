"""Recall of a single bit seen through noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.tasks._task import Task, check_count, check_lags, check_range, last_step, slopes


@dataclass(frozen=True, kw_only=True)
class Recall(Task):
    """One bit, -1 or 1, is shown in Gaussian noise `lag` steps before the end, and asked for at the last step.

    The noise goes on at all steps. A second input is 1 when the bit is shown, unless `cue` is off: then the network must
    know the time as well. The best predictor is ``m = tanh(v / noise^2)`` of the value v shown with the bit; the score is
    the coefficient of m in the output. It is 1 for the bit itself too, since ``E[bit m] = E[m^2]``.

    Examples
    --------
    Without noise the bit can be had; in much of it the best answer is close to 0, which costs close to 1.

    >>> Recall(noise=0.0).noise_floor, round(Recall(noise=1.0).noise_floor, 3), round(Recall(noise=5.0).noise_floor, 2)
    (0.0, 0.45, 0.96)
    """

    name: ClassVar[str] = "recall"

    lag: int = 32
    noise: float = 0.5
    cue: bool = True
    length: int = 64

    def __post_init__(self) -> None:
        check_count("length", self.length)
        check_range("noise", self.noise, 0.0)
        check_lags((self.lag,), self.length)

    @property
    def input_size(self) -> int:
        return 2 if self.cue else 1

    @property
    def lags(self) -> tuple[int, ...]:
        return (self.lag,)

    @property
    def noise_floor(self) -> float:
        """Error of the posterior mean: ``1 - E[tanh((1 + noise z) / noise^2)]``, z standard normal."""
        if self.noise == 0.0:
            return 0.0
        from scipy.integrate import quad

        def lost(z: float) -> float:
            return (1.0 - math.tanh((1.0 + self.noise * z) / self.noise**2)) * math.exp(-z * z / 2.0)

        turn = -1.0 / self.noise  # where tanh changes sign, sharply if the noise is small
        points = [p for p in (turn,) if -10.0 < p < 10.0]
        return float(quad(lost, -10.0, 10.0, points=points or None, limit=200)[0] / math.sqrt(2.0 * math.pi))

    def mask(self) -> Float[Tensor, "time"]:
        return last_step(self.length)

    def draw(self, sequences: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        device, shown = generator.device, self.length - 1 - self.lag
        x = torch.zeros(sequences, self.length, self.input_size, device=device)
        bit = 2.0 * torch.randint(2, (sequences,), generator=generator, device=device) - 1.0
        x[..., 0] = self.noise * torch.randn(sequences, self.length, generator=generator, device=device)
        x[:, shown, 0] += bit
        if self.cue:
            x[:, shown, 1] = 1.0
        y = torch.zeros(sequences, self.length, 1, device=device)
        y[:, -1, 0] = bit
        return x, y

    def best(self, x: Tensor) -> Float[Tensor, "seq"]:
        """Return the best prediction of the bit: its mean, given the value shown."""
        value = x[:, self.length - 1 - self.lag, 0]
        return value.sign() if self.noise == 0.0 else (value / self.noise**2).tanh()

    def score(self, x: Tensor, y: Tensor, output: Tensor) -> Float[Tensor, "lag"]:
        return slopes(self.best(x)[:, None], output[:, -1, 0])
