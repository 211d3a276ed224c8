"""Tasks that are generated, seeded, and know the lags they depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.errors import InputError


@dataclass(frozen=True)
class MultiLagRegression:
    """The paper's task (40): ``y_t = sum_k c_k u.x_{t-l_k} + noise``, inputs and noise Gaussian.

    Examples
    --------
    >>> task = MultiLagRegression(lags=(2, 5), coefficients=(0.6, 0.3), input_size=3)
    >>> x, y = task.sample(4, 16, torch.Generator().manual_seed(0))
    >>> x.shape, y.shape
    (torch.Size([4, 16, 3]), torch.Size([4, 16, 1]))
    """

    lags: Sequence[int] = (32, 64, 128, 256, 512)
    coefficients: Sequence[float] = (0.6, 0.45, 0.35, 0.28, 0.22)
    noise: float = 0.35
    input_size: int = 16

    def __post_init__(self) -> None:
        if len(self.lags) != len(self.coefficients) or not self.lags:
            raise InputError(
                "a task needs one coefficient for every lag",
                got=f"{len(self.lags)} lags and {len(self.coefficients)} coefficients",
            )
        if min(self.lags) < 0 or self.noise < 0 or self.input_size < 1:
            raise InputError("lags and noise cannot be negative, and inputs need a width", got=self)

    @property
    def direction(self) -> Float[Tensor, "input"]:
        """The unit vector u; the first axis, without loss of generality for isotropic inputs."""
        u = torch.zeros(self.input_size)
        u[0] = 1.0
        return u

    def sample(self, sequences: int, time: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw inputs (seq, time, input) and targets (seq, time, 1); inputs before the start are zero."""
        x = torch.randn(sequences, time, self.input_size, generator=generator)
        y = self.noise * torch.randn(sequences, time, generator=generator)
        signal = x @ self.direction
        for lag, c in zip(self.lags, self.coefficients, strict=True):
            if lag < time:
                y[:, lag:] += c * signal[:, : time - lag]
        return x, y[..., None]

    def recovered(self, x: Tensor, output: Float[Tensor, "seq time 1"]) -> Float[Tensor, "lag"]:
        """Coefficient of each task lag in the model's output: regression of the output on ``u.x_{t-l}``."""
        signal, time = x @ self.direction, x.shape[1]
        found = []
        for lag in self.lags:
            past, now = signal[:, : time - lag], output[:, lag:, 0]
            found.append((past * now).sum() / past.square().sum())
        return torch.stack(found)
