"""Tasks of the second validation study: a known dependency in noise, with a target of variance one.

Every task says what its clean target is, which step of the input each lag's part comes from, and what each part contributes. So
one way of measuring serves all of them: exchange the input that a lag's part comes from with another sequence's, and hold the
change of the output against the change of the clean target.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach.tasks import Task
from lagreach.tasks._task import check_count, check_lags, check_range, set_option, slopes
from lagreach.tasks.series import Series

VALUE, MARKER = 0, 1  # inputs
DAY = 48  # half hours


class KnownDependency(Task):
    """``y_t = amplitude * (sum of the lags' parts) + noise``, of variance one, at some steps.

    strength : share of the target's variance that all lags together explain
    """

    strength: float
    follows: ClassVar[bool] = False  # whether inputs follow from each other in time: then each is looked at alone

    @property
    @abstractmethod
    def targets(self) -> tuple[int, ...]:
        """Steps that have a target."""

    @property
    @abstractmethod
    def bands(self) -> tuple[tuple[int, int], ...]:
        """First and last distance that each lag stands for."""

    @property
    @abstractmethod
    def regressors(self) -> int:
        """Coefficients that a least-squares fit to the right products of inputs has to find."""

    @property
    def amplitude(self) -> float:
        """Factor of a part of variance one, where parts add up to the strength."""
        return math.sqrt(self.strength)

    @property
    def rows(self) -> int:
        """Targets of a sequence that share their coefficients."""
        return 1

    @property
    def noise_floor(self) -> float:
        return 1.0 - self.strength

    @property
    def least_squares_needed(self) -> float:
        """Sequences from which least squares, shrunk as held-out data would have it, recover half of the dependency."""
        return self.regressors * (1.0 - self.strength) / (self.strength * self.rows)

    def mask(self) -> Float[Tensor, "time"] | None:
        mask = torch.zeros(self.length)
        mask[list(self.targets)] = 1.0
        return mask

    @abstractmethod
    def inputs(self, sequences: int, generator: torch.Generator) -> Float[Tensor, "seq time input"]:
        """Draw inputs."""

    @abstractmethod
    def source(self, x: Float[Tensor, "seq time input"], target: int) -> Int[Tensor, "lag seq"]:
        """Step whose input each lag's part of a target comes from; -1 where that lag has no part in it."""

    def part(self, x: Float[Tensor, "seq time input"], target: int) -> Float[Tensor, "lag seq"]:
        """What each lag contributes to a target, before it is scaled; zero where it has no part in it."""
        source = self.source(x, target)
        values = x[..., VALUE].expand(len(source), -1, -1).gather(2, source.clamp(min=0)[..., None])[..., 0]
        return torch.where(source >= 0, values, 0.0)

    def clean(self, x: Float[Tensor, "seq time input"]) -> Float[Tensor, "seq time"]:
        """Return the target without its noise; zero at steps that have none."""
        y = torch.zeros_like(x[..., VALUE])
        for target in self.targets:
            y[:, target] = self.amplitude * self.part(x, target).sum(0)
        return y

    def planted(self, x: Float[Tensor, "seq time input"]) -> Float[Tensor, "seq time"]:
        """Parts laid out in time so that the part of lag l in target t stands at step t - l."""
        laid = torch.zeros_like(x[..., VALUE])
        for target in self.targets:
            for lag, part in zip(self.lags, self.part(x, target), strict=True):
                laid[:, target - lag] = part
        return laid

    def draw(self, sequences: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = self.inputs(sequences, generator)
        noise = torch.randn(sequences, self.length, generator=generator, device=generator.device)
        return x, (self.clean(x) + math.sqrt(self.noise_floor) * noise)[..., None]

    def score(self, x: Tensor, y: Tensor, output: Tensor) -> Float[Tensor, "lag"]:
        """Coefficient of each lag's part in the output, over that in the target."""
        parts = torch.stack([self.part(x, target).T for target in self.targets], dim=1)  # (seq, target, lag)
        return slopes(parts, output[:, list(self.targets), 0]) / self.amplitude


@dataclass(frozen=True, kw_only=True)
class Lagged(KnownDependency):
    """Regression on a few old inputs, with equal coefficients and standard normal inputs.

    The last `asked` steps have targets: the fewer they are, the more sequences least squares need at the same strength.
    """

    name: ClassVar[str] = "lagged"

    lags: Sequence[int] = (3, 8)
    strength: float = 0.2
    asked: int = 4
    input_size: int = 16
    length: int = 16

    def __post_init__(self) -> None:
        check_range("strength", self.strength, 0.0, 1.0, open_low=True)
        check_count("input_size", self.input_size)
        check_count("asked", self.asked)
        set_option(self, "lags", check_lags(self.lags, self.length))
        if self.lags[-1] + self.asked > self.length:
            check_count("length for these lags and targets", self.length, self.lags[-1] + self.asked)

    @property
    def bands(self) -> tuple[tuple[int, int], ...]:
        return tuple((lag, lag) for lag in self.lags)

    @property
    def targets(self) -> tuple[int, ...]:
        return tuple(range(self.length - self.asked, self.length))

    @property
    def rows(self) -> int:
        return self.asked

    @property
    def regressors(self) -> int:
        return self.input_size * (self.lags[-1] + 1)

    @property
    def amplitude(self) -> float:
        return math.sqrt(self.strength / len(self.lags))

    def inputs(self, sequences: int, generator: torch.Generator) -> Float[Tensor, "seq time input"]:
        return torch.randn(sequences, self.length, self.input_size, generator=generator, device=generator.device)

    def source(self, x: Float[Tensor, "seq time input"], target: int) -> Int[Tensor, "lag seq"]:
        steps = torch.tensor([target - lag for lag in self.lags], device=x.device)
        return steps[:, None].expand(-1, len(x))


@dataclass(frozen=True, kw_only=True)
class RealInputs(Lagged):
    """`Lagged` on a real series: half-hourly changes of electricity demand against those of the day before.

    These inputs are correlated and not normal.

    Windows lie at random places of twelve weeks and overlap; the noise of the targets is drawn anew for each. The least
    squares of `least_squares_needed` are those of independent inputs: for these they need more.
    """

    name: ClassVar[str] = "real_inputs"
    follows: ClassVar[bool] = True

    input_size: int = 1

    def changes(self) -> Float[Tensor, "step"]:
        """Return changes from one half hour to the next less those of the day before, with mean zero and variance one."""
        both = [Series(split=part).values() for part in ("train", "test")]
        changes = torch.cat(both).diff()
        changes = changes[DAY:] - changes[:-DAY]
        return ((changes - changes.mean()) / changes.std()).float()

    def inputs(self, sequences: int, generator: torch.Generator) -> Float[Tensor, "seq time input"]:
        changes, device = self.changes(), generator.device
        places = len(changes) - self.length + 1
        start = torch.randint(places, (sequences, 1), generator=generator, device=device).cpu()
        return changes[start + torch.arange(self.length)][..., None].to(device)


@dataclass(frozen=True, kw_only=True)
class CuedRecall(KnownDependency):
    """A number among numbers, shown with a cue `lag` steps before the end, is asked for at the last step."""

    name: ClassVar[str] = "cued_recall"

    lag: int = 24
    strength: float = 0.1
    length: int = 32
    input_size: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_range("strength", self.strength, 0.0, 1.0, open_low=True)
        check_lags((self.lag,), self.length)

    @property
    def lags(self) -> tuple[int, ...]:
        return (self.lag,)

    @property
    def bands(self) -> tuple[tuple[int, int], ...]:
        return ((self.lag, self.lag),)

    @property
    def targets(self) -> tuple[int, ...]:
        return (self.length - 1,)

    @property
    def regressors(self) -> int:
        return self.length

    def inputs(self, sequences: int, generator: torch.Generator) -> Float[Tensor, "seq time input"]:
        x = torch.zeros(sequences, self.length, 2, device=generator.device)
        x[..., VALUE] = torch.randn(sequences, self.length, generator=generator, device=generator.device)
        x[:, self.length - 1 - self.lag, MARKER] = 1.0
        return x

    def source(self, x: Float[Tensor, "seq time input"], target: int) -> Int[Tensor, "lag seq"]:
        return torch.full((1, len(x)), target - self.lag, device=x.device)
