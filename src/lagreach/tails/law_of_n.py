"""The formula ``N = m (R_m / delta)^kappa`` in logarithms, and its inverse: written here and nowhere else.

It stands beside the measured exponents, which extrapolate with it themselves (`Concentration.required`). What a setting
does to N, and H_N, are in `lagreach.detection.law`.
"""

from __future__ import annotations

import numpy as np

from lagreach._util.arrays import Floats, Numbers


def log_sequences(log_ratio: Numbers, kappa: Numbers, log_start: Numbers = 0.0) -> Floats:
    """Logarithm of N from that of ``R_m / delta``; `log_start` is log m.

    >>> round(float(np.exp(log_sequences(np.log(2 * 1.6448536 / 0.1), 2.0))), 1)  # 5 % error, sd 1, signal 0.1
    1082.2
    """
    return np.asarray(log_start + np.asarray(kappa) * np.asarray(log_ratio))


def log_ratio(log_n: Numbers, kappa: Numbers, log_start: Numbers = 0.0) -> Floats:
    """Logarithm of ``R_m / delta`` at which log N sequences are needed: the inverse of `log_sequences`."""
    return np.asarray((np.asarray(log_n) - log_start) / kappa)


def log(ratio: Numbers) -> Floats:
    """Logarithm; that of nothing is minus infinity."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(ratio))


def exp(log_n: Numbers) -> Floats:
    """Exponential; what leaves the float range is infinite for any purpose."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.exp(log_n))
