"""A diagnosis's file: sealed by a checksum of its bytes that is compared before any parser opens it."""

import shutil
import time
from pathlib import Path

import pytest
import xarray as xr
from typer.testing import CliRunner

import lagreach
from lagreach._util.disk import checksum
from lagreach.cli import app
from lagreach.diagnosis import files
from lagreach.errors import InputError
from tests.reliability.damage import endless
from tests.reliability.soak import diagnose_once

OLD = Path(__file__).parent / "data" / "schema-1.nc"  # written by version 0.1.0
SECONDS = 5.0  # of work; HDF5 does not come back from the file below at all


@pytest.fixture(scope="module")
def diagnosis():
    return diagnose_once()


@pytest.fixture
def saved(diagnosis, tmp_path):
    diagnosis.save(tmp_path / "d.nc")
    return tmp_path / "d.nc"


def test_other_programs_read_the_file_as_it_is(saved, diagnosis):
    for engine in (None, "h5netcdf"):
        with xr.open_dataset(saved, engine=engine) as dataset:
            xr.testing.assert_identical(
                dataset.drop_vars("record").drop_attrs(deep=False), diagnosis.to_xarray().drop_attrs(deep=False)
            )
    assert lagreach.load(saved).fingerprint == diagnosis.fingerprint


@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize("old", [False, True])
def test_a_file_that_hdf5_never_comes_back_from_is_refused_at_once(saved, monkeypatch, old):
    monkeypatch.setattr(files, "_read", lambda _: pytest.fail("a damaged file was opened"))
    saved.write_bytes(endless((OLD if old else saved).read_bytes()))
    started = time.process_time()
    with pytest.raises(InputError, match="damaged"):
        lagreach.load(saved)
    refused = CliRunner().invoke(app, ["report", str(saved), "--out", str(saved.with_suffix(".html"))])
    assert isinstance(refused.exception, InputError)
    assert time.process_time() - started < SECONDS


def test_every_flipped_bit_is_noticed_before_the_file_is_opened(saved, monkeypatch):
    content = saved.read_bytes()
    monkeypatch.setattr(files, "_read", lambda _: pytest.fail("a damaged file was opened"))
    step = len(content) // 500
    for at in [*range(0, len(content), step), *range(len(content) - 70, len(content))]:
        damaged = bytearray(content)
        damaged[at] ^= 1 << at % 8
        saved.write_bytes(damaged)
        with pytest.raises(InputError, match="damaged"):
            lagreach.load(saved)


@pytest.mark.parametrize("kept", [-1, -40, -66, -300, 20_000])
def test_a_file_that_ends_too_early_is_refused_before_it_is_opened(saved, monkeypatch, kept):
    monkeypatch.setattr(files, "_read", lambda _: pytest.fail("a damaged file was opened"))
    saved.write_bytes(saved.read_bytes()[:kept])
    with pytest.raises(InputError, match="damaged"):
        lagreach.load(saved)


def test_a_new_file_without_any_sign_of_a_checksum_is_refused(diagnosis, tmp_path):
    """As another program would write it anew."""
    record = files._read(files.to_bytes(diagnosis))[1]
    files.to_dataset(diagnosis).assign(record=record).to_netcdf(tmp_path / "d.nc", engine="h5netcdf")
    with pytest.raises(InputError, match="last line, with the checksum, is missing"):
        lagreach.load(tmp_path / "d.nc")


def test_files_of_version_0_1_are_still_read(tmp_path, diagnosis):
    measured = lagreach.load(OLD)
    assert measured.versions["lagreach"] == "0.1.0"
    assert measured.layers[0].window.lags.tolist() == diagnosis.layers[0].window.lags.tolist()
    measured.save(tmp_path / "again.nc")
    assert lagreach.load(tmp_path / "again.nc").fingerprint == measured.fingerprint
    content = OLD.read_bytes()
    at = content.index(b'"fingerprint"')
    shutil.copy(OLD, tmp_path / "d.nc")
    (tmp_path / "d.nc").write_bytes(content[:at] + b'"fingerprimt"' + content[at + 13 :])
    with pytest.raises(InputError, match="record's checksum does not match"):
        lagreach.load(tmp_path / "d.nc")


def test_the_checksum_is_that_of_b2sum():
    assert checksum(b"lagreach") == "0abf85ea59a906b07b207298512fc4d6"  # printf lagreach | b2sum --length 128
