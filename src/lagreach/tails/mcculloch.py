"""McCulloch's quantile method: alpha from the ratio of two interquantile ranges."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from lagreach.tails._common import ALPHA_CEILING, ALPHA_FLOOR, Estimate, FloatArray, clipped_interval

LEVELS = (0.05, 0.25, 0.75, 0.95)


@lru_cache(maxsize=1)
def ratio_table() -> tuple[FloatArray, FloatArray]:
    """Grid of alpha, and nu(alpha) = q95(alpha) / q75(alpha), which falls as alpha grows."""
    from lagreach.tails import stable

    alphas = np.linspace(ALPHA_FLOOR, ALPHA_CEILING, 301)
    ratio = np.asarray(stable.ppf(0.95, alphas) / stable.ppf(0.75, alphas), dtype=np.float64)
    return alphas, ratio


def alpha_of_ratio(ratio: float) -> float:
    """Alpha at which q95 / q75 equals ``ratio``, cut to the range that is searched."""
    alphas, table = ratio_table()
    return float(np.interp(-ratio, -table, alphas))


def alpha_of_samples(samples: FloatArray) -> float:
    """Alpha alone, without scale and interval."""
    low, lower, upper, high = np.quantile(samples, LEVELS)
    return alpha_of_ratio(float((high - low) / (upper - lower)))


def estimate(centred: FloatArray, level: float) -> Estimate:
    """Alpha and scale from the 5, 25, 75 and 95 % quantiles of the samples."""
    quantiles = np.quantile(centred, LEVELS)
    return from_quantiles(quantiles, centred.size, level)


def from_quantiles(quantiles: FloatArray, n: int, level: float) -> Estimate:
    """Alpha and scale from the four quantiles at `LEVELS`.

    alpha solves (q95 - q05) / (q75 - q25) = nu(alpha), the scale is (q75 - q25) / (2 q75(alpha)). The interval
    carries the sampling error of the two ranges, by the delta method under the fitted law. nu is nearly flat as
    alpha approaches 2, so the method is weak there.

    >>> from lagreach.tails import stable
    >>> fit = from_quantiles(3.0 * stable.ppf(np.array(LEVELS), 1.5), 10_000, 0.95)
    >>> round(fit.alpha, 4), round(fit.scale, 4)
    (1.5, 3.0)
    """
    from lagreach.tails import stable

    low, lower, upper, high = (float(q) for q in quantiles)
    alpha = alpha_of_ratio((high - low) / (upper - lower))
    q75, q95 = (float(q) for q in np.asarray(stable.ppf(np.array([0.75, 0.95]), alpha)))
    scale = (upper - lower) / (2.0 * q75)
    # half-ranges behave as the 50 and 90 % quantiles of |x|, whose density at q is 2 f(q)
    f75, f95 = (2.0 * float(f) for f in np.asarray(stable.pdf(np.array([q75, q95]), alpha)))
    inner, outer, shared = 0.5 * 0.5 / f75**2, 0.9 * 0.1 / f95**2, 0.5 * 0.1 / (f75 * f95)
    relative = outer / q95**2 + inner / q75**2 - 2.0 * shared / (q95 * q75)
    ratio_error = (q95 / q75) * np.sqrt(relative / n)
    alphas, table = ratio_table()
    slope = float(np.interp(alpha, alphas, np.gradient(table, alphas)))
    return Estimate(alpha, scale, clipped_interval(alpha, ratio_error / abs(slope), level))
