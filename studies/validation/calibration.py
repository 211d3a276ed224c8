"""Does recovery happen near the predicted number of sequences? Empirical N of every lag, and a censored regression.

The empirical N of a curve (one condition, seed and lag over all numbers of sequences) is where its recovered score reaches
the threshold. Curves that are above it at the smallest N, or below it at the largest, are censored, not dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

BELOW, SEEN, ABOVE = -1, 0, 1  # learned at the smallest N; within the range; not learned at the largest N
ITERATIONS = 80
HALVINGS = 40
TOLERANCE = 1e-7
FEWEST_SEEN = 8  # curves that cross the threshold within the range, for a slope
STEEPEST = 50.0  # of a slope, or in decades of an intercept: beyond it the likelihood has no maximum to speak of


def crossing(
    log_n: Float[np.ndarray, "budget"], scores: Float[np.ndarray, "budget"], threshold: float
) -> tuple[float, int]:
    """log10 N at which a score reaches a threshold, and on which side of the range it lies.

    Scores are made to rise first (isotonic regression), then interpolated in log N; at the ends the bound is returned.

    >>> crossing(np.array([2.0, 3.0, 4.0]), np.array([0.0, 0.25, 0.75]), 0.5)
    (3.5, 0)
    >>> crossing(np.array([2.0, 3.0, 4.0]), np.array([0.0, 0.1, 0.2]), 0.5)
    (4.0, 1)
    """
    from scipy.optimize import isotonic_regression

    order = np.argsort(log_n)
    x, y = log_n[order], isotonic_regression(scores[order]).x
    if y[0] >= threshold:
        return float(x[0]), BELOW
    if y[-1] < threshold:
        return float(x[-1]), ABOVE
    k = int(np.argmax(y >= threshold))
    share = (threshold - y[k - 1]) / (y[k] - y[k - 1])
    return float(x[k - 1] + share * (x[k] - x[k - 1])), SEEN


@dataclass(frozen=True)
class Tobit:
    """A censored regression: coefficients and the spread of the residuals; NaN where there is no maximum."""

    coefficients: Float[np.ndarray, "*replica column"]
    spread: Float[np.ndarray, "*replica"]


def tobit(
    design: Float[np.ndarray, "row column"],
    y: Float[np.ndarray, "row"],
    side: Int[np.ndarray, "row"],
    weights: Float[np.ndarray, "replica row"],
) -> Tobit:
    """Maximum likelihood of ``y = design @ b + s e``, e standard normal, with censored rows; one fit for each replicate.

    `side` says whether the true value is at y (0), below it (-1) or above it (+1). In ``(b / s, 1 / s)`` the logarithm of
    the likelihood is concave (Olsen 1978), so that Newton's method with halved steps finds its maximum.

    >>> x = np.array([0.0, 1.0, 2.0, 3.0])
    >>> fit = tobit(np.stack([np.ones(4), x], 1), 1 + 2 * x + [0.1, -0.1, -0.1, 0.1], np.zeros(4, int), np.ones((1, 4)))
    >>> fit.coefficients.round(6).tolist()
    [[1.0, 2.0]]
    """
    # z = y theta - design gamma is linear in the parameters (gamma, theta)
    linear = np.concatenate([-design, y[:, None]], axis=1)
    start, *_ = np.linalg.lstsq(design, y, rcond=None)
    spread = max(float(np.std(y - design @ start)), 0.1)
    pilot, _ = _newton(np.r_[start, 1.0][None] / spread, linear, side, weights.mean(0, keepdims=True))
    theta, settled = _newton(np.repeat(pilot, len(weights), axis=0), linear, side, weights)
    coefficients = theta[:, :-1] / theta[:, -1:]
    fine = settled & (weights @ (side == SEEN) > 0) & (np.abs(coefficients) < STEEPEST).all(1)
    return Tobit(np.where(fine[:, None], coefficients, np.nan), np.where(fine, 1 / theta[:, -1], np.nan))


def _newton(
    theta: np.ndarray, linear: np.ndarray, side: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Climb to the maximum, each replicate by itself; return where each ended and whether it had settled."""
    theta, settled = theta.copy(), np.zeros(len(theta), dtype=bool)
    value, slope, curvature = _likelihood(theta, linear, side, weights)
    for _ in range(ITERATIONS):
        left = np.flatnonzero(~settled)
        if not len(left):
            break
        # by the pseudo-inverse, because the likelihood of a replicate may be flat in some direction
        step = (np.linalg.pinv(curvature, hermitian=True) @ slope[..., None])[..., 0]
        size, better = np.ones(len(left)), np.zeros(len(left), dtype=bool)
        trial, likelihood = theta[left] + step, (value.copy(), slope.copy(), curvature.copy())
        for _ in range(HALVINGS):
            trial = theta[left] + size[:, None] * step
            todo = np.flatnonzero(~better & (trial[:, -1] > 0))
            for kept, new in zip(likelihood, _likelihood(trial[todo], linear, side, weights[left[todo]]), strict=True):
                kept[todo] = new
            better[todo] = likelihood[0][todo] >= value[todo] - 1e-10 * np.abs(value[todo])
            if better.all():
                break
            size[~better] /= 2
        theta[left[better]] = trial[better]
        moved = np.abs(size[:, None] * step).max(1) > TOLERANCE * (1 + np.abs(theta[left]).max(1))
        settled[left] = better & ~moved
        go_on = ~settled[left]
        value, slope, curvature = (kept[go_on] for kept in likelihood)
    return theta, settled


