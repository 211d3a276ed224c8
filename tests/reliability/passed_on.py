"""How often lags are named that only other inputs pass on, where inputs change in the course of their sequences."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from tests.null.false_lags import upper_end
from tests.null.passed_on import HOW, KINDS, named
from tests.reliability.counting import Count, Size

RUNS = {"quick": 1, "full": 100}
MOST_ROUNDS = 8  # at the rate that is allowed an interval often reaches beyond the bound: more rounds decide
NOTHING = ("a column that is a lag of another, zero at first", "walks")  # also with targets that depend on nothing
ALLOWED = 0.08  # of the upper end of a rate's interval
RARELY = f"others are named without a warning so rarely that the upper end is at most {100 * ALLOWED:.0f} %"


def check(size: Size) -> Iterator[Count]:
    """Diagnose and forecast data drawn anew, many times."""
    with ProcessPoolExecutor(1 if size == "quick" else os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for kind in KINDS:
            for how in HOW:
                for planted in (True, False) if kind in NOTHING else (True,):
                    yield _counted(pool, kind, how, planted, RUNS[size], 1 if size == "quick" else MOST_ROUNDS)


def _counted(pool: ProcessPoolExecutor, kind: str, how: str, planted: bool, runs: int, rounds: int) -> Count:
    count = Count(f"{kind}, {how}: targets depend on {'one lag' if planted else 'nothing'}", RARELY)
    false = found = 0
    for seeds in (range(k * runs, (k + 1) * runs) for k in range(rounds)):
        for lags, true, doubt in pool.map(partial(named, kind, how, planted=planted), seeds, chunksize=8):
            others = bool(lags - {true} if planted else lags)
            count.add(f"others named{', with a warning' if doubt else ''}" if others else "no others named")
            false, found = false + (others and not doubt), found + (true in lags)
        if upper_end(false, count.tried) <= ALLOWED:
            break
    if planted:
        count.measured["lag named"] = found
    if rounds > 1:  # a few runs tell no rate
        count.measured["upper end in %"] = 100 * upper_end(false, count.tried)
        if upper_end(false, count.tried) > ALLOWED:
            count.failed, count.failures = false, [f"{count.what}: {false} of {count.tried}"]
    return count
