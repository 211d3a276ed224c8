"""Heavy-tailed noise: does the number of sequences needed move with the tail index as predicted?

With noise of index alpha a mean of n terms settles as ``n^(1/alpha - 1)``, so that ``N ~ (noise / signal)^kappa`` with
``kappa = alpha / (alpha - 1)`` for plain training, and exponent 2 if gradients are clipped, whatever alpha is.

What is measured is how far a recovered share is from 1. Over trainings with many N and coefficients c,
``log |share - 1| = level(lag) + rise log(1 / c) - fall log N``; the N at which the share is near 1 then moves as
``c^-(rise / fall)``, and this ratio is the exponent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np

from studies.validation.bootstrap import NOT_MEASURABLE, Estimate, cluster_weights, estimate
from studies.validation.calibration import BELOW, SEEN, tobit
from studies.validation.matching import Matched

GAUSSIAN = 2.0
NEAR = 0.5  # a lag counts as learned if its recovered share is this near to 1
NEAREST = 0.1  # closer than this is not told apart: what is left there is no noise of the samples
REACH = 0.5  # decades beyond the range of N in which a fit is still believed
FEWEST_TRAININGS = 12  # with a distance that can be told, for a fit
WIDEST = 1.0  # an interval of the exponent under Gaussian noise, where there is nothing to tell it from
WIDEST_SHIFT = 2.0  # decades
CLOSE_SHIFT = 0.5  # decades: how good the prediction of a shift is


def kappa(alpha: float) -> float:
    """Exponent of plain averages.

    >>> kappa(2.0), round(kappa(1.6), 2)
    (2.0, 2.67)
    """
    return alpha / (alpha - 1)


def median_error(alpha: float, terms: float) -> float:
    """Median error of a least-squares coefficient of a standard normal input, in units of the noise's scale.

    >>> round(median_error(2.0, 1.0), 4), round(median_error(2.0, 100.0), 5)
    (0.6745, 0.06745)
    """
    from lagreach.tails import stable

    moment = 2 ** (alpha / 2) * math.gamma((alpha + 1) / 2) / math.sqrt(math.pi)
    quartile = float(stable.ppf(0.75, alpha, 1 / math.sqrt(2)))
    return quartile * moment ** (1 / alpha) * terms ** (1 / alpha - 1)


def predicted_n(ratio: float, alpha: float, steps: float, batch: float | None = None) -> float:
    """Sequences at which half of all trainings are near, for a ratio of noise to coefficient and `steps` terms a sequence.

    Plain training averages all terms. Clipped training (with its `batch`) averages gradients of batches, of which none
    counts for more than a usual one, so that their noise falls with the square root of their number.

    >>> round(predicted_n(32, 2.0, 12)) == round(predicted_n(32, 2.0, 12, batch=64))
    True
    """
    if batch is None:
        return float((ratio * median_error(alpha, 1.0) / NEAR) ** kappa(alpha) / steps)
    return float(batch * (ratio * median_error(alpha, batch * steps) / NEAR) ** 2)


@dataclass(frozen=True)
class TailEffect:
    """One way of training (plain or clipped) at one tail index.

    `exponent` says how the N needed moves with 1 / coefficient; `shift` is the change of log10 N against Gaussian noise at
    coefficients for which both lie within the range of N or just beyond, and `far` that of the longest lag against the
    shortest. All are NaN where they cannot be measured.
    """

    clipped: bool
    alpha: float
    trainings: int
    learned: float  # share of lags at the largest N
    exponent: Estimate
    predicted_exponent: float
    shift: Estimate
    predicted_shift: float
    far: Estimate
    predicted_far: float

    @property
    def rival(self) -> float:
        """The exponent of the other law: 2 for plain training, kappa for clipped."""
        return kappa(self.alpha) if self.clipped else GAUSSIAN

    @property
    def verdict(self) -> str:
        """Whether the exponent is as predicted; not measurable if the interval holds the other law's too."""
        exponent = self.exponent
        if not exponent.measured:
            return "not measurable"
        if not exponent.covers(self.predicted_exponent):
            return "not as predicted"
        told = exponent.high - exponent.low <= WIDEST if self.alpha == GAUSSIAN else not exponent.covers(self.rival)
        return "as predicted" if told else "not measurable"

    @property
    def shift_verdict(self) -> str:
        """Whether the shift is as predicted, give or take half a decade."""
        low, high = self.shift.low - self.predicted_shift, self.shift.high - self.predicted_shift
        if not self.shift.measured or high - low > WIDEST_SHIFT:
            return "not measurable"
        if low > CLOSE_SHIFT:
            return "larger than predicted"
        return "smaller than predicted" if high < -CLOSE_SHIFT else "as predicted"

    def __str__(self) -> str:
        arm = "clipped" if self.clipped else "plain"
        return f"{arm:<8} alpha {self.alpha:.1f}  shift {self.shift}, exponent {self.exponent}: {self.verdict}"


