"""Products of decays against closed forms, explicit products, and transport step by step."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import lagreach
from lagreach.adapters import find_views
from lagreach.data.batch import Batch
from lagreach.transport.carry import Carry, Steps
from lagreach.transport.exact import exact_transport
from lagreach.transport.first_order import first_order_transport
from lagreach.transport.linear_scan import decay_products, jumps, scan_transport
from lagreach.transport.rollout import run
from tests.adapters.layers.test_linear_attention import GLA, WIDTH
from tests.adapters.layers.test_min_gru import MinGRU
from tests.adapters.scan_cases import Wrapped, numbers, randomise

TIME = 40


def test_products_against_explicit_products():
    decay = torch.sigmoid(numbers(2, 12, 3))
    decay[0, 5, 1] = 0.0
    for lag, log in decay_products(decay.log(), range(12)):
        expected = torch.stack([decay[:, i + 1 : i + 1 + lag].prod(1) for i in range(12 - lag)], dim=1)
        assert_close(log.exp(), expected, rtol=1e-12, atol=1e-15)


def test_a_constant_decay_far_below_the_float_range():
    (log_product,) = [log for _, log in decay_products(torch.full((1, 4001, 1), math.log(0.01)), [4000])]
    assert_close(log_product, torch.full((1, 1, 1), 4000 * math.log(0.01), dtype=torch.float64), rtol=1e-6, atol=0)


def rolled_out(model, x):
    (view,) = find_views(model, Batch(x, x))
    return run(view.bind(Batch(x, x)))


@pytest.fixture(name="part")
def _part():
    torch.manual_seed(0)
    return rolled_out(Wrapped(MinGRU()).double(), numbers(3, TIME, 2))


@pytest.fixture(name="shared")
def _shared():
    """Every decay rules several units that lie side by side."""
    torch.manual_seed(0)
    return rolled_out(randomise(Wrapped(GLA(), width=WIDTH).double()), numbers(3, TIME, 2))


@pytest.mark.parametrize("which", ["part", "shared"])
def test_the_jump_to_a_lag_is_what_step_by_step_gives(which, request):
    part = request.getfixturevalue(which)
    delta, names, lags = numbers(*part.states.shape, seed=1), list(part.recurrence.params), [0, 7, 30]
    assert jumps(part, lags)
    assert not jumps(part, range(TIME))
    carry, slow = Carry(Steps(part, names), delta), {}
    for lag in range(31):
        if lag in lags:
            slow[lag] = carry.cotangent().double().clone()
        carry.step()
    everything = {c.lag: g for c, g in exact_transport(part, delta, list(range(TIME)), params=names)}
    for cotangent, grads in exact_transport(part, delta, lags, params=names):
        assert_close(cotangent.double(), slow[cotangent.lag], rtol=1e-11, atol=1e-16)
        for name in names:
            assert_close(grads[name], everything[cotangent.lag][name], rtol=1e-10, atol=1e-16)


def test_jumps_are_taken_when_they_are_less_work(part, shared):
    """To each of the lags directly, or through all up to the largest one; only through a single linear layer."""
    for each in (part, shared):
        assert jumps(each, [1, 4])
        assert not jumps(each, [1, 3])
    for model in (lagreach.GatedRNN("gru", 2, 3, 1), lagreach.GatedRNN("min_gru", 2, 3, 1, num_layers=2)):
        assert not jumps(lagreach.rollout(model, torch.zeros(2, TIME, 2)), [30])


def test_first_order_is_exact(part):
    delta, lags = numbers(3, TIME, 6, seed=1), [1, 5, 33]
    for (exact, _), first in zip(
        scan_transport(part, delta, lags), first_order_transport(part, delta, lags), strict=True
    ):
        assert_close(exact.double(), first.double(), rtol=1e-11, atol=1e-16)


def test_gains_below_the_float_range_keep_their_logarithm():
    layer = MinGRU()
    nn.init.zeros_(layer.linear_z.weight)
    nn.init.constant_(layer.linear_z.bias, 20.0)  # a decay of about exp(-20)
    model = Wrapped(layer).double()
    x = numbers(2, 60, 2)
    gains = lagreach.fidelity(model, x, numbers(2, 60, 2, seed=1), [50])
    assert_close(gains.log10_exact, torch.tensor([-50 * 20 / math.log(10)], dtype=torch.float64), rtol=1e-6, atol=1e-3)
