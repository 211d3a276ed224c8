"""The identity that tests everything: lag gradients add up to autograd's gradient."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from lagreach import lag_gradients
from lagreach.data.bands import Bands
from lagreach.diagnosis.measure import plan_measurement
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.gradients.blocks import block_means
from lagreach.gradients.lag_contrasts import lag_contrasts
from lagreach.transport.exact import by_weight
from tests.cases import CELLS, TOLERANCE, VARIANTS, autograd_gradient, normal, small_model

SEQ, TIME, OUT = 3, 7, 2
LENGTHS = torch.tensor([7, 4, 1])


def assert_identity(model, x, y, loss, expected_loss, **options):
    dtype = model.readout.weight.dtype
    result = lag_gradients(model, x, y, loss, **options)
    expected = autograd_gradient(model, expected_loss)
    torch.testing.assert_close(result.loss, expected_loss.detach(), **TOLERANCE[dtype])
    total = result.total()
    assert set(total) == {name for name, _ in model.named_parameters()}
    for name, grad in expected.items():
        scale = max(grad.abs().max().item(), 1e-3)
        torch.testing.assert_close(
            total[name] / scale, grad / scale, **TOLERANCE[dtype], msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("num_layers", [1, pytest.param(2, marks=pytest.mark.thorough), 3])
@pytest.mark.parametrize(("cell", "layernorm"), VARIANTS)
def test_mse(cell, layernorm, num_layers, generator):
    model = small_model(cell, generator, layernorm=layernorm, num_layers=num_layers)
    x, y = normal(generator, SEQ, TIME, 3), normal(generator, SEQ, TIME, OUT)
    assert_identity(model, x, y, "mse", (model(x) - y).square().mean())


@pytest.mark.parametrize(("cell", "layernorm"), VARIANTS)
def test_cross_entropy_with_ignored_targets(cell, layernorm, generator):
    model = small_model(cell, generator, layernorm=layernorm, output_size=3)
    x, y = normal(generator, SEQ, TIME, 3), torch.randint(0, 3, (SEQ, TIME), generator=generator)
    y[0, 2] = y[1, 5] = -100
    each = cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none").view(SEQ, TIME)
    loss = (each.sum(1) / (y != -100).sum(1)).mean()
    assert_identity(model, x, y, "cross_entropy", loss)


@pytest.mark.parametrize(("cell", "layernorm"), VARIANTS)
def test_last_step(cell, layernorm, generator):
    model = small_model(cell, generator, layernorm=layernorm, num_layers=2)
    x, y = normal(generator, SEQ, TIME, 3), normal(generator, SEQ, OUT)
    assert_identity(model, x, y, "mse", (model(x)[:, -1] - y).square().mean())


@pytest.mark.parametrize("cell", CELLS)
def test_last_step_of_variable_lengths(cell, generator):
    model = small_model(cell, generator, output_size=3)
    x, y = normal(generator, SEQ, TIME, 3), torch.randint(0, 3, (SEQ,), generator=generator)
    last = model(x)[torch.arange(SEQ), LENGTHS - 1]
    assert_identity(model, x, y, "cross_entropy", cross_entropy(last, y), lengths=LENGTHS)


@pytest.mark.parametrize(("cell", "layernorm"), VARIANTS)
def test_variable_lengths_and_mask(cell, layernorm, generator):
    model = small_model(cell, generator, layernorm=layernorm)
    x, y = normal(generator, SEQ, TIME, 3), normal(generator, SEQ, TIME, OUT)
    mask = torch.rand(SEQ, TIME, generator=generator) < 0.7
    mask[:, 0] = True
    weight = (mask & (torch.arange(TIME) < LENGTHS[:, None])).double()
    each = (model(x) - y).square().mean(-1)
    loss = ((each * weight).sum(1) / weight.sum(1)).mean()
    # what lies beyond the lengths may hold anything
    padded_x, padded_y = x.clone(), y.clone()
    padded_x[1, 5:] = padded_y[2, 3:] = float("nan")
    assert_identity(model, padded_x, padded_y, "mse", loss, mask=mask, lengths=LENGTHS)


@pytest.mark.parametrize("cell", CELLS)
def test_chosen_steps(cell, generator):
    model = small_model(cell, generator)
    x, y = normal(generator, SEQ, TIME, 3), normal(generator, SEQ, 2, OUT)
    assert_identity(model, x, y, "mse", (model(x)[:, [2, 5]] - y).square().mean(), steps=[2, 5])


@pytest.mark.parametrize(("cell", "layernorm"), VARIANTS)
def test_callable_loss_that_mixes_times(cell, layernorm, generator):
    """A loss on pooled outputs: delta_t depends on all times, the identity holds all the same."""
    model = small_model(cell, generator, layernorm=layernorm, num_layers=2)
    x, y = normal(generator, SEQ, TIME, 3), normal(generator, SEQ, OUT)

    def pooled(output, y, mask):
        weights = torch.softmax(output.sum(-1).masked_fill(~mask, -1e9), dim=1)
        return ((output * weights[..., None]).sum(1) - y).abs().sum(-1)

    everything = torch.ones(SEQ, TIME, dtype=torch.bool)
    assert_identity(model, x, y, pooled, pooled(model(x), y, everything).mean())


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("cell", CELLS)
def test_float32(cell, num_layers, generator):
    model = small_model(cell, generator, num_layers=num_layers, dtype=torch.float32)
    x, y = normal(generator, SEQ, 40, 3, dtype=torch.float32), normal(generator, SEQ, 40, OUT, dtype=torch.float32)
    assert_identity(model, x, y, "mse", (model(x) - y).square().mean())


@pytest.mark.parametrize("cell", CELLS)
def test_each_lag_against_brute_force(cell, generator):
    """A second implementation: one copy of the weights per step, one backward pass per anchor."""
    model = small_model(cell, generator, num_layers=2)
    x, y = normal(generator, SEQ, TIME, 3), normal(generator, SEQ, TIME, OUT)
    copies = [
        {n: p.detach().clone().requires_grad_() for n, p in model.recurrent_params().items()} for _ in range(TIME)
    ]
    state, states = model.initial_state(x), []
    for t in range(TIME):
        state = model.stack.step(x[:, t], state, copies[t])
        states.append(state)
    leaf = torch.stack(states, 1).detach().requires_grad_()
    loss = (model.readout(model.stack.output(leaf)) - y).square().mean()
    (delta,) = torch.autograd.grad(loss, leaf)
    result = lag_gradients(model, x, y)
    for lag in range(TIME):
        expected = {n: torch.zeros_like(p) for n, p in model.recurrent_params().items()}
        for t in range(lag, TIME):
            weights = copies[t - lag]
            grads = torch.autograd.grad((states[t] * delta[:, t]).sum(), list(weights.values()), retain_graph=True)
            for n, g in zip(weights, grads, strict=True):
                expected[n] += g
        for n, g in expected.items():
            torch.testing.assert_close(result.grads[n][lag], g, **TOLERANCE[torch.float64])


def assert_flat_gradient(model, names, total, loss):
    """A flat gradient, in the order of the names, is autograd's of the loss."""
    expected = autograd_gradient(model, loss)
    assert len(total) == sum(expected[name].numel() for name in names)
    for name, part in by_weight(expected, names, torch.from_numpy(total)).items():
        scale = max(expected[name].abs().max().item(), 1e-3)
        torch.testing.assert_close(part / scale, expected[name] / scale, **TOLERANCE[torch.float64])


