"""Time scales of single units and their spectrum. Import the public names from `lagreach.regimes`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lagreach._util.arrays import Array, Number, Numbers
from lagreach.errors import InputError
from lagreach.regimes.laws import check_lags, log_values
from lagreach.types import Status

_LEAST_POINTS = 4  # two parameters, and two points left to disagree with them
_LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class TimeScales:
    """Time scale tau_q of each unit, axis ``unit``.

    Attributes
    ----------
    tau
        Lags over which the unit's rate falls by a factor e; NaN where ``status`` says why.
    r2
        Of the straight line through log rate, per unit.
    n_points
        Points used per unit.
    status
        One `Status` a unit.
    """

    tau: Array
    r2: Array
    n_points: NDArray[np.int64]
    status: tuple[Status, ...]

    def spectrum(self, weights: Numbers | None = None) -> Spectrum:
        """Summary of the finite time scales; see `spectrum_summary`."""
        return spectrum_summary(self.tau, weights)

    def __str__(self) -> str:
        lines = [f"time scales of {self.tau.size} units"]
        for status in dict.fromkeys(self.status):
            if status is not Status.OK:
                lines.append(f"{self.status.count(status)} units without one: {status}")
        if np.any(np.isfinite(self.tau)):
            lines.append(str(self.spectrum()))
        return "\n".join(lines)


def timescales(
    lags: Numbers,
    rates: Numbers | None = None,
    *,
    log10_rates: Numbers | None = None,
    floor: Number | None = None,
) -> TimeScales:
    """Time scale of each unit from an exponential fit of its effective learning rate ``|mu_q(lag)|``.

    Parameters
    ----------
    lags
        Axis ``lag``; lag 0 is used like any other.
    rates, log10_rates
        Magnitudes, axes ``(lag, unit)``, or their decimal logarithm (exactly one of them). Values that are
        not positive or not finite are left out, unit by unit.
    floor
        Values at or below it are left out; in the units of what was passed.

    Examples
    --------
    >>> import numpy as np
    >>> lags = np.arange(8)
    >>> scales = timescales(lags, np.exp(-lags[:, None] / np.array([3.0, 50.0, np.inf])))
    >>> scales.tau.round(9).tolist()
    [3.0, 50.0, nan]
    >>> scales.status[2].name
    'NO_DECAY'
    """
    y = log_values(rates, log10_rates, "rates")
    if y.ndim != 2 or y.shape[1] == 0:
        raise InputError("rates need two axes", got=f"shape {y.shape}", expected="(lag, unit)")
    x = check_lags(lags, y.shape[0])[:, None]
    keep = np.isfinite(y)
    if floor is not None:
        shown = np.asarray(log10_rates if rates is None else rates, dtype=np.float64)
        keep &= shown > floor
    n = keep.sum(axis=0)
    safe = np.where(keep, y, 0.0)
    count = np.maximum(n, 1)
    x_mean = np.sum(np.where(keep, x, 0.0), axis=0) / count
    y_mean = safe.sum(axis=0) / count
    dx = np.where(keep, x - x_mean, 0.0)
    dy = np.where(keep, y - y_mean, 0.0) if y.size else safe
    sxx, sxy, syy = (dx**2).sum(axis=0), (dx * dy).sum(axis=0), (dy**2).sum(axis=0)

    enough = (n >= _LEAST_POINTS) & (sxx > 0)
    # a fall of log rate that is only rounding is no decay
    rounding = 16 * np.finfo(float).eps * np.max(np.abs(np.where(keep, y, 0.0)), axis=0)
    decays = enough & (sxy < 0) & (np.sqrt(syy / count) > rounding)
    tau, r2 = np.full(n.shape, np.nan), np.full(n.shape, np.nan)
    tau[decays] = -sxx[decays] / sxy[decays]
    r2[decays] = sxy[decays] ** 2 / (sxx[decays] * syy[decays])
    status = tuple(
        Status.OK if good else Status.NO_DECAY if many else Status.TOO_FEW_POINTS
        for good, many in zip(decays, enough, strict=True)
    )
    return TimeScales(tau, r2, n.astype(np.int64), status)


@dataclass(frozen=True)
class Spectrum:
    """How time scales are spread.

    Attributes
    ----------
    quantiles
        Weighted quantiles of tau at levels 0 (shortest), .1, .25, .5, .75, .9, 1 (longest).
    entropy
        Shannon entropy, in nats, of the weights over octave bins [2^k, 2^(k+1)).
    effective_number
        exp(entropy): the number of equally filled octaves with the same entropy. 1 means that all units
        share one time scale (to within a factor 2), k that they are spread like k distinct ones.
    n_units, n_missing
        Units with and without a time scale.
    """

    quantiles: dict[float, float]
    entropy: float
    effective_number: float
    n_units: int
    n_missing: int

    def __str__(self) -> str:
        low, mid, high = (self.quantiles[level] for level in (0.1, 0.5, 0.9))
        return (
            f"{self.n_units} time scales: median {mid:.3g}, 10-90 % {low:.3g}..{high:.3g}, "
            f"longest {self.quantiles[1.0]:.3g}; effective number {self.effective_number:.2f} "
            f"(octaves, entropy {self.entropy:.2f} nats)"
        )


def spectrum_summary(tau: Numbers, weights: Numbers | None = None) -> Spectrum:
    """Quantiles, entropy and effective number of time scales.

    The bins are octaves with edges at powers of two: fixed, so that checkpoints and networks compare.

    Parameters
    ----------
    tau
        Time scales, axis ``unit``; NaN means that the unit has none and is only counted.
    weights
        Importance of each unit (not negative); equal by default.

    Examples
    --------
    >>> spectrum = spectrum_summary([1.5, 1.7, 20.0, 25.0, 300.0, 310.0])
    >>> round(spectrum.effective_number, 9)
    3.0
    """
    scales = np.asarray(tau, dtype=np.float64)
    share = np.ones(scales.shape) if weights is None else np.asarray(weights, dtype=np.float64)
    if scales.ndim != 1 or share.shape != scales.shape:
        raise InputError(
            "one weight a time scale",
            got=f"{share.shape} weights for {scales.shape} scales",
            expected="as many of one as of the other",
        )
    present = np.isfinite(scales)
    if np.any(scales[present] <= 0) or np.any(np.isinf(scales)):
        raise InputError("time scales must be positive; NaN for units without one", got=scales.tolist())
    if not np.all(np.isfinite(share)) or np.any(share < 0) or share[present].sum() <= 0:
        raise InputError(
            "no unit with a time scale and a positive weight",
            got=f"{int(present.sum())} finite time scales",
            fix="check the status of each unit in timescales(...)",
        )
    scales, share = scales[present], share[present] / share[present].sum()
    _, octave = np.unique(np.floor(np.log2(scales)), return_inverse=True)
    filled = np.bincount(octave, weights=share)
    filled = filled[filled > 0]
    entropy = float(-np.sum(filled * np.log(filled)))
    order = np.argsort(scales)
    # mid-point positions, so that equal weights give the usual symmetric quantiles
    position = np.cumsum(share[order]) - 0.5 * share[order]
    quantiles = {level: float(np.interp(level, position, scales[order])) for level in _LEVELS}
    missing = int(present.size - present.sum())
    return Spectrum(quantiles, max(entropy, 0.0), float(np.exp(max(entropy, 0.0))), scales.size, missing)
