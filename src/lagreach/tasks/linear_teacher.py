"""A linear teacher with a given spectrum of retentions."""

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
class LinearTeacher(Task):
    """A sum of leaky memories: ``y_t = sum_q w_q h_{q,t} + noise``, ``h_{q,t} = r_q h_{q,t-1} + x_t``.

    Inputs are standard normal; the teacher reads the first one and starts from rest. Its impulse response
    ``k(l) = sum_q w_q r_q^l`` is the covariance of target and input at lag l, so everything is known in closed form: one
    retention gives an exponential envelope, many a broad one. The score of a lag is its coefficient in a regression of the
    output on the inputs at `lags`, over k(l). The teacher depends on all lags; `lags` are those that are scored.

    Examples
    --------
    >>> task = LinearTeacher(retention=(0.5,), weights=(1.0,), lags=(0, 1, 2), noise=0.0)
    >>> task.dependence((0, 1, 2))
    tensor([1.0000, 0.5000, 0.2500], dtype=torch.float64)
    >>> task.variance()[[0, 1, -1]]
    tensor([1.0000, 1.2500, 1.3333], dtype=torch.float64)
    """

    name: ClassVar[str] = "linear_teacher"

    retention: Sequence[float] = (0.5, 0.9, 0.98)
    weights: Sequence[float] = (0.5, 0.2, 0.1)
    lags: Sequence[int] = (0, 1, 2, 4, 8, 16, 32, 64)
    noise: float = 0.35
    input_size: int = 1
    length: int = 256

    def __post_init__(self) -> None:
        check_count("length", self.length)
        check_count("input_size", self.input_size)
        check_range("noise", self.noise, 0.0)
        set_option(self, "lags", check_lags(self.lags, self.length))
        set_option(self, "retention", tuple(float(r) for r in self.retention))
        set_option(self, "weights", tuple(float(w) for w in self.weights))
        if not self.retention or len(self.retention) != len(self.weights):
            raise InputError(
                "a teacher needs one weight for every retention",
                got=f"{len(self.retention)} retentions and {len(self.weights)} weights",
            )
        if not all(-1.0 < r < 1.0 for r in self.retention):
            raise InputError("retentions must lie between -1 and 1", got=self.retention)
        if not all(math.isfinite(w) for w in self.weights) or not bool((self.dependence(self.lags) != 0.0).all()):
            raise InputError(
                "the teacher must depend on every lag that is scored",
                got=f"weights {self.weights}",
                fix="use finite weights, and leave out the lags where the impulse response is zero",
            )

    @property
    def noise_floor(self) -> float:
        return self.noise**2

    def dependence(self, lags: Sequence[int]) -> Float[Tensor, "lag"]:
        """Covariance of the target with the input it has seen at each lag: the impulse response k(l)."""
        r, w, lag = self._double(self.retention), self._double(self.weights), self._double(lags)
        return (w * r ** lag[:, None]).sum(1)

    def variance(self) -> Float[Tensor, "time"]:
        """Variance of the target at each step, smaller at first because the teacher starts from rest."""
        r, w, steps = self._double(self.retention), self._double(self.weights), torch.arange(1, self.length + 1)
        pairs = r[:, None] * r
        grown = (1.0 - pairs ** steps[:, None, None]) / (1.0 - pairs)
        return (w[:, None] * w * grown).sum((1, 2)) + self.noise**2

    def draw(self, sequences: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        device = generator.device
        x = torch.randn(sequences, self.length, self.input_size, generator=generator, device=device)
        noise = self.noise * torch.randn(sequences, self.length, generator=generator, device=device)
        return x, (self.respond(x[..., 0]) + noise)[..., None]

    def respond(self, signal: Float[Tensor, "seq time"]) -> Float[Tensor, "seq time"]:
        """Return the teacher's output without noise: the convolution of the signal with k(l)."""
        size = 2 * self.length  # room for the whole convolution, so that its end does not wrap around
        response = torch.fft.rfft(self.dependence(range(self.length)).to(signal.device), size)
        return torch.fft.irfft(torch.fft.rfft(signal.double(), size) * response, size)[:, : self.length].to(
            signal.dtype
        )

    def score(self, x: Tensor, y: Tensor, output: Tensor) -> Float[Tensor, "lag"]:
        return slopes(delayed(x[..., 0], self.lags), output[..., 0]) / self.dependence(self.lags)

    @staticmethod
    def _double(values: Sequence[float]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.float64)
