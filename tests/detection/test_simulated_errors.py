"""The stated error of a test is the one that simulated tests achieve."""

from __future__ import annotations

import numpy as np
import pytest

from lagreach.detection import detection_error, required_sequences
from lagreach.tails import stable
from tests.detection.cases import ALPHAS, mean_of, simulated_errors, within_binomial


@pytest.mark.parametrize(("alpha", "delta"), [(1.2, 4.0), (1.5, 1.0), (1.8, 0.5), (2.0, 0.3)])
def test_exact_requirement_by_real_averaging(alpha, delta):
    n = int(np.ceil(required_sequences(delta, 1.0, alpha)))
    assert 50 < n < 500
    runs = 6000
    expected = float(detection_error(n, delta, 1.0, alpha))
    assert 0.045 < expected <= 0.05
    wrong = simulated_errors(mean_of, alpha, delta=delta, n=n, runs=runs, seed=int(10 * alpha))
    assert within_binomial(wrong, runs, expected)


@pytest.mark.parametrize("error", [0.2, 0.05, 0.01])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_exact_requirement_from_the_law_of_the_mean(alpha, error):
    """The mean of N values has scale sigma N^-(1-1/alpha): drawn as such, N may be as large as it likes."""
    delta, sigma, runs = 0.02, 3.0, 60_000
    n = required_sequences(delta, sigma, alpha, None, error)
    scale = float(sigma * n ** -(1 - 1 / alpha))
    wrong = simulated_errors(
        mean_of, alpha, delta=delta, n=1, runs=runs, seed=int(100 * alpha + 1000 * error), scale=scale
    )
    assert within_binomial(wrong, runs, error)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.8])
def test_v1_rate_misses_its_error(alpha):
    """With the printed exponent alpha for kappa, N is far too small: the error is nowhere near 5 %."""
    delta = 0.5
    n = int(np.ceil(required_sequences(delta, 1.0, alpha, rate="v1")))
    runs = 4000
    wrong = simulated_errors(mean_of, alpha, delta=delta, n=n, runs=runs, seed=3)
    assert within_binomial(wrong, runs, float(detection_error(n, delta, 1.0, alpha)))
    assert not within_binomial(wrong, runs, 0.05)
    assert wrong / runs > 0.07


def aggregate(method, alpha, clip):
    if method == "clip":
        return lambda values: np.clip(values, -clip, clip).sum(axis=1)
    if method == "sign":
        return lambda values: np.sign(values).sum(axis=1)
    return lambda values: stable.score(values, alpha).sum(axis=1)


@pytest.mark.parametrize("method", ["clip", "sign", "score"])
@pytest.mark.parametrize("alpha", [1.2, 1.8])
def test_robust_requirement_by_simulation(alpha, method):
    delta, runs = 0.25, 3000
    n = int(np.ceil(required_sequences(delta, 1.0, alpha, criterion="robust", method=method)))
    n += 1 - n % 2  # odd, so that signs cannot tie
    expected = float(detection_error(n, delta, 1.0, alpha, criterion="robust", method=method))
    wrong = simulated_errors(
        aggregate(method, alpha, 1.5), alpha, delta=delta, n=n, runs=runs, seed=int(alpha * 10) + len(method)
    )
    assert within_binomial(wrong, runs, expected)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["clip", "sign", "score"])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_robust_requirement_at_small_signals(alpha, method):
    delta, runs = 0.125, 20_000
    n = int(np.ceil(required_sequences(delta, 1.0, alpha, criterion="robust", method=method)))
    n += 1 - n % 2
    expected = float(detection_error(n, delta, 1.0, alpha, criterion="robust", method=method))
    wrong = simulated_errors(aggregate(method, alpha, 1.5), alpha, delta=delta, n=n, runs=runs, seed=int(alpha * 10))
    assert within_binomial(wrong, runs, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "delta"), [(1.2, 3.0), (1.5, 0.6), (1.8, 0.25), (2.0, 0.15)])
def test_exact_requirement_by_long_averages(alpha, delta):
    n = int(np.ceil(required_sequences(delta, 1.0, alpha)))
    assert n > 500
    runs = 20_000
    wrong = simulated_errors(mean_of, alpha, delta=delta, n=n, runs=runs, seed=int(10 * alpha))
    assert within_binomial(wrong, runs, float(detection_error(n, delta, 1.0, alpha)))


@pytest.mark.parametrize("alpha", [1.2, 1.5])
def test_clipping_batch_means_costs_what_is_said(alpha):
    batch, delta, clip, runs = 16, 0.25, 1.5, 3000
    n = float(required_sequences(delta, 1.0, alpha, criterion="robust", batch=batch))
    alone = float(required_sequences(delta, 1.0, alpha, criterion="robust"))
    np.testing.assert_allclose(n / alone, batch ** ((2 - alpha) / alpha), rtol=1e-12)
    scale = float(batch ** -(1 - 1 / alpha))  # of a batch mean, drawn from its exact law
    batches = int(np.ceil(n / batch))
    wrong = simulated_errors(
        aggregate("clip", alpha, clip * scale), alpha, delta=delta, n=batches, runs=runs, seed=8, scale=scale
    )
    expected = float(detection_error(batches * batch, delta, 1.0, alpha, criterion="robust", batch=batch))
    assert within_binomial(wrong, runs, expected)


def test_one_batch_of_gaussian_values_costs_nothing():
    np.testing.assert_allclose(
        required_sequences(0.1, 1.0, criterion="robust", batch=64), required_sequences(0.1, 1.0, criterion="robust")
    )
