"""Writing to disks that may be full, closed or gone: files are whole or not there, and errors are sentences."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from lagreach.errors import InputError, RunError

TEMPORARY = ".writing-"  # how names of unfinished files begin
PICTURES: dict[str, dict[str, str | None]] = {  # formats of figures, and what to write into them instead of dates
    "png": {"Software": "lagreach"},
    "svg": {"Date": None, "Creator": "lagreach"},
    "pdf": {"CreationDate": None},
}
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# libraries that write files report a full disk as errors of their own
FULL_IN_WORDS = ("No space left on device", "Disk quota exceeded", "File too large")


class disk_errors:  # noqa: N801 (used as a function)
    """Turn what the file system refuses into an error that says what is safe."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        raise_if_refused(self._path, error)


def raise_if_refused(path: Path, error: BaseException | None) -> None:
    """Raise a RunError if an error comes from a full disk or from something that cannot be written."""
    if not isinstance(error, Exception):
        return
    number = error.errno if isinstance(error, OSError) else None
    if number in FULL or any(words in str(error) for words in FULL_IN_WORDS):
        raise RunError(
            "the disk is full", got=str(path), fix="free some space and go on: everything saved before is whole"
        ) from error
    if number is not None:
        raise RunError(
            "this cannot be written",
            got=f"{path}: {os.strerror(number)}",
            fix="choose another place, or see to its permissions and to what is in the way",
        ) from error


def is_file(path: Path) -> bool:
    """Whether there is a file; no error for names that no file can have, or where one may not look."""
    return os.path.isfile(path)


def is_folder(path: Path) -> bool:
    """Whether there is a folder; no error, likewise."""
    return os.path.isdir(path)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, if they are not there."""
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)


def save_figure(figure: Any, path: Path, **options: Any) -> None:
    """Write a matplotlib figure in the format its name ends with; the same figure gives the same file."""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in PICTURES:
        raise InputError(
            "unknown format of a figure", got=path.name, expected=f"a name ending in .{', .'.join(PICTURES)}"
        )
    with write_atomically(path) as temporary:
        figure.savefig(temporary, format=kind, metadata=PICTURES[kind], **options)


def is_temporary(name: str) -> bool:
    """Whether a file of this name was being written when a process ended."""
    return name.startswith(TEMPORARY)


class write_atomically:  # noqa: N801 (used as a function)
    """Give a temporary path beside the target, and move it into place if all went well."""

    def __init__(self, target: Path) -> None:
        self._target = Path(target)

    def __enter__(self) -> Path:
        if not is_folder(self._target.parent):
            raise InputError("the folder does not exist", got=str(self._target.parent), fix="create it first")
        with disk_errors(self._target):
            handle, name = tempfile.mkstemp(dir=self._target.parent, prefix=TEMPORARY)
            os.close(handle)
        self._temporary = Path(name)
        return self._temporary

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        try:
            if kind is None:
                with disk_errors(self._target):
                    self._move_into_place()
            raise_if_refused(self._target, error)
        finally:
            self._temporary.unlink(missing_ok=True)

    def _move_into_place(self) -> None:
        with self._temporary.open("rb") as file:
            os.fsync(file.fileno())
        self._temporary.chmod(0o666 & ~_umask())  # temporary files are private; the target is an ordinary file
        self._temporary.replace(self._target)


def _umask() -> int:
    """Return the process's mask of permissions, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
