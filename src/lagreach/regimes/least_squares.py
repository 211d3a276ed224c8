"""Least squares of each decay law on the logarithm of a curve: what `lagreach.regimes.fit_regimes` runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lagreach._util.arrays import Array, Number, Numbers
from lagreach.errors import InputError
from lagreach.regimes.laws import LN10, check_lags, log_values
from lagreach.types import Status

Interval = tuple[float, float]
Fitted = tuple[dict[str, float], dict[str, Interval], Status]

# The stretched exponent is searched in this range. Towards 0 the law turns into a power law, above 4 into
# a step; at either end it says no more than "another law".
_STRETCH_RANGE = (0.05, 4.0)


@dataclass(frozen=True)
class FitPoints:
    """The points that enter a fit (axis ``lag``), as log f with weights, and counts of those that do not."""

    lags: Array
    log_f: Array
    weights: Array
    n_lag_zero: int
    n_nonfinite: int
    n_floor: int


def read_curve(
    lags: Numbers,
    values: Numbers | None,
    log10_values: Numbers | None,
    errors: Numbers | None,
    floor: Numbers | None,
) -> FitPoints:
    """Set aside what is not signal; arguments as in `lagreach.regimes.fit_regimes`."""
    log_f = log_values(values, log10_values, "values")
    if log_f.ndim != 1:
        raise InputError("a curve has one axis", got=f"shape {log_f.shape}", expected="(lag,)")
    checked = check_lags(lags, log_f.size)
    shown = np.asarray(log10_values if values is None else values, dtype=np.float64)
    # a curve given as log10 may say -inf for an exact zero: that is under the floor, not a failure
    finite = np.isfinite(shown) | ((values is None) & np.isneginf(shown))
    above = np.isfinite(log_f)
    if floor is not None:
        above &= shown > _per_lag(floor, shown, "floor")
    weights = np.ones_like(shown)
    if errors is not None:
        spread = _per_lag(errors, shown, "errors")
        if not np.all(spread > 0):
            raise InputError("standard errors must be positive", got=errors, fix="leave out lags without one")
        # standard error of log f: delta method for values, change of base for log10_values
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = spread * LN10 if values is None else spread / shown
        weights = 1.0 / relative**2
        above &= shown > 2 * spread if values is not None else relative < 0.5
    kept = finite & above & (checked > 0)
    return FitPoints(
        checked[kept],
        log_f[kept],
        weights[kept],
        n_lag_zero=int(np.sum(checked == 0)),
        n_nonfinite=int(np.sum(~finite & (checked > 0))),
        n_floor=int(np.sum(finite & ~above & (checked > 0))),
    )


def _per_lag(values: Numbers, like: Array, name: str) -> Array:
    spread = np.asarray(values, dtype=np.float64)
    if spread.shape not in ((), like.shape) or np.any(np.isnan(spread)):
        raise InputError(f"{name} must be one number, or one a lag, without NaN", got=f"shape {spread.shape}")
    return np.broadcast_to(spread, like.shape)


def _straight_line(curve: FitPoints, regressor: Array, confidence: Number) -> tuple[Array, Array]:
    """Weighted least squares of log f on (1, regressor): coefficients and half widths of their intervals."""
    design = np.stack([np.ones_like(regressor), regressor], axis=1)
    return _least_squares(curve, design, curve.log_f, confidence)


def _least_squares(curve: FitPoints, design: Array, response: Array, confidence: Number) -> tuple[Array, Array]:
    from scipy.special import stdtrit

    root = np.sqrt(curve.weights)
    orthogonal, triangular = np.linalg.qr(design * root[:, None])
    coefficients = np.linalg.solve(triangular, orthogonal.T @ (response * root))
    residuals = (response - design @ coefficients) * root
    freedom = response.size - design.shape[1]
    inverse = np.linalg.inv(triangular)
    spread = np.sqrt(np.sum(residuals**2) / freedom * np.sum(inverse**2, axis=1))
    return coefficients, spread * stdtrit(freedom, 0.5 + 0.5 * confidence)


def _log10_interval(log_c: float, half_width: float) -> Interval:
    return float((log_c - half_width) / LN10), float((log_c + half_width) / LN10)


def _fit_exponential(curve: FitPoints, confidence: Number) -> Fitted:
    (log_c, slope), (dc, ds) = _straight_line(curve, curve.lags, confidence)
    if slope >= 0:
        return {}, {}, Status.NO_DECAY
    longest = -1.0 / (slope + ds) if slope + ds < 0 else np.inf
    params = {"log10_c": float(log_c / LN10), "tau": float(-1.0 / slope)}
    intervals = {"log10_c": _log10_interval(log_c, dc), "tau": (float(-1.0 / (slope - ds)), float(longest))}
    return params, intervals, Status.OK


def _fit_power(curve: FitPoints, confidence: Number) -> Fitted:
    (log_c, slope), (dc, ds) = _straight_line(curve, np.log(curve.lags), confidence)
    if slope >= 0:
        return {}, {}, Status.NO_DECAY
    params = {"log10_c": float(log_c / LN10), "beta": float(-slope)}
    intervals = {"log10_c": _log10_interval(log_c, dc), "beta": (float(-slope - ds), float(-slope + ds))}
    return params, intervals, Status.OK


def _fit_logarithmic(curve: FitPoints, confidence: Number) -> Fitted:
    response = curve.log_f + np.log(np.log1p(curve.lags))
    (log_c,), (dc,) = _least_squares(curve, np.ones((curve.lags.size, 1)), response, confidence)
    return {"log10_c": float(log_c / LN10)}, {"log10_c": _log10_interval(log_c, dc)}, Status.OK


def _fit_stretched(curve: FitPoints, confidence: Number) -> Fitted:
    """Profile the exponent on a grid, then polish (log c, log tau, log b) by Gauss-Newton."""
    top = curve.lags.max()
    grid = np.geomspace(*_STRETCH_RANGE, 120)
    regressor = (curve.lags / top) ** grid[:, None]
    weights = curve.weights / curve.weights.sum()
    dx = regressor - (regressor @ weights)[:, None]
    dy = curve.log_f - curve.log_f @ weights
    slopes = (dx * dy) @ weights / (dx**2 @ weights)
    misfit = np.where(slopes < 0, (dy - slopes[:, None] * dx) ** 2 @ weights, np.inf)
    at = int(np.argmin(misfit))
    if not np.isfinite(misfit[at]):
        return {}, {}, Status.NO_DECAY
    slope = slopes[at]
    log_c = curve.log_f @ weights - slope * (regressor[at] @ weights)
    theta = np.array([log_c, np.log(top) - np.log(-slope) / grid[at], np.log(grid[at])])
    at_edge = at in (0, grid.size - 1)
    if not at_edge:
        theta = _polish(curve, theta)
    log_c, log_tau, log_b = (float(value) for value in theta)
    params = {"log10_c": log_c / LN10, "tau": float(np.exp(log_tau)), "b": float(np.exp(log_b))}
    if at_edge:
        return params, dict.fromkeys(params, (np.nan, np.nan)), Status.SHAPE_AT_EDGE
    model, jacobian = _stretched_model(curve.lags, theta)
    _, (dc, dt, db) = _least_squares(curve, jacobian, curve.log_f - model, confidence)
    with np.errstate(over="ignore"):  # an end beyond all numbers is infinite
        intervals = {
            "log10_c": _log10_interval(log_c, dc),
            "tau": (float(np.exp(log_tau - dt)), float(np.exp(log_tau + dt))),
            "b": (float(np.exp(log_b - db)), float(np.exp(log_b + db))),
        }
    return params, intervals, Status.OK


def _stretched_model(lags: Array, theta: Array) -> tuple[Array, Array]:
    """Compute log f and its derivatives with respect to (log c, log tau, log b)."""
    b = np.exp(theta[2])
    log_ratio = np.log(lags) - theta[1]
    depth = np.exp(b * log_ratio)
    return theta[0] - depth, np.stack([np.ones_like(lags), b * depth, -b * log_ratio * depth], axis=1)


def _polish(curve: FitPoints, theta: Array) -> Array:
    root = np.sqrt(curve.weights)

    def misfit(at: Array) -> float:
        with np.errstate(over="ignore"):  # a step too far misfits without bounds, and is halved
            return float(np.sum((root * (curve.log_f - _stretched_model(curve.lags, at)[0])) ** 2))

    current = misfit(theta)
    for _ in range(60):
        model, jacobian = _stretched_model(curve.lags, theta)
        step = np.linalg.lstsq(jacobian * root[:, None], root * (curve.log_f - model), rcond=None)[0]
        while (trial := misfit(theta + step)) >= current:
            step = step / 2
            if np.max(np.abs(step)) < 1e-15:
                return theta
        theta, current = theta + step, trial
    return theta


FITTERS = {
    "exponential": _fit_exponential,
    "power": _fit_power,
    "logarithmic": _fit_logarithmic,
    "stretched": _fit_stretched,
}
