"""Some sequences louder than others: kappa stays 2, and N is that of the standard deviation."""

import numpy as np
import pytest
import torch
from scipy.special import ndtri

from lagreach import GatedRNN
from lagreach.diagnosis.measure import measure_window
from lagreach.types import Status

TIME, LAG = 24, 3


def loud_sequences(seed, count):
    """Gaussian inputs, targets that depend on the input three steps before, and one sequence in ten four times as loud."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, TIME, 1, generator=generator)
    y = 0.5 * torch.randn(count, TIME, 1, generator=generator)
    y[:, LAG:] += 0.5 * x[:, :-LAG]
    loud = torch.where(torch.rand(count, 1, 1, generator=generator) < 0.1, 4.0, 1.0)
    return loud * x, loud * y


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return GatedRNN("gru", 1, 8, 1)


@pytest.mark.thorough
def test_kappa_is_two_and_the_interval_spans_what_is_left_open(model):
    window = measure_window(model, loud_sequences(1, 2048), lags=[LAG])
    rate, needed = window.concentration, window.required.at(LAG)
    assert (rate.kappa, rate.status) == (2.0, Status.KAPPA_TWO)
    assert needed["sequences"] == pytest.approx(float((2 * ndtri(0.95) * window.noise / window.delta)[0] ** 2))
    # between means of 2 and 32 the exponent is below 1/2 beyond doubt: whether it stays there is open, and said
    assert rate.left_open
    assert needed["low"] < needed["sequences"] < needed["pessimistic"] < needed["high"]
    assert any("settle more slowly" in warning for warning in window.warnings)
    planted = window.required_if_present().at(LAG)
    assert planted["low"] < planted["sequences"] < planted["pessimistic"] < planted["high"]


@pytest.mark.slow
def test_intervals_of_n_cover(model):
    """The true N from so many sequences that it is known to two per cent."""
    large = measure_window(model, loud_sequences(100_000, 131_072), lags=[LAG])
    assert large.concentration.kappa == 2.0
    true_data = float((2 * ndtri(0.95) * large.noise / large.delta)[0] ** 2)
    true_planted = large.required_if_present().at(LAG)["sequences"]
    windows = [measure_window(model, loud_sequences(seed, 2048), lags=[LAG]) for seed in range(40)]
    assert all(window.concentration.kappa == 2.0 for window in windows)
    for true, measured in (
        (true_data, [window.required.at(LAG) for window in windows]),
        (true_planted, [window.required_if_present().at(LAG) for window in windows]),
    ):
        assert sum(n["low"] <= true <= n["high"] for n in measured) >= 36
        assert np.median([n["sequences"] for n in measured]) == pytest.approx(true, rel=0.1)
