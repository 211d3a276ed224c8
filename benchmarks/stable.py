"""Time per point of the symmetric stable law beside ``scipy.stats.levy_stable``.

The points are a sample of the law itself (for ``ppf`` uniform probabilities), so tails and centre appear as often
as they do in use. scipy gets fewer points: its cost per point does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.harness import Case, Op, Timing, as_timing, in_fresh_interpreter, measure
from lagreach.tails import stable

ALPHAS = {"full": (1.1, 1.5, 1.9, 1.99), "quick": (1.5,), "tiny": (1.5,)}
POINTS = {"full": (100_000, 60), "quick": (100_000, 20), "tiny": (50, 3)}
REPEATS = {"full": 5, "quick": 3, "tiny": 1}
FUNCTIONS = ("pdf", "sf", "ppf")
AGREEMENT = 1e-4  # relative, where scipy itself is that good: the guards test lagreach against mpmath far closer


def cases(size: str) -> list[Case]:
    """Density, survival function and quantile at each alpha; then samples, and the first call of a session."""
    points, scipy_points = POINTS[size]
    shape = {"points": points, "scipy_points": scipy_points}
    repeats = REPEATS[size]
    return [
        *(
            Case(f"{name} alpha={alpha}", {"function": name, "alpha": alpha, **shape}, repeats)
            for name in FUNCTIONS
            for alpha in ALPHAS[size]
        ),
        Case("rvs alpha=1.5", {"function": "rvs", "alpha": 1.5, **shape}, repeats),
        Case("first pdf of a session", {"function": "first", "alpha": 1.5, "points": 1}, repeats, note=FIRST_NOTE),
    ]


FIRST_NOTE = "first pdf of a session: one point, after the import, tables and compilation included"


def run(case: Case) -> dict[str, Timing]:
    """Seconds per point."""
    if case.shape["function"] == "first":
        return _first_call(case)
    from scipy.stats import levy_stable

    rng = np.random.default_rng(0)
    name, alpha, points = case.shape["function"], case.shape["alpha"], case.shape["points"]
    few = min(points, case.shape["scipy_points"])
    if name == "rvs":
        return measure(
            {
                "lagreach": lambda: stable.rvs(alpha, points, rng),
                "scipy": lambda: levy_stable.rvs(alpha, 0.0, size=points, random_state=rng),
            },
            case.repeats,
            per={"lagreach": points, "scipy": points},
        )
    at = rng.uniform(1e-6, 1.0 - 1e-6, points) if name == "ppf" else stable.rvs(alpha, points, rng)
    many = rng.uniform(1.0, 2.0, points)
    ours, theirs = getattr(stable, name), getattr(levy_stable, name)
    _check(ours(at[:few], alpha), theirs(at[:few], alpha, 0.0), name)
    implementations: dict[str, Callable[[], object]] = {
        "lagreach": lambda: ours(at, alpha),
        "lagreach, alpha per point": lambda: ours(at, many),
        "scipy": lambda: theirs(at[:few], alpha, 0.0),
    }
    per = {"lagreach": points, "lagreach, alpha per point": points, "scipy": few}
    if name != "ppf":
        some = at[: max(1, points // 50)]
        implementations["lagreach, quadrature"] = lambda: ours(some, alpha, method="quadrature")
        per["lagreach, quadrature"] = some.size
    return measure(implementations, case.repeats, per)


def _check(ours: np.ndarray, theirs: np.ndarray, name: str) -> None:
    """Both must give the same values, apart from the few points where scipy's integration misses."""
    close = np.isclose(ours, theirs, rtol=AGREEMENT, atol=AGREEMENT)
    assert close.mean() >= 0.9, f"{name}: {np.count_nonzero(~close)} of {close.size} points differ"


def _first_call(case: Case) -> dict[str, Timing]:
    seconds: dict[str, list[tuple[float, float]]] = {"lagreach": [], "scipy": []}
    for _ in range(case.repeats):
        seconds["lagreach"].append(in_fresh_interpreter("stable.pdf(1.0, 1.5)", "from lagreach.tails import stable"))
        seconds["scipy"].append(
            in_fresh_interpreter("levy_stable.pdf(1.0, 1.5, 0.0)", "from scipy.stats import levy_stable")
        )
    return {name: as_timing(pairs) for name, pairs in seconds.items()}


OP = Op(
    name="stable",
    about="symmetric stable law",
    unit="point",
    guards=("tests/tails/test_stable.py",),
    cases=cases,
    run=run,
)
