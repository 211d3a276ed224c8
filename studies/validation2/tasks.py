"""Tasks of the second validation study: a known dependency in noise, with a target of variance one.

Every task says what its clean target is, which step of the input each lag's part comes from, and what each part contributes. So one
way of measuring serves all of them: exchange the input that a lag's part comes from with another sequence's, and hold the
change of the output against the change of the clean target.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach.tasks import Task
from lagreach.tasks._task import check_count, check_lags, check_range, set_option, slopes
from lagreach.tasks.series import Series

VALUE, MARKER, QUERY = 0, 1, 2  # inputs
DAY = 48  # half hours


class KnownDependency(Task):
    """``y_t = amplitude * (sum of the lags' parts) + noise``, of variance one, at some steps.

    strength : share of the target's variance that all lags together explain
    """

    strength: float
    input_size: int = 2

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
        """Coefficients that a least-squares fit to the right products of inputs has to find, for each target step that shares them."""

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
            for lag, own in zip(self.lags, self.part(x, target), strict=True):
                laid[:, target - lag] = own
        return laid

    def draw(self, sequences: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = self.inputs(sequences, generator)
        noise = torch.randn(sequences, self.length, generator=generator, device=generator.device)
        return x, (self.clean(x) + math.sqrt(self.noise_floor) * noise)[..., None]

    def score(self, x: Tensor, y: Tensor, output: Tensor) -> Float[Tensor, "lag"]:
        """Coefficient of each lag's part in the output, over that in the target."""
        parts = torch.stack([self.part(x, target).T for target in self.targets], dim=1)  # (seq, target, lag)
        return slopes(parts, output[:, list(self.targets), 0]) / self.amplitude


def _marked(sequences: int, bounds: Sequence[tuple[int, int]], generator: torch.Generator) -> Int[Tensor, "seq mark"]:
    """One random step in each stretch."""
    device = generator.device
    return torch.cat([torch.randint(a, b, (sequences, 1), generator=generator, device=device) for a, b in bounds], 1)


def _bins(first: int, end: int, count: int) -> tuple[tuple[int, int], ...]:
    """Split distances ``first ... end - 1`` into equal parts; return the first and last distance of each."""
    edges = [first + (end - first) * k // count for k in range(count + 1)]
    return tuple((a, b - 1) for a, b in pairwise(edges))


def _middles(bands: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    return tuple((a + b) // 2 for a, b in bands)


def _by_bin(
    steps: Int[Tensor, "seq"], target: int, bands: Sequence[tuple[int, int]]
) -> Int[Tensor, "lag seq"]:
    """Keep a step for the bin that its distance from the target falls into, and -1 for the others."""
    distance = target - steps
    return torch.stack([torch.where((distance >= a) & (distance <= b), steps, -1) for a, b in bands])


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


@dataclass(frozen=True, kw_only=True)
class MarkedSum(KnownDependency):
    """Adding: two of many normal numbers are marked, one in each half; their sum is asked for at the last step."""

    name: ClassVar[str] = "marked_sum"

    length: int = 60
    strength: float = 0.2
    bins: int = 4
    input_size: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_range("strength", self.strength, 0.0, 1.0, open_low=True)
        check_count("length", self.length, 2 * self.bins)

    @property
    def bands(self) -> tuple[tuple[int, int], ...]:
        return _bins(0, self.length, self.bins)

    @property
    def lags(self) -> tuple[int, ...]:
        return _middles(self.bands)

    @property
    def targets(self) -> tuple[int, ...]:
        return (self.length - 1,)

    @property
    def regressors(self) -> int:
        return self.length

    @property
    def amplitude(self) -> float:
        return math.sqrt(self.strength / 2)

    def inputs(self, sequences: int, generator: torch.Generator) -> Float[Tensor, "seq time input"]:
        half, device = self.length // 2, generator.device
        x = torch.zeros(sequences, self.length, 2, device=device)
        x[..., VALUE] = torch.randn(sequences, self.length, generator=generator, device=device)
        x[..., MARKER].scatter_(1, _marked(sequences, [(0, half), (half, self.length)], generator), 1.0)
        return x

    def source(self, x: Float[Tensor, "seq time input"], target: int) -> Int[Tensor, "lag seq"]:
        marks = x[..., MARKER].topk(2, dim=1).indices.sort(1).values
        # both lie in bins of their own half, so no bin holds two
        return torch.stack([_by_bin(marks[:, k], target, self.bands) for k in (0, 1)]).amax(0)


@dataclass(frozen=True, kw_only=True)
class SelectiveCopy(KnownDependency):
    """Selective copying: two numbers are marked anywhere among many; the last two steps ask for them in their order."""

    name: ClassVar[str] = "selective_copy"

    length: int = 40
    strength: float = 0.2
    bins: int = 3
    input_size: ClassVar[int] = 3

    def __post_init__(self) -> None:
        check_range("strength", self.strength, 0.0, 1.0, open_low=True)
        check_count("length", self.length, 4 * self.bins + 2)

    @property
    def bands(self) -> tuple[tuple[int, int], ...]:
        return _bins(1, self.length, self.bins)

    @property
    def lags(self) -> tuple[int, ...]:
        return _middles(self.bands)

    @property
    def targets(self) -> tuple[int, ...]:
        return (self.length - 2, self.length - 1)

    @property
    def regressors(self) -> int:
        return self.length - 2

    def inputs(self, sequences: int, generator: torch.Generator) -> Float[Tensor, "seq time input"]:
        device = generator.device
        x = torch.zeros(sequences, self.length, 3, device=device)
        x[..., VALUE] = torch.randn(sequences, self.length, generator=generator, device=device)
        shuffled = torch.rand(sequences, self.length - 2, generator=generator, device=device).argsort(1)
        x[..., MARKER].scatter_(1, shuffled[:, :2], 1.0)
        x[:, -2:, QUERY] = 1.0
        return x

    def source(self, x: Float[Tensor, "seq time input"], target: int) -> Int[Tensor, "lag seq"]:
        marks = x[..., MARKER].topk(2, dim=1).indices.sort(1).values
        return _by_bin(marks[:, target - (self.length - 2)], target, self.bands)


@dataclass(frozen=True, kw_only=True)
class MarkedParity(KnownDependency):
    """Parity: two of many bits (-1 or 1) are marked, one in each half; their product is asked for at the last step.

    The target is uncorrelated with every single bit. The lags are those of the far one: without it nothing is known.
    """

    name: ClassVar[str] = "marked_parity"

    length: int = 16
    strength: float = 0.3
    bins: int = 2
    input_size: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_range("strength", self.strength, 0.0, 1.0, open_low=True)
        check_count("length", self.length, 4 * self.bins)

    @property
    def bands(self) -> tuple[tuple[int, int], ...]:
        return _bins(self.length - self.length // 2, self.length, self.bins)

    @property
    def lags(self) -> tuple[int, ...]:
        return _middles(self.bands)

    @property
    def targets(self) -> tuple[int, ...]:
        return (self.length - 1,)

    @property
    def regressors(self) -> int:
        half = self.length // 2
        return half * (self.length - half)

    def inputs(self, sequences: int, generator: torch.Generator) -> Float[Tensor, "seq time input"]:
        half, device = self.length // 2, generator.device
        x = torch.zeros(sequences, self.length, 2, device=device)
        x[..., VALUE] = 2.0 * torch.randint(2, (sequences, self.length), generator=generator, device=device) - 1.0
        x[..., MARKER].scatter_(1, _marked(sequences, [(0, half), (half, self.length)], generator), 1.0)
        return x

    def source(self, x: Float[Tensor, "seq time input"], target: int) -> Int[Tensor, "lag seq"]:
        return _by_bin(x[..., MARKER].topk(2, dim=1).indices.amin(1), target, self.bands)

    def part(self, x: Float[Tensor, "seq time input"], target: int) -> Float[Tensor, "lag seq"]:
        product = torch.where(x[..., MARKER] > 0, x[..., VALUE], 1.0).prod(1)
        return torch.where(self.source(x, target) >= 0, product, 0.0)


TASKS: dict[str, type[KnownDependency]] = {
    task.name: task for task in (Lagged, RealInputs, CuedRecall, MarkedSum, SelectiveCopy, MarkedParity)
}
