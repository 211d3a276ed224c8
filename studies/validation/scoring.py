"""How well a predictor said what would be learned: AUROC, Brier score, rank correlation.

Every statistic takes weights of rows with any leading axes, so that one call gives all bootstrap replicates. Predictors
come as one number a row, larger where the lag should rather be learned; -inf says "never" and +inf "always".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Shaped

from lagreach.errors import InputError

PRIOR = 5.0  # standard deviation of intercept and slope (in decades): keeps separable data from an infinite slope


def _groups(keys: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Order of the rows by keys (the last one first in rank), and where each run of equal keys starts in it."""
    order = np.lexsort(keys)
    changed = np.zeros(len(order), dtype=bool)
    changed[:1] = True
    for key in keys:
        changed[1:] |= key[order][1:] != key[order][:-1]
    return order, np.flatnonzero(changed)


def auroc(
    scores: Float[np.ndarray, "row"],
    learned: Bool[np.ndarray, "row"],
    weights: Float[np.ndarray, "*replica row"] | None = None,
    strata: Shaped[np.ndarray, "row"] | None = None,
) -> Float[np.ndarray, "*replica"]:
    """Share of pairs (one learned, one not) that the scores put in the right order; ties count half.

    With `strata`, only pairs within the same stratum are compared. NaN where there is no pair.

    >>> float(auroc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, False, True, True])))
    0.875
    """
    if np.isnan(scores).any():
        raise InputError("a score is missing", got="NaN", fix="leave such rows out and count them")
    w = np.ones(len(scores)) if weights is None else weights
    stratum = np.zeros(len(scores), dtype=int) if strata is None else np.unique(strata, return_inverse=True)[1]
    if not len(scores):
        return np.full(w.shape[:-1], np.nan)
    order, starts = _groups([scores, stratum])
    positive = np.add.reduceat((w * learned)[..., order], starts, axis=-1)
    negative = np.add.reduceat((w * ~learned)[..., order], starts, axis=-1)
    of_group = stratum[order][starts]
    first = np.flatnonzero(np.r_[True, of_group[1:] != of_group[:-1]])
    total_positive, total_negative = (np.add.reduceat(v, first, axis=-1) for v in (positive, negative))
    lower = np.cumsum(negative, axis=-1) - negative
    lower = lower - np.repeat(lower[..., first], np.diff(np.r_[first, len(of_group)]), axis=-1)
    pairs = (total_positive * total_negative).sum(-1)
    right = (positive * (lower + negative / 2)).sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(pairs > 0, right / pairs, np.nan)


def midranks(
    values: Float[np.ndarray, "row"], weights: Float[np.ndarray, "*replica row"]
) -> Float[np.ndarray, "*replica row"]:
    """Ranks in a weighted sample, up to a constant: weight below, and half of the weight of ties."""
    order, starts = _groups([values])
    sums = np.add.reduceat(weights[..., order], starts, axis=-1)
    middle = np.cumsum(sums, axis=-1) - sums / 2
    ranks = np.empty_like(weights)
    ranks[..., order] = np.repeat(middle, np.diff(np.r_[starts, len(values)]), axis=-1)
    return ranks


def spearman(
    scores: Float[np.ndarray, "row"],
    recovered: Float[np.ndarray, "row"],
    weights: Float[np.ndarray, "*replica row"] | None = None,
) -> Float[np.ndarray, "*replica"]:
    """Rank correlation with the recovered score, which needs no threshold. NaN if either is constant.

    >>> round(float(spearman(np.array([1.0, 2.0, np.inf]), np.array([0.0, 0.1, 0.9]))), 12)
    1.0
    """
    w = np.ones(len(scores)) if weights is None else weights
    if not len(scores):
        return np.full(w.shape[:-1], np.nan)
    total = w.sum(-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        x, y = (midranks(v, w) for v in (scores, recovered))
        x, y = (v - (w * v).sum(-1, keepdims=True) / total for v in (x, y))
        spread = (w * x**2).sum(-1) * (w * y**2).sum(-1)
        return np.where(spread > 0, (w * x * y).sum(-1) / np.sqrt(spread), np.nan)


def brier(
    probabilities: Float[np.ndarray, "row"],
    learned: Bool[np.ndarray, "row"],
    weights: Float[np.ndarray, "*replica row"] | None = None,
) -> Float[np.ndarray, "*replica"]:
    """Mean squared distance of a probability from what happened: 0 is perfect, 0.25 is a coin.

    >>> float(brier(np.array([1.0, 0.5]), np.array([True, False])))
    0.125
    """
    w = np.ones(len(probabilities)) if weights is None else weights
    with np.errstate(invalid="ignore"):
        return np.asarray((w * (probabilities - learned) ** 2).sum(-1) / w.sum(-1))


@dataclass(frozen=True)
class Link:
    """Turns a predictor into a probability: ``1 / (1 + exp(-(intercept + slope x)))``.

    Rows with x = -inf ("never") or +inf ("always") get a probability of their own.
    """

    intercept: float
    slope: float
    never: float
    always: float

    def __call__(self, x: Float[np.ndarray, "row"]) -> Float[np.ndarray, "row"]:
        from scipy.special import expit

        inside = np.where(np.isfinite(x), x, 0.0)
        probability = expit(self.intercept + self.slope * inside)
        return np.where(x == -np.inf, self.never, np.where(x == np.inf, self.always, probability))


def fit_link(
    x: Float[np.ndarray, "row"],
    learned: Bool[np.ndarray, "row"],
    weights: Float[np.ndarray, "row"],
    *,
    as_claimed: bool = False,
) -> Link:
    """Logistic regression with a weak normal prior.

    `as_claimed` takes a predictor at its word: a half at x = 0 (so no intercept), nothing at "never", all at "always".
    Otherwise the intercept is fitted as well, and "never" and "always" are given the share learned there.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    finite = np.isfinite(x)
    design = np.stack([np.full(finite.sum(), 0.0 if as_claimed else 1.0), x[finite]], axis=1)
    y, w = learned[finite].astype(float), weights[finite]

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        linear = design @ theta
        value = (w * (np.logaddexp(0.0, linear) - y * linear)).sum() + (theta**2).sum() / (2 * PRIOR**2)
        return value, design.T @ (w * (expit(linear) - y)) + theta / PRIOR**2

    intercept, slope = minimize(loss, np.zeros(2), jac=True, method="BFGS").x
    if as_claimed:
        return Link(0.0, float(slope), 0.0, 1.0)
    return Link(float(intercept), float(slope), *(_share(learned, weights, x == end) for end in (-np.inf, np.inf)))


def _share(learned: np.ndarray, weights: np.ndarray, where: np.ndarray) -> float:
    """Share learned, with half a row of each kind added, so that none seen is not taken for impossible."""
    return float(((weights * learned)[where].sum() + 0.5) / (weights[where].sum() + 1))


def out_of_task(
    x: Float[np.ndarray, "row"],
    learned: Bool[np.ndarray, "row"],
    tasks: Shaped[np.ndarray, "row"],
    weights: Float[np.ndarray, "row"],
    *,
    as_claimed: bool = False,
) -> Float[np.ndarray, "row"]:
    """Probability of each row by a link fitted to the other tasks only; NaN if there is one task alone."""
    probability = np.full(len(x), np.nan)
    for task in np.unique(tasks):
        in_task = tasks == task
        if not in_task.all():
            probability[in_task] = fit_link(x[~in_task], learned[~in_task], weights[~in_task], as_claimed=as_claimed)(
                x[in_task]
            )
    return probability
