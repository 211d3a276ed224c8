"""Spreads of means of m sequences, and the exponents 1/kappa that they show; see `lagreach.tails.concentration`."""

from __future__ import annotations

import math

import numpy as np

from lagreach.tails._common import FloatArray

BLOCK_TAIL_COUNT = 2.5  # independent means beyond each quantile that R_m needs: m <= n / 50 at error = 0.05
SMALLEST_TOP = 16  # the exponent is never measured on less than means of 1, 4 and 16
WIDE_FROM = 64  # from this largest size on, sizes are a factor of 8 apart instead of 4
RESAMPLED_AT_ONCE = 65_536  # values per pass of the bootstrap: stays in cache


def two_sided(error: float) -> float:
    """Distance 2 z between the ``error`` and ``1 - error`` quantiles of the normal law, in standard deviations."""
    from scipy.special import ndtri

    return float(2.0 * ndtri(1.0 - error))


def largest_trusted(n: int, error: float) -> int:
    """Largest block size whose R is trusted."""
    return int(n * error / BLOCK_TAIL_COUNT)


def dyadic(n: int, top: int) -> tuple[int, ...]:
    """Powers of two up to ``top`` of which at least two blocks fit into n."""
    return tuple(2**k for k in range(top.bit_length()) if 2 ** (k + 1) <= n)


def three_sizes(n: int, error: float) -> tuple[int, int, int]:
    """Block sizes m, r m, r^2 m: the last about sqrt(n), so that both it and the number of such blocks grow with n."""
    top = max(SMALLEST_TOP, min(math.isqrt(n), largest_trusted(n, error)))
    top = 2 ** (top.bit_length() - 1)
    ratio = 8 if top >= WIDE_FROM else 4
    return top // ratio**2, top // ratio, top


def measure_spreads(
    values: FloatArray, sizes: tuple[int, ...], error: float, arrangements: int, rng: np.random.Generator
) -> FloatArray:
    """R at each block size (last axis), of values (..., seq) in random order on a circle.

    Means of 2 m are means of two means of m at a random distance. Distances are drawn so that each exceeds the
    sum of those before and all together stay below n: no value enters a mean twice.
    """
    n = values.shape[-1]
    doublings = max(sizes).bit_length() - 1
    total = np.zeros((*values.shape[:-1], len(sizes)))
    for arrangement in range(arrangements):
        means, span = values, 0
        for k in range(doublings + 1):
            if 2**k in sizes and (k > 0 or arrangement == 0):  # single values are the same in every arrangement
                low, high = np.quantile(means, (error, 1.0 - error), axis=-1)
                total[..., sizes.index(2**k)] += (high - low) * (arrangements if k == 0 else 1)
            if k < doublings:
                shift = int(rng.integers(span + 1, max(span + 1, (n - 1) // 2 ** (doublings - k)) + 1))
                span += shift
                means = 0.5 * (means + np.concatenate([means[..., shift:], means[..., :shift]], axis=-1))
    return total / arrangements / np.sqrt(1.0 - np.array(sizes) / n)


def slope(small: FloatArray, large: FloatArray, ratio: float) -> FloatArray:
    """1/kappa between two sizes: log(R_small / R_large) / log(ratio of sizes).

    In resamples of tied values a spread may vanish: without R_small nothing was seen to shrink (minus infinity).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = (np.log(small) - np.log(large)) / math.log(ratio)
    return np.where(small == 0.0, -math.inf, inverse)


def signs_of_the_limit(
    values: FloatArray, spreads: FloatArray, compared: tuple[int, ...], error: float
) -> tuple[FloatArray, ...]:
    """What values (..., seq) and their spreads (..., size) at the sizes compared say about 1/kappa.

    The slope over all sizes; of three sizes also

    - the slope between the last two, carried on by its gain on the slope between the first two,
    - that gain,
    - by how much R at the last size m falls short of 2 z sd / sqrt(m), which it has where the variance is finite and m
      large: a difference of logarithms.

    What cannot be told is infinite, on the side of a finite variance.
    """
    overall = slope(spreads[..., 0], spreads[..., -1], compared[-1] / compared[0])
    if len(compared) == 2:
        return (overall,)
    first, last = (slope(spreads[..., k], spreads[..., k + 1], compared[1] / compared[0]) for k in range(2))
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = last - first
        shortfall = np.log(two_sided(error) * values.std(-1, ddof=1)) - np.log(spreads[..., -1] * compared[-1] ** 0.5)
        carried_on = last + gain
    unknown = np.isnan(carried_on) | np.isnan(shortfall)
    return (
        overall,
        np.where(unknown, math.inf, carried_on),
        np.where(unknown, math.inf, gain),
        np.where(unknown, -math.inf, shortfall),
    )


def bootstrap(
    values: FloatArray,
    compared: tuple[int, ...],
    error: float,
    arrangements: int,
    resamples: int,
    rng: np.random.Generator,
) -> FloatArray:
    """`signs_of_the_limit` of resampled sequences: one row per resample, one column per sign."""
    rows = max(1, RESAMPLED_AT_ONCE // values.size)
    draws = []
    for start in range(0, resamples, rows):
        again = values[rng.integers(0, values.size, (min(rows, resamples - start), values.size))]
        spreads = measure_spreads(again, compared, error, arrangements, rng)
        draws.append(np.stack(signs_of_the_limit(again, spreads, compared, error), axis=-1))
    return np.concatenate(draws)
