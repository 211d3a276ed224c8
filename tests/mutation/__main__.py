"""Run a seeded sample of mutants against the quick tests that reach them, and write what became of each.

    python -m tests.mutation                                   # 80 mutants of each of tails, detection, transport
    python -m tests.mutation detection --mutants 20 --seed 1   # another draw

Tests that were written to kill the survivors of one draw say nothing about the others: judge them by a new seed.

The repository is copied to a temporary folder first and changed there. A mutant is killed when a test fails, and when the
tests take far longer than they do without it ("timeout"). Which tests reach which lines is found by one run of the tests
under coverage; a mutant is shown to those, one of every test function first, the fastest first. It has survived when all of
them pass; when some were left out to save time, it is "undecided", which does not count as killed. One process at a time,
forked from one that has torch and scipy loaded already.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from tests.mutation.mutants import Mutant, mutants

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
OUT_OF_TIME = -int(signal.SIGXCPU), -int(signal.SIGALRM)
MEMORY = 3 * 2**30  # bytes
PATIENCE = 5  # seconds on the clock for a second of a processor: others may use the machine as well
QUICK = "not slow and not gpu and not browser"
TESTS = {
    "tails": ["src/lagreach/tails", "tests/tails", "tests/testing", "tests/diagnosis/test_window.py"],
    "detection": ["src/lagreach/detection", "tests/detection", "tests/advice/test_plan.py"],
    "transport": [
        "src/lagreach/transport", "tests/transport/test_first_order_sums.py", "tests/transport/test_transport_details.py",
        "tests/transport/test_fidelity.py", "tests/transport/test_objective.py", "tests/transport/test_scaled_numbers.py",
        "tests/transport/test_first_order_kernels.py", "tests/theory", "tests/transport/test_fast_transport.py",
        "tests/gradients", "tests/transport/test_linear_scan.py", "tests/transport/test_sensitivity.py",
        "tests/adapters/test_scan_layer.py",
    ],
}  # fmt: skip


def copy_of_repository() -> Path:
    """Copy what belongs to the repository (as it is in the working tree) to a temporary folder."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    folder = Path(tempfile.mkdtemp(prefix="lagreach-mutation-"))
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def in_child(work: Callable[[], int], seconds: float) -> int:
    """Exit status of `work()` in a forked process, one of OUT_OF_TIME when it takes more than these seconds of a processor.

    Something that waits for ever is stopped after a multiple of them. Beyond `MEMORY` its allocations fail.
    """
    child = os.fork()
    if child == 0:
        # a wrong size or loop condition may ask for any amount of either: the limits are the machine's safety
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 5))
        signal.alarm(math.ceil(PATIENCE * seconds))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        try:
            os._exit(int(work()))
        except BaseException:  # nothing of the parent's work may go on in the child
            traceback.print_exc()
            os._exit(70)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_tests(folder: Path, arguments: list[str], log: Path) -> int:
    """Run pytest inside the copy, in this process (which is a child of its own)."""
    import numba
    import pytest

    numba.config.CACHE_DIR = os.environ["NUMBA_CACHE_DIR"]  # it looked at its environment when it was loaded

    os.chdir(folder)
    sys.path[:0] = [str(folder / "src"), str(folder)]
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "lagreach")]:
        del sys.modules[name]
    sys.dont_write_bytecode = True
    os.environ["PYTHONPATH"] = str(folder / "src")
    with log.open("w") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
        fixed = [
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
            "--durations=0",
            "--tb=line",
            "--assert=plain",
            "-m",
            QUICK,
        ]
        return int(pytest.main([*fixed, *arguments]))


def reaching_tests(folder: Path, package: str) -> tuple[dict[tuple[str, int], set[str]], dict[str, float]]:
    """For every line of a package the tests that run it; and the seconds that each test takes."""
    import coverage

    data, log = folder / ".reach", folder / "reach.log"
    paths = [path for path in TESTS[package] if (folder / path).exists()]
    options = [f"--cov=src/lagreach/{package}", "--cov-context=test", "--cov-report=", *paths]
    os.environ |= {"COVERAGE_FILE": str(data), "NUMBA_CACHE_DIR": str(folder / "cache")}
    status = in_child(lambda: run_tests(folder, options, log), 1800)
    del os.environ["COVERAGE_FILE"]
    if status != 0:
        raise SystemExit(f"the tests of {package} fail without any change:\n{log.read_text()[-3000:]}")
    seconds: dict[str, float] = defaultdict(float)
    for line in log.read_text().splitlines():
        parts = line.split(maxsplit=2)
        if len(parts) == 3 and parts[0].endswith("s") and parts[1] in ("call", "setup", "teardown"):
            seconds[parts[2].strip()] += float(parts[0][:-1])
    coverage_data = coverage.CoverageData(str(data))
    coverage_data.read()
    reach = {}
    for name in coverage_data.measured_files():
        for line, contexts in coverage_data.contexts_by_lineno(name).items():
            tests = {context.split("|")[0] for context in contexts if context}
            path = str(Path(name).relative_to(folder))
            if line in lines_run_when_called(folder, path):
                reach[path, line] = tests
    known = sorted(set().union(*reach.values()))
    if in_child(lambda: run_tests(folder, ["--collect-only", *known], log), 600) != 0:
        raise SystemExit(f"not all tests can be called by their names:\n{log.read_text()[-3000:]}")
    return reach, seconds


