"""Named tensors from files: .safetensors, .npz and .pt, without executing anything in them and within the memory there is."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lagreach._util.disk import is_file
from lagreach.errors import InputError, LagreachError, TooLargeError

LARGEST = 8 * 2**30  # bytes of tensors, or half of the machine's memory if that is less
KINDS = (".safetensors", ".npz", ".pt", ".pth")


def largest() -> int:
    """Bytes that the tensors of a file may take."""
    return min(LARGEST, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


def read_tensors(path: Path) -> dict[str, Any]:
    """Read named tensors; what a file declares is checked before it is believed."""
    if path.suffix not in KINDS:
        raise InputError("unknown kind of file", got=path.name, expected=", ".join(KINDS))
    if not is_file(path):
        raise InputError("there is no such file", got=str(path), expected=f"a file of kind {', '.join(KINDS)}")
    try:
        _check_size(path, _unpacked_bytes(path))
        content = _read(path)
    except LagreachError:
        raise
    except Exception as error:  # readers of foreign files raise anything, and all of it means the same to the user
        raise InputError(
            "this file cannot be read, or holds more than tensors",
            got=f"{path.name}: {error}",
            expected="named tensors and nothing else, as np.savez, safetensors or torch.save write them",
        ) from error
    if not isinstance(content, dict):
        raise InputError(
            "this file does not hold named tensors", got=type(content).__name__, expected="a dict of tensors"
        )
    tensors = [value for value in content.values() if isinstance(value, Tensor)]
    # a view may repeat one stored number any number of times
    _check_size(path, sum(value.numel() * value.element_size() for value in tensors))
    return content


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    if path.suffix == ".npz":
        import numpy as np

        # the file is opened here: numpy leaves it open where it is no archive
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: torch.from_numpy(archive[name]) for name in archive.files}
    return torch.load(path, map_location="cpu", weights_only=True)


def _unpacked_bytes(path: Path) -> int:
    """Size of a file, unpacked if it is an archive."""
    if path.suffix != ".safetensors" and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return sum(member.file_size for member in archive.infolist())
    return path.stat().st_size


def _check_size(path: Path, size: int) -> None:
    if size > largest():
        raise TooLargeError(
            "the tensors in this file would not fit into memory",
            got=f"{path.name}: {size / 2**30:.1f} GiB",
            expected=f"at most {largest() / 2**30:.1f} GiB",
            fix="take fewer sequences, or pass batches to lagreach.diagnose in Python",
        )
