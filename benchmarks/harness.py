"""No speed without its gate and its machine: run the tests of an op, then time it, then write down both.

An op names the tests that guard it. They run first, in a process of their own; if one fails, or none is found, the
op is refused and nothing is timed or written. Its `run` compares the answers of all implementations before it times
them, in turns, so that whatever else the machine does falls on all of them alike. Every case has a process of its
own: what ran before leaves its mark on the memory allocator, and that alone can change a time by half.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import pkgutil
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import lagreach
from benchmarks.printing import show

PAPER_CELLS = ("const_gate", "shared_gate", "diag_gate", "gru", "lstm")
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
QUICK_RESULTS = ROOT / "runs" / "benchmarks"  # not committed: quick or few numbers must not replace full ones
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
CLOCKS = {"cpu": "process CPU time", "wall": "wall time"}
SIZES = ("full", "quick", "tiny")  # tiny: for the tests, where the answers matter and the times do not
SCHEMA = 1
UNFINISHED = "_unfinished"  # behind the name of an op that has not been timed to its end
LONG = 1.0  # seconds of a call that caches make no difference to


@dataclass(frozen=True)
class Case:
    """One piece of work: its name, the numbers that define it, and how often it is repeated."""

    name: str
    shape: Mapping[str, Any]
    repeats: int
    note: str = ""


@dataclass(frozen=True)
class Timing:
    """Seconds of one implementation, by repeat, on both clocks."""

    cpu: tuple[float, ...]
    wall: tuple[float, ...]


@dataclass(frozen=True)
class Op:
    """What a benchmark file offers.

    name, about : what is timed, in a word and in a sentence
    unit : what one number is the time of ("training step")
    guards : pytest paths or ids that must pass first
    cases : sizes (one of `SIZES`) to cases
    run : a case to seconds by implementation; raises AssertionError when the implementations disagree
    baseline : the implementation that the others are compared with
    clock : "cpu" or "wall"
    derive : what else a case says, from its timings, such as exponents of growth; stored and shown with it
    """

    name: str
    about: str
    unit: str
    guards: tuple[str, ...]
    cases: Callable[[str], Sequence[Case]]
    run: Callable[[Case], Mapping[str, Timing]]
    baseline: str = "lagreach"
    clock: str = "cpu"
    derive: Callable[[Case, Mapping[str, Timing]], Mapping[str, float]] | None = None


class RefusedError(Exception):
    """Nothing was timed, because the op is not known to be right."""


def all_ops() -> dict[str, Op]:
    """Every op of this package, by name."""
    modules = [info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)]) if info.name != "__main__"]
    ops = [getattr(importlib.import_module(f"benchmarks.{name}"), "OP", None) for name in modules]
    return {op.name: op for op in ops if op is not None}


# Measuring


def ask_for_one_thread(environment: dict[str, str] | None = None) -> None:
    """Ask every numerical library for one thread; works for those that are not loaded yet."""
    where = os.environ if environment is None else environment
    where.update(dict.fromkeys(THREAD_VARIABLES, "1"))


def measure(
    implementations: Mapping[str, Callable[[], object]], repeats: int, per: Mapping[str, float] | None = None
) -> dict[str, Timing]:
    """Time the implementations in turns, each right after a call that is not timed.

    So caches hold what they do in a loop of such calls, as in training. What takes long is not called twice.

    Parameters
    ----------
    per
        How many units of work one call of an implementation does (default 1); times are divided by it.
    """
    quick = set()
    for name, function in implementations.items():
        started = time.perf_counter()
        function()
        if time.perf_counter() - started < LONG:
            quick.add(name)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in implementations}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeats):
            for name, function in implementations.items():
                if name in quick:
                    function()
                taken[name].append(timed_once(function))
    finally:
        if collecting:
            gc.enable()
    return {name: as_timing(pairs, (per or {}).get(name, 1.0)) for name, pairs in taken.items()}


def timed_once(function: Callable[[], object]) -> tuple[float, float]:
    """(CPU, wall) seconds of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    function()
    return time.process_time() - cpu, time.perf_counter() - wall


def as_timing(pairs: Sequence[tuple[float, float]], per: float = 1.0) -> Timing:
    """(CPU, wall) seconds of each repeat, divided by the units of work in one."""
    return Timing(tuple(cpu / per for cpu, _ in pairs), tuple(wall / per for _, wall in pairs))


