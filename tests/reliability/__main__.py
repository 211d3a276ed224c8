"""Run the checks and publish their counts: `python -m tests.reliability [NAME ...] [--quick]`.

The full size writes results.json beside this file and docs/reliability.md; the quick size only prints.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import platform
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import torch

from lagreach._version import __version__
from tests.reliability.counting import Count, Size
from tests.reliability.page import TITLES, read_results, write_results


def run_check(name: str, size: Size) -> Iterable[Count]:
    """Run one of the checks; each lives in a module of its name."""
    return import_module(f"tests.reliability.{name}").check(size)


def where() -> dict[str, str]:
    """Say when and on what the counts were made."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "lagreach": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()} with {os.cpu_count()} processors",
    }


def main() -> int:
    """Run what was asked for; return 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(TITLES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing written")
    options = parser.parse_args()
    unknown = set(options.names) - set(TITLES)
    if unknown:
        parser.error(f"unknown check {', '.join(sorted(unknown))}")
    failed = 0
    for name in options.names or TITLES:
        started = time.perf_counter()
        counts = []
        for count in run_check(name, "quick" if options.quick else "full"):
            counts.append(count)
            failed += count.failed
            print(
                f"{name}: {count.what}: {count.tried} tried, {count.failed} failed {count.outcomes} {count.measured}",
                flush=True,
            )
            for failure in count.failures:
                print(f"    {failure}", flush=True)
        if not options.quick:
            record: dict[str, Any] = {"where": where(), "seconds": round(time.perf_counter() - started, 1)}
            write_results(read_results() | {name: record | {"counts": [dataclasses.asdict(c) for c in counts]}})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
