"""Hill's tail index: a diagnostic of the far tail, not a fit of a stable law."""

from __future__ import annotations

import math

import numpy as np

from lagreach.tails._common import Estimate, FloatArray, clip_alpha, half_spread, normal_width


def estimate(centred: FloatArray, level: float, exceedances: int | None = None) -> Estimate:
    """Tail index of |x| from the largest ``k`` values, k = sqrt(n) by default, not clipped at 2.

    The index is the reciprocal of the mean log excess over the (k+1)-th largest |x|, and its interval is
    alpha (1 +- z / sqrt(k)). For a stable law the tail is a clean power only very far out, so on samples with
    alpha >= 1.7 the index lies well above alpha, and above 2: that does not exclude a stable law. The scale is
    the one that the interquartile range has at min(alpha, 2).

    On an exact Pareto tail the index is unbiased to order 1/k:

    >>> levels = (np.arange(10_000) + 0.5) / 10_000
    >>> pareto = levels ** (-1 / 3.0)
    >>> round(estimate(pareto, 0.95, exceedances=1000).alpha, 2)
    3.0
    """
    from lagreach.tails import stable

    size = np.abs(centred)
    k = math.isqrt(size.size) if exceedances is None else exceedances
    largest = np.sort(np.partition(size, size.size - k - 1)[size.size - k - 1 :])
    excess = float(np.mean(np.log(largest[1:] / largest[0])))
    # ties among the largest values: no decay to be seen, the index is infinite
    alpha = 1.0 / excess if excess > 0.0 else math.inf
    half = normal_width(level) / math.sqrt(k)
    scale = half_spread(centred) / float(stable.ppf(0.75, clip_alpha(alpha)))
    return Estimate(alpha, scale, (alpha * max(0.0, 1.0 - half), alpha * (1.0 + half)))
