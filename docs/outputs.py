"""What examples and commands print, stored in docs/output: ``python -m docs.outputs [NAMES...]`` runs and writes them.

Tests run them again and compare, so that every output in the documentation is real.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
OUTPUT = DOCS / "output"
EXAMPLES = DOCS.parent / "examples"

# Commands of the start page, run one after the other in an empty folder that holds docs/start/my_model.py.
COMMANDS = {
    "start-plan": "lagreach plan --law exponential --tau 10 --signal 1 --sigma 3 --sequences 2000",
    "start-diagnose": (
        "python my_model.py\n"
        "lagreach diagnose --model my_model:build --data data.npz --lags 0,1,2,4,8,16 --require-lag 8 --out run\n"
        'echo "exit code $?"'
    ),
    "start-suggest": "lagreach suggest run/diagnosis.nc",
}
TRAINED = (
    "architectures",
    "how_far_back",
    "watch_training",
)  # training makes much of rounding, which differs between processors
SLOW = ("architectures",)  # minutes; its test is among the slow ones
TAKEN = re.compile(r"in \d+ s\b")  # how long something took is nobody's claim


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return os.environ | {"PATH": path, "COLUMNS": "120", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}


def run_example(name: str) -> str:
    """Run one example and return what it prints."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    if done.returncode:
        raise RuntimeError(f"examples/{name}.py failed:\n{done.stderr}")
    return done.stdout


def run_commands() -> dict[str, str]:
    """Run the commands of the start page and return what each prints."""
    printed = {}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(DOCS / "start" / "my_model.py", folder)
        for name, command in COMMANDS.items():
            done = subprocess.run(
                ["bash", "-c", command], capture_output=True, text=True, check=False, env=_environment(), cwd=folder
            )
            if done.stderr or done.returncode:
                raise RuntimeError(f"{command} failed:\n{done.stderr}")
            printed[name] = done.stdout
    return printed


def numbers_and_words(text: str) -> tuple[list[float], str]:
    """Take a printed text apart: its numbers, and the rest with its spaces and rulers evened out.

    >>> numbers_and_words("needs 1,070 (9.5..16) or 2e6")
    ([1070.0, 9.5, 16.0, 2000000.0], 'needs # (#..#) or #')
    """
    text = TAKEN.sub("", text)
    pattern = re.compile(r"(?<!\w)(?<!\w\.)\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
    numbers = [float(digits.replace(",", "")) for digits in pattern.findall(text)]
    rest = re.sub(r"[█▇▆▅▄▃▂▁]+", "▁", pattern.sub("#", text))  # a bar may be one step higher
    return numbers, re.sub(r"─+", "─", " ".join(rest.split()))


def main(names: list[str]) -> None:
    """Write the outputs of the named examples and commands, or of all."""
    OUTPUT.mkdir(exist_ok=True)
    for script in sorted(EXAMPLES.glob("*.py")):
        if not names or script.stem in names:
            (OUTPUT / f"{script.stem}.txt").write_text(run_example(script.stem), encoding="utf-8")
    if not names or set(names) & set(COMMANDS):
        for name, text in run_commands().items():
            (OUTPUT / f"{name}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