@dataclass(frozen=True)
class _Fit:
    """Distances of one way of training at one index: levels by lag, rise and fall, the first row being the sample's own."""

    lags: tuple[int, ...]
    levels: np.ndarray  # (replica, lag)
    rise: np.ndarray
    fall: np.ndarray
    log_n: tuple[float, float]  # range of N
    ratios: tuple[float, ...]  # noise over coefficient
    trainings: int

    def needed(self, ratio: float) -> np.ndarray:
        """log10 of the N at which the distance is `NEAR`, (replica, lag)."""
        return (self.levels + (self.rise * np.log10(ratio))[:, None] - np.log10(NEAR)) / self.fall[:, None]

    def reaches(self, ratio: float) -> bool:
        """Whether N lies within the range at this ratio, or just beyond it, in the mean over lags."""
        return bool(self.log_n[0] - REACH <= self.needed(ratio)[0].mean() <= self.log_n[1] + REACH)

    @property
    def exponent(self) -> Estimate:
        """How N moves with the ratio; the interval is symmetric in its logarithm."""
        log_exponent = self.interval(np.log(self.rise / self.fall))
        return Estimate(*np.exp([log_exponent.value, log_exponent.low, log_exponent.high]).tolist())

    @property
    def far(self) -> Estimate:
        """log10 N at the longest lag less that at the shortest."""
        return self.interval((self.levels[:, -1] - self.levels[:, 0]) / self.fall)

    def interval(self, values: np.ndarray) -> Estimate:
        """Student's interval from the draws; each column of the regression costs one training."""
        return estimate(float(values[0]), values[1:], self.trainings - self.levels.shape[1] - 2)


def tail_effects(rows: Matched, replicates: int, seed: int) -> tuple[TailEffect, ...]:
    """Effects of every tail index, for plain and for clipped training."""
    effects = []
    for clipped in (False, True):
        arm = rows.where(rows["clip"].astype(bool) == clipped)
        indices = sorted(np.unique(arm["noise_alpha"]).tolist(), reverse=True)
        parts = {index: arm.where(arm["noise_alpha"] == index) for index in indices}
        fits = {index: _fit(part, replicates, seed + k) for k, (index, part) in enumerate(parts.items())}
        for index, fit in fits.items():
            exponent = GAUSSIAN if clipped else kappa(index)
            last = parts[index]["sequences"] == parts[index]["sequences"].max()
            shift, predicted_shift = Estimate(0.0, 0.0, 0.0), 0.0
            if index != GAUSSIAN:
                shift, predicted_shift = _shift(fit, fits.get(GAUSSIAN), parts[index], index, clipped)
            steps = [float(parts[index]["length"][0] - lag) for lag in (fit.lags[0], fit.lags[-1])] if fit else []
            effects.append(
                TailEffect(
                    clipped,
                    index,
                    trainings=len(np.unique(parts[index]["training"])),
                    learned=float((distance(parts[index])[last] <= NEAR).mean()),
                    exponent=fit.exponent if fit else NOT_MEASURABLE,
                    predicted_exponent=exponent,
                    shift=shift,
                    predicted_shift=predicted_shift,
                    far=fit.far if fit else NOT_MEASURABLE,
                    predicted_far=math.log10(steps[0] / steps[1]) if fit else np.nan,
                )
            )
    return tuple(effects)


def distance(rows: Matched) -> np.ndarray:
    """How far each recovered share is from 1."""
    return np.abs(rows.recovered() - 1)


def _fit(rows: Matched, replicates: int, seed: int) -> _Fit | None:
    """Regress the distances of one way of training at one index; None if too few trainings or levels can tell.

    Distances below `NEAREST` enter as bounds. Every training has data of its own, so trainings are drawn again, each with all
    its lags, which share the noise.
    """
    rows = rows.where(np.isfinite(rows.recovered()) & np.isfinite(rows["ratio"]))
    far = distance(rows)
    side = np.where(far < NEAREST, BELOW, SEEN)
    seen = rows.where(side == SEEN)
    spread = [len(np.unique(seen[name])) for name in ("ratio", "sequences")]
    if min(spread) < 2 or len(np.unique(seen["training"])) < FEWEST_TRAININGS:
        return None
    lags = np.unique(rows["lag"])
    columns = [rows["lag"] == lag for lag in lags] + [
        np.log10(rows["ratio"]),
        -np.log10(rows["sequences"].astype(float)),
    ]
    drawn = cluster_weights(np.zeros(len(rows)), rows["training"].astype(str), replicates, np.random.default_rng(seed))
    weights = np.concatenate([np.ones((1, len(rows))), drawn])
    fit = tobit(np.stack(columns, axis=1).astype(float), np.log10(np.maximum(far, NEAREST)), side, weights)
    # what does not fall with N needs no N that could be named, nor does what does not rise with the noise
    rise, fall = (np.where(slope > 0, slope, np.nan) for slope in fit.coefficients[:, -2:].T)
    return _Fit(
        tuple(lags.tolist()),
        fit.coefficients[:, :-2],
        rise,
        fall,
        (math.log10(rows["sequences"].min()), math.log10(rows["sequences"].max())),
        tuple(np.unique(rows["ratio"]).tolist()),
        len(np.unique(rows["training"])),
    )


def _shift(
    fit: _Fit | None, gaussian: _Fit | None, rows: Matched, index: float, clipped: bool
) -> tuple[Estimate, float]:
    """Change of log10 N against Gaussian noise at ratios that both fits reach, and what it should be."""
    if fit is None or gaussian is None or fit.lags != gaussian.lags:
        return NOT_MEASURABLE, np.nan
    common = [ratio for ratio in fit.ratios if ratio in gaussian.ratios]
    common = [ratio for ratio in common if fit.reaches(ratio) and gaussian.reaches(ratio)]
    if not common:
        return NOT_MEASURABLE, np.nan
    moved = np.mean([(fit.needed(ratio) - gaussian.needed(ratio)).mean(1) for ratio in common], axis=0)
    batch, length = float(rows["batch"][0]) if clipped else None, float(rows["length"][0])
    predicted = [
        math.log10(predicted_n(ratio, index, length - lag, batch) / predicted_n(ratio, GAUSSIAN, length - lag, batch))
        for ratio, lag in product(common, fit.lags)
    ]
    return fit.interval(moved), float(np.mean(predicted))
