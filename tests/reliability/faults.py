"""Faults during a study: full disks, closed folders, jumping clocks, killed processes. Nothing is lost, nothing differs."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lagreach.errors import LagreachError, RunError
from lagreach.study.config import StudyConfig, find_study
from lagreach.study.executors import make_executor
from lagreach.study.runner import run_study
from lagreach.study.store import RunDirectory
from tests.reliability.counting import Count, Size, scratch
from tests.reliability.runs import SMALL, one_figure
from tests.study.test_runs import TINY, contents, killed_and_resumed

TRIALS = {
    "quick": {"writes": 2, "disks": 1, "processes": 3, "closed": 1, "clocks": 1, "kills": 0, "workers": 0},
    "full": {"writes": 30, "disks": 10, "processes": 30, "closed": 6, "clocks": 5, "kills": 3, "workers": 3},
}
ENOUGH = "64m"
LARGEST_TOO_SMALL = 400  # kilobytes of a disk that a small study fills
SAME = "it says so in a sentence, and when resumed ends in the identical result"


@contextmanager
def failing_write(at: int, number: int) -> Iterator[list[int]]:
    """Let the system refuse one of the steps of writing files, the one with the given number; count them."""
    seen = [0]

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            seen[0] += 1
            if seen[0] >= at:  # and from then on, as a full disk would
                raise OSError(number, os.strerror(number))
            return call(*args, **kwargs)

        return wrapped

    with ExitStack() as stack:
        for module, name in (("lagreach._util.disk.tempfile", "mkstemp"), ("lagreach._util.disk.os", "fsync")):
            place = __import__(module.rpartition(".")[2])
            stack.enter_context(patch.object(place, name, refusing(getattr(place, name))))
        yield seen


def stopped_and_resumed(
    count: Count, config: StudyConfig, out: Path, before: dict[str, Any], about: str, fault: Callable[[], Any]
) -> None:
    """Run into a fault, then go on without it, and compare."""
    try:
        with fault():
            run_study(config, out, show_progress=False)
        ended = "not stopped"
    except RunError:
        ended = "stopped"
    except Exception as error:
        count.add("failed", f"{about}: {type(error).__name__}: {error}")
        return
    try:
        same = contents(run_study(config, out, resume=True, show_progress=False)) == before
    except LagreachError as error:
        count.add("failed", f"{about}, resumed: {error}")
        return
    count.add(f"{ended}, identical" if same else "failed", None if same else f"{about}: another result")


def mounts_allowed(folder: Path) -> bool:
    """Whether this process may mount a small disk of its own."""
    if os.geteuid() != 0:
        return False
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode == 0:
        subprocess.run(["umount", str(folder)], check=True)
    return done.returncode == 0


@contextmanager
def disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a disk of a size."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def closed(folder: Path) -> Iterator[None]:
    """Let nothing be written on a mounted disk."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)


@contextmanager
def larger_afterwards(folder: Path) -> Iterator[None]:
    """Give a full disk room again."""
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", f"remount,size={ENOUGH}", str(folder)], check=True)


