"""Which decay law an envelope f(lag) follows.

Four laws (exponential, power, logarithmic, stretched exponential) are fitted to the *logarithm* of a curve
by least squares and compared by AICc. Points that are not signal never enter: lag 0, non-finite values, and
values at or below the noise floor are set aside and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from lagreach._util.arrays import Array, Number, Numbers
from lagreach.errors import InputError
from lagreach.regimes.laws import (
    LAWS,
    LN10,
    Law,
    WindowGrowth,
    find_law,
    window_growth,
)
from lagreach.regimes.least_squares import FITTERS, FitPoints, Interval, read_curve
from lagreach.types import Status


@dataclass(frozen=True)
class LawFit:
    """One law fitted to one curve.

    Attributes
    ----------
    law, formula
        Name and formula.
    params, intervals
        ``log10_c`` and the law's own parameters, each with a confidence interval. The intervals assume
        independent residuals of the log curve; neighbouring lags of one network are not, so read them as the
        least uncertainty.
    r2
        Share of the variance of log f that the law explains (log scale; weighted if errors were given).
    aicc, weight
        Corrected Akaike criterion of the log residuals and the law's weight among those fitted.
    status
        OK, too few points, or no decay (then the numbers are NaN and the weight 0).
    """

    law: str
    formula: str
    params: Mapping[str, float]
    intervals: Mapping[str, Interval]
    r2: float
    aicc: float
    weight: float
    status: Status

    @property
    def c(self) -> float:
        """The prefactor; 0 or inf where it leaves float range (``log10_c`` does not)."""
        with np.errstate(over="ignore", under="ignore"):
            return float(np.power(10.0, self.params["log10_c"]))

    def log10_predict(self, lags: Numbers) -> Array:
        """Fitted log10 f at `lags`."""
        return LAWS[self.law].log_value(lags, self.params) / LN10

    def predict(self, lags: Numbers) -> Array:
        """Fitted f at `lags` (0 where it leaves float range: prefer `log10_predict`)."""
        with np.errstate(under="ignore"):
            return np.exp(LAWS[self.law].log_value(lags, self.params))

    def growth(self, kappa: Number = 2.0, constant: Number = 1.0) -> WindowGrowth:
        """Derive the window's growth law from this fit; see `window_growth`."""
        if self.status is Status.TOO_FEW_POINTS or self.status is Status.NO_DECAY:
            raise InputError(
                f"the {self.law} law was not fitted: {self.status}", fix="look at status first, or measure more lags"
            )
        return window_growth(self.law, self.params, kappa, constant)

    def __str__(self) -> str:
        if not np.isfinite(self.r2):
            return f"{self.law:<12} {self.status}"
        shown = []
        for name in self.params:
            numbers = np.array([self.params[name], *self.intervals[name]])
            label = name
            if name == "log10_c" and abs(numbers[0]) < 12:  # c itself, where that is readable
                label, numbers = "c", np.power(10.0, numbers)
            shown.append("{} = {:.4g} [{:.4g}, {:.4g}]".format(label, *numbers))
        note = "" if self.status is Status.OK else f"   ({self.status})"
        return f"{self.law:<12} weight {self.weight:5.3f}   r2 {self.r2:6.4f}   {', '.join(shown)}{note}"


@dataclass(frozen=True)
class Regimes:
    """All laws fitted to one curve, best first; printing it gives the table.

    Attributes
    ----------
    fits
        One `LawFit` a law.
    n_points
        Points used. The others are counted in ``n_lag_zero`` (the power and logarithmic laws have no lag 0,
        so it is left out for all), ``n_nonfinite`` and ``n_floor`` (at or below the floor or the noise).
    confidence
        Of the intervals.
    status
        OK, or why there is no best law.
    """

    fits: tuple[LawFit, ...]
    n_points: int
    n_lag_zero: int
    n_nonfinite: int
    n_floor: int
    confidence: float
    status: Status

    @property
    def best(self) -> LawFit | None:
        """The law with the largest AICc weight; None when no law could be fitted (see ``status``)."""
        return self.fits[0] if self.fits[0].weight > 0 else None

    @property
    def weights(self) -> dict[str, float]:
        """AICc weight of each law."""
        return {fit.law: fit.weight for fit in self.fits}

    def __getitem__(self, law: str) -> LawFit:
        for fit in self.fits:
            if fit.law == law:
                return fit
        raise InputError("this law was not fitted", got=law, expected=", ".join(self.weights))

    def __str__(self) -> str:
        aside = [
            f"{count} {what}"
            for count, what in (
                (self.n_lag_zero, "at lag 0"),
                (self.n_nonfinite, "not finite"),
                (self.n_floor, "at or below the floor"),
            )
            if count
        ]
        head = f"decay of log f over {self.n_points} lags" + (f" (left out: {', '.join(aside)})" if aside else "")
        head += f"; {self.confidence:.0%} intervals"
        if self.best is None:
            return f"{head}\nno law fits: {self.status}"
        return "\n".join([head, *map(str, self.fits)])


