"""Simulated tests between two hypotheses, and the tails that tests run over."""

from __future__ import annotations

import numpy as np
from scipy import stats

from lagreach.tails import stable

ALPHAS = [1.2, 1.5, 1.8, 2.0]
CRITERIA = ["exact", "fano", "converse", "robust"]


def within_binomial(count, runs, probability):
    low, high = stats.binom.ppf([0.0005, 0.9995], runs, probability)
    return low <= count <= high


def simulated_errors(statistic, alpha, *, delta, n, runs, seed, scale=1.0):
    """Wrong signs of a statistic of n values around +-delta/2, each hypothesis half of the time."""
    generator = np.random.default_rng(seed)
    wrong = 0
    for chunk in np.array_split(np.arange(runs), max(1, runs * n // 1_000_000)):
        present = generator.random(chunk.size) < 0.5
        location = np.where(present, 0.5 * delta, -0.5 * delta)[:, None]
        values = location + stable.rvs(alpha, (chunk.size, n), generator, scale)
        wrong += int(np.sum((statistic(values) > 0) != present))
    return wrong


def mean_of(values):
    return values.mean(axis=1)
