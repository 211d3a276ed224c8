"""The law of N: ``N = m (R_m / delta)^kappa``. Every number of sequences in this package comes from here.

The formula itself is in `lagreach.tails.law_of_n`, where measured exponents can use it too, and is handed on here.

delta is the size of a signal, R_m the range ``q_{1-eps} - q_eps`` of means of m sequences, and kappa says how fast it falls:
means of N sequences have the range ``R_m (N / m)^(-1/kappa)``, and N is where that is delta. What changes a setting moves the
ratio R_m / delta or turns kappa: a planted signal grows as the square root of its share of the target, a chunk keeps a
part of it, noise multiplies R_m, and the error turns R_m by a ratio of quantiles. H_N reads the law backwards.
"""

from __future__ import annotations

import math

import numpy as np

from lagreach._util.arrays import Floats, Numbers
from lagreach.tails.block_means import two_sided
from lagreach.tails.concentration import Concentration
from lagreach.tails.law_of_n import exp, log_ratio, log_sequences

__all__ = [
    "block_size",
    "exp",
    "log_n",
    "log_ratio",
    "log_sequences",
    "mean_range",
    "measured_range",
    "moved",
    "reach",
    "robust",
    "strength_shift",
    "turned",
]

CLIP = 1.5  # in units of the robust scale, for clipped aggregation
NORMAL_QUARTILE = 0.6744897501960817


def moved(log_n: Numbers, kappa: Numbers, shift: Numbers) -> Floats:
    """Logarithm of N after ``log(R_m / delta)`` moved by `shift`: N itself is what the law starts from."""
    with np.errstate(invalid="ignore"):  # a refused kappa is infinite, and N is then not known
        return log_sequences(shift, kappa, log_n)


def turned(log_n: Numbers, measured: Numbers, kappa: Numbers, log_start: Numbers = 0.0) -> Floats:
    """Logarithm of N with another exponent than the measured one, for the same signal and noise."""
    return log_sequences(log_ratio(log_n, measured, log_start), kappa, log_start)


def strength_shift(share: float) -> float:
    """How far ``log(R_m / delta)`` moves when the signal explains this share of the target instead of all of it."""
    return -0.5 * math.log(share)


def reach(lags: np.ndarray, needed: np.ndarray, sequences: float) -> int | None:
    """H_N: the largest lag that so many sequences are enough for; None if there is none.

    >>> reach(np.array([0, 4, 16]), np.array([10.0, 200.0, 1e6]), 1000)
    4
    """
    visible = lags[needed <= sequences]
    return int(visible.max()) if len(visible) else None


def block_size(rate: Concentration) -> int:
    """Number m of sequences whose means the extrapolation starts from: 1 with finite variance, else the largest measured."""
    return 1 if rate.exponent == 2.0 else _largest_measured(rate)


def mean_range(values: np.ndarray, rate: Concentration, error: float) -> tuple[int, np.ndarray]:
    """Return m and ``R_m = q_{1-eps} - q_eps`` of means of m sequences, per lag.

    With finite variance (kappa = 2) the range of a large mean follows from the standard deviation, so m = 1 stands for
    ``2 z sd``. Otherwise it is the measured one.
    """
    if rate.exponent == 2.0:
        return 1, two_sided(error) * values.std(0, ddof=1)
    return measured_range(values, rate, error)


def measured_range(values: np.ndarray, rate: Concentration, error: float) -> tuple[int, np.ndarray]:
    """Return the largest size m that was measured and R_m per lag: R_1 of the lag, and the measured fall from there to R_m."""
    low, high = np.quantile(values, (error, 1 - error), axis=0)
    largest = _largest_measured(rate)
    with np.errstate(
        divide="ignore", invalid="ignore"
    ):  # without any spread (Status.NO_SPREAD) there is no range either
        return largest, (high - low) * np.divide(rate.spread(largest), rate.spread(1))


def _largest_measured(rate: Concentration) -> int:
    return max(m for m in rate.sizes if m <= max(rate.reach, 1))


def log_n(square: np.ndarray, ranges: np.ndarray, start: int, kappa: float) -> np.ndarray:
    """Logarithm of ``N = m (R_m / delta)^kappa``; +inf where there is no signal."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_delta = np.where(square > 0, 0.5 * np.log(np.where(square > 0, square, 1.0)), -np.inf)
        return log_sequences(np.log(ranges) - log_delta, kappa, math.log(start))


def robust(square: np.ndarray, values: np.ndarray, error: float) -> np.ndarray:
    """N with values clipped at 1.5 robust scales: exponent 2 whatever the tails, at a cost for light ones."""
    centred = values - np.median(values, axis=0)
    scale = np.median(np.abs(centred), axis=0) / NORMAL_QUARTILE
    cut = CLIP / math.sqrt(2) * scale  # the scale of a stable law is sd / sqrt(2) at alpha = 2
    inside = (np.abs(centred) < cut).mean(0)
    clipped = np.minimum(np.square(centred), cut**2).mean(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(square > 0, np.square(two_sided(error)) * clipped / (inside**2 * square), np.inf)