def seen_by(folder: Path, path: str, line: int, reach: dict[tuple[str, int], set[str]]) -> set[str]:
    """Tests that run a line; where that cannot be told, those that run others of its file, or of files that name it."""

    def of(wanted: Callable[[str], bool]) -> set[str]:
        return set().union(*(tests for (name, _), tests in reach.items() if wanted(name)))

    module = Path(path).stem
    return reach.get((path, line)) or of(lambda name: name == path) or of(lambda name: module in texts(folder)[name])


@cache
def lines_run_when_called(folder: Path, path: str) -> set[int]:
    """Lines of a file that are run by whoever calls them.

    What is run once in a process (by an import, or by the first call of something cached) concerns many more tests than
    the one that happened to come first.
    """
    lines: set[int] = set()
    for node in ast.walk(ast.parse(texts(folder)[path])):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.body[0].lineno > node.lineno:
            once = any("cache" in ast.unparse(decorator) for decorator in node.decorator_list)
            if not once:
                lines.update(range(node.body[0].lineno, node.end_lineno + 1))
    return lines


@cache
def texts(folder: Path) -> dict[str, str]:
    """Text of every file of the package, by its path in the copy."""
    return {str(file.relative_to(folder)): file.read_text() for file in (folder / "src").rglob("*.py")}


def in_order(tests: set[str], seconds: dict[str, float], budget: float) -> list[str]:
    """As many of the tests as fit into a budget of seconds (at least one): one of each function first, the fastest first."""
    turns: dict[str, Iterator[int]] = defaultdict(itertools.count)
    turn = {test: next(turns[test.split("[")[0]]) for test in sorted(tests, key=lambda test: (seconds[test], test))}
    ordered = sorted(tests, key=lambda test: (turn[test], seconds[test], test))
    spent = itertools.accumulate(seconds[test] for test in ordered)
    return [test for i, (test, sum_) in enumerate(zip(ordered, spent, strict=True)) if i == 0 or sum_ <= budget]


def fate(folder: Path, path: str, mutant: Mutant, tests: list[str], seconds: float) -> str:
    """Put a mutant in place, run tests on it, and take it away again."""
    file = folder / path
    original, dates = file.read_text(), (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    # compiled callers in other files are cached by their own file's date: a fresh cache for changed kernels
    os.environ["NUMBA_CACHE_DIR"] = str(folder / ("cache-of-mutant" if "njit" in original else "cache"))
    file.write_text(mutant.text)
    try:
        status = in_child(lambda: run_tests(folder, ["-x", *tests], folder / "mutant.log"), seconds)
    finally:
        file.write_text(original)
        os.utime(file, ns=dates)  # what was compiled from it stays valid
        shutil.rmtree(folder / "cache-of-mutant", ignore_errors=True)
    return "passed" if status == 0 else "timeout" if status in OUT_OF_TIME else "killed"


def sampled(folder: Path, package: str, count: int, seed: int) -> list[tuple[str, Mutant]]:
    """Draw mutants of a package without replacement."""
    everything = [
        (str(file.relative_to(folder)), mutant)
        for file in sorted((folder / "src" / "lagreach" / package).rglob("*.py"))
        for mutant in mutants(file.read_text())
    ]
    return random.Random(seed).sample(everything, min(count, len(everything)))


def examine(folder: Path, package: str, options: argparse.Namespace) -> dict:
    """Fates of a sample of a package's mutants."""
    reach, seconds = reaching_tests(folder, package)
    rows = []
    for path, mutant in sampled(folder, package, options.mutants, options.seed):
        original = (folder / path).read_text()
        reaching = seen_by(folder, path, mutant.line, reach)
        tests = in_order(reaching, seconds, options.budget)
        allowed = options.timeout + 2 * sum(seconds[test] for test in tests)
        begun = time.monotonic()
        outcome = fate(folder, path, mutant, tests, allowed) if tests else "not reached"
        if outcome == "passed":
            outcome = "survived" if len(tests) == len(reaching) else "undecided"
        rows.append({"file": path, "line": mutant.line, "change": mutant.change, "fate": outcome})
        if outcome not in ("killed", "timeout"):
            rows[-1]["diff"] = mutant.diff(original)
        spent = f"{time.monotonic() - begun:.1f} s, {len(tests)} of {len(reaching)} tests"
        print(f"{package} {len(rows)}: {outcome} ({spent}) {path}:{mutant.line} {mutant.change}", flush=True)
    killed = sum("diff" not in row for row in rows)
    survivors = [row for row in rows if "diff" in row]
    return {"mutants": len(rows), "killed": killed, "share": round(killed / len(rows), 3), "survivors": survivors}


def main() -> None:
    """Examine the packages and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=list(TESTS))
    parser.add_argument("--mutants", type=int, default=80, help="mutants drawn from each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=240.0, help="seconds of tests that a mutant is shown to")
    parser.add_argument(
        "--timeout", type=float, default=90.0, help="seconds of a processor beyond twice those of its tests"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    import hypothesis  # noqa: F401 (loaded once, here; every mutant's process is a copy of this one)
    import numba  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch

    torch.set_num_threads(1)
    folder = copy_of_repository()
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    try:
        for package in options.packages:
            outcome = examine(folder, package, options)
            results.setdefault(package, {})[f"seed {options.seed}"] = outcome
            options.out.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{package}: {outcome['killed']} of {outcome['mutants']} killed")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
