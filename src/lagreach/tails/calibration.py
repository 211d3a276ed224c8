"""Critical values of the three checks of `lagreach.tails.support`, by simulation: ``python -m lagreach.tails.calibration``."""

from __future__ import annotations

import argparse

import numpy as np

from lagreach.tails._common import FloatArray
from lagreach.tails.support import ALPHAS, SIZE, stable_statistics


def simulate(alpha: float, n: int, replicates: int, rng: np.random.Generator) -> FloatArray:
    """Scaled statistics of stable samples: rows of (fitted alpha, G1, G2, G3)."""
    from lagreach.tails import stable

    rows = np.empty((replicates, 4))
    for row in rows:
        samples = np.asarray(stable.rvs(alpha, n, rng))
        row[:] = stable_statistics(samples - np.median(samples), rng).scaled()
    return rows


def calibrate(n: int, replicates: int, seed: int) -> tuple[tuple[float, ...], ...]:
    """Critical values for n samples, one row per alpha: two-sided for G1 and G3, upper for G2."""
    rows = []
    for i, alpha in enumerate(ALPHAS):
        draws = simulate(alpha, n, replicates, np.random.default_rng((seed, n, i)))
        low, upper, high = np.quantile(draws, (0.5 * SIZE, 1.0 - SIZE, 1.0 - 0.5 * SIZE), axis=0)
        rows.append(tuple(round(float(v), 3) for v in (low[1], high[1], upper[2], low[3], high[3])))
    return tuple(rows)


def main() -> None:
    """Print the table of critical values in the form in which `support` stores it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--replicates", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--counts", type=int, nargs="+", default=[400, 1500, 6000, 24000])
    options = parser.parse_args()
    print("CRITICAL: dict[int, tuple[tuple[float, ...], ...]] = {")
    for n in options.counts:
        print(f"    {n}: (")
        for row in calibrate(n, options.replicates, options.seed):
            print(f"        {row},")
        print("    ),", flush=True)
    print("}")


if __name__ == "__main__":
    main()
