"""Files that would run code if they were unpickled, through every option that takes a file."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from typer.testing import CliRunner

from lagreach.cli.main import app
from lagreach.errors import LagreachError
from tests.reliability import commands
from tests.reliability.counting import Count, Size, scratch

EVERY = {"quick": 7, "full": 1}  # file of those that are written


class Trap:
    """Calls a function when it is unpickled."""

    def __init__(self, call: Callable[..., Any], *words: Any) -> None:
        self.call, self.words = call, words

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call, self.words


def traps(executed: Path) -> dict[str, Any]:
    """Return objects that create a file when they are unpickled, each by another way into Python."""
    line = f"open({str(executed)!r}, 'w').close()"
    return {
        "path": Trap(Path.touch, executed),
        "system": Trap(os.system, f"touch {executed}"),
        "eval": Trap(eval, line),
        "exec": Trap(exec, line),
        "open": Trap(open, str(executed), "w"),
        "torch": Trap(torch.save, {}, str(executed)),
        "numpy": Trap(np.save, str(executed), np.zeros(1)),
        "nested": {"x": [Trap(eval, line)], "y": torch.zeros(2)},
    }


def write_traps(folder: Path, executed: Path) -> list[Path]:
    """Write every trap in every kind of file that could hold a pickle."""
    written = []
    for name, trap in traps(executed).items():
        content = {"x": trap, "y": torch.zeros(2)}
        plain = pickle.dumps(content)
        for suffix in (".pt", ".pth"):
            torch.save(content, folder / f"{name}{suffix}")
            torch.save(content, folder / f"{name}-old{suffix}", _use_new_zipfile_serialization=False)
            (folder / f"{name}-plain{suffix}").write_bytes(plain)
            written += [folder / f"{name}{part}{suffix}" for part in ("", "-old", "-plain")]
        held = np.empty(1, dtype=object)
        held[0] = trap
        np.savez(folder / f"{name}.npz", x=held, y=np.zeros(1))
        with zipfile.ZipFile(folder / f"{name}-member.npz", "w") as archive:
            archive.writestr("x", plain)
            archive.writestr("y.npy", _npy_pickle(plain))
        for suffix in (".npz", ".safetensors", ".nc", ".yaml"):
            (folder / f"{name}-plain{suffix}").write_bytes(plain)
            written.append(folder / f"{name}-plain{suffix}")
        written += [folder / f"{name}.npz", folder / f"{name}-member.npz"]
    for tag in ("object/apply:os.system", "object/new:os.system", "name:os.system", "module:os"):
        path = folder / f"{tag.replace('/', '-').replace(':', '-')}.yaml"
        path.write_text(f"name: !!python/{tag} ['touch {executed}']\ntitle: a\n")
        written.append(path)
    return written


def _npy_pickle(pickled: bytes) -> bytes:
    held = io.BytesIO()
    np.lib.format.write_array_header_1_0(held, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    return held.getvalue() + pickled


def check(size: Size) -> list[Count]:
    """Hand every trap to every option that takes a file."""
    count = Count(
        "files with code in them, through `--data`, `--weights` and every argument", "nothing runs, exit code 2"
    )
    runner, here = CliRunner(), Path.cwd()
    with scratch() as folder:
        os.chdir(folder)
        try:
            commands.prepare(folder)
            executed = folder / "executed"
            paths = write_traps(folder, executed)
            for path in paths[:: EVERY[size]]:
                for words in _ways(path):
                    result = runner.invoke(app, words)
                    refused = isinstance(result.exception, (LagreachError, SystemExit)) and result.exit_code != 0
                    good = refused and not executed.exists()
                    executed.unlink(missing_ok=True)
                    count.add("refused" if good else "failed", None if good else f"{words}: {result.exception}")
        finally:
            os.chdir(here)
    return [count]


def _ways(path: Path) -> list[list[str]]:
    """Return commands that read a file of this kind, and one that is not meant to."""
    name = str(path)
    model = ["diagnose", "--model", "mine:gated", "--out", "result"]
    if path.suffix == ".yaml":
        return [["study", "show", name], ["study", "run", name, "--out", "run"], ["study", "status", name]]
    if path.suffix == ".nc":
        return [["compare", name], ["suggest", name], ["report", name], ["figures", name, "--out", "pictures"]]
    return [[*model, "--data", name], [*model, "--data", "good.npz", "--weights", name], ["report", name]]
