"""Diagnoses as plain values that JSON can hold, and back. Only the classes listed here can come out."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch

from lagreach.diagnosis.result import Diagnosis, LayerDiagnosis, NoiseSample
from lagreach.diagnosis.window import Requirement, Window
from lagreach.errors import InputError
from lagreach.forecasting.result import Forecast
from lagreach.regimes import LawFit, Regimes
from lagreach.statistics import LagCurve, Look
from lagreach.statistics.linear_share import ShareCurves
from lagreach.statistics.memory import Memory
from lagreach.statistics.reliance import Reliance
from lagreach.tails.concentration import Concentration
from lagreach.tails.fit import TailFit
from lagreach.tails.support import SupportCheck
from lagreach.transport.fidelity import Fidelity
from lagreach.transport.first_order import EffectiveRates
from lagreach.types import Status

CLASSES = {
    cls.__name__: cls
    for cls in (
        Diagnosis, LayerDiagnosis, Window, Requirement, Concentration, Memory, Reliance, Fidelity, EffectiveRates,
        TailFit, SupportCheck, Regimes, LawFit, NoiseSample, LagCurve, Look, Forecast, ShareCurves,
    )
}  # fmt: skip


def encode(value: Any) -> Any:
    """Turn a record into what JSON can hold."""
    if isinstance(value, Status):
        return {"@": "Status", "name": value.name}
    if dataclasses.is_dataclass(value) and type(value).__name__ in CLASSES:
        fields = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"@": type(value).__name__, "fields": fields}
    if isinstance(value, torch.Tensor):
        return {"@": "tensor", "of": encode(value.detach().cpu().numpy())}
    if isinstance(value, np.ndarray):
        return {
            "@": "array",
            "dtype": str(value.dtype),
            "shape": list(value.shape),
            "values": encode(value.ravel().tolist()),
        }
    if isinstance(value, np.generic):
        return encode(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return {"@": "float", "value": str(value)}
    if isinstance(value, Mapping):
        return {"@": "map", "items": {str(k): encode(v) for k, v in value.items()}}
    if isinstance(value, tuple):
        return {"@": "tuple", "items": [encode(v) for v in value]}
    if isinstance(value, list):
        return [encode(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InputError(
        "this value cannot be stored", got=type(value).__name__, expected="numbers, text, arrays, lists and mappings"
    )


def decode(value: Any) -> Any:
    """Rebuild a record; only known classes and plain values can come out, each field of the type it is declared with."""
    if isinstance(value, list):
        return [decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    kind = value["@"]
    if kind == "Status":
        return Status[value["name"]]
    if kind == "float":
        return float(value["value"])
    if kind == "tuple":
        return tuple(decode(v) for v in value["items"])
    if kind == "map":
        return {k: decode(v) for k, v in value["items"].items()}
    if kind == "array":
        dtype = np.dtype(value["dtype"])
        if dtype.kind not in "biuf":
            raise InputError("an array of a strange type", got=value["dtype"], expected="numbers or truth values")
        return np.array(decode(value["values"]), dtype=dtype).reshape(value["shape"])
    if kind == "tensor":
        return torch.from_numpy(decode(value["of"]))
    record = CLASSES[kind](**{name: decode(v) for name, v in value["fields"].items()})
    _check_fields(record)
    return record


def _check_fields(record: Any) -> None:
    """Refuse a record with a field of another type than it is declared with, or arrays that do not go together."""
    sizes: dict[str, int] = {}
    for name, hint in _hints(type(record).__name__).items():
        value = getattr(record, name)
        if not _fits(value, hint):
            raise InputError(f"{name} is not what it should be", got=type(value).__name__, expected=_in_words(hint))
        for axis, size in zip(_axes(record, name, hint), getattr(value, "shape", ()) or [_length(value)], strict=False):
            if sizes.setdefault(axis, size) != size:
                raise InputError(
                    f"{name} has another length than what stands beside it", got=size, expected=sizes[axis]
                )


@cache
def _hints(kind: str) -> dict[str, Any]:
    return get_type_hints(CLASSES[kind])


def _axes(record: Any, name: str, hint: Any) -> list[str]:
    """Names of a field's axes; fields without annotated axes that run over lags are known by their names."""
    annotated = getattr(hint, "dim_str", "").split()
    if annotated:
        return annotated
    over_lags = name in ("lags", "first", "status", "status_by_lag") and not isinstance(getattr(record, name), Status)
    return ["lag"] if over_lags else []


def _length(value: Any) -> int:
    return len(value) if isinstance(value, tuple) else 1


def _fits(value: Any, hint: Any) -> bool:
    """Whether a decoded value is of an annotated type."""
    if hint is Any:
        return True
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(parts) == 2 and parts[1] is Ellipsis:
            return all(_fits(one, parts[0]) for one in value)
        return len(value) == len(parts) and all(_fits(*pair) for pair in zip(value, parts, strict=True))
    if origin is not None:  # a mapping with text as keys
        return isinstance(value, dict) and all(_fits(one, parts[1]) for one in value.values())
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _in_words(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)
