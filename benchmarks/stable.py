"""Time per point of the symmetric stable law beside ``scipy.stats.levy_stable``, in the same run.

``python -m benchmarks.stable`` prints the result as JSON. The points are a sample of the law itself (for ``ppf``
uniform probabilities), so tails and centre appear as often as they do in use. scipy gets fewer points: its cost
per point does not depend on their number.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lagreach.tails import stable

ALPHAS = (1.1, 1.5, 1.9, 1.99)
POINTS, SCIPY_POINTS, REPEATS = 100_000, 60, 5


def _best_us(function: Callable[[], Any], points: int, repeats: int) -> float:
    """Microseconds per point, best of ``repeats``."""
    best = np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return 1e6 * best / points


def run() -> dict[str, Any]:
    from scipy.stats import levy_stable

    rng = np.random.default_rng(0)
    start = time.perf_counter()
    stable.pdf(1.0, 1.5)
    first_call = time.perf_counter() - start
    rows = []
    for alpha in ALPHAS:
        sample, uniform = stable.rvs(alpha, POINTS, rng), rng.uniform(1e-6, 1.0 - 1e-6, POINTS)
        many = rng.uniform(1.0, 2.0, POINTS)
        for name in ("pdf", "sf", "ppf"):
            at = uniform if name == "ppf" else sample
            ours, theirs = getattr(stable, name), getattr(levy_stable, name)
            few = at[:SCIPY_POINTS]
            fast = _best_us(lambda ours=ours, at=at, alpha=alpha: ours(at, alpha), POINTS, REPEATS)
            varied = _best_us(lambda ours=ours, at=at, many=many: ours(at, many), POINTS, REPEATS)
            slow = _best_us(lambda theirs=theirs, few=few, alpha=alpha: theirs(few, alpha, 0.0), few.size, 2)
            rows.append(
                {
                    "function": name,
                    "alpha": alpha,
                    "lagreach_us": round(fast, 4),
                    "lagreach_us_alpha_per_point": round(varied, 4),
                    "scipy_us": round(slow, 1),
                    "times_faster": round(slow / fast),
                    "times_faster_alpha_per_point": round(slow / varied),
                }
            )
    exact = sample[:2000]
    return {
        "points": POINTS,
        "scipy_points": SCIPY_POINTS,
        "first_call_s": round(first_call, 4),
        "quadrature_us": round(_best_us(lambda: stable.pdf(exact, 1.5, method="quadrature"), exact.size, 3), 2),
        "rvs_us": round(_best_us(lambda: stable.rvs(1.5, POINTS, rng), POINTS, REPEATS), 4),
        "least_times_faster": {
            name: min(row["times_faster"] for row in rows if row["function"] == name) for name in ("pdf", "sf", "ppf")
        },
        "rows": rows,
    }


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
