"""``lagreach bench``: run the benchmarks of a checkout. They are not part of an installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lagreach.errors import InputError, UnsupportedError

AUTHOR_SCRIPT = "run_learnability_DGX.py"


def find_checkout() -> Path:
    """Return the folder that holds the benchmarks: the checkout this package runs from, or the current folder."""
    for folder in (Path(__file__).resolve().parents[2], Path.cwd()):
        if (folder / "benchmarks" / "harness.py").is_file():
            return folder
    raise UnsupportedError(
        "the benchmarks are not here",
        got=f"no benchmarks/harness.py beside the package or in {Path.cwd().name}/",
        fix="run this in a checkout of the repository",
    )


def run_bench(names: Sequence[str], *, quick: bool, out: Path | None, author: Path | None) -> int:
    """Run the benchmarks in a process of their own, on one thread; return its exit code."""
    checkout = find_checkout()
    environment = dict(os.environ)
    if author is not None:
        if not (author / AUTHOR_SCRIPT).is_file():
            raise InputError(
                "these are not the paper author's scripts",
                got=f"no {AUTHOR_SCRIPT} in {author}",
                fix="check out github.com/lorenzolivi/learnability and pass its folder",
            )
        environment["LAGREACH_AUTHOR"] = str(author.resolve())
    command = [sys.executable, "-m", "benchmarks", *names]
    command += ["--quick"] if quick else []
    command += ["--out", str(out.resolve())] if out is not None else []
    return subprocess.run(command, cwd=checkout, env=environment, check=False).returncode
