"""``lagreach bench``: run the benchmarks of a checkout. They are not part of an installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lagreach._util.disk import is_file
from lagreach.errors import InputError, UnsupportedError

AUTHOR_SCRIPT = "run_learnability_DGX.py"


def find_checkout() -> Path:
    """Return the folder that holds the benchmarks: the checkout this package runs from, or the current folder."""
    for folder in (Path(__file__).resolve().parents[3], Path.cwd()):
        if (folder / "benchmarks" / "harness.py").is_file():
            return folder
    raise UnsupportedError(
        "the benchmarks are not here",
        got=f"no benchmarks/harness.py beside the package or in {Path.cwd().name}/",
        fix="run this in a checkout of the repository",
    )


DEVICES = {"cpu": "benchmarks", "cuda": "benchmarks.gpu"}  # to what is run


def run_bench(names: Sequence[str], *, quick: bool, out: Path | None, author: Path | None, device: str = "cpu") -> int:
    """Run the benchmarks in a process of their own (those of the CPU on one thread); return its exit code."""
    if device not in DEVICES:
        raise InputError("unknown device", got=repr(device), expected=", ".join(DEVICES))
    checkout = find_checkout()
    environment = dict(os.environ)
    if device == "cuda":
        _check_cuda(author)
    if author is not None:
        if not is_file(author / AUTHOR_SCRIPT):
            raise InputError(
                "these are not the paper author's scripts",
                got=f"no {AUTHOR_SCRIPT} in {author}",
                fix="check out github.com/lorenzolivi/learnability and pass its folder",
            )
        environment["LAGREACH_AUTHOR"] = str(author.resolve())
    command = [sys.executable, "-m", DEVICES[device], *names]
    command += ["--quick"] if quick else []
    command += ["--out", str(out.resolve())] if out is not None else []
    return subprocess.run(command, cwd=checkout, env=environment, check=False).returncode


def _check_cuda(author: Path | None) -> None:
    """Refuse before a process is started."""
    import torch

    if author is not None:
        raise InputError(
            "the author's scripts are timed on the CPU alone", got="--author with --device cuda", fix="leave one out"
        )
    if not torch.cuda.is_available():
        raise UnsupportedError(
            "there is no CUDA device here", got=f"torch {torch.__version__}", fix="leave out --device cuda"
        )
