"""What starting costs: `import lagreach` beyond `import torch`, and ``lagreach --help``, in fresh interpreters.

Names load on first use, so the import alone would flatter; "every public name" makes all of them load. Wall time,
as a user waits for it. On a machine that does other things look at "best" and at the CPU times beside it.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

from benchmarks.harness import Case, Op, Timing, as_timing, in_fresh_interpreter

EVERY_NAME = "import lagreach\nfor name in lagreach.__all__: getattr(lagreach, name)"
REPEATS = {"full": 11, "quick": 2, "tiny": 1}


def cases(size: str) -> list[Case]:
    """One case: there is nothing to scale."""
    return [Case("start", {"interpreters": REPEATS[size]}, REPEATS[size])]


def run(case: Case) -> dict[str, Timing]:
    """Seconds until the name, or the help, is there; the implementations take turns."""
    taken: dict[str, list[tuple[float, float]]] = {}
    help_text()  # once, so that bytecode and file cache are warm
    for _ in range(case.repeats):
        for name, (cpu, wall) in {
            "import torch": in_fresh_interpreter("import torch"),
            "import lagreach after torch": in_fresh_interpreter("import lagreach", "import torch"),
            "every public name after torch": in_fresh_interpreter(EVERY_NAME, "import torch"),
            "lagreach --help": help_text(),
        }.items():
            taken.setdefault(name, []).append((cpu, wall))
    return {name: as_timing(pairs) for name, pairs in taken.items()}


def help_text() -> tuple[float, float]:
    """(CPU, wall) seconds of the whole process that prints the help."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-c", "from lagreach.cli.main import run; run()", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "sequences" in done.stdout, "lagreach --help printed no help"
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


OP = Op(
    name="imports",
    about="starting up",
    unit="start",
    guards=(
        "tests/test_house.py::test_importing_the_package_and_its_command_loads_nothing_heavy",
        "tests/test_house.py::test_using_transport_loads_torch_alone",
        "tests/test_house.py::test_public_names_exist",
        "tests/cli/test_main.py::test_help",
    ),
    cases=cases,
    run=run,
    baseline="import torch",
    clock="wall",
)
