"""Whether inputs vary alike in the course of their sequences: with a trend of each sequence's own, or as a walk, they do not."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

PARTS = 3  # of a sequence: a trend about the middle shows at both ends
SURE = 5.0  # standard errors, of which chance shows less
MORE = 1.5  # times the variance, up to which it matters little
RELATED = 0.1  # correlation of neighbours, up to which nothing has to be taken off an input
EXACT = 1e-4  # share of the variance: of an input of which the others leave less, it cannot be told what is its own
DETERMINED = (
    "some inputs follow exactly from others at other steps (a column that shifts, sums or repeats another, or does not change in "
    "a sequence): which of them, and which lags of these, the target depends on cannot be told"
)
STAND_IN = "lags may stand in for each other"
MISLED = "lags may be named that only other inputs pass on"
CHANGING = (
    "inputs that follow from each other vary {:.1f} times as much in one part of the sequences as in another (a trend that each "
    "has of its own, or a walk): what others say of an input is told as if all varied alike, so that "
    + MISLED
    + "; take trends off, give differences of steps, or three times as many sequences of one length as a sequence has numbers"
)


class Course:
    """Mean squares of inputs in the parts of their sequences, and products of neighbours.

    Differences of two sequences each are looked at: what all share, such as a calendar, drops out of them.

    >>> walks, steady = torch.randn(2, 200, 30, 1, generator=torch.Generator().manual_seed(0))
    >>> changes = []
    >>> for x in (walks.cumsum(1), steady, steady * torch.arange(30)[:, None]):
    ...     course = Course()
    ...     course.add(x, torch.ones(200, 30, dtype=torch.bool))
    ...     changes.append(round(course.change, 1))
    >>> changes
    [5.1, 1.0, 1.0]
    """

    def __init__(self) -> None:
        self._pairs = 0
        self._sums = torch.zeros(PARTS, dtype=torch.float64)
        self._products = torch.zeros(PARTS, PARTS, dtype=torch.float64)
        self._neighbours = torch.zeros(2, dtype=torch.float64)  # products, and squares

    def add(self, x: Float[Tensor, "seq time input"], inside: Bool[Tensor, "seq time"]) -> None:
        """Take in sequences; steps count that both of a pair have. Pairs of very few steps say nothing."""
        some = slice(0, len(x) // 2 * 2)
        both = inside[some][::2] & inside[some][1::2]
        count = both.sum(1, keepdim=True)
        long = count[:, 0] >= PARTS
        both, count = both[long], count[long]
        apart = torch.where(both[..., None], (x[some][::2] - x[some][1::2])[long].double(), 0.0)
        part = (both.cumsum(1) - 1).clamp(min=0) * PARTS // count
        energy, steps = (
            torch.zeros(len(part), PARTS, dtype=torch.float64, device=x.device).scatter_add_(1, part, amount)
            for amount in (apart.square().mean(2), both.double())
        )
        means = (energy / steps).cpu()
        self._pairs += len(means)
        self._sums += means.sum(0)
        self._products += means.T @ means
        self._neighbours += torch.stack(((apart[:, 1:] * apart[:, :-1]).sum(), apart[:, 1:].square().sum())).cpu()

    @property
    def change(self) -> float:
        """How many times as much inputs vary in one part as in another; one, if they are not related or it may be chance."""
        most, n = 1.0, self._pairs
        if n < 2 or self._neighbours[0] <= RELATED * self._neighbours[1]:
            return most
        mean, second = self._sums / n, self._products / n
        for less in range(PARTS):
            for more in range(PARTS):
                apart = float(mean[more] - mean[less])
                spread = float(second[more, more] + second[less, less] - 2 * second[more, less]) - apart**2
                if mean[more] > MORE * mean[less] > 0 and apart > SURE * (max(spread, 0.0) / n) ** 0.5:
                    most = max(most, float(mean[more] / mean[less]))
        return most
