"""The labelled arrays of a forecast."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from lagreach.forecasting.result import Forecast

if TYPE_CHECKING:
    import xarray as xr

SCHEMA_VERSION = 1
SHARES = ("if_present", "in_data", "readable", "reachable", "budgeted")
COUNTS = ("needed", "seen")


def to_dataset(forecast: Forecast) -> xr.Dataset:
    """Shares over (lag, sequences) and numbers of sequences over lag, each with its ends; limits and tests over lag."""
    import xarray as xr

    variables: dict[str, Any] = {}
    for name in (*SHARES, *COUNTS):
        array = getattr(forecast, name)
        variables[name] = (array.dims, array.values)
        variables |= {f"{name}_{end}": (array.dims, array.coords[end].values) for end in ("low", "high")}
    variables |= {
        "limits": ("lag", forecast.limits.values),
        "limits_if_present": ("lag", forecast.limits_if_present.values),
        "adjusted_p": ("lag", forecast.adjusted_p),
        "sketch": ("lag", forecast.sketch),
    }
    coords = {"lag": np.array(forecast.lags), "sequences": np.array(forecast.sequences)}
    return xr.Dataset(variables, coords=coords).assign_attrs(
        kind="forecast",
        forecast_schema=SCHEMA_VERSION,
        settings=json.dumps(dict(forecast.settings), default=str),
        labels=json.dumps(dict(forecast.labels), default=str),
        lagreach=forecast.versions["lagreach"],
        fingerprint=forecast.fingerprint,
        available=forecast.available,
        strength=forecast.strength,
    )