def in_fresh_interpreter(statement: str, setup: str = "pass") -> tuple[float, float]:
    """(CPU, wall) seconds of a statement, run once in a new interpreter after `setup`; start-up does not count."""
    code = (
        f"import time\n{setup}\ncpu, wall = time.process_time(), time.perf_counter()\n{statement}\n"
        "print(time.process_time() - cpu, time.perf_counter() - wall)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    cpu, wall = done.stdout.split()[-2:]
    return float(cpu), float(wall)


def in_own_process(op: Op, size: str, index: int) -> dict[str, Timing]:
    """Time one case of an op of this package in a new interpreter."""
    environment = dict(os.environ)
    ask_for_one_thread(environment)
    code = "from benchmarks.harness import time_and_print; time_and_print()"
    command = [sys.executable, "-c", code, op.name, size, str(index)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{op.name}: timing stopped with exit code {done.returncode}\n{done.stderr}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if "disagreement" in answer:
        raise AssertionError(answer["disagreement"])
    return {name: Timing(tuple(t["cpu"]), tuple(t["wall"])) for name, t in answer.items()}


def time_and_print() -> None:
    """Be the other end of `in_own_process`."""
    name, size, index = sys.argv[1:]
    op = all_ops()[name]
    try:
        answer: dict[str, Any] = {k: asdict(t) for k, t in in_this_process(op, size, int(index)).items()}
    except AssertionError as error:
        answer = {"disagreement": str(error)}
    print(json.dumps(answer))


def in_this_process(op: Op, size: str, index: int) -> Mapping[str, Timing]:
    """Time one case here, on one thread, or on as many as its shape says."""
    import torch

    from lagreach._util.threads import one_thread

    case = op.cases(size)[index]
    if "threads" not in case.shape:
        with one_thread():
            return op.run(case)
    torch.set_num_threads(case.shape["threads"])
    return op.run(case)


# The gate


def run_guards(op: Op) -> str:
    """Run the tests that guard an op and return pytest's last line; refuse unless some ran and all passed."""
    if not op.guards:
        raise RefusedError(f"{op.name}: no tests guard it")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow and not gpu", "-p", "no:cacheprovider"]
    command += [
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(ROOT),
        "-o",
        "addopts=--strict-markers",
        *op.guards,
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ask_for_one_thread(environment)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines() or ["pytest said nothing"]
    if done.returncode != 0:
        said = "\n".join(lines[-25:] + done.stderr.strip().splitlines()[-10:])
        raise RefusedError(f"{op.name}: its tests do not pass (pytest exit code {done.returncode})\n{said}")
    return lines[-1].strip("= ")


# The record


def machine() -> dict[str, Any]:
    """What the times hold for."""
    import torch

    model = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        **gpu,
    }


def versions() -> dict[str, str]:
    """Versions of what took part."""
    packages = {name: version(name) for name in ("torch", "numpy", "scipy", "numba")}
    return {"python": platform.python_version(), **packages, "lagreach": lagreach.__version__}


def commit() -> dict[str, Any]:
    """The commit the code stands at, and whether the code differs from it; None where git does not know."""

    def git(*words: str) -> str | None:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    changed = git("status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results")
    return {"id": git("rev-parse", "HEAD"), "modified": None if changed is None else bool(changed)}


def summarise(op: Op, case: Case, timings: Mapping[str, Timing]) -> dict[str, Any]:
    """One case as it goes into the record: medians, spreads, and ratios of repeats that ran side by side."""
    chosen = {name: getattr(timing, op.clock) for name, timing in timings.items()}
    seconds = {
        name: {
            "median": median(chosen[name]),
            "best": min(chosen[name]),
            "wall_over_cpu": median(w / c for w, c in zip(timing.wall, timing.cpu, strict=True)),
            "cpu": list(timing.cpu),
            "wall": list(timing.wall),
        }
        for name, timing in timings.items()
    }
    ratios = {}
    for name, values in chosen.items():
        if name != op.baseline and op.baseline in chosen:
            paired = [a / b for a, b in zip(values, chosen[op.baseline], strict=True)]
            low, _, high = quantiles(paired, n=4, method="inclusive") if len(paired) > 1 else paired * 3
            ratios[name] = {"median": median(paired), "quartiles": [low, high]}
    record = {"name": case.name, "shape": dict(case.shape), "note": case.note, "seconds": seconds, "ratios": ratios}
    return record if op.derive is None else record | {"derived": dict(op.derive(case, timings))}


def run_op(
    op: Op,
    size: str = "full",
    log: Callable[[str], None] = lambda _: None,
    time_case: Callable[[Op, str, int], Mapping[str, Timing]] = in_own_process,
    only: Sequence[str] = (),
    keep: Callable[[Mapping[str, Any]], object] = lambda _: None,
) -> dict[str, Any]:
    """Guard, time and describe one op, or only its cases with one of these words in their names.

    `keep` gets the record after every case but the last: the time on a machine may end before the work does.
    `RefusedError` if the op is not right.
    """
    chosen = [(i, case) for i, case in enumerate(op.cases(size)) if not only or any(word in case.name for word in only)]
    if not chosen:
        names, words = ", ".join(case.name for case in op.cases(size)), " or ".join(map(repr, only))
        raise RefusedError(f"{op.name}: no case has {words} in its name; there are {names}")
    log(f"{op.name}: tests first")
    guarded = run_guards(op)
    log(f"{op.name}: {guarded}")
    load, cases = os.getloadavg(), []
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "op": op.name,
        "about": op.about,
        "unit": op.unit,
        "size": size,
        "clock": CLOCKS[op.clock],
        "threads": 1,
        "baseline": op.baseline,
        "guards": {"tests": list(op.guards), "outcome": guarded},
        "commit": commit(),
        "versions": versions(),
        "cases": cases,
    }
    for i, case in chosen:
        log(f"{op.name}: {case.name}")
        try:
            cases.append(summarise(op, case, time_case(op, size, i)))
        except AssertionError as error:
            raise RefusedError(f"{op.name}: {case.name}: the implementations disagree\n{error}") from error
        record["date"] = datetime.now(UTC).isoformat(timespec="seconds")
        record["machine"] = machine() | {"load_before": round(load[0], 2), "load_after": round(os.getloadavg()[0], 2)}
        if len(cases) < len(chosen):
            keep(record)
    return record


def write(record: Mapping[str, Any], folder: Path) -> Path:
    """Write ``<op>.json``, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{record['op']}.json"
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{record['op']}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
        os.chmod(temporary, 0o644)  # mkstemp makes files for the owner alone
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


def keep_unfinished(record: Mapping[str, Any], out: Path | None) -> None:
    """Write down what an op has so far, away from what is stored: only the whole replaces that."""
    write({**record, "op": record["op"] + UNFINISHED}, out or QUICK_RESULTS)


def finish(record: Mapping[str, Any], out: Path | None, *, stored: bool) -> None:
    """Write the whole record, where it is `stored` or among the others, in place of what was kept before."""
    write(record, out or (RESULTS if stored else QUICK_RESULTS))
    ((out or QUICK_RESULTS) / f"{record['op']}{UNFINISHED}.json").unlink(missing_ok=True)


# The command


def main(arguments: Sequence[str] | None = None, ops: Mapping[str, Op] | None = None) -> int:
    """Run the command; the exit code is 1 when an op was refused. Ops from outside are timed in this process."""
    from rich.console import Console

    from benchmarks import author

    known = all_ops() if ops is None else ops
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to time (default all): {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer repeats")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD",
        help="only cases with this word in their names, such as W1; may be given again for more cases",
    )
    parser.add_argument(
        "--out", type=Path, help="where to write <name>.json (default benchmarks/results; quick, only: runs/)"
    )
    parser.add_argument("--author", type=Path, help="the paper author's scripts, checked out, to be timed as well")
    options = parser.parse_args(arguments)
    if options.author is not None:
        author.check_folder(options.author)
        os.environ[author.VARIABLE] = str(options.author.resolve())
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    size, time_case = "quick" if options.quick else "full", in_own_process if ops is None else in_this_process
    progress, console = Console(stderr=True, highlight=False), Console(width=120, highlight=False)
    refused = []

    def keep(record: Mapping[str, Any]) -> None:
        keep_unfinished(record, options.out)

    for name in options.names or known:
        try:
            record = run_op(known[name], size, lambda line: progress.print(f"  {line}"), time_case, options.only, keep)
        except RefusedError as reason:
            refused.append(name)
            console.print(f"refused to time {reason}", style="bold red", markup=False)
            continue
        finish(record, options.out, stored=not (options.quick or options.only))
        show(record, console)
    if refused:
        console.print(f"not timed, because not known to be right: {', '.join(refused)}", style="bold red")
    return 1 if refused else 0
