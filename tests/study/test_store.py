"""Runs that survive: whole files or none, checksums, one owner, clear errors on full and closed disks."""

import errno
import json
import multiprocessing
import os
import resource
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from lagreach._util.disk import disk_errors
from lagreach.errors import InputError, RunError
from lagreach.study.checkpoints import latest_state, load_tensors, save_state, save_tensors
from lagreach.study.config import find_study
from lagreach.study.store import RunDirectory
from lagreach.study.tables import read_rows, write_rows

TINY = find_study(str(Path(__file__).with_name("tiny.yaml"))).at_scale("smoke")


def test_tensors_come_back_as_they_were(tmp_path, generator):
    tensors = {"a": torch.randn(3, 2, generator=generator), "b": torch.tensor([True, False]), "n": torch.tensor(7)}
    save_tensors(tmp_path / "x.safetensors", tensors)
    back = load_tensors(tmp_path / "x.safetensors")
    assert all(torch.equal(back[name], value) for name, value in tensors.items())


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "foreign"])
def test_a_damaged_state_falls_back_to_the_one_before(tmp_path, damage):
    for epoch in (1, 2, 3):
        save_state(tmp_path, epoch, {"weights": torch.full((64,), float(epoch))})
    assert [p.name for p in sorted(tmp_path.glob("state-*"))] == [
        "state-000002.safetensors",
        "state-000003.safetensors",
    ]
    newest = tmp_path / "state-000003.safetensors"
    content = bytearray(newest.read_bytes())
    if damage == "flip":
        content[-5] ^= 1
    newest.write_bytes(
        {"flip": bytes(content), "cut": bytes(content[:40]), "empty": b"", "foreign": b"PK\x03\x04" * 50}[damage]
    )
    notes = []
    state = latest_state(tmp_path, notes.append)
    assert state is not None
    assert state["weights"][0] == 2
    assert len(notes) == 1
    assert "state-000003" in notes[0]


def test_without_a_whole_state_there_is_none(tmp_path):
    assert latest_state(tmp_path, print) is None
    with pytest.raises(InputError, match="cannot be read"):
        load_tensors(tmp_path / "missing.safetensors")


def test_a_run_is_made_once_and_kept(tmp_path):
    run = RunDirectory.create(tmp_path / "run", TINY)
    assert run.config() == TINY
    assert json.loads((run.path / "versions.json").read_text())["torch"] == version("torch")
    with pytest.raises(RunError, match="unfinished run"):
        RunDirectory.create(run.path, TINY)
    assert RunDirectory.create(run.path, TINY, resume=True).config() == TINY
    other = TINY.model_copy(update={"seeds": 3})
    with pytest.raises(RunError, match="another configuration"):
        RunDirectory.create(run.path, other, resume=True)
    again = RunDirectory.create(run.path, other, overwrite=True)
    assert again.config() == other


def test_a_folder_with_something_else_in_it_is_not_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(RunError, match="not a run"):
            RunDirectory.create(tmp_path, TINY, **options)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def _hold(path, ready, release):
    with RunDirectory(path).lock():
        ready.set()
        release.wait(20)


@pytest.mark.thorough
def test_two_processes_cannot_share_a_run(tmp_path):
    run = RunDirectory.create(tmp_path / "run", TINY)
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(str(run.path), ready, release))
    holder.start()
    assert ready.wait(60)
    with pytest.raises(RunError, match=f"held by process {holder.pid}"), run.lock():
        pass
    holder.kill()
    holder.join()
    with run.lock():  # a killed process holds nothing
        pass


def test_a_full_disk_is_named_and_what_was_saved_stays_whole(tmp_path, monkeypatch):
    path = tmp_path / "state.safetensors"
    save_tensors(path, {"a": torch.zeros(3)})

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match="disk is full"):
        save_tensors(path, {"a": torch.ones(3)})
    assert torch.equal(load_tensors(path)["a"], torch.zeros(3))
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]


def _write_beyond_the_limit(path, queue):
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    try:
        save_tensors(Path(path), {"a": torch.ones(100_000)})
    except Exception as error:
        queue.put((type(error).__name__, str(error)))
    else:
        queue.put(("none", ""))


@pytest.mark.thorough
def test_a_write_that_the_system_stops_leaves_the_old_file(tmp_path):
    """A real failing write, in a process of its own: the limit on file sizes cannot be taken back."""
    path = tmp_path / "state.safetensors"
    save_tensors(path, {"a": torch.zeros(3)})
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    writer = context.Process(target=_write_beyond_the_limit, args=(str(path), queue))
    writer.start()
    kind, _ = queue.get(timeout=60)
    writer.join()
    assert kind != "none"
    assert torch.equal(load_tensors(path)["a"], torch.zeros(3))
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_folder_that_cannot_be_written_is_named(tmp_path, code):
    with pytest.raises(RunError, match="cannot be written"), disk_errors(tmp_path):
        raise OSError(code, os.strerror(code))


def test_a_folder_that_vanishes_under_a_run_is_named(tmp_path):
    run = RunDirectory.create(tmp_path / "run", TINY)
    shutil.rmtree(run.path)
    with pytest.raises(RunError, match=r"cannot be written[^$]*No such file"):
        run.write_text("RESULTS.md", "")
    with pytest.raises(InputError, match="missing"):
        run.read(run.path / "RESULTS.md")
    run.log("a log that cannot be written stops nothing")


def test_tables_come_back_and_damaged_ones_are_refused(tmp_path):
    rows = [{"epoch": 1, "loss": 0.5, "lags": [1, 2]}, {"epoch": 2, "loss": None, "lags": []}]
    write_rows(tmp_path / "t.parquet", rows)
    assert read_rows(tmp_path / "t.parquet") == rows
    (tmp_path / "t.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(tmp_path / "t.parquet")


def test_files_are_as_readable_as_any_other(tmp_path):
    write_rows(tmp_path / "t.parquet", [{"a": 1}])
    (tmp_path / "plain").write_text("")
    assert (tmp_path / "t.parquet").stat().st_mode == (tmp_path / "plain").stat().st_mode
