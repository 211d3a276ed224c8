"""The numbers behind the page: everything its figures and sliders need, as plain JSON.

Numbers that are not finite travel as the words "@inf", "@-inf" and "@nan", which JSON has no numbers for; a text that
starts with @ gets another one in front.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lagreach.advice.what_if import measured_exponent
from lagreach.detection.law import block_size
from lagreach.diagnosis.result import Diagnosis, LayerDiagnosis
from lagreach.diagnosis.window import Requirement
from lagreach.forecasting.limits import LIMITS
from lagreach.report.forecast_figure import BRIEFLY, LEARNED
from lagreach.report.pictures import lines, logarithmic, pictures
from lagreach.report.recovered import Recovered
from lagreach.report.words import short, span, time_scales
from lagreach.statistics import LagCurve
from lagreach.types import Status

KAPPAS = (*np.round(np.arange(2.0, 4.0, 0.1), 1).tolist(), *np.arange(4.0, 11.25, 0.25).tolist())
FIT_POINTS = 80
MOST_NOISE = 20_000  # order statistics on one page, shared by all of its layers


def to_json(payload: Mapping[str, Any]) -> str:
    r"""Write JSON that can stand inside a script element: no tag or comment can start in it.

    >>> to_json({"name": "</script>", "n": [1.5, math.inf]})
    '{"name":"\\u003c/script\\u003e","n":[1.5,"@inf"]}'
    """
    text = json.dumps(_plain(payload), allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def make_payload(diagnoses: Sequence[Diagnosis], names: Sequence[str]) -> dict[str, Any]:
    """Everything the scripts of the page need, for one diagnosis or several."""
    errors = _errors(diagnoses)
    layers = sum(len(diagnosis.layers) for diagnosis in diagnoses)
    kept = max(32, MOST_NOISE // layers)
    return {
        "sliders": _sliders(diagnoses, errors),
        "logQuantiles": [_log_quantiles(kappa, errors) for kappa in KAPPAS],
        "status": {"empty": str(Status.WINDOW_EMPTY), "censored": str(Status.WINDOW_CENSORED), "ok": str(Status.OK)},
        "models": [
            {
                "name": name,
                "labels": dict(diagnosis.labels),
                "layers": [_layer(diagnosis, layer, errors, kept) for layer in diagnosis.layers],
            }
            for diagnosis, name in zip(diagnoses, names, strict=True)
        ],
    }


def bars_payload(bars: Recovered) -> dict[str, Any]:
    """Shares by lag and what binds, for the figure that a page opens with."""
    return {
        "lags": bars.named,
        "share": _rounded(bars.share),
        "low": _rounded(bars.low),
        "high": _rounded(bars.high),
        "words": bars.words,
        "inData": bars.in_data,
        "looks": [{"word": word, "name": BRIEFLY[word], "learned": word in LEARNED} for word in LIMITS],
    }


def _plain(value: Any) -> Any:
    """Lists, words and numbers only."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return f"@{value}"
    return f"@{value}" if isinstance(value, str) and value.startswith("@") else value


def _errors(diagnoses: Sequence[Diagnosis]) -> list[float]:
    """Errors that the slider offers, those of the diagnoses among them."""
    used = {layer.window.error for diagnosis in diagnoses for layer in diagnosis.layers}
    return sorted({*two_digits(np.geomspace(0.001, 0.3, 40)), *used})


def two_digits(values: Iterable[float]) -> list[float]:
    """Round to two digits: what a slider offers."""
    return [float(f"{value:.2g}") for value in values]


