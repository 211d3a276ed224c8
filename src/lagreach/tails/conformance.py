"""What `lagreach.testing.check_estimator` checks, one function each."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from statistics import fmean

import numpy as np

from lagreach.errors import ConformanceError
from lagreach.tails import stable
from lagreach.tails._common import Estimate, FloatArray

SAMPLES, REPEATS = 2000, 5
COVERED, OUT_OF = 31, 40  # true 95 % intervals miss ten times in 40 once in 48,000 runs
CLOSE = 1e-6

Estimator = Callable[[FloatArray, float], Estimate]


def checks_of(alphas: tuple[float, ...], tolerance: float, seed: int) -> dict[str, Callable[[Estimator], None]]:
    """Return the checks by name."""
    values = _draw(1.5, SAMPLES, seed)
    return {
        "result": partial(_check_result, values),
        "order and sign": partial(_check_symmetry, values, seed),
        "units": partial(_check_units, values),
        "levels": partial(_check_levels, values),
        "recovery": partial(_check_recovery, alphas, tolerance, seed),
        "coverage": partial(_check_coverage, seed),
    }


def _draw(alpha: float, size: int, seed: int) -> FloatArray:
    values = np.asarray(stable.rvs(alpha, size, seed), dtype=np.float64)
    return values - np.median(values)


def _fail(problem: str, got: object, expected: object, fix: str | None = None) -> ConformanceError:
    return ConformanceError(f"estimator: {problem}", got=got, expected=expected, fix=fix)


def _check_result(values: FloatArray, estimate: Estimator) -> None:
    result = estimate(values, 0.95)
    if not isinstance(result, Estimate):
        raise _fail("the result is of the wrong kind", type(result).__name__, "a lagreach.tails.Estimate")
    low, high = result.interval
    if not (math.isfinite(result.alpha) and result.scale > 0 and math.isfinite(result.scale)):
        raise _fail("the estimate is not a number", result, "a finite alpha and a positive, finite scale")
    if not low <= result.alpha <= high:
        raise _fail("the interval does not hold the estimate", result, "interval[0] <= alpha <= interval[1]")


def _check_symmetry(values: FloatArray, seed: int, estimate: Estimator) -> None:
    shuffled = np.random.default_rng(seed).permutation(-values)
    before, after = estimate(values, 0.95), estimate(shuffled, 0.95)
    if not (_close(before.alpha, after.alpha) and _close(before.scale, after.scale)):
        raise _fail("the order or the sign of the samples matters", after, before, "sort, or use |x|")


def _check_units(values: FloatArray, estimate: Estimator) -> None:
    before, after = estimate(values, 0.95), estimate(1000.0 * values, 0.95)
    if not (_close(before.alpha, after.alpha) and _close(1000.0 * before.scale, after.scale)):
        raise _fail(
            "samples in other units give another law",
            f"alpha {after.alpha:.6g}, scale {after.scale:.6g} for samples 1000 times as large",
            f"alpha {before.alpha:.6g}, scale {1000 * before.scale:.6g}",
            "divide by a measure of spread first",
        )


def _check_levels(values: FloatArray, estimate: Estimator) -> None:
    narrow, wide = estimate(values, 0.5).interval, estimate(values, 0.99).interval
    if not (wide[0] <= narrow[0] and narrow[1] <= wide[1] and wide != narrow):
        raise _fail(
            "the interval does not widen with the level", f"{narrow} at 0.5, {wide} at 0.99", "nested intervals"
        )


def _check_recovery(alphas: tuple[float, ...], tolerance: float, seed: int, estimate: Estimator) -> None:
    for alpha in alphas:
        results = [estimate(_draw(alpha, SAMPLES, seed + i), 0.95) for i in range(REPEATS)]
        mean, scale = fmean(one.alpha for one in results), fmean(one.scale for one in results)
        if not (abs(mean - alpha) <= tolerance and abs(scale - 1) <= tolerance):
            got = f"alpha {mean:.3f}, scale {scale:.3f} (mean over {REPEATS} samples of {SAMPLES})"
            raise _fail("a stable law is not recovered", got, f"alpha {alpha}, scale 1, within {tolerance:g}")


def _check_coverage(seed: int, estimate: Estimator) -> None:
    intervals = [estimate(_draw(1.5, 500, seed + i), 0.95).interval for i in range(OUT_OF)]
    covered = sum(low <= 1.5 <= high for low, high in intervals)
    if covered < COVERED:
        raise _fail("the intervals are too narrow", f"{covered} of {OUT_OF} hold alpha", f"at least {COVERED}")


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=CLOSE)
