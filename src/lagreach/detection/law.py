"""N from a signal and its noise: ``N = m (R_m / delta)^kappa`` per lag, for mean and clipped aggregation."""

from __future__ import annotations

import math

import numpy as np

from lagreach.tails.block_means import two_sided
from lagreach.tails.concentration import Concentration

CLIP = 1.5  # in units of the robust scale, for clipped aggregation
NORMAL_QUARTILE = 0.6744897501960817


def block_size(speed: Concentration) -> int:
    """Number m of sequences whose means the extrapolation starts from: 1 with finite variance, else the largest measured."""
    return 1 if speed.exponent == 2.0 else _largest_measured(speed)


def mean_range(values: np.ndarray, speed: Concentration, error: float) -> tuple[int, np.ndarray]:
    """Return m and ``R_m = q_{1-eps} - q_eps`` of means of m sequences, per lag.

    With finite variance (kappa = 2) the range of a large mean follows from the standard deviation, so m = 1 stands for
    ``2 z sd``. Otherwise it is the measured one.
    """
    if speed.exponent == 2.0:
        return 1, two_sided(error) * values.std(0, ddof=1)
    return measured_range(values, speed, error)


def measured_range(values: np.ndarray, speed: Concentration, error: float) -> tuple[int, np.ndarray]:
    """Return the largest size m that was measured and R_m per lag: R_1 of the lag, and the measured fall from there to R_m."""
    low, high = np.quantile(values, (error, 1 - error), axis=0)
    largest = _largest_measured(speed)
    with np.errstate(divide="ignore", invalid="ignore"):  # without any spread (Status.NO_SPREAD) there is no range either
        return largest, (high - low) * np.divide(speed.spread(largest), speed.spread(1))


def _largest_measured(speed: Concentration) -> int:
    return max(m for m in speed.sizes if m <= max(speed.reach, 1))


def log_n(square: np.ndarray, ranges: np.ndarray, start: int, kappa: float) -> np.ndarray:
    """Logarithm of ``N = m (R_m / delta)^kappa``; +inf where there is no signal."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_delta = np.where(square > 0, 0.5 * np.log(np.where(square > 0, square, 1.0)), -np.inf)
        return math.log(start) + kappa * (np.log(ranges) - log_delta)


def robust(square: np.ndarray, values: np.ndarray, error: float) -> np.ndarray:
    """N with values clipped at 1.5 robust scales: exponent 2 whatever the tails, at a cost for light ones."""
    centred = values - np.median(values, axis=0)
    scale = np.median(np.abs(centred), axis=0) / NORMAL_QUARTILE
    cut = CLIP / math.sqrt(2) * scale  # the scale of a stable law is sd / sqrt(2) at alpha = 2
    inside = (np.abs(centred) < cut).mean(0)
    clipped = np.minimum(np.square(centred), cut**2).mean(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(square > 0, np.square(two_sided(error)) * clipped / (inside**2 * square), np.inf)


def exp(log_n: np.ndarray) -> np.ndarray:
    """Exponential; what leaves the float range is infinite for any purpose."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.exp(log_n)