def _sliders(diagnoses: Sequence[Diagnosis], errors: list[float]) -> list[dict[str, Any]]:
    """Name, meaning, values and first position of every slider; None stands for what was measured."""
    sequences = min(diagnosis.sequences for diagnosis in diagnoses)
    strength = diagnoses[0].layers[0].window.strength
    budgets = sorted({*two_digits(np.geomspace(1, 1e8, 161)), float(sequences)})
    shares = sorted({*two_digits(np.geomspace(0.001, 1, 61)), strength})
    factors = [float(f"{value:.4g}") for value in np.geomspace(0.1, 10, 41)]
    rows: tuple[tuple[str, str, str, list[Any], Any], ...] = (
        ("sequences", "Sequences", "how many independent sequences there are", budgets, float(sequences)),
        ("strength", "Strength", "share of the target that the dependency explains", shares, strength),
        ("error", "Target error", "chance of a wrong answer, each way", [None, *errors], None),
        (
            "kappa",
            "Averages",
            "how slowly they settle: 2 is as usual, by the square root of their number",
            [None, *KAPPAS],
            None,
        ),
        ("noise", "Noise scale", "factor on the gradient noise of a sequence", factors, 1.0),
    )
    return [
        {"name": name, "title": title, "meaning": meaning, "values": values, "start": values.index(start)}
        for name, title, meaning, values, start in rows
    ]


def _log_quantiles(kappa: float, errors: list[float]) -> list[float]:
    """Log of the (1 - error) quantiles of the law whose means concentrate with this exponent; see `what_if`."""
    from lagreach.tails import stable

    return np.log(stable.isf(np.array(errors), kappa / (kappa - 1))).tolist()


def _layer(diagnosis: Diagnosis, layer: LayerDiagnosis, errors: list[float], kept: int) -> dict[str, Any]:
    window = layer.window
    rate, kappa = window.concentration, measured_exponent(window)
    edges = zip(window.required.first.tolist(), window.lags.tolist(), strict=True)
    return {
        "name": layer.name,
        "lags": window.lags,
        "spans": [span(first, last) for first, last in edges],
        "limits": [short(window.limit(lag, diagnosis.sequences)) for lag in window.lags.tolist()],
        "error": window.error,
        "strength": window.strength,
        "kappa": kappa,
        "kappaEnds": rate.interval if rate.left_open else (kappa, kappa),
        "kappaStatus": str(rate.status),
        "start": math.log(block_size(rate)),
        "logQuantiles": _log_quantiles(kappa, errors),
        "planted": _requirement(window.probe),
        "inData": _requirement(window.required),
        "dependence": {
            "p": window.adjusted_p,
            "significant": window.adjusted_p <= window.error,
            "lags": window.lags_of_bands,
        },
        "curves": [_curve(curve) for curve in window.curves.values()],
        "pictures": {title: _picture(curves, layer) for title, curves in pictures(window).items()},
        "fidelity": {
            "lags": layer.fidelity.lags.numpy(),
            "log10": _rounded((layer.fidelity.log10_first_order - layer.fidelity.log10_exact).numpy()),
            "status": [str(status) for status in layer.fidelity.status_by_lag],
        },
        "scales": _scales(layer),
        "noise": _noise(layer, kept),
    }


def _curve(curve: LagCurve) -> dict[str, Any]:
    """A number per lag as it is drawn; which one it is does not matter."""
    return {
        "title": curve.title,
        "unit": "log10" if curve.log10 and not curve.unit else curve.unit,
        "lags": curve.lags,
        "value": _rounded(curve.value),
        "ends": _ends(curve),
        "status": None if set(curve.status) == {Status.OK} else [str(status) for status in curve.status],
    }


def _ends(curve: LagCurve) -> list[list[float]] | None:
    return None if np.isnan(curve.low).all() else [_rounded(curve.low), _rounded(curve.high)]


def _picture(curves: Sequence[LagCurve], layer: LayerDiagnosis) -> dict[str, Any]:
    """Curves that stand in one picture, and the laws fitted to those that ask for it."""
    return {
        "logarithmic": logarithmic(curves),
        "curves": [
            {
                "lags": curve.lags,
                "unit": curve.unit,
                "mark": "" if curve.look is None else curve.look.mark,
                "lines": [{"label": label, "values": _rounded(values)} for label, values in lines(curve).items()],
                "ends": _ends(curve),
                "fits": _fits(curve, layer) if curve.look is not None and curve.look.fitted else None,
            }
            for curve in curves
        ],
    }


