"""Weights and training states on disk, each with a checksum; nothing in such a file is executed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lagreach._util.disk import Read, Write, read_whole, write_whole
from lagreach.errors import InputError

STATES_KEPT = 2
STATE = re.compile(r"state-\d{6,}\.safetensors")


def tensor_checksum(tensors: Mapping[str, Tensor]) -> str:
    """Hash of names, shapes, types and contents."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_tensors(path: Path, tensors: Mapping[str, Tensor], write: Write = write_whole) -> None:
    """Write tensors with a checksum, whole or not at all."""
    from safetensors.torch import save

    held = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    write(path, save(held, metadata={"checksum": tensor_checksum(held)}))


def load_tensors(path: Path, read: Read = read_whole) -> dict[str, Tensor]:
    """Read tensors back; anything but what was written is refused. Nothing in the file is executed."""
    from safetensors.torch import load

    content = read(path)
    try:
        size = int.from_bytes(content[:8], "little")
        metadata: dict[str, Any] = json.loads(content[8 : 8 + size]).get("__metadata__") or {}
        tensors = load(content)
    except Exception as error:  # a library that reads damaged files raises anything, and all of it means the same here
        raise InputError(
            "this checkpoint cannot be read",
            got=f"{path.name}: {error}",
            fix="remove it and resume: it is made again",
        ) from error
    if metadata.get("checksum") != tensor_checksum(tensors):
        raise InputError(
            "this checkpoint is damaged: its checksum does not match",
            got=path.name,
            fix="remove it and resume: it is made again",
        )
    return tensors


def save_state(folder: Path, epoch: int, state: Mapping[str, Tensor], write: Write = write_whole) -> None:
    """Save a training state and keep the one before it."""
    save_tensors(folder / f"state-{epoch:06d}.safetensors", state, write)
    for old in states(folder)[:-STATES_KEPT]:
        old.unlink(missing_ok=True)


def states(folder: Path) -> list[Path]:
    """Files of training states, the latest last."""
    return sorted(path for path in folder.glob("state-*.safetensors") if STATE.fullmatch(path.name))


def remove_states(folder: Path) -> None:
    """Remove every training state, so that none of them is gone on from."""
    for path in states(folder):
        path.unlink(missing_ok=True)


def latest_state(folder: Path, warn: Callable[[str], None], read: Read = read_whole) -> dict[str, Tensor] | None:
    """Read the newest state that is whole; `warn` is told of damaged ones."""
    for path in reversed(states(folder)):
        try:
            return load_tensors(path, read)
        except InputError as error:
            warn(f"{error}; falling back to the state before it")
    return None
