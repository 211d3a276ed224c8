"""A run is a directory that survives: every file is written whole or not at all, and one process owns it at a time.

What is in it is known by ``manifest.txt`` (see `lagreach.study.manifest`): a file that is not as it was written, or lies in
another's place, is made again, and only what is listed there is ever removed.

- ``config.yaml``: what was asked for, scale and defaults put in; ``versions.json``: what it ran with; ``log.txt``
- ``trainings/NAME/``: ``state-EPOCH.safetensors`` (the two latest, each with its checksum), ``metrics.parquet`` (loss and
  gradient norm by epoch and seed), ``model-EPOCH.safetensors`` (weights to be diagnosed), ``recovered.parquet``
- ``diagnoses/NAME-SEED-EPOCH-RECIPE.nc``: read by `lagreach.load`
- ``summary.parquet``, ``claims.json``, ``figures/``, ``report.html``, and last ``RESULTS.md``
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
import yaml

from lagreach._util.disk import (
    checksum,
    disk_errors,
    is_file,
    is_folder,
    is_temporary,
    make_folder,
    read_whole,
    write_whole,
)
from lagreach._version import __version__
from lagreach.errors import InputError, LagreachError, RunError
from lagreach.study.config import StudyConfig, read_config
from lagreach.study.layout import FILES, FOLDERS, files_in, without_temporary, written_by
from lagreach.study.manifest import MANIFEST, Manifest
from lagreach.study.tables import MENDED

SHOWN = 20  # names of files in an error
FIRST_LINE = "# A run of lagreach; manifest.txt lists its files.\n"  # of config.yaml
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")
PACKAGES = ("torch", "numpy", "scipy", "numba", "xarray", "pyarrow", "safetensors", "pydantic", "ray")


@dataclass(frozen=True)
class Session:
    """One stretch of work on a run: when it began, what it ran on, and how long it lasted."""

    started: str
    what: str
    seconds: float
    begun: float  # the start as a number


class RunDirectory:
    """Paths of a run, and the lock that keeps two processes from working in it at once."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest = Manifest(self.path)

    @classmethod
    def create(
        cls, path: str | Path, config: StudyConfig, *, resume: bool = False, overwrite: bool = False
    ) -> RunDirectory:
        """Make a new run, or find an old one to go on with; what somebody else put there is never touched."""
        run = cls(path)
        begun = is_file(run.config_path)
        if begun and not run.is_run:
            raise run._refusal("this folder holds something that is not a run", without_temporary(files_in(run.path)))
        if begun and not (resume or overwrite):
            finished = "finished" if run.finished else "unfinished"
            raise RunError(
                f"this folder already holds a {finished} run",
                got=str(run.path),
                fix="--resume goes on with it, --overwrite starts again, or choose another --out",
            )
        if (overwrite and not is_file(run.path / ".lock")) or not begun:  # no process is at work
            run._refuse_others()
        make_folder(run.path)
        with run.lock():
            if overwrite:
                run._refuse_others()
                run.clear()
            run._begin(config)
        return run

    def _refuse_others(self) -> None:
        if others := self.others():
            raise self._refusal(
                "this folder holds files that are not a run's, or were changed since it wrote them", others
            )

    def _refusal(self, problem: str, names: list[str]) -> RunError:
        return RunError(
            problem,
            got=f"{self.path}, with {shown(names)}",
            expected="an empty folder, or a run with nothing else in it",
            fix="move them elsewhere, or choose another --out; nothing was touched",
        )

    def _begin(self, config: StudyConfig) -> None:
        """Write what was asked for; a run that is there must have been asked for the same."""
        content = FIRST_LINE + yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        if is_file(self.config_path):
            # a damaged configuration is known by the checksum that it should have
            expected = self.manifest.vouches("config.yaml", checksum(content.encode()))
            if not expected and read_config(self.config_path) != config:
                raise RunError(
                    "the run in this folder was started with another configuration",
                    got=str(self.path),
                    fix="resume with the same study, scale and options, or choose another --out",
                )
            if not self.listed:
                self._list_what_is_there()
            elif not self.manifest.exists:
                self.log(f"{MANIFEST} is missing or damaged: nothing can be compared with it, and all is made again")
        # a file's checksum, and the one it was to get when a process ended before it was written
        self.manifest.tidy(lines_kept=2)
        for name in self.manifest.checksums():
            if name not in FILES and not self.wrote(name):
                self.log(f"{name} is damaged: it is made again")
        for folder in ("trainings", "diagnoses", "figures"):
            make_folder(self.path / folder)
        self.write_text("versions.json", json.dumps(versions(), indent=2))
        # the configuration comes last: a folder with one is a run
        self.write_text("config.yaml", content)

    def _list_what_is_there(self) -> None:
        """List the files of a run that was begun before runs had such a list."""
        names = [name for name in files_in(self.path) if self.wrote(name)]
        self.manifest.write({name: [checksum(read_whole(self.path / name))] for name in names})

    @property
    def config_path(self) -> Path:
        """Where the configuration lies."""
        return self.path / "config.yaml"

    @property
    def finished(self) -> bool:
        """Whether the last step of the run, its table of results, is there."""
        return is_file(self.path / "RESULTS.md")

    @property
    def listed(self) -> bool:
        """Whether the manifest says what belongs to the run; runs of version 0.1.0 had none."""
        return self.manifest.exists or _first_line(self.config_path) == FIRST_LINE.encode()

    @property
    def is_run(self) -> bool:
        """Whether a run was begun here: the manifest lists its configuration, or it is one of before, with what that left."""
        if "config.yaml" in self.manifest.checksums():
            return True
        if not self.listed and not (is_file(self.path / "versions.json") and is_file(self.path / ".lock")):
            return False  # somebody's study, or the outcome of one
        try:
            read_config(self.config_path)
        except LagreachError:
            return False
        return True

    def wrote(self, name: str) -> bool:
        """Whether a file is there as the run wrote it; of a run without a manifest, whether runs write such a file."""
        path = self.path / name
        if not is_file(path) or path.is_symlink():
            return False
        if not self.lists(name):
            return False
        return not self.listed or self.manifest.vouches(name, checksum(read_whole(path)))

    def lists(self, name: str) -> bool:
        """Whether a file of this name is the run's, damaged or not."""
        if self.listed:
            return name in self.manifest.checksums()
        return is_file(self.config_path) and self._of_before.fullmatch(name) is not None

    @cached_property
    def _of_before(self) -> re.Pattern[str]:
        return written_by(self.config())

    def others(self) -> list[str]:
        """Names of what lies in the folder and is not as this run wrote it."""
        if not is_folder(self.path):
            return []
        unlisted = {".lock", *([MANIFEST] if self.manifest.exists else [])}
        if (self.listed or is_file(self.config_path)) and self._log_is_own():
            unlisted.add("log.txt")
        names = without_temporary(files_in(self.path))
        return [name for name in names if name not in unlisted and not self.wrote(name)]

    def config(self) -> StudyConfig:
        """Read the configuration of the run back."""
        if not is_file(self.config_path):
            raise RunError(
                "there is no run in this folder", got=str(self.path), expected="a folder made by `study run`"
            )
        self.read(self.config_path)
        return read_config(self.config_path)

    def clear(self) -> None:
        """Remove what this run wrote, file by file, and nothing else."""
        if is_file(self.config_path) and not self.listed:
            self._list_what_is_there()  # so that the rest is known, should this be stopped halfway
        with disk_errors(self.path):
            # first what makes it a finished run, last what makes it a run
            for name in sorted(files_in(self.path), key=lambda name: (name == "config.yaml", name != "RESULTS.md")):
                if is_temporary(Path(name).name) or name == "log.txt" or self.wrote(name):
                    (self.path / name).unlink(missing_ok=True)
            self.manifest.remove()
            for folder in FOLDERS:
                for place, _, _ in os.walk(self.path / folder, topdown=False):
                    with contextlib.suppress(OSError):  # a folder that is not empty stays
                        Path(place).rmdir()

    def write(self, path: Path, content: bytes) -> None:
        """Write a file of the run, and its checksum into the manifest."""
        self.manifest.add(path.relative_to(self.path).as_posix(), checksum(content))
        write_whole(path, content)

    def read(self, path: Path) -> bytes:
        """Return a file of the run; another content than the run wrote there is refused before anything looks into it."""
        name = path.relative_to(self.path).as_posix()
        if not is_file(path):
            raise InputError("a file of this run is missing", got=str(path), fix=MENDED)
        content = read_whole(path)
        if self.listed and not self.manifest.vouches(name, checksum(content)):
            raise InputError(
                "this file is damaged, or not the run's: its checksum is not in the manifest", got=str(path), fix=MENDED
            )
        return content

    def is_whole(self, path: Path) -> bool:
        """Whether a file is there, with what the run wrote into it."""
        try:
            self.read(path)
        except InputError:
            return False
        return True

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder; the system releases it when the process ends, however it ends."""
        with disk_errors(self.path):
            # a link is not followed: what it points to would be emptied
            handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(handle, 200, 0).decode(errors="replace").strip()
                raise RunError(
                    "another process is working in this folder",
                    got=f"{self.path}, held by {holder or 'an unknown process'}",
                    fix="wait for it, stop it, or choose another --out",
                ) from None
            with contextlib.suppress(OSError):  # who holds it is only for show
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"process {os.getpid()} on {platform.node()}".encode(), 0)
            yield
        finally:
            os.close(handle)

    def write_text(self, name: str, content: str) -> None:
        """Write a text of the run."""
        self.write(self.path / name, content.encode())

    def log(self, message: str) -> None:
        """Append a line with the time; a log that cannot be written stops nothing."""
        with contextlib.suppress(OSError), (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")

    def finish(self) -> None:
        """Note that all is done; from now on the manifest has one line for each file."""
        self.manifest.tidy(lines_kept=1)
        self.log("finished")

    def sessions(self) -> list[Session]:
        """Read from the log when the run was worked on, and for how long; a session that was killed ends with its last line."""
        sessions: list[Session] = []
        for line in self._log_lines():
            at = time.mktime(time.strptime(line[:19], "%Y-%m-%d %H:%M:%S"))
            if line[20:].startswith("start: "):
                sessions.append(Session(line[:19], line[27:], 0.0, at))
            elif sessions:
                sessions[-1] = replace(sessions[-1], seconds=max(0.0, at - sessions[-1].begun))
        return sessions

    def _log_is_own(self) -> bool:
        """Whether the log begins as a run's does; a manifest cannot vouch for it, since it grows."""
        path = self.path / "log.txt"
        return not is_file(path) or LOG_LINE.match(path.read_text(encoding="utf-8", errors="replace")) is not None

    def _log_lines(self) -> list[str]:
        path = self.path / "log.txt"
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if is_file(path) else []
        return [line for line in lines if LOG_LINE.match(line)]

    def training(self, variant: str) -> Path:
        """Folder of a variant's training."""
        return self.path / "trainings" / variant

    def model_path(self, variant: str, epoch: int) -> Path:
        """File with the weights of all seeds of a variant after an epoch."""
        return self.training(variant) / f"model-{epoch:06d}.safetensors"

    def diagnosis_path(self, variant: str, seed: int, epoch: int, recipe: str) -> Path:
        """File of one diagnosis."""
        suffix = "parquet" if recipe == "paper" else "nc"  # the printed recipe gives a row of numbers, not a diagnosis
        return self.path / "diagnoses" / f"{variant}-{seed}-{epoch:06d}-{recipe}.{suffix}"


def versions() -> dict[str, str]:
    """Versions of what results depend on."""
    numbers = {"lagreach": __version__, "python": platform.python_version(), "machine": platform.machine()}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            numbers[name] = version(name)
    if torch.cuda.is_available():
        numbers["cuda_device"] = torch.cuda.get_device_name()
    return numbers


def shown(names: list[str]) -> str:
    """Names of files in a sentence, not all of them if they are many."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _first_line(path: Path) -> bytes:
    """Return the first line of a file, and nothing if there is none."""
    try:
        with path.open("rb") as file:
            return file.readline(200)
    except OSError:
        return b""
