"""Heavy-tailed noise: does the number of sequences needed move with the tail index as predicted?

With noise of index alpha the mean of n gradients settles as ``n^(1/alpha - 1)``, so that ``N ~ (noise / signal)^kappa`` with
``kappa = alpha / (alpha - 1)`` for plain training, and exponent 2 if gradients are clipped, whatever alpha is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lagreach.study.validation.bootstrap import NOT_MEASURABLE, Estimate, cluster_weights, estimate
from lagreach.study.validation.calibration import ABOVE, FEWEST_SEEN, SEEN, measurable, tobit
from lagreach.study.validation.learning_curves import Curves, predicted_log_n
from lagreach.study.validation.matching import Matched

GAUSSIAN = 2.0
FEWEST_LAGS = 3  # for an exponent
FEWEST_LEVELS = 2  # networks and lags, for a shift: a single one at the edge of the range is there by luck
WIDEST = 2.0  # an interval of an exponent wider than this tells 2 from no kappa in the design


def kappa(alpha: float) -> float:
    """Exponent of plain averages.

    >>> kappa(2.0), round(kappa(1.6), 2)
    (2.0, 2.67)
    """
    return alpha / (alpha - 1)


@dataclass(frozen=True)
class TailEffect:
    """One way of training (plain or clipped) at one tail index.

    `shift` is the change of log10 N against Gaussian noise on the same networks and lags, in decades; `exponent` is twice
    the slope of log10 N on the log10 N predicted under Gaussian noise. Both are NaN where they cannot be measured.
    """

    clipped: bool
    alpha: float
    curves: int
    seen: int
    learned: float  # share of curves at the largest N
    shift: Estimate
    predicted_shift: float
    excess: Estimate  # of the shift over its prediction, with the errors of both
    exponent: Estimate
    predicted_exponent: float

    @property
    def verdict(self) -> str:
        """Whether the exponent is as predicted."""
        if not self.exponent.measured or self.exponent.high - self.exponent.low > WIDEST:
            return "not measurable"
        return "as predicted" if self.exponent.covers(self.predicted_exponent) else "not as predicted"

    @property
    def shift_verdict(self) -> str:
        """Whether the shift is as predicted."""
        if not self.excess.measured:
            return "not measurable"
        if self.excess.covers(0.0):
            return "as predicted"
        return "larger than predicted" if self.excess.above(0.0) else "smaller than predicted"

    def __str__(self) -> str:
        arm = "clipped" if self.clipped else "plain"
        return f"{arm:<8} alpha {self.alpha:.1f}  shift {self.shift}, exponent {self.exponent}: {self.verdict}"


@dataclass(frozen=True)
class _Arm:
    """Curves of one way of training, with what sets them apart."""

    alpha: np.ndarray
    group: np.ndarray  # network and lag
    network: np.ndarray  # network and seed: drawn together
    lag: np.ndarray
    log_n: np.ndarray
    side: np.ndarray
    gaussian: np.ndarray  # log10 N predicted under Gaussian noise

    def where(self, use: np.ndarray) -> _Arm:
        return _Arm(**{name: value[use] for name, value in vars(self).items()})

    def draws(self, replicates: int, seed: int) -> np.ndarray:
        generator = np.random.default_rng(seed)
        drawn = cluster_weights(np.zeros(len(self.alpha)), self.network, replicates, generator)
        return np.concatenate([np.ones((1, len(self.alpha))), drawn])


def tail_effects(rows: Matched, curves: Curves, replicates: int, seed: int) -> tuple[TailEffect, ...]:
    """Effects of every tail index, for plain and for clipped training."""
    first = curves.first
    clip, alpha = rows["clip"][first].astype(bool), rows["noise_alpha"][first]
    predicted = np.full(len(curves), np.nan)
    if ("init", "n_probe") in rows.values:
        predicted = predicted_log_n(rows, curves, "n_probe", "init")
    names = [rows[name][first].astype(str) for name in ("cell", "gate_init", "optimiser")]
    network = np.array(["/".join(parts) for parts in zip(*names, strict=True)], dtype=str)
    lag = rows["lag"][first]
    group = np.char.add(np.char.add(network, "/"), lag.astype(str))
    gaussian = np.full(len(curves), np.nan)
    for name in np.unique(group):
        own = predicted[(group == name) & (alpha == GAUSSIAN)]
        own = own[np.isfinite(own)]
        if len(own):
            gaussian[group == name] = np.median(own)
    seeds = np.char.add(np.char.add(network, "/"), rows["seed"][first].astype(str))
    everything = _Arm(alpha, group, seeds, lag, curves.log_n, curves.side, gaussian)
    found = []
    for clipped in (False, True):
        arm = everything.where(clip == clipped)
        for index in sorted(np.unique(arm.alpha), reverse=True):
            own = arm.where(arm.alpha == index)
            exponent = GAUSSIAN if clipped else kappa(float(index))
            shift, predicted_shift, excess = Estimate(0.0, 0.0, 0.0), 0.0, Estimate(0.0, 0.0, 0.0)
            if index != GAUSSIAN:
                shift, predicted_shift, excess = _shift(arm, float(index), exponent, replicates, seed)
            found.append(
                TailEffect(
                    clipped,
                    float(index),
                    curves=len(own.alpha),
                    seen=int((own.side == SEEN).sum()),
                    learned=float((own.side != ABOVE).mean()),
                    shift=shift,
                    predicted_shift=predicted_shift,
                    excess=excess,
                    exponent=_exponent(own, replicates, seed),
                    predicted_exponent=exponent,
                )
            )
    return tuple(found)


def _shift(arm: _Arm, index: float, exponent: float, replicates: int, seed: int) -> tuple[Estimate, float, Estimate]:
    """Change of log10 N at a tail index against Gaussian noise, and what it should be.

    Each network and lag has a level of its own; compared are those that cross the threshold within the range under both
    kinds of noise, if there are at least two. ``N ~ ratio^exponent`` says that the level is stretched by ``exponent / 2``; that
    the noise is wider too is left out, so that the prediction is good to a fraction of a decade.
    """
    if not (arm.alpha == GAUSSIAN).any():
        return NOT_MEASURABLE, np.nan, NOT_MEASURABLE
    both = [
        name
        for name in np.unique(arm.group)
        if all((arm.side[(arm.group == name) & (arm.alpha == a)] == SEEN).any() for a in (index, GAUSSIAN))
    ]
    kept = arm.where(np.isin(arm.group, both) & np.isin(arm.alpha, (index, GAUSSIAN)))
    if len(both) < FEWEST_LEVELS or (kept.side == SEEN).sum() < FEWEST_SEEN:
        return NOT_MEASURABLE, np.nan, NOT_MEASURABLE
    columns = [kept.group == name for name in both] + [kept.alpha == index]
    fit = tobit(np.stack(columns, axis=1).astype(float), kept.log_n, kept.side, kept.draws(replicates, seed))
    moved = fit.coefficients[:, -1]
    # the prediction rests on levels that are estimated from the same curves: their errors are drawn along with the shift's
    predicted = (exponent / GAUSSIAN - 1) * fit.coefficients[:, :-1].mean(1)
    excess, clusters = moved - predicted, len(np.unique(kept.network))
    return (
        estimate(float(moved[0]), moved[1:], clusters),
        float(predicted[0]),
        estimate(float(excess[0]), excess[1:], clusters),
    )


def _exponent(arm: _Arm, replicates: int, seed: int) -> Estimate:
    """Twice the slope of log10 N on its prediction under Gaussian noise, across lags."""
    known = arm.where(np.isfinite(arm.gaussian))
    seen = known.side == SEEN
    if not measurable(known.side, known.gaussian) or len(np.unique(known.lag[seen])) < FEWEST_LAGS:
        return NOT_MEASURABLE
    design = np.stack([np.ones(len(known.alpha)), known.gaussian], axis=1)
    slope = 2 * tobit(design, known.log_n, known.side, known.draws(replicates, seed)).coefficients[:, 1]
    return estimate(float(slope[0]), slope[1:], len(np.unique(known.network)))
