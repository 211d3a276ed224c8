"""Files: a diagnosis as netCDF, written atomically, read back without executing anything.

The labelled arrays are for other programs; the variable ``record`` holds the whole diagnosis as JSON, from which `load`
rebuilds it. Only the classes listed here can come out of a file.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lagreach.diagnosis import SCHEMA_VERSION, Diagnosis, LayerDiagnosis, NoiseSample
from lagreach.errors import InputError, LagreachError
from lagreach.gradients.memory import Memory
from lagreach.gradients.reliance import Reliance
from lagreach.regimes import LawFit, Regimes
from lagreach.tails.concentration import Concentration
from lagreach.tails.fit import TailFit
from lagreach.tails.support import SupportCheck
from lagreach.transport.fidelity import Fidelity
from lagreach.transport.first_order import EffectiveRates
from lagreach.types import Status
from lagreach.window import Requirement, Window

if TYPE_CHECKING:
    import xarray as xr

CLASSES = {
    cls.__name__: cls
    for cls in (
        Diagnosis, LayerDiagnosis, Window, Requirement, Concentration, Memory, Reliance, Fidelity, EffectiveRates,
        TailFit, SupportCheck, Regimes, LawFit, NoiseSample,
    )
}  # fmt: skip
GRID = np.round(np.geomspace(1, 1e6, 25)).astype(int)  # numbers of sequences that windows are stored for
LARGEST_FILE = 512 * 2**20


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
    raise InputError("this value cannot be stored", got=type(value).__name__)


def decode(value: Any) -> Any:
    """Rebuild a record; only known classes and plain values can come out."""
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
            raise InputError("an array of a strange type", got=value["dtype"])
        return np.array(decode(value["values"]), dtype=dtype).reshape(value["shape"])
    if kind == "tensor":
        return torch.from_numpy(decode(value["of"]))
    return CLASSES[kind](**{name: decode(v) for name, v in value["fields"].items()})


def to_dataset(diagnosis: Diagnosis) -> xr.Dataset:
    """Arrays of a diagnosis over (layer, lag, unit, N)."""
    import xarray as xr

    layers = []
    for one in diagnosis.layers:
        window, probe = one.window, one.window.required_if_present()
        by_lag: dict[str, Any] = {
            "first_lag": window.required.first,
            "required": window.required.sequences,
            "required_low": window.required.low,
            "required_high": window.required.high,
            "required_pessimistic": window.required.pessimistic,
            "required_robust": window.required.robust,
            "required_if_present": probe.sequences,
            "required_if_present_low": probe.low,
            "required_if_present_high": probe.high,
            "required_if_present_pessimistic": probe.pessimistic,
            "required_if_present_robust": probe.robust,
            "adjusted_p": window.adjusted_p,
            "signal": window.delta,
            "noise": window.noise,
            "memory": window.memory.capacity,
            "log10_gain": one.fidelity.log10_exact.numpy(),
            "log10_gain_first_order": one.fidelity.log10_first_order.numpy(),
            "limit": np.array([str(window.limit(lag, diagnosis.sequences).name) for lag in window.lags.tolist()]),
        }
        variables: dict[str, Any] = {name: ("lag", values) for name, values in by_lag.items()}
        if one.rates is not None:
            variables["log10_rate"] = (("lag", "unit"), one.rates.log10_rates.numpy())
        reach = [window.at(sequences).lag for sequences in GRID.tolist()]
        variables["window"] = ("N", np.array([np.nan if lag is None else lag for lag in reach], dtype=float))
        layers.append(xr.Dataset(variables, coords={"lag": window.lags, "N": GRID}))
    names = xr.DataArray([one.name for one in diagnosis.layers], dims="layer", name="layer")
    dataset = xr.concat(layers, dim=names, join="outer") if len(layers) > 1 else layers[0].expand_dims(layer=names)
    return dataset.assign_attrs(
        schema_version=SCHEMA_VERSION,
        settings=json.dumps(dict(diagnosis.settings), default=str),
        labels=json.dumps(dict(diagnosis.labels), default=str),
        lagreach=diagnosis.versions["lagreach"],
        fingerprint=diagnosis.fingerprint,
        sequences=diagnosis.sequences,
    )


def save(diagnosis: Diagnosis, path: str | Path) -> None:
    """Write a netCDF file; readers see the old file or the new one, never half of it."""
    target = Path(path)
    dataset = to_dataset(diagnosis).assign(record=json.dumps(encode(diagnosis)))
    with write_atomically(target) as temporary:
        dataset.to_netcdf(temporary, engine="h5netcdf")


class write_atomically:  # noqa: N801 (used as a function)
    """Give a temporary path beside the target, and move it into place if all went well."""

    def __init__(self, target: Path) -> None:
        self._target = Path(target)

    def __enter__(self) -> Path:
        if not self._target.parent.is_dir():
            raise InputError("the folder does not exist", got=str(self._target.parent), fix="create it first")
        handle, name = tempfile.mkstemp(dir=self._target.parent, prefix=f".{self._target.name}.")
        os.close(handle)
        self._temporary = Path(name)
        return self._temporary

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            with self._temporary.open("rb") as file:
                os.fsync(file.fileno())
            self._temporary.chmod(0o666 & ~_umask())  # temporary files are private; the target is an ordinary file
            self._temporary.replace(self._target)
        else:
            self._temporary.unlink(missing_ok=True)


def _umask() -> int:
    """Return the process's mask of permissions, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def load(path: str | Path) -> Diagnosis:
    """Read a diagnosis back from a file that `Diagnosis.save` wrote."""
    import h5py

    source = Path(path)
    if not source.is_file():
        raise InputError("there is no such file", got=str(source))
    if source.stat().st_size > LARGEST_FILE:
        raise InputError("this file is too large for a diagnosis", got=f"{source.stat().st_size / 2**20:.0f} MiB")
    try:
        with h5py.File(source, "r") as file:
            found = int(np.ravel(file.attrs["schema_version"])[0])
            text = file["record"][()]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise InputError(
            "this is not a diagnosis, or the file is damaged",
            got=f"{source.name}: {error}",
            expected="a file from Diagnosis.save",
        ) from error
    if found != SCHEMA_VERSION:
        raise InputError(
            "this file was written by another version",
            got=f"schema {found}",
            expected=f"schema {SCHEMA_VERSION}",
            fix="read it with the version of lagreach that wrote it, or measure again",
        )
    try:
        diagnosis = decode(json.loads(text))
    except (LagreachError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError("the record in this file is damaged", got=f"{source.name}: {error}") from error
    if not isinstance(diagnosis, Diagnosis):
        raise InputError("the record in this file is not a diagnosis", got=type(diagnosis).__name__)
    return diagnosis