@pytest.mark.parametrize("road", ["every lag", "bands", "every lag directly"])
@pytest.mark.parametrize(("cell", "layernorm"), VARIANTS)
def test_what_a_diagnosis_sums_by_block_and_band_is_autograds_gradient(cell, layernorm, road, generator, monkeypatch):
    """On the code that `diagnose` runs: with the mean gradient as signal, bands over all lags add up to all of it."""
    model = small_model(cell, generator, layernorm=layernorm)
    x, y = normal(generator, 16, TIME, 3), normal(generator, 16, TIME, OUT)
    settings = MeasureSettings(signal="gradient", blocks=8, probes=1)
    plan = plan_measurement(model, (x, y), "mse", range(TIME), params="all", settings=settings)
    if road == "bands":
        plan = replace(plan, bands=Bands(((0, 1), (2, 2), (3, 6))))
    if road == "every lag directly":  # as to a few lags that are far apart
        monkeypatch.setattr("lagreach.gradients.band_gradients.jumps", lambda part, lags: True)
    means = block_means(plan)
    total = (means.data.sum(1) * means.size[:, None]).sum(0) / means.size.sum()
    assert_flat_gradient(model, plan.names, total, (model(x) - y).square().mean())


@pytest.mark.parametrize(("cell", "layernorm"), VARIANTS)
def test_what_a_diagnosis_sums_lag_by_lag_is_autograds_gradient(cell, layernorm, generator):
    """The second look at single lags: their contrasts add up to the gradient of the loss less that with exchanged targets."""
    model = small_model(cell, generator, layernorm=layernorm)
    x, y = normal(generator, 16, TIME, 3), normal(generator, 16, TIME, OUT)
    settings = MeasureSettings(blocks=8, probes=1)
    plan = plan_measurement(model, (x, y), "mse", range(TIME), params="all", settings=settings)
    total = lag_contrasts(plan, range(TIME)).data.sum(1).mean(0)  # blocks are of one size
    first, second = torch.from_numpy(plan.block_plan.pairs).mT
    exchanged = torch.empty_like(y)
    exchanged[first], exchanged[second] = y[second], y[first]
    loss = (model(x) - y).square().mean() - (model(x) - exchanged).square().mean()
    assert_flat_gradient(model, plan.names, total, loss)
