"""Transitions that are not diagonal: exact for Qwen3-Next, refused by name for others."""

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus
from torch.testing import assert_close

import lagreach
from lagreach.adapters.layers.delta_rule import REFUSED
from lagreach.errors import UnsupportedError
from lagreach.testing import check_adapter
from lagreach.types import Status
from tests.adapters.scan_cases import (
    SEQ,
    TIME,
    WIDTH,
    Wrapped,
    lag_totals,
    mse,
    numbers,
    own_gradients,
    randomise,
    scan_view,
)

X, Y = (numbers(SEQ, TIME, 2, seed=s, dtype=torch.float32) for s in (0, 1))


@pytest.fixture(name="model")
def _model():
    modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    config = modeling.Qwen3NextConfig(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=3,
        linear_value_head_dim=2,
        vocab_size=11,
    )
    torch.manual_seed(0)
    return randomise(Wrapped(modeling.Qwen3NextGatedDeltaNet(config, 0)), 0.4)


def test_conformance(model):
    (report,) = check_adapter(model, X)
    assert report.cell == "gated delta net (Qwen3-Next)"


def test_the_transition_is_the_decay_times_a_projection(model):
    view = scan_view(model, X)
    cell, weights = view.layer.cell, {n: w.double() for n, w in view.layer.weights().items()}
    x = view.scan_inputs(lagreach.data.batch.Batch(X, Y)).x.double()
    jacobian = cell.jacobian(x, torch.zeros(SEQ, TIME, view.layer.state_size, dtype=torch.float64), weights)
    key = cell.convolved(x, weights)[1]
    log_decay, beta = cell.strengths(x, weights)
    eye = torch.eye(cell.key_size, dtype=torch.float64)
    inner = torch.exp(log_decay)[..., None, None] * (eye - beta[..., None, None] * key[..., None] * key[..., None, :])
    for head in range(cell.heads):
        size = cell.key_size * cell.value_size
        block = slice(head * size, (head + 1) * size)
        transition = jacobian[..., block, block]
        expected = torch.einsum("stij,kl->stikjl", inner[:, :, head], torch.eye(cell.value_size, dtype=torch.float64))
        assert_close(transition, expected.flatten(4, 5).flatten(2, 3))


def test_lag_gradients_add_up_to_the_model_s_own_gradient(model):
    """For what acts through the scan alone: decay, beta, and the rows that make keys and values."""
    totals, expected = lag_totals(model, X, Y), own_gradients(model, mse(model, X, Y))
    for name in ("in_proj_ba.weight", "dt_bias", "A_log"):
        assert expected[f"layer.{name}"].abs().max() > 1e-6
        assert_close(totals[f"layer.{name}"], expected[f"layer.{name}"], rtol=2e-3, atol=1e-7)
    rows, name = scan_view(model, X).layer.cell.rows()[0][6:], "layer.in_proj_qkvz.weight"  # behind two queries of 3
    assert_close(totals[name][rows], expected[name][rows], rtol=2e-3, atol=1e-7)


def test_decays_are_a_bound_and_say_so(model):
    (layer,) = lagreach.retention(model, X).layers
    assert not layer.exact
    seen = []
    handle = model.layer.in_proj_ba.register_forward_hook(lambda module, args, out: seen.append(out))
    model(X)
    handle.remove()
    a = seen[0].unflatten(-1, (2, 4))[..., 2:].flatten(-2)
    expected = -torch.exp(model.layer.A_log) * softplus(a + model.layer.dt_bias)
    assert_close(layer.log_decay, expected.detach())
    assert lagreach.fidelity(model, X, Y, [1, 2]).status is not Status.FIRST_ORDER_EXACT


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_by_name(name):
    layer = type(name, (nn.Module,), {"forward": lambda self, x: self.inner(x)})()
    layer.inner = nn.Linear(WIDTH, WIDTH)
    with pytest.raises(UnsupportedError, match="not diagonal"):
        scan_view(Wrapped(layer), X)


def test_biases_for_wanted_half_lives(model):
    wanted = torch.tensor([2.0, 5.0, 20.0, 80.0])
    with torch.no_grad():
        model.layer.dt_bias.copy_(scan_view(model, X).layer.retaining(wanted)["dt_bias"])
        model.layer.in_proj_ba.weight.zero_()
    (layer,) = lagreach.retention(model, X).layers
    assert_close(layer.half_lives, wanted.double(), rtol=1e-3, atol=1e-3)
