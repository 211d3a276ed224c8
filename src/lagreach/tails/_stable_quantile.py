"""Quantiles of the symmetric stable law: Newton's method where the equation is nearly a straight line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lagreach.tails import _stable_table as table
from lagreach.tails._stable_quadrature import pick

FloatArray = NDArray[np.float64]
Law = Callable[[FloatArray, Any, tuple[str, ...]], dict[str, FloatArray]]

# a Newton step shorter than this (relative) leaves an error of the order of its square
_LAST_STEP = 1e-9


def quantile(tail: FloatArray, signed: FloatArray, alpha: FloatArray, law: Law) -> FloatArray:
    """Solve ``sf(|x|) = tail``, that is ``cdf(|x|) - 1/2 = |signed|``; the sign of x is that of ``signed``.

    Both forms of the target are needed: ``tail`` is accurate in the tails, ``signed`` around the median.
    ``law`` is `lagreach.tails._stable_table.law` or `lagreach.tails._stable_quadrature.law`.
    """
    shape = np.broadcast_shapes(tail.shape, alpha.shape)
    tail, signed = (np.broadcast_to(part, shape).ravel() for part in (tail, signed))
    exponent: Any = float(alpha.ravel()[0]) if alpha.size == 1 else np.broadcast_to(alpha, shape).ravel()
    half = np.abs(signed)
    x = np.where(np.isnan(tail), np.nan, np.where(tail == 0.0, np.inf, 0.0))
    todo = (tail > 0.0) & (half > 0.0)
    outer, gauss = tail < 0.25, np.asarray(exponent == 2.0)
    for mask, target, normal, stable in (
        (todo & outer, tail, _normal_from_tail, _from_tail),
        (todo & ~outer, half, _normal_from_half, _from_half),
    ):
        plain, heavy = mask & gauss, mask & ~gauss
        if plain.any():
            x[plain] = normal(target[plain])
        if heavy.any():
            x[heavy] = stable(target[heavy], pick(exponent, heavy), law)
    return np.copysign(x, signed).reshape(shape)


def _normal_from_tail(tail: FloatArray) -> FloatArray:
    from scipy.special import ndtri

    return -math.sqrt(2.0) * ndtri(tail)


def _normal_from_half(half: FloatArray) -> FloatArray:
    from scipy.special import erfinv

    return 2.0 * erfinv(2.0 * half)


def _from_half(half: FloatArray, alpha: Any, law: Law) -> FloatArray:
    """Newton on cdf - 1/2, which is concave: from the tangent at 0 the iterates rise to the root."""
    from scipy.special import gamma

    tangent = half * math.pi / gamma(1.0 + 1.0 / alpha)
    x = tangent if law is table.law else _from_half(half, alpha, table.law)
    active = np.arange(x.size)
    while active.size:
        values = law(x[active], pick(alpha, active), ("pdf", "half"))
        step = (half[active] - values["half"]) / values["pdf"]
        x[active] += step
        active = active[step > _LAST_STEP * x[active]]
    return x


def _from_tail(tail: FloatArray, alpha: Any, law: Law) -> FloatArray:
    """Newton on log sf against log x, kept inside the bracket found so far."""
    x = _tail_start(tail, alpha) if law is table.law else _from_tail(tail, alpha, table.law)
    low, high = np.zeros_like(x), np.full_like(x, np.inf)
    active = np.flatnonzero(np.isfinite(x))  # an infinite start: the quantile exceeds the largest float
    while active.size:
        now = x[active]
        values = law(now, pick(alpha, active), ("sf", "elasticity"))
        slope = values["elasticity"]
        excess = np.log(values["sf"] / tail[active])
        low[active] = np.where(excess > 0.0, now, low[active])
        high[active] = np.where(excess > 0.0, high[active], now)
        below, above = low[active], high[active]
        new = now * np.exp(excess / slope)
        close = np.abs(excess) <= _LAST_STEP * slope
        middle = np.where(below > 0.0, np.sqrt(below) * np.sqrt(above), 0.5 * above)
        middle = np.where(np.isinf(above), 2.0 * now, middle)
        x[active] = np.where(close | ((new > below) & (new < above)), new, middle)
        active = active[~close]
    return x


def _tail_start(tail: FloatArray, alpha: Any) -> FloatArray:
    """Quantile of the Gaussian law or of ``sf ~ C x^-alpha``, whichever is further out."""
    from scipy.special import gamma

    constant = gamma(alpha) * np.sin(0.5 * math.pi * (2.0 - alpha)) / math.pi
    with np.errstate(over="ignore"):
        power_law = np.exp(np.log(constant / tail) / alpha)
    return np.maximum(_normal_from_tail(tail), power_law)
