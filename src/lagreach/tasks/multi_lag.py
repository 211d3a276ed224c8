"""Multi-lag regression, the task of the learnability paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.errors import InputError
from lagreach.tasks._task import Task, check_count, check_lags, check_range, delayed, set_option, slopes


@dataclass(frozen=True, kw_only=True)
class MultiLag(Task):
    """The paper's task (40): ``y_t = sum_k c_k u.x_{t-l_k} + noise``.

    Inputs are standard normal, and zero before the start. The defaults are those of the paper's first version. The score
    of a lag is its coefficient in a regression of the output on all ``u.x_{t-l_k}``, over the planted one.

    Parameters
    ----------
    noise
        Scale of the observation noise: its standard deviation if it is Gaussian, and the number that multiplies a
        symmetric stable variable of characteristic function ``exp(-|t|^alpha / 2^(alpha/2))`` in general (which is
        standard normal at alpha = 2).
    noise_alpha
        Stability exponent of the noise, 2 for Gaussian. Below 2 the variance, and so the noise floor, is infinite.
    direction_seed
        Seed of the unit vector u; None takes the first axis, which is as good since inputs have no preferred direction.

    Examples
    --------
    >>> task = MultiLag(lags=(2, 5), coefficients=(0.6, 0.3), input_size=3, length=16)
    >>> x, y = task.sample(4, torch.Generator().manual_seed(0))
    >>> x.shape, y.shape, round(task.noise_floor, 4)
    (torch.Size([4, 16, 3]), torch.Size([4, 16, 1]), 0.1225)
    """

    name: ClassVar[str] = "multi_lag"

    lags: Sequence[int] = (32, 64, 128, 256, 512)
    coefficients: Sequence[float] = (0.6, 0.45, 0.35, 0.28, 0.22)
    noise: float = 0.35
    noise_alpha: float = 2.0
    input_size: int = 16
    length: int = 1024
    direction_seed: int | None = None

    def __post_init__(self) -> None:
        check_count("length", self.length)
        check_count("input_size", self.input_size)
        check_range("noise", self.noise, 0.0)
        check_range("noise_alpha", self.noise_alpha, 0.5, 2.0)
        set_option(self, "lags", check_lags(self.lags, self.length))
        set_option(self, "coefficients", tuple(float(c) for c in self.coefficients))
        if len(self.lags) != len(self.coefficients):
            raise InputError(
                "a task needs one coefficient for every lag",
                got=f"{len(self.lags)} lags and {len(self.coefficients)} coefficients",
            )
        if not all(math.isfinite(c) and c != 0.0 for c in self.coefficients):
            raise InputError("coefficients must be finite and not zero", got=self.coefficients)

    @property
    def noise_floor(self) -> float:
        return math.inf if self.noise_alpha < 2.0 and self.noise > 0.0 else self.noise**2

    @property
    def direction(self) -> Float[Tensor, "input"]:
        """The unit vector u."""
        if self.direction_seed is None:
            return torch.eye(self.input_size)[0]
        u = torch.randn(self.input_size, generator=torch.Generator().manual_seed(self.direction_seed))
        return u / u.norm()

    def draw(self, sequences: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        device = generator.device
        x = torch.randn(sequences, self.length, self.input_size, generator=generator, device=device)
        y = self.observation_noise(sequences, generator)
        signal = x @ self.direction.to(device)
        for lag, c in zip(self.lags, self.coefficients, strict=True):
            y[:, lag:] += c * signal[:, : self.length - lag]
        return x, y[..., None]

    def observation_noise(self, sequences: int, generator: torch.Generator) -> Float[Tensor, "seq time"]:
        """Draw the noise of the targets."""
        shape, device = (sequences, self.length), generator.device
        if self.noise_alpha == 2.0 or self.noise == 0.0:
            return self.noise * torch.randn(shape, generator=generator, device=device)
        from lagreach.tails import stable

        drawn = stable.rvs(self.noise_alpha, shape, generator, self.noise / math.sqrt(2.0))
        return torch.from_numpy(drawn).to(device, torch.float32)

    def score(self, x: Tensor, y: Tensor, output: Tensor) -> Float[Tensor, "lag"]:
        past = delayed(x @ self.direction.to(x), self.lags)
        return slopes(past, output[..., 0]) / torch.tensor(self.coefficients, dtype=torch.float64)
