"""How inputs vary: over all steps, and between sequences at the same step.

Only what differs between sequences can be compared by exchanging between them. A calendar, a position or a stimulus that all
sequences share varies from step to step, but says nothing there: dependencies are planted in what is left without it.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.errors import InputError
from lagreach.transport.objective import valid_steps

SURE = 6.0  # standard deviations by which the means of steps must vary more than chance
ROUNDING = 1e-12  # share of the variance that is none


class InputSpread:
    """Sums over sequences of the inputs at every step, and of their products over all steps, in float64."""

    def __init__(self) -> None:
        self._origin: Tensor | None = (
            None  # near the inputs, so that squares of a large mean do not swallow their spread
        )
        self._count = torch.zeros(0, dtype=torch.float64)
        self._sums = torch.zeros(0, 0, dtype=torch.float64)
        self._squares = torch.zeros(0, 0, dtype=torch.float64)

    def add(self, x: Float[Tensor, "seq time input"], lengths: Tensor | None) -> None:
        """Take in some sequences."""
        inside = valid_steps(lengths, len(x), x.shape[1], x.device)
        values = x.detach().double()
        if self._origin is None:
            self._origin = values[0, 0].cpu()
            self._squares = torch.zeros(x.shape[2], x.shape[2], dtype=torch.float64)
            self._sums = torch.zeros(0, x.shape[2], dtype=torch.float64)
        values = torch.where(inside[..., None], values - self._origin.to(x.device), 0.0)
        missing = max(0, x.shape[1] - len(self._sums))
        self._count = torch.nn.functional.pad(self._count, (0, missing))
        self._sums = torch.nn.functional.pad(self._sums, (0, 0, 0, missing))
        self._count[: x.shape[1]] += inside.sum(0).cpu()
        self._sums[: x.shape[1]] += values.sum(0).cpu()
        flat = values.flatten(0, 1)
        self._squares += (flat.T @ flat).cpu()

    @property
    def time(self) -> int:
        """Steps of the longest sequence."""
        return len(self._count)

    @property
    def _steps(self) -> Float[Tensor, "time input"]:
        """Mean of the sequences at every step, counted from the origin."""
        return self._sums / self._count.clamp(min=1)[:, None]

    @property
    def _between(self) -> Float[Tensor, "input input"]:
        """Covariance between sequences at the same step, over all steps."""
        kept = self._squares - self._sums.T @ self._steps
        freedom = (self._count - 1).clamp(min=0).sum()
        between = (kept + kept.T) / 2 / freedom.clamp(min=1)
        differs = between.diagonal() > ROUNDING * self._whole[1].diagonal()
        # what all sequences share leaves rounding, not spread
        return torch.where(differs & differs[:, None], between, 0.0)

    @property
    def _whole(self) -> tuple[Float[Tensor, "input"], Float[Tensor, "input input"]]:
        """Mean, counted from the origin, and covariance over all steps and sequences."""
        count = self._count.sum()
        mean = self._sums.sum(0) / count
        return mean, self._squares / count - torch.outer(mean, mean)

    @property
    def shared(self) -> bool:
        """Whether the means of the steps vary by more than chance: sequences have something in common that changes."""
        covariance, between = self._whole[1], self._between
        size, apart = covariance.diagonal(), between.diagonal()
        moving = size > 0
        if not bool(moving.any()):
            return False
        if bool((apart[moving] <= ROUNDING * size[moving]).any()):
            return True
        scatter = (self._count[:, None] * (self._steps - self._whole[0]).square()).sum(0)
        steps = int((self._count > 0).sum())
        ratio = scatter[moving] / apart[moving] / max(steps - 1, 1)  # one on average, if there is nothing in common
        return bool((ratio > 1 + SURE * math.sqrt(2 / max(steps - 1, 1))).any())

    @property
    def mean(self) -> Float[Tensor, "*time input"]:
        """Mean of the inputs; of every step, if sequences share what varies from step to step."""
        assert self._origin is not None
        return self._origin + (self._steps if self._of_sequences else self._whole[0])

    @property
    def covariance(self) -> Float[Tensor, "input input"]:
        """Covariance of the inputs; of what differs between sequences, if they share something.

        Where sequences differ in nothing, that of the steps: what could be planted there cannot be told.
        """
        if bool((self._whole[1].diagonal() <= 0).all()):
            raise InputError(
                "the inputs do not vary, so nothing can depend on them",
                got="zero variance",
                expected="inputs that differ between sequences or steps",
            )
        return self._between if self._of_sequences else self._whole[1]

    @property
    def _of_sequences(self) -> bool:
        """Whether to look at what differs between sequences alone."""
        apart, size = self._between.diagonal(), self._whole[1].diagonal()
        return self.shared and bool((apart > ROUNDING * size).any())
