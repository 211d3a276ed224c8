"""Logarithmic moments: alpha from the variance of log|x|, in closed form."""

from __future__ import annotations

import math

import numpy as np

from lagreach.tails._common import ALPHA_CEILING, Estimate, FloatArray, clip_alpha, clipped_interval


def estimate(centred: FloatArray, level: float) -> Estimate:
    """Alpha and scale from mean and variance of log|x|.

    For a symmetric stable law E log|x| = log(scale) + gamma (1/alpha - 1), with Euler's gamma, and
    Var log|x| = (pi^2 / 6) (1/alpha^2 + 1/2). Values equal to the centre carry no logarithm and are left out.
    The values nearest to the centre weigh most here, which is why the method is the weakest of the closed forms
    on stable samples and misled by products.

    The two identities at alpha = 2, with quantiles of the normal law of variance 2 standing in for samples:

    >>> from statistics import NormalDist
    >>> normal = NormalDist(0.0, math.sqrt(2.0))
    >>> levels = (np.arange(4000) + 0.5) / 4000
    >>> fit = estimate(np.array([normal.inv_cdf(p) for p in levels]), 0.95)
    >>> round(fit.alpha, 2), round(fit.scale, 2)
    (2.0, 1.0)
    """
    logs = np.log(np.abs(centred[centred != 0.0]))
    mean = float(logs.mean())
    deviations = logs - mean
    variance = float(np.mean(deviations**2))
    fourth = float(np.mean(deviations**4))
    inverse_square = 6.0 * variance / math.pi**2 - 0.5
    alpha = ALPHA_CEILING if inverse_square <= 0.25 else clip_alpha(inverse_square**-0.5)
    scale = math.exp(mean - float(np.euler_gamma) * (1.0 / alpha - 1.0))
    variance_error = math.sqrt(max(fourth - variance**2, 0.0) / logs.size)
    error = 0.5 * alpha**3 * (6.0 / math.pi**2) * variance_error
    return Estimate(alpha, scale, clipped_interval(alpha, error, level))
