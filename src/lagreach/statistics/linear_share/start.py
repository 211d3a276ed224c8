"""Where a fit to squared errors starts: from the checkpoint's outputs, or from the best multiple of them plus a constant.

Outputs that miss targets by as much as a constant would know neither their scale nor their mean. What targets pull with is then
mostly what lies between the two, which a fit with a constant bridges first, whatever the sequences; shares that were counted from
there would hang on the units of the targets. Outputs that clearly do better than a constant stay as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

UNEXPLAINED = 0.98  # part of the targets' variance that outputs may miss, to be more than chance


@dataclass(frozen=True)
class Start:
    """Targets less `mean`, and outputs times `share`, both over `size`: a power of two, so that nothing is rounded.

    `missed` is the variance of what such a start misses of the targets, over that of the targets.
    """

    mean: Float[Tensor, "out"]
    share: Float[Tensor, "out"]
    size: float
    missed: float
    bridged: bool

    @classmethod
    def of(
        cls, weights: Float[Tensor, "row"], targets: Float[Tensor, "row out"], outputs: Float[Tensor, "row out"]
    ) -> Start:
        """Choose by some targets and outputs, in double precision; what has no weight may be anything.

        >>> y = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64)
        >>> Start.of(torch.ones(4), 1000 + 8 * y, y).share, Start.of(torch.ones(4), 1.1 * y, y).bridged
        (tensor([8.], dtype=torch.float64), False)
        """
        counts = (weights / weights.sum()).double()[:, None]
        targets, outputs = (torch.where(counts > 0, values.double(), 0.0) for values in (targets, outputs))
        unit, own = (_power_of_two(float(values.abs().max())) for values in (targets, outputs))
        y, o = targets / unit, outputs / own
        y_mean, o_mean = ((counts * values).sum(0) for values in (y, o))
        y_left, o_left = y - y_mean, o - o_mean
        varies, moves, both = (
            (counts * one * other).sum(0) for one, other in ((y_left, y_left), (o_left, o_left), (y_left, o_left))
        )
        larger = max(unit, own)
        apart = (counts * (targets / larger - outputs / larger).square()).sum(0)
        worse = apart > UNEXPLAINED * varies * (unit / larger) ** 2
        multiple = torch.where(moves > 0, both / moves, 0.0)
        share = torch.where(worse, multiple * (unit / own), 1.0)
        mean = torch.where(worse, y_mean * unit - share * o_mean * own, 0.0)
        left = (counts * (y_left - (share * (own / unit)) * o_left).square()).sum()
        whole, bridged = float(varies.sum()), bool(worse.any())
        size = unit * _power_of_two((whole / len(varies)) ** 0.5) if bridged else 1.0
        return cls(mean, share, size, float(left) / whole if whole > 0 else math.nan, bridged)

    def targets(self, y: Float[Tensor, "seq target out"]) -> Float[Tensor, "seq target out"]:
        """Targets in the coordinates of the fit, in double precision."""
        return (y.double() - self.mean.to(y.device)) / self.size

    def outputs(self, output: Float[Tensor, "seq target out"]) -> Float[Tensor, "seq target out"]:
        """Outputs that the fit starts from, in the same coordinates."""
        return output * (self.share / self.size).to(output)


def _power_of_two(value: float) -> float:
    """The power of two at or below a number; one in the place of nothing."""
    return 2.0 ** (math.frexp(value)[1] - 1) if 0 < value < math.inf else 1.0
