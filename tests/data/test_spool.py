"""Sequences that are kept in a temporary file: what the disk refuses is said, what the user's data raise is not changed."""

import errno
import os
from pathlib import Path

import pytest
import torch

from lagreach.data.sequences import as_sequences
from lagreach.errors import RunError


def batches(count=3, fail=False):
    for k in range(count):
        if fail and k == 1:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "the user's own file")
        yield torch.full((4, 6, 2), float(k)), torch.full((4, 6, 1), float(k))


def refuse(number):
    def call(*_, **__):
        raise OSError(number, os.strerror(number))

    return call


def test_sequences_come_back_in_any_order():
    held = as_sequences(batches())
    batch = held.read([9, 0, 5])
    assert batch.x[:, 0, 0].tolist() == [2.0, 0.0, 1.0]
    assert batch.y.shape == (3, 6, 1)


@pytest.mark.parametrize("call", ["pwrite", "open"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_temporary_folder_without_room_is_named(monkeypatch, call, number):
    monkeypatch.setattr(os, call, refuse(number))
    with pytest.raises(RunError, match="temporary folder") as caught:
        as_sequences(batches())
    assert os.strerror(number) in str(caught.value)
    assert "TMPDIR" in str(caught.value)


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_file_that_is_gone_or_cut_does_not_end_the_process(monkeypatch, tmp_path, damage):
    """A file that is mapped into memory would, with SIGBUS."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    held = as_sequences(batches())
    (file,) = [path for path in Path(tmp_path).rglob("*") if path.is_file()]
    if damage == "gone":
        file.unlink()
        assert held.read([11]).x[0, 0, 0] == 2.0  # it is open
    else:
        os.truncate(file, 10)
        with pytest.raises(RunError, match="temporary folder"):
            held.read([11])


def test_errors_of_the_data_themselves_are_not_blamed_on_the_disk():
    with pytest.raises(FileNotFoundError, match="the user's own file"):
        as_sequences(batches(fail=True))


def test_nothing_is_left_behind(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    held = as_sequences(batches())
    assert len(list(tmp_path.iterdir())) == 1
    del held
    assert list(tmp_path.iterdir()) == []