def _likelihood(
    theta: np.ndarray, linear: np.ndarray, side: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logarithm of the likelihood, its gradient, and minus its matrix of second derivatives."""
    from scipy.special import log_ndtr

    z = theta @ linear.T
    seen = side == SEEN
    first, second = np.empty_like(z), np.empty_like(z)  # derivatives in z, the second one with its sign turned
    first[:, seen], second[:, seen] = -z[:, seen], 1.0
    u = -side[~seen] * z[:, ~seen]
    log_probability = log_ndtr(u)
    mills = np.exp(-(u**2) / 2 - np.log(2 * np.pi) / 2 - log_probability)
    first[:, ~seen], second[:, ~seen] = -side[~seen] * mills, mills * (u + mills)
    gradient = (weights * first) @ linear
    squares = (linear[:, :, None] * linear[:, None, :]).reshape(len(linear), -1)
    hessian = ((weights * second) @ squares).reshape(-1, linear.shape[1], linear.shape[1])
    count = weights @ seen
    value = count * np.log(theta[:, -1]) - (weights[:, seen] * z[:, seen] ** 2).sum(1) / 2
    value += (weights[:, ~seen] * log_probability).sum(1)
    gradient[:, -1] += count / theta[:, -1]
    hessian[:, -1, -1] += count / theta[:, -1] ** 2
    return value, gradient, hessian


def measurable(side: Int[np.ndarray, "row"], x: Float[np.ndarray, "row"]) -> bool:
    """Whether there is enough within the range, at different predictions, for a slope."""
    return bool((side == SEEN).sum() >= FEWEST_SEEN and np.ptp(x[side == SEEN]) > 0)


@dataclass(frozen=True)
class Line:
    """log10 N found against log10 N predicted, for all replicates: a line, and the offset if its slope were 1."""

    slope: Float[np.ndarray, "replica"]
    intercept: Float[np.ndarray, "replica"]
    offset: Float[np.ndarray, "replica"]
    spread: Float[np.ndarray, "replica"]


def calibration_line(
    predicted: Float[np.ndarray, "row"],
    empirical: Float[np.ndarray, "row"],
    side: Int[np.ndarray, "row"],
    weights: Float[np.ndarray, "replica row"],
) -> Line:
    """Regress the empirical on the predicted log10 N; `predicted` must be finite.

    The offset is the mean of ``log10(found / predicted)``, in decades: -1 for a predictor that asks for ten times too many.
    """
    ones = np.ones((len(empirical), 1))
    line = tobit(np.concatenate([ones, predicted[:, None]], axis=1), empirical, side, weights)
    shift = tobit(ones, empirical - predicted, side, weights)
    return Line(line.coefficients[:, 1], line.coefficients[:, 0], shift.coefficients[:, 0], line.spread)