def fit_regimes(
    lags: Numbers,
    values: Numbers | None = None,
    *,
    log10_values: Numbers | None = None,
    errors: Numbers | None = None,
    floor: Numbers | None = None,
    laws: Iterable[str] = tuple(LAWS),
    confidence: Number = 0.95,
) -> Regimes:
    """Fit the decay laws to a curve and weigh them by AICc.

    Parameters
    ----------
    lags
        Lags, axis ``lag``.
    values, log10_values
        The curve, or its decimal logarithm (exactly one of them); the logarithm keeps 1e-400 apart from 0.
    errors
        Standard errors in the units of the curve that was passed. They give relative weights (the residual
        scale is estimated as well), and a point not above two of its errors is noise and left out.
    floor
        Noise floor, a number or one a lag, in the units of the curve that was passed. Without it only values
        that are not positive are under the floor.
    laws
        Which of "exponential", "power", "logarithmic", "stretched" to compare. No law is named from fewer points than the
        one with the most parameters needs: six for all four.
    confidence
        Of the parameter intervals.

    Examples
    --------
    >>> import numpy as np
    >>> lags = np.arange(1, 65)
    >>> regimes = fit_regimes(lags, 3.0 * np.exp(-lags / 12.0))
    >>> regimes.best.law, round(regimes.best.params["tau"], 9)
    ('exponential', 12.0)
    >>> regimes = fit_regimes(lags, log10_values=-200.0 - np.log10(lags))
    >>> regimes.best.law, round(regimes.best.params["beta"], 9)
    ('power', 1.0)
    """
    if not 0 < confidence < 1:
        raise InputError("confidence must lie strictly between 0 and 1", got=confidence)
    chosen = [find_law(name) for name in dict.fromkeys(laws)]
    if not chosen:
        raise InputError("no law to fit", got=list(laws), expected=", ".join(LAWS))
    curve = read_curve(lags, values, log10_values, errors, floor)
    # Laws are compared with each other: with points for the simplest alone, that one would win whatever the curve is.
    enough = np.unique(curve.lags).size >= max(_estimated(law) for law in chosen) + 2  # AICc needs n > k + 1
    fits = _weigh([_fit_law(law, curve, confidence) if enough else _unfitted(law) for law in chosen])
    status = Status.OK if fits[0].weight > 0 else fits[0].status
    return Regimes(fits, curve.lags.size, curve.n_lag_zero, curve.n_nonfinite, curve.n_floor, confidence, status)


def _estimated(law: Law) -> int:
    """Numbers that are estimated: the law's own, its prefactor and the residual variance."""
    return len(law.parameters) + 2


def _unfitted(law: Law, status: Status = Status.TOO_FEW_POINTS) -> LawFit:
    blank = dict.fromkeys(("log10_c", *law.parameters), np.nan)
    return LawFit(law.name, law.formula, blank, dict.fromkeys(blank, (np.nan, np.nan)), np.nan, np.inf, 0.0, status)


def _fit_law(law: Law, curve: FitPoints, confidence: Number) -> LawFit:
    n, n_estimated = curve.lags.size, _estimated(law)
    nothing = _unfitted(law, Status.NO_DECAY)
    # Below this the residuals are rounding of log f and do not tell laws apart.
    resolution = n * np.mean(curve.weights) * (16 * np.finfo(float).eps * np.max(np.abs(curve.log_f))) ** 2
    mean = np.average(curve.log_f, weights=curve.weights)
    total = float(np.sum(curve.weights * (curve.log_f - mean) ** 2))
    if total <= resolution:
        return nothing
    params, intervals, status = FITTERS[law.name](curve, confidence)
    if status is Status.NO_DECAY:
        return nothing
    residuals = curve.log_f - law.log_value(curve.lags, params)
    misfit = max(float(np.sum(curve.weights * residuals**2)), resolution)
    r2 = 1.0 - misfit / total
    if r2 <= 0:  # a constant describes the curve as well: no decay of this kind
        return nothing
    aicc = n * np.log(misfit / n) + 2 * n_estimated * n / (n - n_estimated - 1)
    return LawFit(law.name, law.formula, params, intervals, r2, float(aicc), 0.0, status)


def _weigh(fits: list[LawFit]) -> tuple[LawFit, ...]:
    aicc = np.array([fit.aicc for fit in fits])
    relative = np.exp(-0.5 * (aicc - aicc.min())) if np.isfinite(aicc.min()) else np.zeros(len(fits))
    weights = relative / max(relative.sum(), 1.0)  # the best law alone contributes 1
    weighed = [
        LawFit(f.law, f.formula, f.params, f.intervals, f.r2, f.aicc, float(w), f.status)
        for f, w in zip(fits, weights, strict=True)
    ]
    return tuple(sorted(weighed, key=lambda fit: fit.aicc))
