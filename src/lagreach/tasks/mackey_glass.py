"""Prediction of the Mackey-Glass equation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.errors import InputError
from lagreach.tasks._task import Task, check_count, slopes

GROWTH, DECAY, POWER = 0.2, 0.1, 10  # the values of Mackey and Glass (1977)
CENTRE = 1.0  # subtracted from the series, close to its mean
HISTORIES = (0.4, 1.4)  # range of the constant histories the series start from
WARM_UP = 30  # delays to run before anything is kept


@dataclass(frozen=True, kw_only=True)
class MackeyGlass(Task):
    """Predict ``dv/dt = 0.2 v(t - delay) / (1 + v(t - delay)^10) - 0.1 v(t)`` some steps ahead.

    Chaotic from a delay of 17 on. The input is v - 1 at whole times, the target the same `horizon` steps later. Solved on
    their own, these equations say what a prediction is made of, ``v(t + horizon) = A + B``: the part ``A =
    exp(-0.1 horizon) v(t)`` retained from now, lag 0, and the part B that came in since, through values up to ``delay -
    horizon`` steps back, which is the other lag. Scores are the coefficients of A and B in a regression of the output on
    both. The series is smooth, so a network may know B from other lags; the score says that it knows it, not from where.
    Steps before the delay has passed do not count.

    Parameters
    ----------
    substeps
        Steps of the integration per unit of time. It is exact for the decay and of second order in the delayed term.

    Examples
    --------
    >>> MackeyGlass(delay=17, horizon=5).lags
    (0, 12)
    """

    name: ClassVar[str] = "mackey_glass"

    delay: int = 17
    horizon: int = 5
    length: int = 256
    substeps: int = 10
    input_size: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_count("length", self.length)
        check_count("delay", self.delay, 2)
        check_count("horizon", self.horizon)
        check_count("substeps", self.substeps)
        if self.horizon >= self.delay or self.delay >= self.length:
            raise InputError(
                "the horizon must be shorter than the delay, and the delay shorter than the sequence",
                got=f"horizon {self.horizon}, delay {self.delay}, length {self.length}",
            )

    @property
    def lags(self) -> tuple[int, ...]:
        return (0, self.delay - self.horizon)

    def mask(self) -> Float[Tensor, "time"]:
        return (torch.arange(self.length) >= self.delay).float()

    def draw(self, sequences: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        device, low, high = generator.device, *HISTORIES
        start = low + (high - low) * torch.rand(sequences, 1, generator=generator, device=device, dtype=torch.float64)
        # a random start in time as well, so that sequences are not in step with each other
        first = torch.randint(WARM_UP * self.delay, (sequences, 1), generator=generator, device=device)
        kept = torch.arange(self.length + self.horizon, device=device) + WARM_UP * self.delay + first
        values = self.solve(start, 2 * WARM_UP * self.delay + self.length + self.horizon)
        series = (values.gather(1, kept) - CENTRE).float()[..., None]
        return series[:, : self.length], series[:, self.horizon :]

    def solve(self, start: Float[Tensor, "seq 1"], time: int) -> Float[Tensor, "seq time"]:
        """Solve from constant histories, one delay at a time, and return the values at whole times 0, 1, ...

        Within one delay the delayed term is known, and the equation linear in v: each stretch of it is one matrix product.
        """
        steps = self.delay * self.substeps
        keep, drive = self._stretch(steps)
        keep, drive = keep.to(start.device), drive.to(start.device)
        past = start.expand(-1, steps + 1)
        stretches = [start]
        for _ in range(math.ceil(time / self.delay)):
            force = GROWTH * past / (1.0 + past**POWER)
            new = past[:, -1:] * keep + force @ drive
            past = torch.cat([past[:, -1:], new], 1)
            stretches.append(new)
        return torch.cat(stretches, 1)[:, :: self.substeps][:, :time]

    def _stretch(self, steps: int) -> tuple[Float[Tensor, "step"], Float[Tensor, "point step"]]:
        """How the values of a stretch follow from its start, and from the delayed term at the points around its steps.

        One step is ``v' = e v + a f + b f'`` for a delayed term that goes linearly from f to f', with ``e = exp(-z)``.
        """
        z = DECAY / self.substeps
        e = math.exp(-z)
        b = (1.0 - (1.0 - e) / z) / DECAY
        a = (1.0 - e) / DECAY - b
        steps_on = torch.arange(steps, dtype=torch.float64)
        powers = torch.where(steps_on >= steps_on[:, None], e ** (steps_on - steps_on[:, None]), 0.0)
        drive = torch.zeros(steps + 1, steps, dtype=torch.float64)
        drive[:-1] += a * powers
        drive[1:] += b * powers
        return e ** (steps_on + 1.0), drive

    def score(self, x: Tensor, y: Tensor, output: Tensor) -> Float[Tensor, "lag"]:
        retained = math.exp(-DECAY * self.horizon) * (x + CENTRE)
        parts = torch.cat([retained, y + CENTRE - retained], -1)
        return slopes(parts[:, self.delay :], output[:, self.delay :, 0])
