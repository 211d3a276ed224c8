"""Maximum likelihood for (alpha, scale) of a symmetric stable law."""

from __future__ import annotations

import math

import numpy as np

from lagreach.tails import _stable_table, mcculloch
from lagreach.tails._common import (
    ALPHA_CEILING,
    ALPHA_FLOOR,
    Estimate,
    FloatArray,
    clip_alpha,
    half_spread,
    normal_width,
)

_TOP = ALPHA_CEILING - 1e-7  # slopes in alpha diverge at 2, which is compared separately
_SCORES = ("logpdf", "score", "alpha_score")
_MARGIN = math.log(1e3)
_SCALED_MOST = math.log(1e100)  # of samples in units of the scale: their squares are finite
_KNOT_STEP, _KNOT_ZOOM = 0.015, 20.0  # below alpha = 1 the density has a narrow peak


def estimate(centred: FloatArray, level: float) -> Estimate:
    """Alpha and scale that make the samples most likely, and an interval of alpha.

    Away from alpha = 2 the interval is alpha +- z / sqrt(n I), with I the expected information about alpha when
    the scale is fitted along. Where that would come close to 2, the law changes its tails from power to Gaussian
    within the interval and the normal approximation fails: there the interval holds all alpha whose best
    likelihood is within the chi-squared quantile of the best one, and 2 itself can be its upper end.
    """
    unit = half_spread(centred)
    samples = centred / unit
    alpha, log_scale = maximise(samples)
    if alpha < ALPHA_CEILING:
        error = standard_error(alpha, samples.size)
        half = normal_width(level) * error
        if alpha + 2.0 * half < ALPHA_CEILING:
            return Estimate(alpha, unit * math.exp(log_scale), (clip_alpha(alpha - half), alpha + half))
    return Estimate(alpha, unit * math.exp(log_scale), likelihood_interval(samples, alpha, log_scale, level))


def standard_error(alpha: float, n: int) -> float:
    """Asymptotic standard error of alpha with the scale unknown, from the expected information."""
    from lagreach.tails import stable

    information = np.asarray(stable.scale_alpha_information(alpha))
    about_alpha = information[1, 1] - information[0, 1] ** 2 / information[0, 0]
    return 1.0 / math.sqrt(n * float(about_alpha))


def maximise(samples: FloatArray) -> tuple[float, float]:
    """Alpha and log scale of samples whose half interquartile range is about 1.

    The search starts at McCulloch's alpha. The Gaussian law, whose best scale is known, is compared at the end:
    about nine in ten Gaussian samples have their maximum exactly there.
    """
    from scipy.optimize import minimize

    start = min(mcculloch.alpha_of_samples(samples), 1.98)
    optimum = minimize(
        _cost,
        (start, 0.0),
        args=(samples,),
        jac=True,
        method="L-BFGS-B",
        bounds=((ALPHA_FLOOR, _TOP), _scale_bounds(samples)),
        options={"ftol": 1e-15, "gtol": 1e-9},
    )
    with np.errstate(over="ignore"):  # an infinite mean square speaks against the Gaussian law, as it should
        gaussian = 0.5 * math.log(0.5 * float(np.mean(samples**2)))
    if _cost_of_scale(gaussian, ALPHA_CEILING, samples)[0] <= optimum.fun:
        return ALPHA_CEILING, gaussian
    return float(optimum.x[0]), float(optimum.x[1])


def likelihood_interval(samples: FloatArray, alpha: float, log_scale: float, level: float) -> tuple[float, float]:
    """All alpha whose profile likelihood is within the chi-squared quantile of the best."""
    from scipy.optimize import brentq, minimize

    n = samples.size
    best = _cost_of_scale(log_scale, alpha, samples)[0]
    allowed = 0.5 * normal_width(level) ** 2
    bounds = _scale_bounds(samples)

    def excess(other: float) -> float:
        fit = minimize(
            _cost_of_scale, (log_scale,), args=(other, samples), jac=True, method="L-BFGS-B", bounds=[bounds]
        )
        return n * (float(fit.fun) - best) - allowed

    low, step = ALPHA_FLOOR, 1.0 / math.sqrt(n)
    fine = 0.01 * step
    while alpha - step > ALPHA_FLOOR:
        if excess(alpha - step) > 0.0:
            low = float(brentq(excess, alpha - step, alpha, xtol=fine))
            break
        step *= 2.0
    high = ALPHA_CEILING
    if alpha < ALPHA_CEILING and excess(ALPHA_CEILING) > 0.0:
        high = float(brentq(excess, alpha, ALPHA_CEILING, xtol=fine))
    return low, high


def _scale_bounds(samples: FloatArray) -> tuple[float, float]:
    """Log scales that are looked at: well around all sizes that occur.

    Where many samples are one and the same value, the likelihood grows without end as the scale shrinks around it.
    """
    sizes = np.abs(samples[samples != 0.0])
    largest = math.log(float(sizes.max()))
    lowest = max(math.log(float(sizes.min())) - _MARGIN, largest - _SCALED_MOST)
    return min(lowest, 0.0), max(largest + _MARGIN, 0.0)  # the search starts at zero


def _cost(point: FloatArray, samples: FloatArray) -> tuple[float, FloatArray]:
    """Mean negative log likelihood at (alpha, log scale), and its gradient."""
    alpha, log_scale = float(point[0]), float(point[1])
    scaled = samples * math.exp(-log_scale)
    density, location, exponent = _law(alpha, scaled)
    value = log_scale - float(np.mean(density))
    return value, -np.array([np.mean(exponent), np.mean(scaled * location) - 1.0])


def _cost_of_scale(point: FloatArray | float, alpha: float, samples: FloatArray) -> tuple[float, FloatArray]:
    """Mean negative log likelihood and its slope in log scale, alpha held fixed."""
    log_scale = float(np.asarray(point).reshape(()))
    scaled = samples * math.exp(-log_scale)
    density, location = _law(alpha, scaled, _SCORES[:2])
    return log_scale - float(np.mean(density)), np.array([1.0 - float(np.mean(scaled * location))])


def _law(alpha: float, x: FloatArray, want: tuple[str, ...] = _SCORES) -> tuple[FloatArray, ...]:
    """Log density, location score and alpha score (or those of them that are wanted), in one evaluation."""
    size = np.abs(x)
    reach = math.asinh(_KNOT_ZOOM * float(np.max(size)))
    knots = int(reach / _KNOT_STEP) + 8
    if alpha >= 1.0 or knots > x.size:
        parts = _stable_table.law(size, alpha, want)
    else:
        # below 1 every point costs a quadrature: interpolate between knots in asinh |x|, error about 1e-6
        from scipy.interpolate import CubicSpline

        grid = np.linspace(0.0, reach, knots)
        exact = _stable_table.law(np.sinh(grid) / _KNOT_ZOOM, alpha, want)
        spline = CubicSpline(grid, np.stack([exact[name] for name in want], axis=1))
        parts = dict(zip(want, spline(np.arcsinh(_KNOT_ZOOM * size)).T, strict=True))
    parts["score"] = np.copysign(parts["score"], x)
    return tuple(parts[name] for name in want)
