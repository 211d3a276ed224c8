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

RUNS = {"quick": 1, "full": 200}
ALLOWED = 0.08  # of the upper end of a rate's interval
RARELY = f"others are named so rarely that the upper end is at most {100 * ALLOWED:.0f} %"


def check(size: Size) -> Iterator[Count]:
    """Diagnose and forecast data drawn anew, many times."""
    runs = RUNS[size]
    with ProcessPoolExecutor(1 if size == "quick" else os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for kind in KINDS:
            for how in HOW:
                for planted in (True, False):
                    said = "one lag" if planted else "nothing"
                    count = Count(f"{kind}, {how}: targets depend on {said}", RARELY)
                    results = pool.map(partial(named, kind, how, planted=planted), range(runs), chunksize=8)
                    false = found = 0
                    for lags, true in results:
                        others = bool(lags - {true} if planted else lags)
                        count.add("others named" if others else "no others named")
                        false, found = false + others, found + (true in lags)
                    if planted:
                        count.measured["lag named"] = found
                    if size == "full":
                        count.measured["upper end in %"] = 100 * upper_end(false, runs)
                        if upper_end(false, runs) > ALLOWED:
                            count.failed, count.failures = false, [f"{count.what}: {false} of {runs}"]
                    yield count