def _fits(curve: LagCurve, layer: LayerDiagnosis) -> dict[str, Any]:
    """Laws of decay on a dense grid, as decimal logarithms."""
    past = curve.lags[curve.lags > 0]
    dense = np.geomspace(past.min(), past.max(), FIT_POINTS) if len(past) else np.array([])
    laws = [fit for fit in layer.regimes.fits if math.isfinite(fit.r2)]
    return {
        "lags": _rounded(dense),
        "laws": [{"label": _fit_label(fit), "log10": _rounded(fit.log10_predict(dense))} for fit in laws],
    }


def _requirement(needed: Requirement) -> dict[str, Any]:
    return {
        "n": needed.sequences,
        "low": needed.low,
        "high": needed.high,
        "robust": needed.robust,
        "status": [str(status) for status in needed.status],
        "usable": [status.usable for status in needed.status],
    }


def _fit_label(fit: Any) -> str:
    shape = ", ".join(f"{name} = {value:.3g}" for name, value in fit.params.items() if name != "log10_c")
    return f"{fit.law} fit" + (f" ({shape})" if shape else "")


def _scales(layer: LayerDiagnosis) -> dict[str, Any]:
    """Time scales of the units; those without one are counted with the reason."""
    scales = time_scales(layer)
    if scales is None:
        return {"tau": [], "missing": [str(Status.FIRST_ORDER_UNAVAILABLE)]}
    finite = np.sort(scales.tau[np.isfinite(scales.tau)])
    reasons = [status for status in dict.fromkeys(scales.status) if status is not Status.OK]
    missing = [f"{scales.status.count(status)} units without a time scale: {status}" for status in reasons]
    return {"tau": _rounded(finite), "missing": missing}


def _noise(layer: LayerDiagnosis, kept: int) -> dict[str, Any] | None:
    """Standardised order statistics beside the quantiles of the fitted law; None where the sample was not kept."""
    from lagreach.tails import stable

    sample, fit = layer.noise, layer.tail
    if sample is None:
        return None
    chosen = np.unique(np.linspace(0, len(sample.levels) - 1, min(kept, len(sample.levels))).round().astype(int))
    levels = sample.levels[chosen]
    fitted = math.isfinite(fit.alpha) and fit.scale > 0
    values = (sample.values[chosen] - fit.location) / fit.scale if fitted else sample.values[chosen]
    return {
        "n": sample.n,
        "levels": _rounded(levels),
        "values": _rounded(values),
        "fitted": _rounded(np.asarray(stable.ppf(levels, fit.alpha))) if fitted else None,
        "alpha": fit.alpha,
        "interval": fit.interval,
        "verdict": verdict(layer),
    }


def verdict(layer: LayerDiagnosis) -> str:
    """Say what the noise looks like and what that means for averages."""
    fit, rate = layer.tail, layer.window.concentration
    words = {True: "supported", False: "not supported", None: "not checked"}[fit.stable_supported]
    head = f"Stable law not fitted: {fit.status}." if math.isnan(fit.alpha) else (
        f"Stable law with alpha {fit.alpha:.2f} ({fit.interval[0]:.2f} to {fit.interval[1]:.2f}), {words}."
    )  # fmt: skip
    note = "" if fit.status in (Status.OK, Status.STABLE_NOT_SUPPORTED) or math.isnan(fit.alpha) else f" {fit.status}."
    return f"{head}{note} Averages over sequences: kappa {rate.exponent:.3g}, {rate.status}."


def _rounded(values: np.ndarray) -> list[float]:
    """Six digits: what is only drawn needs no more."""
    return [float(f"{value:.6g}") for value in values.tolist()]
