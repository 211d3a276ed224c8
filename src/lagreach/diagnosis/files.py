"""Files: a diagnosis or a forecast as netCDF, made in memory and written whole, read back without executing anything.

The labelled arrays are for other programs; the variable ``record`` holds the whole result as JSON (see
`lagreach.diagnosis.record_json`), from which `load` rebuilds it. A file ends with its checksum (see `lagreach._util.seals`).
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lagreach._util.disk import as_path, checksum, read_whole, write_whole
from lagreach._util.seals import SEALED, damaged, is_sealed, seal
from lagreach.diagnosis.curves import with_curves
from lagreach.diagnosis.record_json import decode, encode
from lagreach.diagnosis.result import SCHEMA_VERSION, Diagnosis
from lagreach.errors import InputError, RunError
from lagreach.forecasting.result import Forecast
from lagreach.statistics import Measured, all_statistics, draw_curves

if TYPE_CHECKING:
    import xarray as xr

GRID = np.round(np.geomspace(1, 1e6, 25)).astype(int)  # numbers of sequences that windows are stored for
READABLE = (1, SCHEMA_VERSION)  # schema 1 had no curves of users' own statistics, and no checksum at the end
LARGEST_FILE = 512 * 2**20
UNSEALED = (1,)  # schemas without a checksum of all bytes


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


def to_bytes(diagnosis: Diagnosis) -> bytes:
    """Content of a diagnosis's file."""
    return record_bytes(_without_drawn_curves(diagnosis), to_dataset(diagnosis))


def record_bytes(result: Diagnosis | Forecast, arrays: xr.Dataset) -> bytes:
    """Content of a file with labelled arrays and a record, read back once before anything is written."""
    record = json.dumps(encode(result))
    dataset = arrays.assign(record=record).assign_attrs({SEALED: "by its last line", "schema_version": SCHEMA_VERSION})
    content = bytes(dataset.to_netcdf(engine="h5netcdf"))
    if _read(content) != (SCHEMA_VERSION, record, None):
        raise RunError(
            "the file of this result could not be made", got="another record when it was read back", fix="report it"
        )
    return seal(content)


def save(diagnosis: Diagnosis, path: str | Path) -> None:
    """Write a netCDF file; readers see the old file or the new one, never half of it."""
    write_whole(as_path(path), to_bytes(diagnosis))


def save_record(result: Diagnosis | Forecast, arrays: xr.Dataset, path: str | Path) -> None:
    """Write labelled arrays, and beside them the record that `load` rebuilds the result from."""
    write_whole(as_path(path), record_bytes(result, arrays))


def _without_drawn_curves(diagnosis: Diagnosis) -> Diagnosis:
    """Leave out the curves that `load` draws again from the numbers they come from."""
    layers = []
    for one in diagnosis.layers:
        drawn = draw_curves(all_statistics(), Measured(one.window, one.fidelity, one.rates), {})
        collected = {name: curve for name, curve in one.window.curves.items() if name not in drawn}
        layers.append(replace(one, window=replace(one.window, curves=collected)))
    return replace(diagnosis, layers=tuple(layers))


def _with_curves(diagnosis: Diagnosis) -> Diagnosis:
    layers = [replace(one, window=with_curves(one.window, one.fidelity, one.rates)) for one in diagnosis.layers]
    return replace(diagnosis, layers=tuple(layers))


def load(path: str | Path) -> Diagnosis | Forecast:
    """Read a result back from a file that `Diagnosis.save` or `Forecast.save` wrote."""
    return from_bytes(read_whole(as_path(path), LARGEST_FILE), as_path(path).name)


def load_diagnosis(path: str | Path) -> Diagnosis:
    """Read a diagnosis back; a forecast is refused."""
    return diagnosis_from_bytes(read_whole(as_path(path), LARGEST_FILE), as_path(path).name)


def diagnosis_from_bytes(content: bytes, name: str) -> Diagnosis:
    """Rebuild a diagnosis from the content of its file; a forecast is refused."""
    result = from_bytes(content, name)
    if not isinstance(result, Diagnosis):
        raise InputError(
            "this file holds a forecast",
            got=name,
            expected="a file from Diagnosis.save",
            fix="a page shows one forecast: pass its file alone to lagreach report, or lagreach.load(file).report(page)",
        )
    return result


def from_bytes(content: bytes, name: str) -> Diagnosis | Forecast:
    """Rebuild a result from the content of its file; `name` is for errors."""
    sealed = is_sealed(content, name)
    if not sealed and loops_for_ever(content):
        raise damaged(name, "its texts run into each other")
    try:
        schema, record, record_checksum = _read(content)
    except Exception as error:  # a library that reads damaged files raises anything, and all of it means the same here
        raise InputError(
            "this is not a diagnosis, or the file is damaged",
            got=f"{name}: {error}",
            expected="a file from Diagnosis.save",
        ) from error
    if schema not in READABLE:
        raise InputError(
            "this file was written by another version",
            got=f"schema {schema}",
            expected=f"schema {' or '.join(map(str, READABLE))}",
            fix="read it with the version of lagreach that wrote it, or measure again",
        )
    if not sealed and schema not in UNSEALED:
        raise damaged(name, "its last line, with the checksum, is missing")
    if record_checksum not in (None, checksum(record.encode())):  # files of schema 1 have one of the record alone
        raise damaged(name, "the record's checksum does not match")
    try:
        result = decode(json.loads(record))
    except Exception as error:  # likewise: a record that cannot be rebuilt is damaged, however that shows
        raise InputError(
            "the record in this file is damaged",
            got=f"{name}: {error or type(error).__name__}",
            fix="measure again",
        ) from error
    if isinstance(result, Forecast):
        return result
    if not isinstance(result, Diagnosis) or not result.layers:
        raise InputError(
            "the record in this file is not a diagnosis",
            got=f"{name}: {type(result).__name__}",
            expected="a file from Diagnosis.save or Forecast.save",
        )
    return _with_curves(result)


def loops_for_ever(content: bytes) -> bool:
    """Whether HDF5 would not come back from this file: a piece of a heap of texts that claims to take no room.

    Files of schema 1 have no checksum that could be compared first.
    """
    start = content.find(b"GCOL")
    while start >= 0:
        end = min(len(content), start + int.from_bytes(content[start + 8 : start + 16], "little"))
        at = start + 16
        while at + 16 <= end:
            number, size = content[at : at + 2], int.from_bytes(content[at + 8 : at + 16], "little")
            # object 0 is the free room, whose size includes its header; of others the header comes on top
            taken = size if number == b"\0\0" else 16 + -(-size // 8) * 8
            if taken == 0:
                return True
            at += taken
        start = content.find(b"GCOL", start + 4)
    return False


def _read(content: bytes) -> tuple[int, str, str | None]:
    """Schema, record and checksum of a file. Nothing outside the file is followed, and no size it declares is believed."""
    import h5py

    with h5py.File(io.BytesIO(content), "r") as file:
        schema = int(np.ravel(file.attrs["schema_version"])[0])
        record_checksum = file.attrs.get("record_checksum")
        if not isinstance(file.get("record", getlink=True), h5py.HardLink):
            raise InputError("the record lies outside the file", expected="a text inside it")
        record = file["record"]
        if not isinstance(record, h5py.Dataset) or record.external or record.is_virtual:
            raise InputError("the record lies outside the file", expected="a text inside it")
        if record.shape != () or h5py.check_string_dtype(record.dtype) is None or record.nbytes > LARGEST_FILE:
            raise InputError("the record is not a text", expected="one text")
        text = record.asstr()[()]
    return schema, text, None if record_checksum is None else str(record_checksum)
