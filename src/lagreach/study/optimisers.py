"""SGD, momentum, Adam and AdamW for many models at once: one row of weights a model, one learning rate a row.

The formulas are those of `torch.optim` (and tested against it); a row that is not alive is left exactly as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lagreach.errors import InputError

OPTIMISERS = ("sgd", "momentum", "adam", "adamw")
SCHEDULES = ("constant", "cosine", "linear", "step")


@dataclass(frozen=True)
class OptimiserSettings:
    """How weights move.

    Attributes
    ----------
    optimiser
        "sgd", "momentum", "adam" or "adamw" (weight decay apart from the gradient).
    lr
        Learning rate; `train` also takes one for each model.
    clip
        Largest norm of a model's gradient; None does not clip.
    schedule
        "constant", "cosine" or "linear" (both down to zero), or "step" (times `step_factor` at each of `step_at`, as
        fractions of the training), after `warmup` steps that rise linearly.
    """

    optimiser: Literal["sgd", "momentum", "adam", "adamw"] = "adamw"
    lr: float = 1e-3
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float | None = None
    schedule: Literal["constant", "cosine", "linear", "step"] = "constant"
    warmup: int = 0
    step_at: tuple[float, ...] = (0.5, 0.75)
    step_factor: float = 0.1

    def __post_init__(self) -> None:
        if self.optimiser not in OPTIMISERS:
            raise InputError("unknown optimiser", got=repr(self.optimiser), expected=", ".join(OPTIMISERS))
        if self.schedule not in SCHEDULES:
            raise InputError("unknown schedule", got=repr(self.schedule), expected=", ".join(SCHEDULES))
        for name in ("lr", "eps", "weight_decay", "warmup"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} must be a number of at least 0", got=value)
        if self.clip is not None and not self.clip > 0:
            raise InputError("clip must be a positive norm", got=self.clip, fix="leave it out not to clip")
        if not all(0 <= beta < 1 for beta in (*self.betas, self.momentum)):
            raise InputError("momentum and betas must lie in [0, 1)", got=(*self.betas, self.momentum))

    def factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied by at a step (from 0) of so many."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, steps - self.warmup)
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        if self.schedule == "linear":
            return 1 - done
        if self.schedule == "step":
            return self.step_factor ** sum(done >= at for at in self.step_at)
        return 1.0


class Optimiser:
    """Moves rows of weights along their gradients; its state is `buffers` and the number of steps taken.

    What changes from step to step is prepared by `advance` in one small tensor, so that `step` itself is the same
    sequence of operations every time and can be recorded as a CUDA graph.
    """

    def __init__(self, settings: OptimiserSettings, flat: Tensor, lr: Float[Tensor, "replica"]) -> None:
        self.settings, self.lr, self.steps = settings, lr.to(flat)[:, None], 0
        kept = {"sgd": (), "momentum": ("velocity",), "adam": ("mean", "square"), "adamw": ("mean", "square")}
        self.buffers = {name: torch.zeros_like(flat) for name in kept[settings.optimiser]}
        self._now = flat.new_ones(3)  # factor of the learning rate, and the bias corrections of Adam's averages

    def advance(self, factor: float) -> None:
        """Count a step, whose learning rates are multiplied by `factor`."""
        self.steps += 1
        first, second = self.settings.betas
        now = torch.tensor([factor, 1 - first**self.steps, 1 - second**self.steps], dtype=torch.float64)
        self._now.copy_(now, non_blocking=True)

    @torch.no_grad()
    def step(self, flat: Tensor, gradient: Tensor, alive: Bool[Tensor, "replica"]) -> None:
        """Take the step in the rows that are alive."""
        settings, rate = self.settings, self.lr * self._now[0]
        kept, new = alive[:, None], flat
        if settings.weight_decay and settings.optimiser == "adamw":
            new = new * (1 - rate * settings.weight_decay)
        elif settings.weight_decay:
            gradient = gradient + settings.weight_decay * flat
        if settings.optimiser == "sgd":
            new = new - rate * gradient
        elif settings.optimiser == "momentum":
            velocity = self._keep("velocity", settings.momentum * self.buffers["velocity"] + gradient, kept)
            new = new - rate * velocity
        else:
            first, second = settings.betas
            mean = self._keep("mean", torch.lerp(gradient, self.buffers["mean"], first), kept)
            square = self._keep("square", torch.lerp(gradient.square(), self.buffers["square"], second), kept)
            root = (square / self._now[2]).sqrt() + settings.eps
            new = new - rate / self._now[1] * mean / root
        flat.copy_(torch.where(kept, new, flat))

    def _keep(self, name: str, value: Tensor, kept: Tensor) -> Tensor:
        buffer = self.buffers[name]
        buffer.copy_(torch.where(kept, value, buffer))
        return buffer


def clip_rows(
    gradient: Float[Tensor, "replica param"], largest: float | None
) -> tuple[Float[Tensor, "replica param"], Float[Tensor, "replica"]]:
    """Scale each row down to a norm of at most `largest`; return it with the norms before."""
    norms = torch.linalg.vector_norm(gradient, dim=1)
    if largest is None:
        return gradient, norms
    return gradient * (largest / (norms + 1e-6)).clamp(max=1.0)[:, None], norms  # as torch's clip_grad_norm_
