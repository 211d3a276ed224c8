"""How often the interval of 1/kappa holds the true exponent, and what N comes out: `python -m tests.tails.kappa_table`.

Prints the table of docs/theory/heavy-tails.md: how often the interval holds the true exponent, how often kappa is said to be
2, larger than 2, or refused, and the median of N over the true N where there is one.

The true exponent is that of means of very many values: 1/2 where the variance is finite, 1 - 1/alpha where tails fall as
|x|^-alpha. N is asked for at the signal whose true N is 20,000, far beyond what the samples reach.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from lagreach.tails import Concentration, concentration
from lagreach.types import Status
from tests.tails.laws import (
    Draw,
    log_normal,
    louder,
    pareto,
    products,
    student,
    symmetric_pareto,
    symmetric_stable,
    volatile,
)

TRUE_N = 20_000
RUNS = {600: 60, 2000: 40, 8000: 20}  # samples of each size in the published table


@dataclass(frozen=True)
class Law:
    """A law of samples, the exponent of its means, and its standard deviation (infinite if it has none)."""

    draw: Draw
    inverse_kappa: float
    sd: float = math.inf

    @property
    def delta(self) -> float:
        """Signal that needs means of TRUE_N values: 2 z sd / sqrt(N)."""
        return float(2 * ndtri(0.95) * self.sd / math.sqrt(TRUE_N))


def loud(share: float, factor: float) -> Law:
    return Law(louder(share, factor), 0.5, math.sqrt(1 - share + share * factor**2))


def heavy(draw: Draw, alpha: float) -> Law:
    return Law(draw, 1 - 1 / alpha)


MILD = {
    "Gaussian": Law(products(1), 0.5, 1.0),
    "N N": Law(products(2), 0.5, 1.0),
    "t3": Law(student(3.0), 0.5, math.sqrt(3.0)),
    "N N N": Law(products(3), 0.5, 1.0),
    "10 % x 4": loud(0.1, 4.0),
    "N exp(N)": Law(volatile, 0.5, math.e),
}
HARSH = {
    "10 % x 16": loud(0.1, 16.0),
    "2 % x 30": loud(0.02, 30.0),
    "1 % x 8": loud(0.01, 8.0),
    "0.3 % x 32": loud(0.003, 32.0),
    "lognormal 1.5": Law(log_normal(1.5), 0.5, math.sqrt((math.exp(2.25) - 1) * math.exp(2.25))),
    "stable 1.8": heavy(symmetric_stable(1.8), 1.8),
    "stable 1.5": heavy(symmetric_stable(1.5), 1.5),
    "stable 1.3": heavy(symmetric_stable(1.3), 1.3),
    "t1.5": heavy(student(1.5), 1.5),
    "Pareto 1.3": heavy(pareto(1.3), 1.3),
    "symmetric Pareto 1.3": heavy(symmetric_pareto(1.3), 1.3),
}
LAWS = MILD | HARSH


@dataclass(frozen=True)
class Row:
    """Shares over the runs with one law and size; `ratio` is the median of N over the true N (NaN: refused) where known."""

    law: str
    n: int
    runs: int
    covered: float
    refused: float
    covered_or_refused: float
    two: float
    heavy: float
    ratio: float

    def __str__(self) -> str:
        verdicts = {"2": self.two, "> 2": self.heavy, "refused": self.refused}
        said = ", ".join(f"{word}: {share:.0%}" for word, share in verdicts.items() if share > 0)
        ratio = "" if math.isnan(self.ratio) else f"; N x {self.ratio:.2f}"
        return f"{self.covered:.0%} ({said}){ratio}"


def measure(name: str, n: int, runs: int, resamples: int = 400) -> Row:
    """Measure kappa of ``runs`` samples of one law."""
    law = LAWS[name]
    results: list[Concentration] = []
    for seed in range(runs):
        rng = np.random.default_rng([seed, n])
        results.append(concentration(law.draw(rng, n), generator=rng, resamples=resamples))
    covered = np.array([c.inverse_interval[0] <= law.inverse_kappa <= c.inverse_interval[1] for c in results])
    status = np.array([c.status.name for c in results])
    refused = status == Status.KAPPA_REFUSED.name
    needed = [c.required(law.delta).sequences for c in results] if math.isfinite(law.sd) else [math.nan]
    numbers = np.where(np.isnan(needed), math.inf, needed)
    return Row(
        law=name,
        n=n,
        runs=runs,
        covered=covered.mean(),
        refused=refused.mean(),
        covered_or_refused=(covered | refused).mean(),
        two=(status == Status.KAPPA_TWO.name).mean(),
        heavy=(status == Status.OK.name).mean(),
        ratio=float(np.median(numbers)) / TRUE_N if math.isfinite(np.median(numbers)) else math.nan,
    )


def main(names: Iterable[str], sizes: dict[int, int]) -> None:
    print("| law (1/kappa) | " + " | ".join(f"n = {n:,}, {runs} runs" for n, runs in sizes.items()) + " |")
    print("|---" * (1 + len(sizes)) + "|")
    for name in names:
        print(f"| {name} ({LAWS[name].inverse_kappa:.3g}) ", end="", flush=True)
        for n, runs in sizes.items():
            print(f"| {measure(name, n, runs)} ", end="", flush=True)
        print("|", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.tails.kappa_table", description=__doc__)
    parser.add_argument("laws", nargs="*", help="all by default")
    parser.add_argument("--size", type=int, action="append", help="samples; 600, 2000 and 8000 by default")
    parser.add_argument("--runs", type=int, help="samples of each size; 60, 40 and 20 by default")
    options = parser.parse_args()
    sizes = {n: options.runs or RUNS.get(n, 20) for n in options.size or RUNS}
    main(options.laws or LAWS, sizes)
