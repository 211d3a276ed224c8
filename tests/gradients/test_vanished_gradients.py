"""Gradients below the range of float64: their size is gone, not their direction, and N is infinite, not unknown."""

import math

import numpy as np
import pytest
import torch

import lagreach
from lagreach.diagnosis.measure import plan_measurement
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.gradients.blocks import block_means
from lagreach.models.gated_rnn import GatedRNN
from lagreach.transport.cotangent import Cotangent
from lagreach.transport.scaled import KEPT
from lagreach.types import Status

GATE, LAGS = 0.99, [0, 10, 50, 160, 165, 200]  # a hundredth is kept at every step: 1e-400 over 200 steps


def case(dtype=torch.float32, time=210, sequences=32):
    generator = torch.Generator().manual_seed(0)
    model = GatedRNN("const_gate", 2, 4, 1, gate_init=GATE, generator=generator, dtype=dtype)
    torch.nn.init.zeros_(model.layers[0]["U_h"])
    x = torch.randn(sequences, time, 2, generator=generator, dtype=dtype)
    return model, x, torch.randn(sequences, time, 1, generator=generator, dtype=dtype)


@pytest.mark.thorough
@pytest.mark.parametrize("transport", ["exact", "first-order"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_n_is_infinite_where_the_gain_is_below_any_number(dtype, transport):
    model, x, y = case(dtype)
    diagnosis = lagreach.diagnose(model, (x, y), lags=LAGS, transport=transport)
    np.testing.assert_allclose(diagnosis.layers[0].fidelity.log10_exact, [-2.0 * lag for lag in LAGS], atol=1e-3)
    window = diagnosis.layers[0].window
    assert set(window.probe.status) == {Status.OK}
    for numbers in (window.probe, window.required_if_present(0.01)):
        for name in ("sequences", "low", "high", "pessimistic", "robust"):
            values = getattr(numbers, name)
            assert not np.isnan(values).any(), name
            assert np.isposinf(values[3:]).all(), name
            assert np.isfinite(values[:3]).all(), name
    assert not np.isnan(window.adjusted_p).any()
    assert "unknown" not in str(diagnosis)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_directions_of_vanished_gradients_are_right(dtype):
    """Without recurrent weights, ``g^(l) = (1-s)^l sum delta_t s sech^2 x_{t-l} u_{t-l}``: a sum that can be written down."""
    model, x, y = case(dtype)
    plan = plan_measurement(model, (x, y), "mse", LAGS, settings=MeasureSettings(probes=1, blocks=8))
    means = block_means(plan)
    weights = {name: p.detach().double() for name, p in model.layers[0].items()}
    x = x.double()
    slope = GATE / torch.cosh(x @ weights["W_h"].T + weights["b_h"]).square()
    planted = plan.probe.planted(x)[0]
    start = model.readout.weight.detach().double()[0] * plan.probe.output[0, 0]
    time = x.shape[1]
    for block in range(plan.block_plan.count):
        rows = plan.block_plan.pairs[plan.block_plan.blocks == block].ravel()
        for column, lag in enumerate(LAGS):
            reached = slice(0, time - lag)
            gradient = torch.einsum(
                "nth,nti,nt->hi", slope[rows, reached] * start, x[rows, reached], planted[rows, reached]
            ).flatten()
            expected = (gradient / gradient.norm()).numpy()
            mean = means.probe[block, 0, column]
            assert np.abs(mean).max() > 0
            np.testing.assert_allclose(
                mean / np.linalg.norm(mean / np.abs(mean).max()) / np.abs(mean).max(), expected, atol=1e-5
            )


def test_lag_gradients_themselves_stay_true_numbers():
    """What is kept for its direction is not handed out as a gradient."""
    model, x, y = case(torch.float64, time=180, sequences=2)
    gradients = lagreach.lag_gradients(model, x, y, lags=[0, 50, 170])
    sizes = [gradient.abs().max().item() for gradient in gradients.grads["layers.0.W_h"]]
    assert sizes[0] > 1e-3
    assert 1e-106 < sizes[1] < 1e-98
    assert sizes[2] == 0.0


def test_values_within_range_are_not_touched():
    mantissa = torch.tensor([[[0.5, -0.25]], [[1.0, 0.0]]])
    for exponents in ([-3, 4], [-300, -200], [-1200, -900]):
        cotangent = Cotangent(1, mantissa, torch.tensor(exponents, dtype=torch.int32)[:, None, None])
        assert torch.equal(cotangent.kept(), cotangent.double())
    vanished = Cotangent(1, mantissa, torch.tensor([-5000, -5001], dtype=torch.int32)[:, None, None]).kept()
    np.testing.assert_allclose(vanished / vanished[0, 0, 0], [[[1.0, -0.5]], [[1.0, 0.0]]])
    assert math.frexp(vanished.abs().max().item())[1] in (KEPT, KEPT + 1)
    nothing = Cotangent(1, torch.zeros(2, 1, 2), torch.tensor([-5000, -5001], dtype=torch.int32)[:, None, None])
    assert (nothing.kept() == 0).all()
    assert torch.equal(Cotangent(1, mantissa).kept(), mantissa.double())
