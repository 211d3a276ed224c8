"""A run is a directory that survives: every file is written whole or not at all, and one process owns it at a time.

- ``config.yaml``: what was asked for, scale and defaults put in; ``versions.json``: what it ran with; ``log.txt``
- ``trainings/NAME/``: ``state-EPOCH.safetensors`` (the two latest, each with its checksum), ``metrics.parquet`` (loss and
  gradient norm by epoch and seed), ``model-EPOCH.safetensors`` (weights to be diagnosed), ``recovered.parquet``
- ``diagnoses/NAME-SEED-EPOCH-FORM.nc``: read by `lagreach.load`
- ``summary.parquet``, ``claims.json``, ``figures/``, ``report.html``, and last ``RESULTS.md``
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import yaml
from torch import Tensor

from lagreach._version import __version__
from lagreach.errors import InputError, RunError
from lagreach.io import write_atomically
from lagreach.study.config import StudyConfig, parse

STATES_KEPT = 2
PACKAGES = ("torch", "numpy", "scipy", "numba", "xarray", "pyarrow", "safetensors", "pydantic", "ray")


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
        if run.config_path.exists() and not (resume or overwrite):
            finished = "finished" if run.finished else "unfinished"
            raise RunError(
                f"this folder already holds a {finished} run",
                got=str(run.path),
                fix="--resume goes on with it, --overwrite starts again, or choose another --out",
            )
        if not run.config_path.exists() and run.path.is_dir() and any(run.path.iterdir()):
            raise RunError(
                "this folder holds something that is not a run", got=str(run.path), fix="choose an empty folder"
            )
        with disk_errors(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
        with run.lock():
            if overwrite:
                run.clear()
            if run.config_path.exists() and run.config() != config:
                raise RunError(
                    "the run in this folder was started with another configuration",
                    got=str(run.path),
                    fix="resume with the same study, scale and options, or choose another --out",
                )
            for folder in ("trainings", "diagnoses", "figures"):
                (run.path / folder).mkdir(exist_ok=True)
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
        return (self.path / "RESULTS.md").exists()

    def config(self) -> StudyConfig:
        """Read the configuration of the run back."""
        if not self.config_path.is_file():
            raise RunError(
                "there is no run in this folder", got=str(self.path), expected="a folder made by `study run`"
            )
        return parse(
            StudyConfig, yaml.safe_load(self.config_path.read_text(encoding="utf-8")), "config.yaml of the run"
        )

    def clear(self) -> None:
        """Remove what a run writes, and nothing else."""
        for name in ("trainings", "diagnoses", "figures", "experiments"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in (
            "config.yaml",
            "versions.json",
            "log.txt",
            "summary.parquet",
            "claims.json",
            "RESULTS.md",
            "report.html",
        ):
            (self.path / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder; the system releases it when the process ends, however it ends."""
        with disk_errors(self.path), (self.path / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise RunError(
                    "another process is working in this folder",
                    got=f"{self.path}, held by {file.read().strip() or 'an unknown process'}",
                    fix="wait for it, stop it, or choose another --out",
                ) from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
            yield

    def write_text(self, name: str, content: str) -> None:
        """Write a small file whole or not at all."""
        with disk_errors(self.path), write_atomically(self.path / name) as temporary:
            temporary.write_text(content, encoding="utf-8")

    def log(self, message: str) -> None:
        """Append a line with the time; a log that cannot be written stops nothing."""
        with contextlib.suppress(OSError), (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")

    def training(self, variant: str) -> Path:
        """Folder of a variant's training."""
        return self.path / "trainings" / variant

    def model_path(self, variant: str, epoch: int) -> Path:
        """File with the weights of all seeds of a variant after an epoch."""
        return self.training(variant) / f"model-{epoch:06d}.safetensors"

    def diagnosis_path(self, variant: str, seed: int, epoch: int, form: str) -> Path:
        """File of one diagnosis."""
        suffix = "parquet" if form == "paper" else "nc"  # the printed recipe gives a row of numbers, not a diagnosis
        return self.path / "diagnoses" / f"{variant}-{seed}-{epoch:06d}-{form}.{suffix}"


class disk_errors:  # noqa: N801 (used as a function)
    """Turn a full disk or a folder that cannot be written into an error that says what is safe."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not isinstance(error, OSError):
            return
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(
                "the disk is full",
                got=str(self._path),
                fix="free some space and resume: everything saved before is whole",
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR):
            raise RunError("this folder cannot be written", got=f"{self._path}: {error.strerror}") from error


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
    with disk_errors(path.parent), write_atomically(path) as temporary:
        try:
            save_file(held, temporary, metadata={"checksum": checksum(held)})
        except Exception as error:
            # safetensors reports a full disk as its own kind of error
            if "No space left" in str(error) or "os error 28" in str(error):
                raise OSError(errno.ENOSPC, "No space left on device") from error
            raise


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors back; anything but what was written is refused. Nothing in the file is executed."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, Any] = file.metadata() or {}
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError("this checkpoint cannot be read", got=f"{path.name}: {error}") from error
    if metadata.get("checksum") != checksum(found):
        raise InputError("this checkpoint is damaged: its checksum does not match", got=path.name)
    return found


def save_state(folder: Path, epoch: int, state: Mapping[str, Tensor]) -> None:
    """Save a training state and keep the one before it."""
    save_tensors(folder / f"state-{epoch:06d}.safetensors", state)
    for old in sorted(folder.glob("state-*.safetensors"))[:-STATES_KEPT]:
        old.unlink(missing_ok=True)


def latest_state(folder: Path, warn: Any) -> dict[str, Tensor] | None:
    """Read the newest state that is whole; `warn` is told of damaged ones."""
    for path in sorted(folder.glob("state-*.safetensors"), reverse=True):
        try:
            return load_tensors(path)
        except InputError as error:
            warn(f"{error}; falling back to the state before it")
    return None
