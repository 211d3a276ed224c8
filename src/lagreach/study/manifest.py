"""What a run has written: a line for each file, with the checksum of its bytes.

The lines are those of ``b2sum --length 128``: in the folder of a finished run, ``b2sum --length 128 --check manifest.txt`` tells
whether anything has changed. A line is written before its file is moved into place, so that a run that is stopped, at whatever
moment, leaves no file without a line; until a run is finished a file may have several, of what it was and what it becomes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from io import FileIO
from pathlib import Path

from lagreach._util.disk import disk_errors, is_file, write_whole

MANIFEST = "manifest.txt"
OF_A_RUN = "# Files of a lagreach run. To check them: b2sum --length 128 --check manifest.txt"
OF_AN_OUTCOME = "# Outcome of a lagreach run. To check it: b2sum --length 128 --check manifest.txt"
LINE = re.compile(r"([0-9a-f]{32})  (.+)")


class Manifest:
    """The list in a folder; `title`, its first line, tells lists of different kinds, and other people's, apart."""

    def __init__(self, folder: Path, title: str = OF_A_RUN) -> None:
        self.path = folder / MANIFEST
        self._folder, self._title = folder, title
        self._checksums: dict[str, list[str]] = {}
        self._read_of, self._read_to = -1, 0  # the file that was read, and how far

    @property
    def exists(self) -> bool:
        """Whether there is such a list, and not another file of this name."""
        try:
            with _open(self.path) as file:
                return file.readline().rstrip(b"\n") == self._title.encode()
        except OSError:
            return False

    def checksums(self) -> dict[str, list[str]]:
        """Checksums by file, the latest last; what other processes have added since is read too."""
        if not self.exists:
            return {}
        with disk_errors(self.path), _open(self.path) as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._read_of or status.st_size < self._read_to:
                self._checksums, self._read_of, self._read_to = {}, status.st_ino, 0
            file.seek(self._read_to)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]  # the last line may be in the making
        self._read_to += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            if known := LINE.fullmatch(line):
                self._checksums.setdefault(known[2], []).append(known[1])
        return self._checksums

    def vouches(self, name: str, checksum: str) -> bool:
        """Whether a file of this name was written with this content."""
        return checksum in self.checksums().get(name, ())

    def add(self, name: str, checksum: str) -> None:
        """Add a line; several processes may do so at once."""
        line = f"{checksum}  {name}\n".encode()
        if not os.path.lexists(self.path) and self._folder.is_dir():  # a folder that never was a run's until now
            self.write({})
        with disk_errors(self.path), _open(self.path, os.O_RDWR | os.O_APPEND) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file.fileno()).st_size
            if os.pread(file.fileno(), 1, size - 1) != b"\n":  # a process was killed in the middle of a line
                line = b"\n" + line
            try:
                while line:
                    line = line[os.write(file.fileno(), line) :]
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), size)
                raise

    def tidy(self, lines_kept: int) -> None:
        """Keep the latest lines of the files that are there; make the list if there is none."""
        there = {name: known for name, known in self.checksums().items() if is_file(self._folder / name)}
        self.write({name: list(dict.fromkeys(reversed(known)))[:lines_kept][::-1] for name, known in there.items()})

    def write(self, checksums: dict[str, list[str]]) -> None:
        """Write the list anew."""
        lines = [f"{checksum}  {name}" for name in sorted(checksums) for checksum in checksums[name]]
        write_whole(self.path, "".join(f"{line}\n" for line in (self._title, *lines)).encode())
        self._read_of = -1

    def remove(self) -> None:
        """Remove the list itself."""
        self.path.unlink(missing_ok=True)
        self._read_of = -1


def _open(path: Path, flags: int = os.O_RDONLY) -> FileIO:
    """Open a file without following a link: what it points to is none of the run's."""
    return FileIO(os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK), "r" if flags == os.O_RDONLY else "r+")
