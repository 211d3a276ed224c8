"""Reliance: replacing an old input is what it says, is silent under the null, and linear memory is the closed form."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch.nn.functional import linear

from lagreach import Cell, GatedRNN
from lagreach._util.threads import one_thread
from lagreach.diagnosis.measure import MeasureSettings, plan_measurement
from lagreach.statistics.memory import MemorySums
from lagreach.statistics.reliance import RelianceSums, best_constant

SETTINGS = MeasureSettings(probes=1, blocks=8)


def reliance(plan, lags, flips, seed):
    sums = RelianceSums(plan, lags, seed)
    plan.feed([sums])
    return sums.result(flips)


def memory(plan):
    sums = MemorySums(plan)
    plan.feed([sums])
    return sums.result()


@pytest.fixture(autouse=True)
def _single_thread(_as_users_run_it):
    with one_thread():
        yield


def test_it_is_the_loss_of_the_whole_model_with_one_input_replaced(generator):
    """One target at the last step leaves one anchor, so a second run of the model on changed inputs is the truth."""
    model = GatedRNN("lstm", 2, 3, 1, generator=generator, dtype=torch.float64)
    x = torch.randn(20, 9, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(20, 1, generator=generator, dtype=torch.float64)
    plan = plan_measurement(model, (x, y), "mse", [0, 3], settings=SETTINGS)
    relied = reliance(plan, [0, 3], flips=19, seed=0)
    first, second = torch.from_numpy(plan.block_plan.pairs).T
    order, partner = torch.cat((first, second)), torch.cat((second, first))
    with torch.no_grad():
        before = (model(x[order])[:, -1] - y[order]).square().mean()
        for column, lag in enumerate((0, 3)):
            changed = x[order].clone()
            changed[:, -1 - lag] = x[partner, -1 - lag]
            after = (model(changed)[:, -1] - y[order]).square().mean()
            np.testing.assert_allclose(relied.rise[column], (after / before - 1).item(), rtol=1e-9)


@pytest.mark.thorough
def test_without_dependence_it_finds_as_much_as_the_error_allows():
    """Targets independent of the inputs; the anchors of a pair overlap, which does no harm."""
    runs, levels = 200, np.array([0.05, 0.2, 0.5])
    rejected = np.zeros(3)
    for seed in range(runs):
        generator = torch.Generator().manual_seed(seed)
        model = GatedRNN("diag_gate", 2, 4, 1, gate_init=0.3, generator=generator)
        x, y = torch.randn(40, 12, 2, generator=generator), torch.randn(40, 12, 1, generator=generator)
        plan = plan_measurement(model, (x, y), "mse", [1, 2, 6], settings=SETTINGS)
        rejected += reliance(plan, [1, 2, 6], flips=99, seed=seed).adjusted.min() <= levels
    low, high = (binom.ppf(q, runs, levels) for q in (0.0005, 0.9995))
    assert (low <= rejected).all()
    assert (rejected <= high).all()


@dataclass(frozen=True)
class TwoBack(Cell):
    """Three linear units that pass the input on: now, one step ago, two steps ago."""

    name: ClassVar[str] = "two_back"

    def shapes(self, input_size, hidden_size):
        return {"W_x": (1, input_size)}

    def step(self, x, s, params):
        return torch.cat((linear(x, params["W_x"]), s[..., :2]), dim=-1)


def delay_line():
    model = GatedRNN(TwoBack(), 1, 3, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        model.layers[0]["W_x"].fill_(1.0)
        model.readout.weight.copy_(torch.tensor([[0.0, 0.0, 0.8]]))
    return model


def test_a_perfect_predictor_loses_twice_the_explained_variance(generator):
    """``y_t = .8 x_{t-2} + .5 noise`` with the true weights: a replaced input costs ``2 * .64`` on a loss of .25."""
    x = torch.randn(400, 20, 1, generator=generator, dtype=torch.float64)
    y = 0.5 * torch.randn(400, 20, 1, generator=generator, dtype=torch.float64)
    y[:, 2:] += 0.8 * x[:, :-2]
    plan = plan_measurement(delay_line(), (x, y), "mse", [0, 1, 2, 3], settings=SETTINGS)
    relied = reliance(plan, [1, 2, 3, 19], flips=99, seed=0)
    assert abs(relied.rise[1] - 2 * 0.64 / 0.25) < 4 * relied.standard_error[1]
    assert relied.standard_error[1] < 0.5
    assert relied.adjusted[1] <= 0.01
    np.testing.assert_allclose(relied.rise[[0, 2, 3]], 0.0, atol=1e-12)
    assert (relied.adjusted[[0, 2]] == 1.0).all()


def test_a_delay_line_remembers_exactly_its_length(generator):
    x = torch.randn(64, 30, 1, generator=generator, dtype=torch.float64)
    plan = plan_measurement(delay_line(), (x, torch.zeros(64, 30, 1)), "mse", [0, 1, 2, 3, 7], settings=SETTINGS)
    remembered = memory(plan)
    np.testing.assert_allclose(remembered.capacity[:3], 1.0, atol=1e-10)
    np.testing.assert_allclose(remembered.capacity[3:], 0.0, atol=0.02)
    assert remembered.bound == 3
    np.testing.assert_allclose(remembered.total, 3.0, atol=0.03)
    assert remembered.independent_inputs


def test_inputs_that_follow_each_other_are_noticed(generator):
    walk = torch.randn(64, 30, 1, generator=generator, dtype=torch.float64).cumsum(1)
    plan = plan_measurement(delay_line(), (walk, torch.zeros(64, 30, 1)), "mse", [0, 5], settings=SETTINGS)
    assert not memory(plan).independent_inputs


def test_the_part_of_the_constants_loss_that_is_saved(generator):
    """A perfect predictor of ``y = .8 x_{t-2} + .5 noise`` saves .64 of .89, where the constant may have any level."""
    x = torch.randn(400, 20, 1, generator=generator, dtype=torch.float64)
    y = 0.5 * torch.randn(400, 20, 1, generator=generator, dtype=torch.float64)
    y[:, 2:] += 0.8 * x[:, :-2]
    right = reliance(plan_measurement(delay_line(), (x, y), "mse", [0, 2], settings=SETTINGS), [2], flips=19, seed=0)
    # the mean over a sequence's 20 steps: its first two have no input of two steps ago
    loss, constant = (y - delay_line()(x)).square().mean().item(), y.var(correction=0).item()
    assert right.explained == pytest.approx(1 - loss / constant, abs=1e-6)
    assert 0.6 < right.explained < 0.75
    moved = reliance(
        plan_measurement(delay_line(), (x, y + 7.0), "mse", [0, 2], settings=SETTINGS), [2], flips=19, seed=0
    )
    assert moved.explained < 0  # the model knows nothing of the level, a constant does


def test_the_best_constant_of_classes():
    counts = torch.tensor([10.0, 30.0, 60.0], dtype=torch.float64)
    y = torch.repeat_interleave(torch.arange(3), counts.long())
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits.expand(100, 3), y)
    (slope,) = torch.autograd.grad(loss, logits)
    shares = counts / 100
    expected = torch.nn.functional.cross_entropy(shares.log().expand(100, 3), y).item()
    assert best_constant("cross_entropy", loss.item(), slope.numpy()) == pytest.approx(expected, rel=1e-12)
