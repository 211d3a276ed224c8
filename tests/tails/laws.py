"""Laws of samples that the tail tests share, with the stable index (2: finite variance) that governs their averages."""

from collections.abc import Callable

import numpy as np

from lagreach.tails import stable

Draw = Callable[[np.random.Generator, int], np.ndarray]


def student(degrees: float) -> Draw:
    return lambda rng, n: rng.standard_t(degrees, n)


def symmetric_stable(alpha: float) -> Draw:
    return lambda rng, n: np.asarray(stable.rvs(alpha, n, rng))


def contaminated(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_normal(n) * np.where(rng.random(n) < 0.1, 3.0, 1.0)


def modulated(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_normal(n) * np.exp(0.8 * rng.standard_normal(n))


def louder(share: float, factor: float) -> Draw:
    """Gaussian values, a share of them that many times as loud."""
    return lambda rng, n: rng.standard_normal(n) * np.where(rng.random(n) < share, factor, 1.0)


def log_normal(spread: float) -> Draw:
    return lambda rng, n: np.exp(spread * rng.standard_normal(n))


def pareto(index: float) -> Draw:
    return lambda rng, n: 1.0 + rng.pareto(index, n)


def symmetric_pareto(index: float) -> Draw:
    return lambda rng, n: (1.0 + rng.pareto(index, n)) * np.where(rng.random(n) < 0.5, -1.0, 1.0)


def products(factors: int) -> Draw:
    """Products of that many Gaussian values: what a gated gradient is made of."""
    return lambda rng, n: rng.standard_normal((factors, n)).prod(axis=0)


def volatile(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_normal(n) * np.exp(rng.standard_normal(n))


def laplace(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.laplace(size=n)


def product(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_normal(n) * rng.standard_normal(n)


def matched_steps(rng: np.random.Generator, n: int, units: int = 16) -> np.ndarray:
    """Step-level matched statistic err * sum_q mu_q W_q v_q with Gaussian ingredients; mu, W fixed by the model."""
    envelope = np.exp(-np.arange(units) / 5.0)
    readout = np.random.default_rng(99).standard_normal(units)
    return rng.standard_normal(n) * (rng.standard_normal((n, units)) @ (envelope * readout))


# law, alpha of averages
NOT_STABLE: dict[str, tuple[Draw, float]] = {
    "t1.5": (student(1.5), 1.5),
    "t3": (student(3.0), 2.0),
    "contaminated": (contaminated, 2.0),
    "modulated": (modulated, 2.0),
    "laplace": (laplace, 2.0),
    "product": (product, 2.0),
    "matched": (matched_steps, 2.0),
}
