"""One row of numbers for each diagnosis of a run: what claims are tested on and figures are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lagreach.diagnosis.result import Diagnosis
from lagreach.papers.livi.printed_window import PaperWindow
from lagreach.regimes import fit_regimes
from lagreach.regimes.spectrum import timescales
from lagreach.study.tables import Row

SHORT_NAMES = {"required_if_present": "n_probe", "required": "n_data"}
LEAST_POINTS = 3  # for a slope


def shape(prefix: str, lags: np.ndarray, log10_values: np.ndarray) -> Row:
    """Fit exponential and power laws to a curve: time constant, exponent, r2, and which is preferred."""
    fits = fit_regimes(lags, log10_values=log10_values)
    exponential, power, best = fits["exponential"], fits["power"], fits.best
    return {
        f"{prefix}_tau": exponential.params.get("tau", np.nan),
        f"{prefix}_tau_r2": exponential.r2,
        f"{prefix}_beta": power.params.get("beta", np.nan),
        f"{prefix}_beta_r2": power.r2,
        f"{prefix}_exponential_weight": _weight(exponential, power),
        f"{prefix}_law": "none" if best is None else best.law,
    }


def _weight(one: Any, other: Any) -> float:
    """Weight of one law against the other alone."""
    total = one.weight + other.weight
    return float(one.weight / total) if total > 0 else np.nan


def slope(log_f: np.ndarray, log_n: np.ndarray) -> Row:
    """Slope of log N against -log f over the lags where both are finite, with a 95 % interval."""
    from scipy.stats import linregress, t

    use = np.isfinite(log_f) & np.isfinite(log_n)
    if use.sum() < LEAST_POINTS or np.ptp(log_f[use]) == 0:
        return dict.fromkeys(("slope", "slope_low", "slope_high", "slope_r2"), np.nan)
    line = linregress(-log_f[use], log_n[use])
    half = t.ppf(0.975, max(1, use.sum() - 2)) * line.stderr
    numbers = (line.slope, line.slope - half, line.slope + half, line.rvalue**2)
    return dict(zip(("slope", "slope_low", "slope_high", "slope_r2"), map(float, numbers), strict=True))


def summarise(diagnosis: Diagnosis, budgets: Sequence[int]) -> Row:
    """Numbers of one diagnosis of a GatedRNN."""
    layer = diagnosis.layers[0]
    window, lags = layer.window, layer.window.lags
    probe = window.required_if_present()
    exact = layer.fidelity.log10_exact.numpy()
    row: Row = dict(diagnosis.labels) | {
        "lags": lags.tolist(),
        "windows": [_reach(window.at(n).lag) for n in budgets],
        "alpha": layer.tail.alpha,
        "alpha_low": layer.tail.interval[0],
        "alpha_high": layer.tail.interval[1],
        "stable_supported": layer.tail.stable_supported,
        "kappa": window.concentration.exponent,
        "kappa_status": window.concentration.status.name,
        "verdict": layer.fidelity.verdict,
    }
    for curve in window.curves.values():
        row |= {_column(name): values.tolist() for name, values in curve.numbers.items()}
    row |= shape("exact", lags, exact)
    carried = layer.fidelity.log10_first_order.numpy() if window.settings["transport"] == "first-order" else exact
    with np.errstate(divide="ignore"):
        row |= slope(np.log(10.0) * carried, np.log(probe.sequences))
    if layer.rates is not None:
        rates = layer.rates
        rate_lags = rates.lags.numpy()
        retention = rates.log10_channels["retention"].numpy()
        row |= shape("retention", rate_lags, _log10_sum(retention)) | shape(
            "first_order", rate_lags, rates.log10_envelope.numpy()
        )
        tau = timescales(rate_lags, log10_rates=retention).tau
        row |= {
            "log10_envelope": rates.log10_envelope.tolist(),
            "log10_retention": _log10_sum(retention).tolist(),
            "time_scales": tau.tolist(),
        }
    return row


def _column(name: str) -> str:
    """Name of a curve's numbers in the tables of a study, where N has had short names from the start."""
    for curve, short in SHORT_NAMES.items():
        if name == curve or (name.startswith(f"{curve}_") and curve != "required"):
            return short + name.removeprefix(curve)
    return name


def _log10_sum(log10_values: np.ndarray) -> np.ndarray:
    """Sum over units, in logarithms."""
    top = log10_values.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.log10(np.power(10.0, log10_values - top).sum(-1)) + top[..., 0]


def _reach(lag: int | None) -> float:
    return np.nan if lag is None else float(lag)


def summarise_paper(labels: Row, printed: PaperWindow, budgets: Sequence[int]) -> Row:
    """Numbers of the printed recipe."""
    with np.errstate(divide="ignore"):
        log_f, log_n = np.log(printed.envelope), np.log(printed.sequences)
    return (
        labels
        | {
            "lags": printed.lags.tolist(),
            "log10_envelope": (log_f / np.log(10.0)).tolist(),
            "n_data": printed.sequences.tolist(),
            "windows": [printed.window(n) for n in budgets],
            "alpha": printed.alpha,
            "hill": printed.hill,
        }
        | slope(log_f, log_n)
    )
