"""How often dependences are named that are not there, and how often those that are: series, copies, and trained networks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.null import false_lags, series_rates
from tests.reliability.counting import Count, Size

RUNS = {"quick": 2, "full": 400}
MOST_ROUNDS = 4  # a rate of 5 % is above 8 % at the upper end in every third round of 400, so more rounds decide
RUNS_OF_NETWORKS = {"quick": 1, "full": 200}
QUICK = ("independent", "copies 24 x 4", "series white, stride 6")
ALLOWED = 0.08  # of the upper end of a rate's interval
TASKS = ("delay",)
RARELY = f"the upper end of the rate's 95 % interval is at most {100 * ALLOWED:.0f} %"


def check(size: Size) -> Iterator[Count]:
    """Diagnose data drawn anew, many times."""
    workers = 1 if size == "quick" else max(2, (os.cpu_count() or 1) - 4)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for situation in series_rates.SITUATIONS:
            if size == "full" or situation in QUICK:
                yield _situation(pool, situation, RUNS[size], size)
        kinds = [(t, c, s) for t in TASKS for c in false_lags.CELLS for s in false_lags.STAGES]
        for task, cell, stage in kinds if size == "full" else [("delay", "gru", "fresh")]:
            yield _network(pool, task, cell, stage, RUNS_OF_NETWORKS[size], size)


def _situation(pool: ProcessPoolExecutor, situation: str, runs: int, size: Size) -> Count:
    nothing = situation in series_rates.NOTHING
    count = Count(f"{situation}: anything named" if nothing else situation, RARELY if nothing else "lag 5 is named")
    false = 0
    for seeds in (range(k * runs, (k + 1) * runs) for k in range(MOST_ROUNDS)):
        for lags, untold in pool.map(series_rates.named, [situation] * runs, seeds, chunksize=8):
            missed = not nothing and 5 not in lags
            count.add(
                "cannot be told" if untold else "named" if lags else "nothing named", "missed" if missed else None
            )
            false += bool(lags)
        if not nothing or size == "quick" or false_lags.upper_end(false, count.tried) <= ALLOWED:
            break
    return _judged(count, false, count.tried, size) if nothing else count


def _network(pool: ProcessPoolExecutor, task: str, cell: str, stage: str, runs: int, size: Size) -> Count:
    true = false_lags.TASKS[task]
    count = Count(f"{cell}, {stage}, task '{task}': lags beside {' and '.join(map(str, true))}", RARELY)
    results = list(pool.map(false_lags.named, [task] * runs, [cell] * runs, [stage] * runs, range(runs), chunksize=8))
    for named, _ in results:
        count.add("others named" if set(named) - set(true) else "no others named")
    often = {lag: sum(lag in named for named, _ in results) for lag in false_lags.LAGS}
    for lag in true:
        count.measured[f"lag {lag} named"] = often[lag]
    return _judged(count, max(often[lag] for lag in often if lag not in true), runs, size)


def _judged(count: Count, worst: int, runs: int, size: Size) -> Count:
    """Fail a rate whose interval reaches too far; a few runs tell no rate."""
    upper = false_lags.upper_end(worst, runs)
    if size == "full":
        count.measured["upper end in %"] = 100 * upper
    if size == "full" and upper > ALLOWED:
        count.failed, count.failures = worst, [f"{count.what}: {worst} of {runs}, upper end {100 * upper:.1f} %"]
    return count
