"""Symmetric stable densities by a rotated inversion contour and, far out, by their tail series.

With ``d = 2 - alpha`` everything is written as the Gaussian law (alpha = 2) plus ``d`` times a remainder,

    f(x) = exp(-x^2/4) / (2 sqrt(pi)) + d h(x),      SF(x) = erfc(x/2) / 2 + d S(x),
    h(x) = (1/pi) Re int e^{ixt} D(t) dt,            S(x) = -(1/pi) Im int e^{ixt} D(t) dt / t,
    D(t) = (e^{-t^alpha} - e^{-t^2}) / d,

because the remainder keeps the scale of the power-law tail all the way to alpha = 2, while f itself changes
there from a power law to a Gaussian. The ray ``t = r e^{i pi/8}`` makes both exponentials decay, and the
trapezoid rule in ``log r`` then converges exponentially. No difference of nearly
equal numbers is formed, neither for small ``d`` nor in the tails.

Beyond ``SERIES_FROM`` the tail series ``f(x) = sum_k a_k x^{-k alpha - 1}`` is used; its smallest term there is
below 1e-40 for every alpha in [0.5, 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

SERIES_FROM = 20.0  # |x| from which the tail series reaches double precision with SERIES_TERMS terms
SERIES_TERMS = 24
_ANGLE = math.pi / 8.0
_STEP = 0.05
_BEND = -5.0  # log r below which the nodes thin out double-exponentially; exp(-5) * SERIES_FROM is about 0.1
_CHUNK = 1024  # points of x per block of the (x, r) matrix: a few MB of complex numbers


class Contour(NamedTuple):
    """Nodes ``t`` on the ray, with ``dt`` folded into the weights; ``remainder`` is D(t)."""

    t: NDArray[np.complex128]
    weight: NDArray[np.complex128]
    remainder: NDArray[np.complex128]
    alpha_rate: NDArray[np.complex128]


def gauss_pdf(x: FloatArray) -> FloatArray:
    """Density at alpha = 2: normal with variance 2."""
    return np.exp(-0.25 * x * x) / (2.0 * math.sqrt(math.pi))


def contour(alpha: float) -> Contour:
    """Nodes and alpha-dependent factors of the inversion integral, shared by all x in [0, SERIES_FROM]."""
    d = 2.0 - alpha
    # |exp(-t^alpha)| < 1e-17 at the right end, (20 r)^alpha < 1e-17 at the left end
    right = math.log(40.0 / math.cos(alpha * _ANGLE)) / alpha
    left = _BEND - math.log(40.0 / alpha)
    v = np.arange(left, right + _STEP, _STEP)
    pull = np.exp(_BEND - v)
    log_t = v - pull + 1j * _ANGLE
    t = np.exp(log_t)
    square, power = t * t, np.exp(alpha * log_t)
    weight = _STEP * (1.0 + pull) * t / math.pi
    if d == 0.0:
        remainder = square * log_t * np.exp(-square)
    else:
        gap = -square * np.expm1(-d * log_t)  # t^2 - t^alpha without cancellation
        near = gap.real < 1.0
        remainder = np.empty_like(t)
        remainder[near] = np.exp(-square[near]) * np.expm1(gap[near]) / d
        remainder[~near] = (np.exp(-power[~near]) - np.exp(-square[~near])) / d
    return Contour(t, weight, remainder, -power * log_t * np.exp(-power))


def remainders(x: FloatArray, alpha: float, want: tuple[str, ...]) -> dict[str, FloatArray]:
    """Remainders over the Gaussian law at ``0 <= x <= SERIES_FROM``, one alpha.

    ``want`` names any of ``pdf`` (h), ``slope`` (h'), ``sf`` (S / x), and ``alpha`` (the plain d f / d alpha,
    which needs no Gaussian part).
    """
    nodes = contour(alpha)
    flat = np.ascontiguousarray(x, dtype=np.float64).ravel()
    results = {name: np.empty_like(flat) for name in want}
    d_weight = nodes.weight * nodes.remainder
    even = {"pdf": d_weight, "alpha": nodes.weight * nodes.alpha_rate}
    odd = {"slope": 1j * nodes.t * d_weight, "sf": 1j * d_weight / nodes.t}
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        phase = 1j * part[:, None] * nodes.t
        wave = np.exp(phase)
        for name in even.keys() & results.keys():
            results[name][start : start + _CHUNK] = (wave @ even[name]).real
        if odd.keys() & results.keys():
            # the integrals of the odd quantities vanish at x = 0, so e^{ixt} - 1 may replace e^{ixt}: exact near 0
            small = part < 1.0
            wave[small] = np.expm1(phase[small])
        for name in odd.keys() & results.keys():
            values = (wave @ odd[name]).real
            if name == "sf":
                zero = part == 0.0
                values[zero] = -d_weight.sum().real
                values /= np.where(zero, 1.0, part)
            results[name][start : start + _CHUNK] = values
    return {name: values.reshape(np.shape(x)) for name, values in results.items()}


def series_coefficients(alpha: float, terms: int = SERIES_TERMS) -> FloatArray:
    """``a_k = Gamma(k alpha + 1) sin(k pi (2 - alpha) / 2) / (pi k!)`` for k = 1..terms.

    Examples
    --------
    At alpha = 1 the series is that of the Cauchy density, 1/(pi x^2) - 1/(pi x^4) + ...

    >>> np.round(series_coefficients(1.0, 4) * np.pi, 12) + 0.0
    array([ 1.,  0., -1.,  0.])
    """
    from scipy.special import gammaln

    k = np.arange(1, terms + 1)
    size = np.exp(gammaln(k * alpha + 1.0) - gammaln(k + 1.0)) / math.pi
    return size * np.sin(0.5 * math.pi * k * (2.0 - alpha))


def series_alpha_coefficients(alpha: float, terms: int = SERIES_TERMS) -> FloatArray:
    """Derivatives ``d a_k / d alpha`` of `series_coefficients`."""
    from scipy.special import digamma, gammaln

    k = np.arange(1, terms + 1)
    turn = 0.5 * math.pi * k
    size = np.exp(gammaln(k * alpha + 1.0) - gammaln(k + 1.0)) / math.pi
    d = 2.0 - alpha
    return size * k * digamma(k * alpha + 1.0) * np.sin(turn * d) - size * turn * np.cos(turn * d)


def horner(coefficients: FloatArray, z: FloatArray) -> FloatArray:
    """Polynomial ``sum_k c_k z^k``, lowest coefficient first."""
    total = np.full_like(z, coefficients[-1])
    for c in coefficients[-2::-1]:
        total *= z
        total += c
    return total


def tail_sums(x: FloatArray, alpha: float, want: tuple[str, ...]) -> dict[str, FloatArray]:
    """Sums of the tail series at ``x > SERIES_FROM``, powers of x left out so that nothing underflows.

    ``pdf``: f x^(1 + alpha); ``sf``: SF x^alpha; ``slope``: -f' x^(2 + alpha); ``alpha``: (df/dalpha) x^(1 + alpha).
    """
    k = np.arange(1, SERIES_TERMS + 1)
    a = series_coefficients(alpha)
    log_x = np.log(x)
    z = np.exp(-alpha * log_x)
    sums: dict[str, FloatArray] = {}
    if "pdf" in want:
        sums["pdf"] = horner(a, z)
    if "sf" in want:
        sums["sf"] = horner(a / (k * alpha), z)
    if "slope" in want:
        sums["slope"] = horner(a * (k * alpha + 1.0), z)
    if "alpha" in want:
        sums["alpha"] = horner(series_alpha_coefficients(alpha), z) - log_x * horner(k * a, z)
    return sums


# which of the four basic parts (see `remainders`, `tail_sums`) each quantity is made of
PARTS: dict[str, tuple[str, ...]] = {
    "pdf": ("pdf",),
    "logpdf": ("pdf",),
    "sf": ("sf",),
    "half": ("sf",),
    "score": ("pdf", "slope"),
    "alpha_score": ("pdf", "alpha"),
    "elasticity": ("pdf", "sf"),
}

Parts = dict[str, FloatArray]
Engine = Callable[[FloatArray, Any, tuple[str, ...]], Parts]


def law(x: FloatArray, alpha: FloatArray | float, want: tuple[str, ...]) -> Parts:
    """Quantities of the law at finite ``x >= 0`` (1-D) by quadrature and series, relative error about 1e-13.

    ``want`` names any of ``pdf``, ``logpdf``, ``sf``, ``half`` (cdf minus 1/2, accurate near 0), ``score``
    (-f'/f), ``alpha_score`` (d log f / d alpha) and ``elasticity`` (x f / SF, which tends to alpha).
    """
    if np.ndim(alpha) == 0:
        return combine(x, float(alpha), want, remainders, tail_sums)
    results = {name: np.empty_like(x) for name in want}
    for value, chosen in groups(np.asarray(alpha)):
        for name, values in combine(x[chosen], value, want, remainders, tail_sums).items():
            results[name][chosen] = values
    return results


def groups(alpha: FloatArray) -> Iterator[tuple[float, NDArray[np.intp]]]:
    """Each distinct alpha with the positions that hold it."""
    distinct, group = np.unique(alpha, return_inverse=True)
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(np.bincount(group, minlength=distinct.size))
    for value, chosen in zip(distinct, np.split(order, ends[:-1]), strict=True):
        yield float(value), chosen


def pick(alpha: Any, where: Any) -> Any:
    """The exponents of the chosen points: one alpha per point is indexed, a single number stays."""
    return alpha[where] if np.ndim(alpha) else alpha


def combine(x: FloatArray, alpha: Any, want: tuple[str, ...], near: Engine, tail: Engine) -> Parts:
    """Quantities of the law from an engine for ``x <= SERIES_FROM`` and one for the tail beyond."""
    parts = tuple(sorted({part for name in want for part in PARTS[name]}))
    far = x > SERIES_FROM
    if not far.any():
        return _assemble_near(x, alpha, near(x, alpha, parts), want)
    results = {name: np.empty_like(x) for name in want}
    normal = far & (np.asarray(alpha) == 2.0)
    for mask, branch in ((~far, "near"), (far & ~normal, "tail"), (normal, "normal")):
        if not mask.any():
            continue
        points, exponent = x[mask], pick(alpha, mask)
        if branch == "near":
            values = _assemble_near(points, exponent, near(points, exponent, parts), want)
        elif branch == "tail":
            values = _assemble_tail(points, exponent, tail(points, exponent, parts), want)
        else:
            values = _assemble_normal(points, want)
        for name in want:
            results[name][mask] = values[name]
    return results


def _assemble_near(x: FloatArray, alpha: Any, rest: Parts, want: tuple[str, ...]) -> Parts:
    """Gaussian law plus ``2 - alpha`` times the remainders."""
    from scipy.special import erf, erfc

    d = 2.0 - alpha
    out: Parts = {}
    if "pdf" in rest:
        normal = gauss_pdf(x)
        density = normal + d * rest["pdf"]
    for name in want:
        if name == "pdf":
            out[name] = density
        elif name == "logpdf":
            out[name] = np.log(density)
        elif name == "sf":
            out[name] = 0.5 * erfc(0.5 * x) + d * x * rest["sf"]
        elif name == "half":
            out[name] = 0.5 * erf(0.5 * x) - d * x * rest["sf"]
        elif name == "score":
            out[name] = (0.5 * x * normal - d * rest["slope"]) / density
        elif name == "alpha_score":
            out[name] = rest["alpha"] / density
        else:
            out[name] = x * density / (0.5 * erfc(0.5 * x) + d * x * rest["sf"])
    return out


def _assemble_tail(x: FloatArray, alpha: Any, sums: Parts, want: tuple[str, ...]) -> Parts:
    """Put the powers of x back into the sums of `tail_sums`."""
    log_x = np.log(x)
    power = np.exp(-alpha * log_x)
    out: Parts = {}
    for name in want:
        if name == "pdf":
            out[name] = sums["pdf"] * power / x
        elif name == "logpdf":
            out[name] = np.log(sums["pdf"]) - (1.0 + alpha) * log_x
        elif name == "sf":
            out[name] = sums["sf"] * power
        elif name == "half":
            out[name] = 0.5 - sums["sf"] * power
        elif name == "score":
            out[name] = sums["slope"] / (sums["pdf"] * x)
        elif name == "alpha_score":
            out[name] = sums["alpha"] / sums["pdf"]
        else:
            out[name] = sums["pdf"] / sums["sf"]
    return out


def _assemble_normal(x: FloatArray, want: tuple[str, ...]) -> Parts:
    """The Gaussian law beyond SERIES_FROM: no power law at all, except in the derivative by alpha."""
    from scipy.special import erfc, erfcx

    with np.errstate(over="ignore"):
        log_density = -0.25 * x * x - math.log(2.0 * math.sqrt(math.pi))
    out: Parts = {}
    for name in want:
        if name == "pdf":
            out[name] = np.exp(log_density)
        elif name == "logpdf":
            out[name] = log_density
        elif name == "sf":
            out[name] = 0.5 * erfc(0.5 * x)
        elif name == "half":
            out[name] = np.full_like(x, 0.5)
        elif name == "score":
            out[name] = 0.5 * x
        elif name == "alpha_score":
            rate = tail_sums(x, 2.0, ("alpha",))["alpha"]  # negative
            with np.errstate(over="ignore"):
                out[name] = -np.exp(np.log(-rate) - 3.0 * np.log(x) - log_density)
        else:
            out[name] = x / (math.sqrt(math.pi) * erfcx(0.5 * x))
    return out
