"""Linear memory: bounded for wide states, and a warning about correlated inputs that knows its sampling error."""

import numpy as np
import pytest
import torch
from scipy.stats import binom

import lagreach
from lagreach.diagnosis.cost import memory_needed
from lagreach.diagnosis.measure import plan_measurement
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.models.gated_rnn import GatedRNN
from lagreach.statistics import memory as module
from lagreach.statistics.memory import DOUBT, MOST_BYTES, MOST_DIRECTIONS, MemorySums, directions_read, memory_bytes

CORRELATED = "inputs are correlated in time"


def memory(plan):
    """Linear memory over all sequences, in one go."""
    sums = MemorySums(plan)
    plan.feed([sums], range(plan.block_plan.count))
    return sums.result()


def correlated(inputs, blocks=32, lengths=None):
    """Whether the statistic calls inputs (seq, time, input) correlated."""
    sequences, time = inputs.shape[:2]
    statistic = module.Autocorrelation(blocks, inputs.shape[2])
    inside = torch.ones(sequences, time, dtype=torch.bool)
    if lengths is not None:
        inside = torch.arange(time) < lengths[:, None]
    statistic.add(inputs * inside[..., None], inside, torch.arange(sequences) * blocks // sequences)
    return statistic.detected()


def draws(law, repetition, *shape):
    generator = np.random.default_rng([repetition, len(law)])
    values = {
        "normal": lambda: generator.normal(size=shape),
        "student": lambda: generator.standard_t(3, size=shape),
        "one-hot": lambda: np.eye(shape[2])[generator.integers(0, shape[2], shape[:2])] - 1 / shape[2],
    }[law]()
    return torch.from_numpy(values)


@pytest.mark.thorough
@pytest.mark.parametrize("law", ["normal", "student", "one-hot"])
@pytest.mark.parametrize(("sequences", "time", "width"), [(96, 20, 12), (16, 10, 3), (500, 40, 2)])
def test_independent_inputs_are_seldom_called_correlated(law, sequences, time, width):
    repetitions = 200
    blocks = min(32, sequences // 2)
    alarms = sum(correlated(draws(law, k, sequences, time, width), blocks) for k in range(repetitions))
    assert alarms <= binom.ppf(0.999, repetitions, DOUBT)


def test_lengths_and_short_sequences_are_no_correlation():
    alarms = 0
    for k in range(100):
        lengths = torch.from_numpy(np.random.default_rng(k).integers(1, 21, 96))
        alarms += correlated(draws("normal", k, 96, 20, 4), lengths=lengths)
    assert alarms <= binom.ppf(0.999, 100, DOUBT)
    assert not correlated(draws("normal", 0, 96, 1, 4))
    assert not correlated(draws("normal", 0, 96, 2, 4))


@pytest.mark.parametrize("strength", [0.2, 0.5, -0.3])
def test_correlated_inputs_are_called_so(strength):
    for k in range(20):
        inputs = draws("normal", k, 96, 20, 12)
        for t in range(1, 20):
            inputs[:, t, 0] += strength * inputs[:, t - 1, 0]
        assert correlated(inputs)


def test_overlapping_windows_of_noise_are_not_called_correlated():
    """Windows that repeat each other's steps: there are fewer independent products than windows."""
    alarms = 0
    for k in range(40):
        series = draws("normal", k, 1, 400, 3)[0]
        alarms += correlated(torch.stack([series[i : i + 20] for i in range(381)]), blocks=8)
    assert alarms <= binom.ppf(0.999, 40, DOUBT)


@pytest.mark.thorough
def test_a_diagnosis_of_independent_inputs_does_not_warn():
    model = GatedRNN("gru", 12, 8, 1, generator=torch.Generator().manual_seed(0))
    for k in range(4):
        x = draws("normal", k, 96, 20, 12).float()
        diagnosis = lagreach.diagnose(model, (x, x[..., :1]), lags=[0, 1])
        assert not any(CORRELATED in warning for warning in diagnosis.layers[0].window.warnings)
        assert diagnosis.layers[0].window.memory.independent_inputs
    x[:, 1:] += 0.5 * x[:, :-1]
    diagnosis = lagreach.diagnose(model, (x, x[..., :1]), lags=[0, 1])
    assert any(CORRELATED in warning for warning in diagnosis.layers[0].window.warnings)


def wide_problem(units=2500, lags=(0, 1, 2, 4)):
    """A state far wider than the data have steps."""
    generator = torch.Generator().manual_seed(0)
    model = GatedRNN("diag_elman", 2, units, 1, generator=generator)
    x = torch.randn(32, 8, 2, generator=generator)
    return model, (x, x[..., :1]), list(lags)


def test_covariances_of_wide_states_are_bounded():
    assert directions_read(24576, 8) == MOST_DIRECTIONS
    assert directions_read(100, 8) == 100
    for size in (64, 512, 4096, 10**6):
        for lags in (1, 24, 256, 5000):
            assert memory_bytes(size, lags) <= MOST_BYTES
            assert 1 <= directions_read(size, lags) <= size
    model, data, lags = wide_problem()
    plan = plan_measurement(model, data, "mse", lags, settings=MeasureSettings())
    assert memory_needed(plan) > memory_bytes(2500, len(lags))


@pytest.mark.thorough
def test_a_wide_state_is_diagnosed_and_says_how():
    model, data, lags = wide_problem()
    window = lagreach.diagnose(model, data, lags=lags).layers[0].window
    assert window.memory.directions == MOST_DIRECTIONS
    assert window.memory.bound == 2500
    assert any("2,500 units" in warning and "512 random directions" in warning for warning in window.warnings)
    narrow = lagreach.diagnose(GatedRNN("diag_elman", 2, 20, 1), data, lags=lags).layers[0].window
    assert narrow.memory.directions is None
    assert not any("random directions" in warning for warning in narrow.warnings)


def test_random_directions_hold_what_a_state_remembers(monkeypatch):
    """Of a linear state that holds the last inputs exactly, also some of its directions hold them, and no others.

    A shift register of 6 inputs, spread over 60 units: 20 random directions tell all six, and nothing of the seventh.
    """
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(60, 6, generator=generator, dtype=torch.float64)
    back = torch.linalg.pinv(spread)
    shift = torch.diag(torch.ones(5, dtype=torch.float64), -1)
    first = torch.zeros(6, 1, dtype=torch.float64)
    first[0] = 1

    def step(x, s, params):
        return (s @ back.T @ shift.T + x @ params["W_x"].T) @ spread.T

    from lagreach.adapters.functional import functional_view

    readout = (torch.ones(1, 60, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    view = functional_view(step, {"W_x": first}, readout, 60)
    x = torch.randn(64, 40, 1, generator=generator, dtype=torch.float64)
    plan = plan_measurement(view, (x, x), "mse", [0, 3, 5, 6], params=lambda name: True, settings=MeasureSettings())
    exact = memory(plan)
    monkeypatch.setattr(module, "MOST_DIRECTIONS", 20)
    some = memory(plan)
    assert exact.directions is None
    assert some.directions == 20
    for held in (exact, some):
        np.testing.assert_allclose(held.capacity[:3], 1, atol=1e-8)
        assert abs(held.capacity[3]) < 0.05


def test_wide_inputs_are_read_along_random_directions_too(monkeypatch):
    """The mean over some random input directions is that over all, up to sampling."""
    generator = torch.Generator().manual_seed(0)
    model = GatedRNN("diag_gate", 40, 30, 1, generator=generator)
    x = torch.randn(400, 12, 40, generator=generator)
    plan = plan_measurement(model, (x, x[..., :1]), "mse", [0, 1], settings=MeasureSettings())
    whole = memory(plan)
    monkeypatch.setattr(module, "MOST_DIRECTIONS", 30)
    some = memory(plan)
    assert some.directions is None
    np.testing.assert_allclose(some.capacity, whole.capacity, atol=0.1)
    assert some.total == pytest.approx(whole.total, rel=0.2)


def test_blocks_that_an_interrupt_left_out_do_not_count():
    inputs = draws("normal", 0, 96, 20, 3)
    whole, some = module.Autocorrelation(32, 3), module.Autocorrelation(16, 3)
    for one in (whole, some):
        one.add(inputs, torch.ones(96, 20, dtype=torch.bool), torch.arange(96) * 16 // 96)
    assert whole.detected() == some.detected() is False
    inputs[:, 1:] += 0.3 * inputs[:, :-1]
    whole.add(inputs, torch.ones(96, 20, dtype=torch.bool), torch.arange(96) * 16 // 96)
    assert whole.detected()
    assert not module.Autocorrelation(32, 3).detected()
