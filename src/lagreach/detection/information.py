"""Exact divergences between "present" and "absent", and the paper's bounds on them.

Import the public names from `lagreach.detection`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lagreach._util.arrays import Floats, Number, Numbers
from lagreach.detection.noise_model import Noise, Rate, checked_positive, checked_signal, noise_model
from lagreach.errors import InputError
from lagreach.tails import stable

LOG2 = float(np.log(2.0))


def binary_information(u: Numbers) -> Floats:
    """Return log 2 - h_b((1-u)/2) for 0 <= u <= 1, in nats and without cancellation at either end."""
    closeness = np.asarray(u, dtype=np.float64)
    small = np.minimum(closeness, 0.5)
    near = small * np.arctanh(small) + 0.5 * np.log1p(-(small**2))
    large = np.maximum(closeness, 0.5)
    rest = 1.0 - large
    far = 0.5 * ((1.0 + large) * np.log1p(large) + rest * np.log(np.where(rest > 0, rest, 1.0)))
    return np.where(closeness <= 0.5, near, far)


def mutual_information(
    sequences: Numbers,
    delta: Numbers,
    sigma: Numbers,
    alpha: Numbers | None = None,
    kappa: Numbers | None = None,
    *,
    rate: Rate = "kappa",
) -> Floats:
    """Return I(B; T), in nats, between "present or absent" (equal odds) and the mean of the sequences.

    By quadrature of (57). It is below log 2 and below I_alpha d^2/8 for every distance d = delta N^(1/kappa) / sigma:
    both bounds are upper bounds, so none of them can say how many sequences suffice.

    Examples
    --------
    >>> round(float(mutual_information(100, 0.1, 1.0)), 4)  # d = 1 standard deviation of the mean
    0.1114
    """
    noise, d = _distance(sequences, delta, sigma, alpha, kappa, rate)
    return _per_pair(_information_at, d, noise.alpha)


def kl_divergence(
    sequences: Numbers,
    delta: Numbers,
    sigma: Numbers,
    alpha: Numbers | None = None,
    kappa: Numbers | None = None,
    *,
    rate: Rate = "kappa",
) -> Floats:
    """Return the Kullback-Leibler divergence, in nats, of "present" from "absent" for the mean of the sequences.

    For alpha = 2 it is d^2/4; for alpha < 2 it starts as I_alpha d^2/2 and ends as a multiple of log d.
    """
    noise, d = _distance(sequences, delta, sigma, alpha, kappa, rate)
    return _per_pair(_divergence_at, d, noise.alpha)


def bayes_error(
    sequences: Numbers,
    delta: Numbers,
    sigma: Numbers,
    alpha: Numbers | None = None,
    kappa: Numbers | None = None,
    *,
    prior: Number = 0.5,
    rate: Rate = "kappa",
) -> Floats:
    """Return the smallest error of any test on the mean of the sequences, for a prior probability of "present".

    At equal odds the sign of the mean is optimal and this is `detection_error`. At other odds and alpha < 2 a
    threshold is not: far out both laws look alike, so large values are decided by the prior.
    """
    if not 0 < prior < 1:
        raise InputError("prior must lie strictly between 0 and 1", got=prior)
    noise, d = _distance(sequences, delta, sigma, alpha, kappa, rate)
    return _per_pair(lambda at, index: _bayes_at(at, index, prior), d, noise.alpha)


def paper_kl_bound(
    sequences: Numbers,
    delta: Numbers,
    sigma: Numbers,
    alpha: Numbers,
    *,
    constant: Numbers | None = None,
    rate: Rate = "v1",
) -> Floats:
    """Return the right side of (32), c N^(2/alpha) delta^2 / sigma^2, which the paper puts *below* the divergence.

    Where it fails: the divergence grows like log d, so no quadratic bound is global. With c = I_alpha/2 (the default)
    the divergence is .88, .63, .30 times the bound at d = 2, 4, 8 for alpha = 1.5. The printed rate N^(2/alpha)
    (``rate="v1"``) exceeds the true N^(2/kappa) as well: means concentrate more slowly than printed.
    """
    noise, d = _distance(sequences, delta, sigma, alpha, None, rate)
    c = 0.5 * stable.fisher_information(noise.alpha) if constant is None else checked_positive(constant, "constant")
    return (c * d**2)[()]


def paper_information_bound(
    sequences: Numbers,
    delta: Numbers,
    sigma: Numbers,
    alpha: Numbers,
    *,
    constant: Numbers | None = None,
    rate: Rate = "v1",
) -> Floats:
    """Return the right side of (33), min(log 2, c d^2), which the paper puts *below* the mutual information.

    Where it fails: for c >= I_alpha/8 at every d > 0 (the information is at most I_alpha d^2/8), by a factor 4 at
    small d with the default c = I_alpha/2; and for every c as soon as c d^2 >= log 2, which is never reached.
    """
    return np.minimum(LOG2, paper_kl_bound(sequences, delta, sigma, alpha, constant=constant, rate=rate))[()]


def _distance(
    sequences: Numbers,
    delta: Numbers,
    sigma: Numbers,
    alpha: Numbers | None,
    kappa: Numbers | None,
    rate: str,
) -> tuple[Noise, Floats]:
    noise = noise_model(sigma, alpha, kappa, rate, None)
    noise.require_law("an information or a Bayes error")
    return noise, noise.distance(checked_positive(sequences, "sequences"), checked_signal(delta))


def _per_pair(function: Callable[[float, float], float], d: Floats, alpha: Floats) -> Floats:
    d, alpha = np.broadcast_arrays(d, alpha)
    values = [function(float(at), float(index)) for at, index in zip(d.ravel(), alpha.ravel(), strict=True)]
    return np.array(values).reshape(d.shape)[()]


def _half_line(d: float) -> tuple[Floats, Floats]:
    """Nodes t > 0 and weights, dense around d/2 where "present" peaks, reaching 1e15 scales.

    Gauss-Legendre panels in v with t = d/2 + sinh(v): a power-law tail is smooth in v.
    """
    start, stop = np.arcsinh(-0.5 * d), 35.0
    edges = np.linspace(start, stop, int(np.ceil((stop - start) / 0.4)) + 1)
    x, w = np.polynomial.legendre.leggauss(12)
    half = 0.5 * np.diff(edges)[:, None]
    v = (edges[:-1, None] + half * (1.0 + x)).ravel()
    return 0.5 * d + np.sinh(v), (half * w).ravel() * np.cosh(v)


def _log_ratio(t: Floats, d: float, alpha: float) -> Floats:
    """Return log f(t - d/2) - log f(t + d/2) for t > 0 as an integral of the score: no cancellation at small d."""
    x, w = np.polynomial.legendre.leggauss(8)
    return 0.5 * d * (stable.score(t[:, None] + 0.5 * d * x, alpha) @ w)


def _information_at(d: float, alpha: float) -> float:
    if d == 0:
        return 0.0
    t, weight = _half_line(d)
    p, q = stable.pdf(t - 0.5 * d, alpha), stable.pdf(t + 0.5 * d, alpha)
    total = p + q
    seen = total > 0
    ratio = np.zeros_like(t)
    if d < 0.5:
        ratio = np.tanh(0.5 * _log_ratio(t, d, alpha))
    else:
        ratio[seen] = (p[seen] - q[seen]) / total[seen]
    # twice the half line, times the mixture (p + q)/2
    return float(np.sum(weight * total * binary_information(ratio)))


def _divergence_at(d: float, alpha: float) -> float:
    if alpha == 2.0:
        return 0.25 * d * d
    if d == 0:
        return 0.0
    t, weight = _half_line(d)
    p, q = stable.pdf(t - 0.5 * d, alpha), stable.pdf(t + 0.5 * d, alpha)
    if d < 0.5:
        log_ratio = _log_ratio(t, d, alpha)
        gap = (p + q) * np.tanh(0.5 * log_ratio)
    else:
        log_ratio, gap = np.log(p) - np.log(q), p - q
    # the two directions are equal, so half their sum, doubled for the half line
    return float(np.sum(weight * gap * log_ratio))


def _bayes_at(d: float, alpha: float, prior: float) -> float:
    """Cut the line where the odds are even and add up the smaller law's probability, piece by piece."""
    if prior == 0.5:
        return float(stable.sf(0.5 * d, alpha))
    from scipy.optimize import brentq

    def log_odds(t: float) -> float:
        present, absent = stable.pdf(np.array([t - 0.5 * d, t + 0.5 * d]), alpha)
        return float(np.log(prior * present) - np.log((1.0 - prior) * absent))

    if alpha == 2.0:  # log odds are t d/2 + const: one cut, without densities that vanish
        cuts = np.array([2.0 / d * np.log((1.0 - prior) / prior)]) if d > 0 else np.array([])
    else:
        t, _ = _half_line(d)
        grid = np.concatenate([-t[::-1], t])
        odds = np.log(prior * stable.pdf(grid - 0.5 * d, alpha)) - np.log(
            (1 - prior) * stable.pdf(grid + 0.5 * d, alpha)
        )
        change = np.flatnonzero(np.diff(np.sign(odds)))
        cuts = np.array([brentq(log_odds, grid[i], grid[i + 1], xtol=1e-12) for i in change])
    edges = np.concatenate([[-np.inf], cuts, [np.inf]])
    present = prior * np.diff(stable.cdf(edges - 0.5 * d, alpha))
    absent = (1.0 - prior) * np.diff(stable.cdf(edges + 0.5 * d, alpha))
    return float(np.minimum(present, absent).sum())