@contextmanager
def jumping_clock(rng: random.Random) -> Iterator[None]:
    """Let every clock jump by up to a year in either direction at every reading."""

    def jumping(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: call(*args) + rng.uniform(-3e7, 3e7)

    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # matplotlib finds that drawing took a year
        for name in ("time", "perf_counter"):
            stack.enter_context(patch.object(time, name, jumping(getattr(time, name))))
        yield


@contextmanager
def losing_workers(rng: random.Random, most: int = 2) -> Iterator[list[int]]:
    """Kill worker processes of this process at random moments."""
    stop, killed = threading.Event(), []

    def kill() -> None:
        while len(killed) < most and not stop.wait(rng.uniform(1.0, 8.0)):
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
            workers = [int(c) for c in children if "spawn_main" in Path(f"/proc/{c}/cmdline").read_text()]
            if workers:
                killed.append(rng.choice(workers))
                os.kill(killed[-1], 9)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def check(size: Size) -> Iterator[Count]:
    """Run a small study under every fault."""
    trials, rng = TRIALS[size], random.Random(0)
    config = find_study(str(SMALL)).at_scale("smoke")
    with scratch() as folder, one_figure():
        before = contents(run_study(config, folder / "whole", show_progress=False))
        with failing_write(10**9, errno.ENOSPC) as seen:
            run_study(config, folder / "counted", show_progress=False)
        yield _failing_writes(config, folder, before, trials["writes"], seen[0], rng)
        mounted = folder / "mounted"
        mounted.mkdir()
        if mounts_allowed(mounted):
            yield _full_disks(config, mounted, before, trials["disks"], rng)
            yield _processes_on_full_disks(mounted, trials["processes"], rng)
            yield _closed_disks(config, mounted, before, trials["closed"])
        yield _clocks(config, folder, before, trials["clocks"], rng)
        if trials["workers"]:
            yield _workers(config, folder, before, trials["workers"], rng)
        if trials["kills"]:
            yield _kills(folder, trials["kills"], rng)


def _failing_writes(
    config: StudyConfig, folder: Path, before: dict[str, Any], trials: int, steps: int, rng: random.Random
) -> Count:
    count = Count(f"no space or no permission from one of the {steps} writing steps on", SAME)
    for k in range(trials):
        at, number = (
            rng.randrange(1, steps + 1),
            rng.choice([errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO]),
        )
        about = f"{errno.errorcode[number]} at step {at}"
        stopped_and_resumed(
            count, config, folder / f"write-{k}", before, about, lambda at=at, number=number: failing_write(at, number)
        )
    return count


def _full_disks(config: StudyConfig, mounted: Path, before: dict[str, Any], trials: int, rng: random.Random) -> Count:
    count = Count("a real disk that is full", SAME)
    for _ in range(trials):
        kilobytes = rng.randrange(8, LARGEST_TOO_SMALL)
        with disk(mounted, f"{kilobytes}k"):
            about = f"a disk of {kilobytes} kB"
            stopped_and_resumed(count, config, mounted / "run", before, about, lambda: larger_afterwards(mounted))
    return count


# what is run on a small disk, how it should end, and the largest disk in kilobytes that is too small for it
ON_A_FULL_DISK = {
    "save": (
        "diagnose_once().labelled(run=2).save(out / 'd.nc')",
        (1, "lagreach.errors.RunError: the disk is full"),
        36,
    ),
    "watch": (
        "model, data = small_problem()\n"
        "optimiser = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "with lagreach.watch(model, data, out=out, lags=[0, 1], budget=None) as watched:\n"
        "    for _ in range(3):\n"
        "        optimiser.zero_grad(); (model(data[0]) - data[1]).square().mean().backward(); optimiser.step(); watched.step()\n"
        "assert len(watched.history) == 3 and watched.failures",
        (0, "RuntimeWarning: the diagnosis at step"),
        100,
    ),
    "study": (
        "import sys; from lagreach.cli import run\n"
        f"sys.argv = ['lagreach', 'study', 'run', {str(SMALL)!r}, '--scale', 'smoke', '--workers', '1']\n"
        "sys.argv += ['--out', str(out / 'run')]\n"
        "run()",
        (2, "lagreach: the disk is full"),
        LARGEST_TOO_SMALL,
    ),
}
BEGINNING = """
import torch, lagreach
from pathlib import Path
from tests.reliability.soak import diagnose_once, small_problem
out = Path({out!r})
"""


def _processes_on_full_disks(mounted: Path, trials: int, rng: random.Random) -> Count:
    """Run whole processes: a library that does not survive a full disk may take the process with it, even as it ends."""
    count = Count(
        "processes that save, watch a training or run a study on a real disk that is full",
        "a sentence (exit code 2) or a warning; the process lives, what was saved before is whole",
    )
    for k in range(trials):
        name = list(ON_A_FULL_DISK)[k % len(ON_A_FULL_DISK)]
        code, (expected, words), most = ON_A_FULL_DISK[name]
        kilobytes = rng.randrange(12, most + 1)
        with disk(mounted, f"{kilobytes}k"):
            earlier = mounted / "d.nc"
            earlier.write_bytes(b"saved before")
            done = subprocess.run(
                [sys.executable, "-c", BEGINNING.format(out=str(mounted)) + code],
                capture_output=True,
                text=True,
                check=False,
                timeout=600,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            well = done.returncode == expected and words in done.stderr and earlier.read_bytes() == b"saved before"
            left = [path.name for path in mounted.rglob(".writing-*")]
        problem = f"{name} on {kilobytes} kB: exit code {done.returncode}, {left}, {done.stderr[-300:]}"
        count.add(f"{name}: {'warned' if name == 'watch' else 'refused'}", None if well and not left else problem)
    return count


def _closed_disks(config: StudyConfig, mounted: Path, before: dict[str, Any], trials: int) -> Count:
    count = Count("a real disk that is read-only", SAME)
    for k in range(trials):
        with disk(mounted, ENOUGH):
            if k % 2:  # with a run in it that has only begun
                RunDirectory.create(mounted / "run", config)
            fault = lambda: closed(mounted)  # noqa: E731 (the same fault for every trial)
            options: dict[str, Any] = {"resume": bool(k % 2)}
            _closed_once(count, config, mounted, before, fault, options)
    return count


def _closed_once(
    count: Count,
    config: StudyConfig,
    mounted: Path,
    before: dict[str, Any],
    fault: Callable[[], Any],
    options: dict[str, Any],
) -> None:
    try:
        with fault():
            run_study(config, mounted / "run", show_progress=False, **options)
        count.add("failed", "a read-only disk was written to")
        return
    except RunError:
        pass
    except Exception as error:
        count.add("failed", f"read-only: {type(error).__name__}: {error}")
        return
    same = contents(run_study(config, mounted / "run", resume=True, show_progress=False)) == before
    count.add("stopped, identical" if same else "failed", None if same else "another result")


def _clocks(config: StudyConfig, folder: Path, before: dict[str, Any], trials: int, rng: random.Random) -> Count:
    count = Count("clocks that jump by up to a year at every reading", "the result is identical")
    for k in range(trials):
        with jumping_clock(rng):
            same = contents(run_study(config, folder / f"clock-{k}", show_progress=False)) == before
        count.add("identical" if same else "failed", None if same else "another result")
    return count


def _workers(config: StudyConfig, folder: Path, before: dict[str, Any], trials: int, rng: random.Random) -> Count:
    count = Count("worker processes killed while a study runs on two of them", "the result is identical")
    for k in range(trials):
        with make_executor("local", workers=2) as pool, losing_workers(rng) as killed:
            run = run_study(config, folder / f"workers-{k}", executor=pool, show_progress=False)
        same = contents(run) == before
        count.add(f"{len(killed)} killed, identical" if same else "failed", None if same else "another result")
    return count


def _kills(folder: Path, trials: int, rng: random.Random) -> Count:
    count = Count("runs killed with SIGKILL, up to three times each", "when resumed, the result is identical")
    before = contents(run_study(TINY, folder / "tiny", show_progress=False))
    for k in range(trials):
        out = folder / f"killed-{k}"
        killed = killed_and_resumed(out, 3, rng, 1)
        same = contents(RunDirectory(out)) == before
        count.add(f"killed {killed} times, identical" if same else "failed", None if same else "another result")
    return count
