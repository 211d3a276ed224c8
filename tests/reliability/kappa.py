"""Exponents of the noise: does the interval of 1/kappa hold the true one, and is N what it should be? From many laws."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.reliability.counting import Count, Size
from tests.tails.kappa_table import LAWS, MILD, RUNS, Row, measure

COVERED, FACTOR = 0.9, 1.5
QUICK = {("Gaussian", 600): 4, ("stable 1.8", 600): 4}
OF_MILD = f"the interval holds the exponent in {COVERED:.0%} of the samples, and N is within a factor of {FACTOR} in the median"
OF_HARSH = f"the interval holds the exponent, or kappa is refused, in {COVERED:.0%} of the samples"


def check(size: Size) -> Iterator[Count]:
    """Draw samples of every law and size."""
    cases = QUICK if size == "quick" else {(name, n): runs for name in LAWS for n, runs in RUNS.items()}
    workers = 1 if size == "quick" else os.cpu_count()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        rows = pool.map(measure, *zip(*cases, strict=True), cases.values())
        for (name, n), runs, row in zip(cases, cases.values(), rows, strict=True):
            yield _judged(name, n, runs, row, size)


def _judged(name: str, n: int, runs: int, row: Row, size: Size) -> Count:
    covered = row.covered if name in MILD else row.covered_or_refused
    count = Count(f"{name}, {n:,} values", OF_MILD if name in MILD else OF_HARSH, asked=runs, tried=runs)
    well = round(runs * covered)
    count.outcomes = {"held" if name in MILD else "held or refused": well, "missed": runs - well}
    count.measured = {"median N over the true one": row.ratio} if name in MILD else {}
    wrong = covered < COVERED or (name in MILD and not 1 / FACTOR < row.ratio < FACTOR)
    if wrong and size == "full":  # a few samples tell no rate
        count.failed, count.failures = (
            max(1, runs - well),
            [f"held in {covered:.0%}, N {row.ratio:.2f} times the true one"],
        )
    return count
