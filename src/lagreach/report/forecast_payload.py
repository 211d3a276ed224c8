"""The numbers behind the page of a forecast, packed so that any number of sequences and any strength can be asked for.

Shares are whole numbers of 1e-9 (what `ShareCurves` keeps), written as differences from one fit and one amount of shrinkage
to the next, and the whole is compressed: a browser gets back exactly what Python has.
"""

from __future__ import annotations

import base64
import gzip
from typing import Any

import numpy as np

from lagreach.forecasting.kinds import remedies
from lagreach.forecasting.limits import FEW_SEQUENCES, LIMITS
from lagreach.forecasting.result import A_LITTLE, Forecast
from lagreach.forecasting.words import NEIGHBOURS, NOT_SEEN, NOTHING_TO_DO, SAID
from lagreach.report.forecast_figure import BRIEFLY, LEARNED, SURE
from lagreach.report.payload import to_json, two_digits
from lagreach.statistics.linear_share import AMPLE, ShareCurves
from lagreach.statistics.linear_share.curves import FINER, GRID, HALF
from lagreach.statistics.linear_share.fit import DIGITS

NOT_TESTED = "not tested"  # whether the data depend on a lag: these sequences cannot tell
MOST_NUMBERS = 250_000  # of shares on one page, about 0.7 megabytes; of more lags, some are shown
AMPLE_FIRST, AMPLE_LAST = 10, 1e6  # ends of the slider for sequences


def shown_lags(forecast: Forecast) -> np.ndarray:
    """Lags that the page has room for: all, or those in the data and others, short ones all and long ones ever fewer."""
    curves = [one for one in (forecast.read, forecast.reach, forecast.within) if one is not None]
    each = sum(2 * one.share.shape[0] * one.share.shape[2] for one in curves)
    room, count = max(8, MOST_NUMBERS // each), len(forecast.lags)
    if count <= room:
        return np.arange(count)
    named = np.flatnonzero(forecast.adjusted_p <= forecast.error)[: room // 2]
    return np.unique(np.concatenate((named, _ever_fewer(count, room - len(named)))))


def _ever_fewer(count: int, wanted: int) -> np.ndarray:
    """About so many places among `count`: all of the first ones, and then ever larger steps, up to the last.

    >>> _ever_fewer(266, 12).tolist()
    [0, 1, 2, 4, 7, 12, 20, 34, 57, 95, 159, 265]
    """
    places = np.arange(min(count, 2))
    for draws in range(wanted, 8 * count):
        if len(places) >= wanted:
            break
        places = np.unique(np.geomspace(1, count, draws).round().astype(int)) - 1
    return places


def forecast_payload(forecast: Forecast) -> dict[str, Any]:
    """Everything the scripts of the page need."""
    lags = shown_lags(forecast)
    named = np.flatnonzero(forecast.adjusted_p[lags] <= forecast.error)
    return {
        "lags": [forecast.lags[i] for i in lags],
        "dependences": named,
        "untested": np.flatnonzero(np.isnan(forecast.adjusted_p[lags])),
        "notTested": NOT_TESTED,
        "notSeen": NOT_SEEN,
        "rising": forecast.rising[lags],
        "rules": _rules(forecast),
        "sliders": _sliders(forecast),
        "looks": [{"word": word, "name": BRIEFLY[word], "learned": word in LEARNED} for word in LIMITS],
        "said": [[list(kinds), single, many] for kinds, (single, many) in SAID.items()],
        "neighbours": NEIGHBOURS,
        "remedies": [[word, remedy, word == FEW_SEQUENCES] for word, remedy in remedies(forecast.kind).items()],
        "nothingToDo": NOTHING_TO_DO,
        "readoutCounts": forecast.fits[0] is forecast.read,
        "read": _curves(forecast.read, lags, named),
        "reach": _curves(forecast.reach, lags, named),
        "within": _curves(forecast.within, lags, named),
    }


def packed(payload: dict[str, Any]) -> str:
    """Compress a payload into letters that can stand in a page."""
    return base64.b64encode(gzip.compress(to_json(payload).encode(), 9, mtime=0)).decode()


def _rules(forecast: Forecast) -> dict[str, Any]:
    """Constants of the closed form."""
    from scipy.special import ndtri, stdtrit

    return {
        "quantile": stdtrit(len(forecast.read.share) - 2, 0.975),
        "standsOut": (2 * ndtri(1 - forecast.error)) ** 2,
        "ample": AMPLE,
        "aLittle": A_LITTLE,
        "half": HALF,
        "grid": GRID,
        "finer": FINER,
        "digits": 10**DIGITS,
        "sure": SURE,
    }


def _sliders(forecast: Forecast) -> list[dict[str, Any]]:
    have = float(forecast.available)
    ends = min(AMPLE_FIRST, *forecast.sequences, have), max(AMPLE_LAST, *forecast.sequences, have)
    numbers = sorted({*two_digits(np.geomspace(*ends, 121)), *map(float, forecast.sequences), have})
    shares = sorted({*two_digits(np.geomspace(0.001, 1, 61)), forecast.strength})
    rows: tuple[tuple[str, str, str, list[float], float], ...] = (
        ("sequences", "Sequences", "how many sequences the model is trained on", numbers, have),
        ("strength", "Strength", "share of the target that the dependency explains", shares, forecast.strength),
    )
    return [
        {"name": name, "title": title, "meaning": meaning, "values": values, "start": values.index(start)}
        for name, title, meaning, values, start in rows
    ]


def _curves(curves: ShareCurves | None, lags: np.ndarray, named: np.ndarray) -> dict[str, Any] | None:
    if curves is None:
        return None
    return {
        "share": _steps(curves.share[:, lags]),
        "fitted": _steps(curves.fitted[:, lags]),
        "noise": curves.noise,
        "present": curves.present[lags],
        "gained": _steps(curves.gained),
        "inData": _steps(curves.in_data[:, lags[named]]),
        "seen": curves.seen[:, lags],
    }


def _steps(values: np.ndarray) -> np.ndarray:
    """Whole numbers as differences from the first fit, and along the last axis: small ones, which compress well."""
    whole = np.rint(values * 10**DIGITS).astype(np.int64)
    whole[1:] -= whole[:1]
    return np.diff(whole, axis=-1, prepend=0)
