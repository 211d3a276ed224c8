"""Writing to disks that may be full, closed or gone: files are whole or not there, and errors are sentences.

Everything is made in memory and written here, as bytes: libraries that write files themselves do not all survive a disk that
is full (HDF5 ends the process).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from lagreach.errors import InputError, RunError, TooLargeError

TEMPORARY = ".writing-"  # how names of unfinished files begin
PICTURES: dict[str, dict[str, str | None]] = {  # formats of figures, and what to write into them instead of dates
    "png": {"Software": "lagreach"},
    "svg": {"Date": None, "Creator": "lagreach"},
    "pdf": {"CreationDate": None, "Creator": "lagreach"},
}
LARGEST_FILE = 8 * 2**30  # bytes that are read at once
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# libraries report a full disk as errors of their own
FULL_IN_WORDS = ("No space left on device", "Disk quota exceeded", "File too large")
Write = Callable[[Path, bytes], None]
Read = Callable[[Path], bytes]


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


def as_path(path: object) -> Path:
    """The path of a file; refused what is none."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise InputError("this is not the path of a file", got=repr(path), expected='a path such as "result.nc"')
    return Path(path)


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


def checksum(content: bytes) -> str:
    """Hash of bytes, as ``b2sum --length 128`` prints it."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def read_whole(path: Path, largest: int = LARGEST_FILE) -> bytes:
    """Return the bytes of a file, as they are; errors are sentences."""
    if is_folder(path):
        raise InputError("this is a folder, not a file", got=str(path), expected="the path of a file")
    if not is_file(path):
        raise InputError(
            "this file cannot be read: there is no such file", got=str(path), expected="the path of a file"
        )
    try:
        size = path.stat().st_size
        if size > largest:
            raise TooLargeError(
                "this file is too large",
                got=f"{path.name}: {size / 2**20:.0f} MiB",
                expected=f"at most {largest / 2**20:.0f} MiB",
            )
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            "this file cannot be read",
            got=f"{path}: {error.strerror or error}",
            fix="see to its permissions, and whether its disk is still there",
        ) from error


def write_whole(target: Path, content: bytes) -> None:
    """Write a file beside the target and move it into place: readers see the old file or the new one, never half of one."""
    target = Path(target)
    if "\0" in str(target):
        raise InputError("no file can have this name", got=repr(str(target)), expected="a name without NUL characters")
    if not is_folder(target.parent):
        raise InputError("the folder does not exist", got=str(target.parent), fix="create it first")
    if os.path.exists(target) and not (is_file(target) or is_folder(target)):  # /dev/null would become a file
        raise InputError("this is a device, not a file", got=str(target), expected="the path of a file")
    with disk_errors(target):
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=TEMPORARY)
        temporary = Path(name)
        try:
            with open(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if temporary.stat().st_size != len(content):  # some network disks lose the end without an error
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            temporary.chmod(0o666 & ~_umask())  # temporary files are private; the target is an ordinary file
            temporary.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):  # the disk that refused to write may refuse this too
                temporary.unlink()
            raise


def refuse_others(paths: Iterable[Path]) -> None:
    """Refuse to replace files that lagreach did not write; its own have its name in them."""
    others = [path for path in paths if is_file(path) and (content := read_whole(path)) and b"lagreach" not in content]
    if others:
        raise InputError(
            "there are files under these names already, and lagreach did not write them",
            got=", ".join(map(str, others)),
            fix="move them elsewhere, or choose another place; nothing was touched",
        )


def write_text(target: Path, text: str) -> None:
    """Write a text whole or not at all."""
    write_whole(target, text.encode())


def save_figure(figure: Any, path: Path, **options: Any) -> None:
    """Write a matplotlib figure in the format its name ends with; the same figure gives the same file."""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in PICTURES:
        raise InputError(
            "unknown format of a figure", got=path.name, expected=f"a name ending in .{', .'.join(PICTURES)}"
        )
    drawn = io.BytesIO()
    figure.savefig(drawn, format=kind, metadata=PICTURES[kind], **options)
    write_whole(path, drawn.getvalue())


def is_temporary(name: str) -> bool:
    """Whether a file of this name was being written when a process ended."""
    return name.startswith(TEMPORARY)


def _umask() -> int:
    """Return the process's mask of permissions, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
