"""Is there a signal, and how large is it? From the block means of a gradient, per lag.

With independent block means ``b_k`` of mean m, ``<b_k, b_j>`` for k != j estimates ``|m|^2`` without bias. Under the null
the sign of every ``b_k`` is arbitrary, so the off-diagonal sum with random signs has the null distribution exactly. Where
sequences exchange targets in groups of more than two, signs become exchanges within the groups, and the same holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

from lagreach.errors import InputError

Array = np.ndarray
LOOKS = 2  # at the same sequences: swapped targets choose the lags, exchanged inputs name them
ORDINARY = 1e-100, 1e100  # sizes whose squares are in the range of float64
TIE = 1e-9  # flips that leave the statistic as it is must count as ties despite rounding


@dataclass(frozen=True)
class Significance:
    """Size of a mean gradient per lag and whether it is there at all.

    `square` estimates ``|m|^2`` (it may be negative when there is nothing); `null_spread` is its standard deviation under
    the null; `p_value` is for one lag, `adjusted` for all of them together (step-down max-T). `by_chance` are the largest of
    all lags, in such standard deviations, when targets were exchanged.
    """

    square: Float[Array, "lag"]
    null_spread: Float[Array, "lag"]
    p_value: Float[Array, "lag"]
    adjusted: Float[Array, "lag"]
    by_chance: Float[Array, "flip"]

    @property
    def delta(self) -> Float[Array, "lag"]:
        """Estimate of ``|m|``; zero where the square is negative."""
        return np.sqrt(np.maximum(self.square, 0.0))

    def noticeable(self, planted: Sequence[tuple[Array, Array]], error: float) -> Float[Array, "lag"]:
        """Smallest share of the target's variance that a dependency must explain for this test to find it with power 1 - error.

        `planted` are the inner products (`gram`) of block means of dependencies that explain all of it: squares grow in
        proportion to the share, their variance from that of the null likewise. inf where one of any size would be missed.
        """
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            squares, jackknife = (  # in standard deviations of the null
                np.mean([of(products) * scale**2 / self.null_spread for products, scale in planted], axis=0)
                for of in (off_diagonal_mean, lambda one: jackknife_spread(leave_one_out(one)))
            )
            least = np.quantile(self.by_chance, 1 - error)
            margin = NormalDist().inv_cdf(1 - error) ** 2
            growing = margin * np.maximum(jackknife**2 - 1, 0.0)
            # the larger root of (share square - least)^2 = margin + share growing
            middle = least / squares + growing / (2 * squares**2)
            share = middle + np.sqrt(np.maximum(middle**2 - (least**2 - margin) / squares**2, 0.0))
        return np.where((squares > 0) & np.isfinite(share), share, np.inf)


def gram(means: Float[Array, "block lag param"]) -> tuple[Float[Array, "lag block block"], Float[Array, "lag"]]:
    """Inner products of block means and the scale they were divided by (products of 1e-200 would underflow)."""
    scale = np.maximum(means.max(axis=(0, 2)), -means.min(axis=(0, 2)))
    products = np.empty((means.shape[1], len(means), len(means)))
    for lag, size in enumerate(scale):  # one at a time: a copy of all of them may be large
        values = means[:, lag]
        if ORDINARY[0] < size < ORDINARY[1]:  # then products can be divided instead
            products[lag] = values @ values.T / size**2
        else:
            unit = values / (size if size > 0 else 1.0)
            products[lag] = unit @ unit.T
    return products, scale


def off_diagonal_mean(products: Float[Array, "*lag block block"]) -> Float[Array, "*lag"]:
    """Unbiased square norm: the mean over pairs of different blocks."""
    count = products.shape[-1]
    total = products.sum((-2, -1)) - np.trace(products, axis1=-2, axis2=-1)
    return total / (count * (count - 1))


def null_spread(products: Float[Array, "*lag block block"]) -> Float[Array, "*lag"]:
    """Standard deviation of `off_diagonal_mean` over all patterns of signs."""
    count = products.shape[-1]
    off = products * (1 - np.eye(count))
    return np.sqrt(2 * np.square(off).sum((-2, -1))) / (count * (count - 1))


def leave_one_out(products: Float[Array, "lag block block"]) -> Float[Array, "block lag"]:
    """Return the same estimate without each block in turn."""
    count = products.shape[-1]
    diagonal = np.diagonal(products, axis1=-2, axis2=-1)
    everything = products.sum((-2, -1)) - diagonal.sum(-1)
    touching = 2 * (products.sum(-1) - diagonal)
    return ((everything[:, None] - touching) / ((count - 1) * (count - 2))).T


def jackknife_spread(values: Float[Array, "block lag"]) -> Float[Array, "lag"]:
    """Standard error from leave-one-block-out values; NaN where one of them is not finite."""
    count = len(values)
    usable = np.isfinite(values).all(0)
    kept = np.where(usable, values, 0.0)
    power = np.frexp(np.abs(kept).max(0))[1]  # so that squares are numbers, however large values are
    kept = np.ldexp(kept, -power)
    spread = np.sqrt((count - 1) / count * np.square(kept - kept.mean(0)).sum(0))
    return np.where(usable, np.ldexp(spread, power), np.nan)


def turns_of(pairings: int) -> Float[Array, "turn pairing"]:
    """Block means as they are, and as they would be if targets were exchanged within groups, from those of every pairing.

    They add up to zero. With one pairing the second is the negative of the first. With R - 1 of them, D_g being the contrast
    with the partner in pairing g, the mean is S = mean of D_g, and exchanging all targets along pairing h makes it
    ``S - D_h R / (R - 1)``: what was the own target is now one of the others.
    """
    mean = np.full((1, pairings), 1 / pairings)
    return np.concatenate((mean, mean - np.eye(pairings) * (1 + 1 / pairings)))


def flip_test(
    means: Float[Array, "block lag param"] | Float[Array, "block pairing lag param"] | Sequence[Array],
    *,
    flips: int,
    generator: np.random.Generator,
) -> Significance:
    """One-sided test of every lag: targets are exchanged within random blocks, in the same ones for all lags.

    The statistic is the off-diagonal sum over its null standard deviation, which exchanges do not change, so that the test
    is exact. With one pairing, or for plain means whose signs are arbitrary, an exchange flips the sign of a block.

    Several arrays hold lags whose gradients have different numbers of coordinates; they are tested together.
    """
    arrays = [means] if isinstance(means, np.ndarray) else list(means)
    # comparisons with NaN are false: it would pass for the strongest signal of all
    if not all(np.isfinite(array).all() for array in arrays):
        raise InputError("gradients overflow, so nothing can be tested", fix="scale inputs and targets to about one")
    of_lag = [lag for array in arrays for lag in np.moveaxis(array[:, None] if array.ndim == 3 else array, 2, 0)]
    count, turns, lags = len(arrays[0]), of_lag[0].shape[1] + 1, len(of_lag)
    chosen = generator.integers(0, turns, size=(flips, count))
    chosen = np.concatenate((np.zeros((1, count), dtype=chosen.dtype), chosen))  # the data are one of the patterns
    pattern = np.zeros((len(chosen), count * turns))
    np.put_along_axis(pattern, np.arange(count) * turns + chosen, 1.0, axis=1)
    block = np.arange(count * turns) // turns
    others = block[:, None] != block
    z, square, null = np.empty((len(chosen), lags)), np.empty(lags), np.empty(lags)
    turn = np.kron(np.eye(count), turns_of(turns - 1))  # of products instead of vectors, which may be long
    for lag, pairings in enumerate(of_lag):
        products, scale = gram(pairings.reshape(count * (turns - 1), 1, -1))
        off = (turn @ products[0] @ turn.T) * others
        sums = np.einsum("fi,fi->f", pattern @ off, pattern)
        spread = np.sqrt(2 * np.square(off).sum()) / turns
        z[:, lag] = sums / spread if spread > 0 else 0.0
        square[lag], null[lag] = np.array((sums[0], spread)) / (count * (count - 1)) * scale**2
    p_value = (z >= z[0] - TIE).mean(0)
    return Significance(square, null, p_value, step_down(z), z.max(1))


def step_down(z: Float[Array, "flip lag"]) -> Float[Array, "lag"]:
    """Westfall-Young step-down adjusted p-values; row 0 holds the data."""
    order = np.argsort(-z[0])
    adjusted = np.empty(z.shape[1])
    # the largest statistic is compared with the maximum over all lags, the next one over those that are left, ...
    maxima = np.maximum.accumulate(z[:, order[::-1]], axis=1)[:, ::-1]
    running = 0.0
    for rank, lag in enumerate(order):
        running = max(running, float((maxima[:, rank] >= z[0, lag] - TIE).mean()))
        adjusted[lag] = running
    return adjusted
