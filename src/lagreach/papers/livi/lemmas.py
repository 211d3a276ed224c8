"""Where the paper's lemmas hold, and where they do not. Import the public names from `lagreach.regimes`.

Nothing else in the package assumes these statements: trained networks break them, so they are reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lagreach._util.arrays import Array, Number, Numbers
from lagreach.errors import InputError
from lagreach.regimes.laws import LN10, WindowGrowth, check_lags, log_values
from lagreach.types import Status

Bounds = tuple[Number, Number]


def _listed(lags: Array, most: int = 8) -> str:
    shown = ", ".join(f"{lag:g}" for lag in lags[:most])
    return shown + (f", ... ({lags.size} in all)" if lags.size > most else "")


@dataclass(frozen=True)
class GrowthCheck:
    """A computed window curve beside the growth law of its envelope.

    Attributes
    ----------
    sequences, computed, predicted
        Axis of the numbers of sequences; NaN where not even lag 1 is within reach.
    agrees
        Per number of sequences; points beyond the longest computed lag (``censored``) count as agreeing.
    censored
        Where the law predicts a window that the computed lags cannot show.
    status
        OK or GROWTH_DIFFERS.
    """

    sequences: Array
    computed: Array
    predicted: Array
    agrees: NDArray[np.bool_]
    censored: NDArray[np.bool_]
    status: Status

    @property
    def holds(self) -> bool:
        """Whether law and computation agree wherever they can be compared."""
        return bool(self.agrees.all())

    def __str__(self) -> str:
        lines = [f"growth law against the computed window: {self.status}"]
        for n, computed, predicted, agrees, censored in zip(
            self.sequences, self.computed, self.predicted, self.agrees, self.censored, strict=True
        ):
            word = "beyond the computed lags" if censored else "" if agrees else "differs"
            lines.append(f"  N = {n:<10.4g} computed {computed:>8.4g}   law {predicted:>8.4g}   {word}".rstrip())
        return "\n".join(lines)


def check_growth(
    growth: WindowGrowth,
    sequences: Numbers,
    windows: Numbers,
    *,
    max_lag: Number = np.inf,
    tolerance: Number = 0.1,
) -> GrowthCheck:
    """Compare a computed curve H_N with the envelope's growth law.

    The law takes signal strength and noise as equal at all lags; where it fails, they are not.

    Parameters
    ----------
    growth
        From `window_growth` or `LawFit.growth`.
    sequences, windows
        Numbers of sequences and the windows computed for them (None or NaN: not even lag 1).
    max_lag
        Longest lag that was computed; predictions beyond it cannot be compared.
    tolerance
        Agreement means within one lag or within this share of the prediction, whichever is more. Raise it to
        the spacing of a coarse lag grid.
    """
    n = np.asarray(sequences, dtype=np.float64)
    computed = np.array([np.nan if w is None else w for w in np.ravel(np.asarray(windows, dtype=object))], float)
    if n.ndim != 1 or n.shape != computed.shape or n.size == 0:
        raise InputError(
            "one window a number of sequences",
            got=f"{computed.shape} windows for {n.shape} sequences",
            expected="as many of one as of the other",
        )
    if not tolerance >= 0:
        raise InputError("tolerance must not be negative", got=tolerance)
    predicted = growth.at(n)
    censored = (predicted > max_lag) | np.isinf(predicted)
    both_none = np.isnan(predicted) & np.isnan(computed)
    # lag 0 stands for "no window" on one side only when the other is at most one lag away from it
    law = np.where(np.isfinite(predicted), predicted, 0.0)
    gap = np.abs(np.where(np.isnan(computed), 0.0, computed) - law)
    slack = np.maximum(1.0, tolerance * law)
    agrees = both_none | censored | (gap <= slack)
    status = Status.OK if agrees.all() else Status.GROWTH_DIFFERS
    return GrowthCheck(n, computed, predicted, agrees, censored, status)


@dataclass(frozen=True)
class MonotoneCheck:
    """Where an envelope rises with the lag, against Lemma 5.1.

    Attributes
    ----------
    rise_from, rise_to, rise_factor
        Neighbouring lags between which the envelope rises, and by what factor; empty when the lemma holds.
    largest_rise
        Largest ratio of f(l2) to f(l1) over all l1 < l2: 1 or less when the lemma holds.
    status
        OK or NOT_MONOTONE.
    """

    rise_from: Array
    rise_to: Array
    rise_factor: Array
    largest_rise: float
    status: Status

    @property
    def holds(self) -> bool:
        """Whether the envelope never rises by more than the tolerance."""
        return self.status is Status.OK

    def __str__(self) -> str:
        if self.holds:
            return "Lemma 5.1 holds: the envelope never rises with the lag"
        worst = int(np.argmax(self.rise_factor))
        return (
            f"Lemma 5.1 fails after lags {_listed(self.rise_from)}; steepest {self.rise_from[worst]:g} -> "
            f"{self.rise_to[worst]:g} by a factor {self.rise_factor[worst]:.4g}, "
            f"{self.largest_rise:.4g} over any distance\n{self.status}"
        )


def check_monotone(
    lags: Numbers,
    envelope: Numbers | None = None,
    *,
    log10_envelope: Numbers | None = None,
    tolerance: Number = 0.0,
) -> MonotoneCheck:
    """Lemma 5.1, "f does not increase with the lag", as a report of where it does.

    The proof assumes non-negative corrections; with signed recurrent weights, or at first order beyond small
    corrections, f can rise.

    Parameters
    ----------
    lags
        In any order.
    envelope, log10_envelope
        Positive values (exactly one of them).
    tolerance
        Relative rise that still counts as none, for instance the envelope's own error.

    Examples
    --------
    >>> print(check_monotone([1, 2, 4, 8], [1.0, 0.5, 0.6, 0.1]).rise_from)
    [2.]
    """
    log_f = log_values(envelope, log10_envelope, "envelope")
    x, log_f = _sorted_curve(lags, log_f, "the envelope")
    if not tolerance >= 0:
        raise InputError("tolerance must not be negative", got=tolerance)
    rise = np.diff(log_f)
    up = rise > np.log1p(tolerance)
    over_any = log_f[1:] - np.minimum.accumulate(log_f[:-1])
    largest = float(np.exp(over_any.max()))
    # many small steps may add up to a rise that no single one shows
    status = Status.NOT_MONOTONE if np.any(over_any > np.log1p(tolerance)) else Status.OK
    if status is Status.NOT_MONOTONE and not up.any():
        up = rise > 0
    return MonotoneCheck(x[:-1][up], x[1:][up], np.exp(rise[up]), largest, status)


def _sorted_curve(lags: Numbers, log_f: Array, what: str) -> tuple[Array, Array]:
    if log_f.ndim != 1 or log_f.size < 2:
        raise InputError(f"{what} needs at least two lags", got=f"shape {log_f.shape}", expected="(lag,)")
    x = check_lags(lags, log_f.size)
    if not np.all(np.isfinite(log_f)):
        raise InputError(
            f"{what} must be positive and finite",
            got=f"bad at lags {_listed(x[~np.isfinite(log_f)])}",
            fix="pass log10 values, or only the lags above the noise floor",
        )
    order = np.argsort(x, kind="stable")
    return x[order], log_f[order]


@dataclass(frozen=True)
class SandwichCheck:
    """Lemma 5.2 on measured curves: c_* f^-kappa <= N(lag) <= C_* f^-kappa, inequality (38).

    Attributes
    ----------
    lags, log10_envelope
        The curve, sorted.
    lower_constant, upper_constant
        c_* and C_*.
    sigma_bounds, alignment_bounds
        (c_sigma, C_sigma) and (c_m, C_m) that they were made from.
    premise_fails_at
        Lags whose noise or alignment leave those bounds.
    bounds_fail_at
        Lags whose N(lag) leaves the bounds of (38).
    noise_slope
        d log sigma / d log f over the lags: 0 when the noise does not care about the envelope, as the lemma
        needs; 1 when it shrinks with it, and N(lag) then does not depend on f at all.
    status
        OK, SANDWICH_PREMISE_FAILS, SANDWICH_FAILS or SANDWICH_EMPTY, the first that applies.
    """

    lags: Array
    log10_envelope: Array
    exponent: float
    lower_constant: float
    upper_constant: float
    sigma_bounds: Bounds
    alignment_bounds: Bounds
    premise_fails_at: Array
    bounds_fail_at: Array
    noise_slope: float
    status: Status

    @property
    def holds(self) -> bool:
        """Whether premise and bounds hold and say something."""
        return self.status is Status.OK

    def window_bounds(self, sequences: Number) -> tuple[float, float]:
        """Lower and upper bound on H_N, inequality (39) with the constant that the printed form drops.

        NaN where no computed lag is inside the bound.
        """
        if not sequences > 0:
            raise InputError("the number of sequences must be positive", got=sequences)

        def largest_lag(constant: float) -> float:
            seen = self.log10_envelope >= np.log10(constant / sequences) / self.exponent
            return float(self.lags[seen].max()) if seen.any() else np.nan

        return largest_lag(self.upper_constant), largest_lag(self.lower_constant)

    def __str__(self) -> str:
        lines = [
            f"Lemma 5.2 over {self.lags.size} lags, exponent {self.exponent:.4g}: {self.status}",
            f"  c_* = {self.lower_constant:.4g}, C_* = {self.upper_constant:.4g} "
            f"(apart by {self.upper_constant / self.lower_constant:.3g}x)",
            f"  noise in [{self.sigma_bounds[0]:.4g}, {self.sigma_bounds[1]:.4g}], alignment in "
            f"[{self.alignment_bounds[0]:.4g}, {self.alignment_bounds[1]:.4g}], "
            f"d log sigma / d log f = {self.noise_slope:.2f}",
        ]
        if self.premise_fails_at.size:
            lines.append(f"  premise fails at lags {_listed(self.premise_fails_at)}")
        if self.bounds_fail_at.size:
            lines.append(f"  bounds fail at lags {_listed(self.bounds_fail_at)}")
        return "\n".join(lines)


def check_sandwich(
    lags: Numbers,
    envelope: Numbers | None = None,
    *,
    log10_envelope: Numbers | None = None,
    sigma: Numbers,
    alignment: Numbers,
    required: Numbers,
    exponent: Number,
    constant: Number,
    sigma_bounds: Bounds | None = None,
    alignment_bounds: Bounds | None = None,
) -> SandwichCheck:
    """Lemma 5.2, N(lag) between multiples of f(lag)^-kappa, as a report of where it fails.

    Parameters
    ----------
    lags, envelope, log10_envelope
        The envelope f (or its log10).
    sigma, alignment
        Noise scale sigma(lag) and alignment m(lag) = Delta(lag)/f(lag), one number or one a lag.
    required
        N(lag) to be checked; inf where a lag was not found (such lags cannot be bounded and fail).
    exponent, constant
        N = constant (sigma/(m f))^exponent, equation (37): ``exponent`` is kappa (alpha for v1) and
        ``constant`` is ``required_sequences(1, 1, ...)``.
    sigma_bounds, alignment_bounds
        (c_sigma, C_sigma) and (c_m, C_m) assumed beforehand. By default the extremes over these lags: then
        the premise holds by construction, and what is left to ask is whether the bounds say anything.

    Examples
    --------
    >>> import numpy as np
    >>> lags = np.array([1.0, 2, 4, 8, 16])
    >>> f = 1 / lags
    >>> equal = check_sandwich(lags, f, sigma=1.0, alignment=1.0, required=1 / f**2, exponent=2, constant=1)
    >>> print(equal.status)
    ok
    >>> shrinking = check_sandwich(lags, f, sigma=f, alignment=1.0, required=1.0, exponent=2, constant=1)
    >>> shrinking.status.name, round(shrinking.noise_slope, 9)
    ('SANDWICH_EMPTY', 1.0)
    """
    raw = log_values(envelope, log10_envelope, "envelope")
    x, log_f = _sorted_curve(lags, raw, "the envelope")
    order = np.argsort(np.asarray(lags, dtype=np.float64), kind="stable")
    log_sigma = _log_positive(sigma, raw.size, "sigma")[order]
    log_m = _log_positive(alignment, raw.size, "alignment")[order]
    log_n = _log_positive(required, raw.size, "required", infinite=True)[order]
    if not (np.isfinite(exponent) and exponent > 0 and np.isfinite(constant) and constant > 0):
        raise InputError("exponent and constant must be positive", got=(exponent, constant))
    s_low, s_high = _log_bounds(sigma_bounds, log_sigma, "sigma_bounds")
    m_low, m_high = _log_bounds(alignment_bounds, log_m, "alignment_bounds")
    log_lower = np.log(constant) + exponent * (s_low - m_high)
    log_upper = np.log(constant) + exponent * (s_high - m_low)

    rounding = 1e-9  # in log N: products of rounded logarithms, far below any statistical meaning
    premise = (log_sigma >= s_low) & (log_sigma <= s_high) & (log_m >= m_low) & (log_m <= m_high)
    scaled = log_n + exponent * log_f
    inside = (scaled >= log_lower - rounding) & (scaled <= log_upper + rounding)
    centred = log_f - log_f.mean()
    slope = float(np.sum(centred * log_sigma) / np.sum(centred**2)) if np.any(centred) else np.nan
    if not premise.all():
        status = Status.SANDWICH_PREMISE_FAILS
    elif not inside.all():
        status = Status.SANDWICH_FAILS
    elif log_upper - log_lower >= exponent * np.ptp(log_f):
        status = Status.SANDWICH_EMPTY
    else:
        status = Status.OK
    with np.errstate(over="ignore", under="ignore"):
        return SandwichCheck(
            lags=x,
            log10_envelope=log_f / LN10,
            exponent=float(exponent),
            lower_constant=float(np.exp(log_lower)),
            upper_constant=float(np.exp(log_upper)),
            sigma_bounds=(float(np.exp(s_low)), float(np.exp(s_high))),
            alignment_bounds=(float(np.exp(m_low)), float(np.exp(m_high))),
            premise_fails_at=x[~premise],
            bounds_fail_at=x[~inside],
            noise_slope=slope,
            status=status,
        )


def _log_positive(numbers: Numbers, size: int, name: str, *, infinite: bool = False) -> Array:
    values = np.asarray(numbers, dtype=np.float64)
    if values.shape not in ((), (size,)):
        raise InputError(f"{name} must be one number or one a lag", got=f"shape {values.shape}")
    if np.any(np.isnan(values)) or np.any(values <= 0) or (not infinite and np.any(np.isinf(values))):
        raise InputError(f"{name} must be positive", got=values.tolist())
    return np.broadcast_to(np.log(values), (size,))


def _log_bounds(bounds: Bounds | None, log_values_: Array, name: str) -> Bounds:
    if bounds is None:
        return float(log_values_.min()), float(log_values_.max())
    low, high = bounds
    if not 0 < low <= high < np.inf:
        raise InputError(f"{name} must be two positive numbers, the smaller first", got=bounds)
    return float(np.log(low)), float(np.log(high))
