"""Files are whole or not there, whatever the disk does; what it refuses is a sentence."""

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from numba import njit

from lagreach._util.compiling import kept_on_disk
from lagreach._util.disk import read_whole, save_figure, write_whole
from lagreach.errors import InputError, RunError

REFUSALS = {
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EROFS: "cannot be written",
    errno.EIO: "cannot be written",
}


@contextlib.contextmanager
def refusing(monkeypatch, call, number):
    """Let the system refuse one of its calls."""

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        yield


@pytest.mark.parametrize("call", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("number", REFUSALS)
def test_what_the_disk_refuses_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call, number):
    target = tmp_path / "file"
    write_whole(target, b"before")
    with refusing(monkeypatch, call, number), pytest.raises(RunError, match=REFUSALS[number]):
        write_whole(target, b"after")
    assert target.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_that_lost_its_end_on_the_way_is_not_put_in_place(tmp_path, monkeypatch):
    """Some network disks say that all is well."""
    target = tmp_path / "file"
    write_whole(target, b"before")
    fsync = os.fsync

    def cutting(handle):
        os.ftruncate(handle, 2)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", cutting)
    with pytest.raises(RunError, match="cannot be written"):
        write_whole(target, b"after")
    assert target.read_bytes() == b"before"


def test_folders_that_are_gone_and_devices_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        write_whole(tmp_path / "gone" / "file", b"")
    with pytest.raises(InputError, match="device"):
        write_whole(Path("/dev/null"), b"")
    assert not Path("/dev/null").is_file()
    with pytest.raises(InputError, match="no such file"):
        read_whole(tmp_path / "file")


def test_a_figure_is_drawn_before_a_file_is_touched(tmp_path, monkeypatch):
    target = tmp_path / "figure.pdf"
    save_figure(Figure(), target)
    before = target.read_bytes()
    with refusing(monkeypatch, "fsync", errno.ENOSPC), pytest.raises(RunError, match="disk is full"):
        save_figure(Figure(figsize=(9, 9)), target)
    assert target.read_bytes() == before


LIMITED = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
import lagreach
from lagreach.errors import RunError
found = lagreach.load(sys.argv[1])
try:
    found.save(sys.argv[2])
except RunError as error:
    print(error)
del found
"""


@pytest.mark.thorough
def test_a_diagnosis_that_does_not_fit_leaves_the_process_alive(tmp_path):
    """HDF5 ended the process when a write failed; here one really does."""
    old = Path(__file__).parent.parent / "diagnosis" / "data" / "schema-1.nc"
    target = tmp_path / "d.nc"
    target.write_bytes(b"before")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, old, target], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("the disk is full")
    assert target.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["d.nc"]


def test_compiled_code_that_cannot_be_kept_still_runs(monkeypatch):
    """The cache of numba lies in a folder that may be full or closed: it saves time, and is worth no error."""

    def double(x):
        return 2 * x

    kept = kept_on_disk(njit(double))
    saved = []

    def full(*_):
        saved.append(True)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(kept._cache._cache_file, "save", full)
    assert kept(3) == 6
    assert saved
    monkeypatch.setattr(type(kept), "enable_caching", lambda _: (_ for _ in ()).throw(RuntimeError("no locator")))
    assert kept_on_disk(njit(double))(4) == 8


def test_a_name_that_no_file_can_have_is_refused(tmp_path):
    with pytest.raises(InputError, match="no file can have this name"):
        write_whole(tmp_path / "a\0b", b"")
    assert list(tmp_path.iterdir()) == []
