"""A run is a directory that survives: every file is written whole or not at all, and one process owns it at a time.

- ``config.yaml``: what was asked for, scale and defaults put in; ``versions.json``: what it ran with; ``log.txt``
- ``trainings/NAME/``: ``state-EPOCH.safetensors`` (the two latest, each with its checksum), ``metrics.parquet`` (loss and
  gradient norm by epoch and seed), ``model-EPOCH.safetensors`` (weights to be diagnosed), ``recovered.parquet``
- ``diagnoses/NAME-SEED-EPOCH-RECIPE.nc``: read by `lagreach.load`
- ``summary.parquet``, ``claims.json``, ``figures/``, ``report.html``, and last ``RESULTS.md``
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from lagreach._util.disk import disk_errors, is_file, is_folder, is_temporary, make_folder, write_atomically
from lagreach._version import __version__
from lagreach.errors import InputError, RunError
from lagreach.study.config import StudyConfig, read_config

STATES_KEPT = 2
FOLDERS = ("trainings", "diagnoses", "figures", "experiments", "predictors")
FILES = (
    *("config.yaml", "versions.json", "log.txt", "summary.parquet", "claims.json", "RESULTS.md", "report.html"),
    *("outcomes.parquet", "predictors.parquet"),  # of a validation study
)
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

    @classmethod
    def create(
        cls, path: str | Path, config: StudyConfig, *, resume: bool = False, overwrite: bool = False
    ) -> RunDirectory:
        """Make a new run, or find an old one to go on with; what is there is never lost by accident."""
        run = cls(path)
        if is_file(run.config_path) and not (resume or overwrite):
            finished = "finished" if run.finished else "unfinished"
            raise RunError(
                f"this folder already holds a {finished} run",
                got=str(run.path),
                fix="--resume goes on with it, --overwrite starts again, or choose another --out",
            )
        foreign = run.foreign()
        if foreign and not is_file(run.config_path):
            raise RunError(
                "this folder holds something that is not a run",
                got=f"{run.path}, with {foreign[0]}",
                fix="choose an empty folder",
            )
        make_folder(run.path)
        with run.lock():
            if overwrite:
                run.clear()
            if is_file(run.config_path) and run.config() != config:
                raise RunError(
                    "the run in this folder was started with another configuration",
                    got=str(run.path),
                    fix="resume with the same study, scale and options, or choose another --out",
                )
            for folder in ("trainings", "diagnoses", "figures"):
                make_folder(run.path / folder)
            run.write_text("versions.json", json.dumps(versions(), indent=2))
            # the configuration comes last: a folder with one is a run
            run.write_text("config.yaml", yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        return run

    @property
    def config_path(self) -> Path:
        """Where the configuration lies."""
        return self.path / "config.yaml"

    @property
    def finished(self) -> bool:
        """Whether the last step of the run, its table of results, is there."""
        return is_file(self.path / "RESULTS.md")

    def foreign(self) -> list[str]:
        """Names of what lies in the folder and no run writes; a run stopped at its very start leaves its own files only."""
        if not is_folder(self.path):
            return []
        with disk_errors(self.path):
            names = sorted(path.name for path in self.path.iterdir())
        return [name for name in names if name not in (*FOLDERS, *FILES, ".lock") and not is_temporary(name)]

    def config(self) -> StudyConfig:
        """Read the configuration of the run back."""
        if not is_file(self.config_path):
            raise RunError(
                "there is no run in this folder", got=str(self.path), expected="a folder made by `study run`"
            )
        return read_config(self.config_path)

    def clear(self) -> None:
        """Remove what a run writes, and nothing else."""
        with disk_errors(self.path):
            for name in FOLDERS:
                shutil.rmtree(self.path / name, ignore_errors=True)
            for name in FILES:
                (self.path / name).unlink(missing_ok=True)

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
        """Write a small file whole or not at all."""
        with write_atomically(self.path / name) as temporary:
            temporary.write_text(content, encoding="utf-8")

    def log(self, message: str) -> None:
        """Append a line with the time; a log that cannot be written stops nothing."""
        with contextlib.suppress(OSError), (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")

    def sessions(self) -> list[Session]:
        """Read from the log when the run was worked on, and for how long; a session that was killed ends with its last line."""
        found: list[Session] = []
        for line in self._log_lines():
            at = time.mktime(time.strptime(line[:19], "%Y-%m-%d %H:%M:%S"))
            if line[20:].startswith("start: "):
                found.append(Session(line[:19], line[27:], 0.0, at))
            elif found:
                found[-1] = replace(found[-1], seconds=max(0.0, at - found[-1].begun))
        return found

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
    found = {"lagreach": __version__, "python": platform.python_version(), "machine": platform.machine()}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    if torch.cuda.is_available():
        found["cuda_device"] = torch.cuda.get_device_name()
    return found


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Hash of names, shapes, types and contents."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors with a checksum, whole or not at all."""
    from safetensors.torch import save_file

    held = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with write_atomically(path) as temporary:
        save_file(held, temporary, metadata={"checksum": checksum(held)})


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors back; anything but what was written is refused. Nothing in the file is executed."""
    from safetensors import safe_open

    if not is_file(path):
        raise InputError(
            "this checkpoint cannot be read: there is no such file",
            got=str(path),
            fix="resume the run: it is made again",
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, Any] = file.metadata() or {}
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except Exception as error:  # a library that reads damaged files raises anything, and all of it means the same here
        raise InputError(
            "this checkpoint cannot be read",
            got=f"{path.name}: {error}",
            fix="remove it and resume: it is made again",
        ) from error
    if metadata.get("checksum") != checksum(found):
        raise InputError(
            "this checkpoint is damaged: its checksum does not match",
            got=path.name,
            fix="remove it and resume: it is made again",
        )
    return found


def save_state(folder: Path, epoch: int, state: Mapping[str, Tensor]) -> None:
    """Save a training state and keep the one before it."""
    save_tensors(folder / f"state-{epoch:06d}.safetensors", state)
    for old in sorted(folder.glob("state-*.safetensors"))[:-STATES_KEPT]:
        old.unlink(missing_ok=True)


def remove_states(folder: Path) -> None:
    """Remove every training state, so that none of them is gone on from."""
    for path in folder.glob("state-*.safetensors"):
        path.unlink(missing_ok=True)


def latest_state(folder: Path, warn: Callable[[str], None]) -> dict[str, Tensor] | None:
    """Read the newest state that is whole; `warn` is told of damaged ones."""
    for path in sorted(folder.glob("state-*.safetensors"), reverse=True):
        try:
            return load_tensors(path)
        except InputError as error:
            warn(f"{error}; falling back to the state before it")
    return None
