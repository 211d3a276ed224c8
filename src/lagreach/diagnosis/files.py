"""Files: a diagnosis or a forecast as netCDF, written atomically, read back without executing anything.

The labelled arrays are for other programs; the variable ``record`` holds the whole result as JSON (see
`lagreach.diagnosis.record_json`), from which `load` rebuilds it, and the attribute ``record_checksum`` its hash.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lagreach._util.disk import is_file, write_atomically
from lagreach.diagnosis.curves import with_curves
from lagreach.diagnosis.record_json import decode, encode
from lagreach.diagnosis.result import SCHEMA_VERSION, Diagnosis
from lagreach.errors import InputError, TooLargeError
from lagreach.forecasting.result import Forecast
from lagreach.statistics import all_statistics

if TYPE_CHECKING:
    import xarray as xr

GRID = np.round(np.geomspace(1, 1e6, 25)).astype(int)  # numbers of sequences that windows are stored for
READABLE = (1, SCHEMA_VERSION)  # schema 1 had no curves of users' own statistics
LARGEST_FILE = 512 * 2**20


def to_dataset(diagnosis: Diagnosis) -> xr.Dataset:
    """Arrays of a diagnosis over (layer, lag, unit, N)."""
    import xarray as xr

    layers = []
    for one in diagnosis.layers:
        window = one.window
        by_lag: dict[str, Any] = {"first_lag": window.required.first}
        for curve in window.curves.values():
            by_lag |= curve.numbers
        by_lag["limit"] = np.array([window.limit(lag, diagnosis.sequences).name for lag in window.lags.tolist()])
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
    save_record(_without_drawn_curves(diagnosis), to_dataset(diagnosis), path)


def save_record(result: Diagnosis | Forecast, arrays: xr.Dataset, path: str | Path) -> None:
    """Write labelled arrays, and beside them the record that `load` rebuilds the result from."""
    record = json.dumps(encode(result))
    dataset = arrays.assign(record=record).assign_attrs(
        record_checksum=_checksum(record), schema_version=SCHEMA_VERSION
    )
    with write_atomically(Path(path)) as temporary:
        dataset.to_netcdf(temporary, engine="h5netcdf")


def _without_drawn_curves(diagnosis: Diagnosis) -> Diagnosis:
    """Leave out the curves that `load` draws again from the numbers they come from."""
    drawn = all_statistics()
    layers = []
    for one in diagnosis.layers:
        collected = {name: curve for name, curve in one.window.curves.items() if name not in drawn}
        layers.append(replace(one, window=replace(one.window, curves=collected)))
    return replace(diagnosis, layers=tuple(layers))


def _with_curves(diagnosis: Diagnosis) -> Diagnosis:
    layers = [replace(one, window=with_curves(one.window, one.fidelity, one.rates)) for one in diagnosis.layers]
    return replace(diagnosis, layers=tuple(layers))


def _checksum(record: str) -> str:
    return hashlib.blake2b(record.encode(), digest_size=16).hexdigest()


def load_diagnosis(path: str | Path) -> Diagnosis:
    """Read a diagnosis back; a forecast is refused."""
    result = load(path)
    if not isinstance(result, Diagnosis):
        raise InputError("this file holds a forecast", got=Path(path).name, expected="a file from Diagnosis.save")
    return result


def load(path: str | Path) -> Diagnosis | Forecast:
    """Read a result back from a file that `Diagnosis.save` or `Forecast.save` wrote."""
    source = Path(path)
    if not is_file(source):
        raise InputError("there is no such file", got=str(source), expected="a file from Diagnosis.save")
    if source.stat().st_size > LARGEST_FILE:
        raise TooLargeError(
            "this file is too large for a diagnosis",
            got=f"{source.name}: {source.stat().st_size / 2**20:.0f} MiB",
            expected=f"at most {LARGEST_FILE / 2**20:.0f} MiB",
        )
    try:
        schema, record, checksum = _read(source)
    except Exception as error:  # a library that reads damaged files raises anything, and all of it means the same here
        raise InputError(
            "this is not a diagnosis, or the file is damaged",
            got=f"{source.name}: {error}",
            expected="a file from Diagnosis.save",
        ) from error
    if schema not in READABLE:
        raise InputError(
            "this file was written by another version",
            got=f"schema {schema}",
            expected=f"schema {' or '.join(map(str, READABLE))}",
            fix="read it with the version of lagreach that wrote it, or measure again",
        )
    if checksum not in (None, _checksum(record)):
        raise InputError(
            "the record in this file is damaged: its checksum does not match", got=source.name, fix="measure again"
        )
    try:
        result = decode(json.loads(record))
    except Exception as error:  # likewise: a record that cannot be rebuilt is damaged, however that shows
        raise InputError(
            "the record in this file is damaged",
            got=f"{source.name}: {error or type(error).__name__}",
            fix="measure again",
        ) from error
    if isinstance(result, Forecast):
        return result
    if not isinstance(result, Diagnosis) or not result.layers:
        raise InputError(
            "the record in this file is not a diagnosis",
            got=f"{source.name}: {type(result).__name__}",
            expected="a file from Diagnosis.save or Forecast.save",
        )
    return _with_curves(result)


def _read(source: Path) -> tuple[int, str, str | None]:
    """Schema, record and checksum of a file. Nothing outside the file is followed, and no size it declares is believed."""
    import h5py

    with h5py.File(source, "r") as file:
        schema = int(np.ravel(file.attrs["schema_version"])[0])
        checksum = file.attrs.get("record_checksum")
        if not isinstance(file.get("record", getlink=True), h5py.HardLink):
            raise InputError("the record lies outside the file", expected="a text inside it")
        record = file["record"]
        if not isinstance(record, h5py.Dataset) or record.external or record.is_virtual:
            raise InputError("the record lies outside the file", expected="a text inside it")
        if record.shape != () or h5py.check_string_dtype(record.dtype) is None or record.nbytes > LARGEST_FILE:
            raise InputError("the record is not a text", expected="one text")
        text = record.asstr()[()]
    return schema, text, None if checksum is None else str(checksum)
