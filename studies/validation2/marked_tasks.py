"""Tasks whose lags differ from sequence to sequence, because the inputs that count are marked; distances are scored in bins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach.tasks._task import check_count, check_range
from studies.validation2.tasks import MARKER, VALUE, KnownDependency

QUERY = 2  # input that is one where something is asked for


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


def _by_bin(steps: Int[Tensor, "seq"], target: int, bands: Sequence[tuple[int, int]]) -> Int[Tensor, "lag seq"]:
    """Keep a step for the bin that its distance from the target falls into, and -1 for the others."""
    distance = target - steps
    return torch.stack([torch.where((distance >= a) & (distance <= b), steps, -1) for a, b in bands])


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
