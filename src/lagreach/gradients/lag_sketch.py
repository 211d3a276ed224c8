"""Every lag inside the bands on its own: its gradient in a few random coordinates, so that no nearer lag drowns it.

A band's gradient is the sum over its lags, and where gradients vanish on their way back the nearest lag's noise is all that
is left of it. Holding every lag's gradient would take too much room, but a test needs inner products of block means alone, and
these survive a random projection, up to a share of one in the root of the number of coordinates. The projection is the same
for all blocks and owes nothing to the targets, so that exchanging targets stays exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.data.bands import Bands
from lagreach.gradients.significance import Significance, flip_test

VALUES = 2**24  # numbers that the sketches of a diagnosis hold
MOST, FEWEST = 512, 16  # coordinates of a lag


def coordinates_of(rows: int, lags: int) -> int:
    """How many coordinates a lag gets, for so many vectors of each.

    >>> coordinates_of(32 * 7, 192), coordinates_of(32 * 7, 960), coordinates_of(32, 10)
    (390, 78, 512)
    """
    return max(FEWEST, min(MOST, VALUES // max(1, rows * lags)))


@dataclass(frozen=True)
class LagSketch:
    """Which lags are sketched, and in how many coordinates. Weights fall into them at random, with random signs."""

    lags: tuple[int, ...]
    size: int
    seed: int = 0

    def __call__(self, gradients: Float[Tensor, "*any param"], scale: np.ndarray | None = None) -> Tensor:
        """Coordinates of gradients; `scale` (param,) multiplies them first."""
        width = gradients.shape[-1]
        values = gradients if scale is None else gradients * torch.from_numpy(scale).to(gradients)
        if width <= self.size:
            return values
        place, sign = _deal(width, self.size, self.seed)
        sums = values.new_zeros(*values.shape[:-1], self.size)
        return sums.index_add_(-1, place.to(values.device), values * sign.to(values))


@lru_cache(maxsize=4)  # asked for at every lag
def _deal(width: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """The coordinate that each weight falls into, and its sign."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.randint(size, (width,), generator=generator)
    return place, torch.randint(2, (width,), generator=generator).mul(2.0).sub(1)


def inside_lags(bands: Bands) -> tuple[int, ...]:
    """Lags that share a band with others.

    >>> inside_lags(Bands(((0, 0), (1, 1), (2, 4))))
    (2, 3, 4)
    """
    return tuple(lag for first, last in bands.edges if last > first for lag in range(first, last + 1))


@dataclass(frozen=True)
class BandTest:
    """A test of every band, and the adjusted p-values of the single lags inside those of several (none without sketches)."""

    bands: Significance
    inside: dict[int, float]


def bands_test(
    bands: Bands,
    means: Float[np.ndarray, "block pairing band param"],
    sketch: Float[np.ndarray, "block pairing lag coordinate"] | None,
    *,
    flips: int,
    generator: np.random.Generator,
) -> BandTest:
    """Test bands of one lag as they are, and of the others every lag, all adjusted together; a band has its best lag's p-value.

    Its p-value alone counts how many lags there are; its size stays that of the sum over the band.
    """
    if sketch is None:
        return BandTest(flip_test(means, flips=flips, generator=generator), {})
    single = [band for band, (first, last) in enumerate(bands.edges) if first == last]
    lags = inside_lags(bands)
    alone = [means[:, :, band : band + 1] for band in single]  # one by one: a choice of some of them would be a copy
    test = flip_test([*alone, sketch], flips=flips, generator=generator)
    whole = flip_test(means, flips=0, generator=generator)
    p_value, adjusted = np.ones(len(bands)), np.ones(len(bands))
    p_value[single], adjusted[single] = test.p_value[: len(single)], test.adjusted[: len(single)]
    of_lag = dict(zip(lags, zip(*(v[len(single) :] for v in (test.p_value, test.adjusted)), strict=True), strict=True))
    for band, (first, last) in enumerate(bands.edges):
        if last > first:
            in_band = np.array([of_lag[lag] for lag in range(first, last + 1)]).min(0)
            p_value[band], adjusted[band] = min(1.0, (last - first + 1) * in_band[0]), in_band[1]
    inside = {lag: float(adjusted_p) for lag, (_, adjusted_p) in of_lag.items()}
    return BandTest(Significance(whole.square, whole.null_spread, p_value, adjusted, test.by_chance), inside)
