"""GatedRNN is an ordinary module, initialises as documented, and agrees with torch.nn."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from lagreach import GatedRNN, rollout
from lagreach.cells.const_gate import ConstGate
from lagreach.errors import InputError, UnsupportedError
from tests.cases import CELLS, normal, small_model


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize(("cell", "layer"), [("lstm", nn.LSTM), ("torch_gru", nn.GRU)])
def test_torch_weights_give_torch_outputs(cell, layer, dtype, tolerance, bias, num_layers, generator):
    torch.manual_seed(1)
    theirs = layer(3, 8, num_layers, batch_first=True, bias=bias, dtype=dtype)
    ours = GatedRNN(cell, 3, 8, 1, num_layers, generator=generator, dtype=dtype)
    ours.load_torch_layout(theirs.state_dict())
    x = normal(generator, 4, 30, 3, dtype=dtype)
    hidden = ours.stack.output(rollout(ours, x).states)
    torch.testing.assert_close(hidden, theirs(x)[0].detach(), rtol=0, atol=tolerance)


def test_elman_is_torch_rnn(generator):
    theirs = nn.RNN(3, 8, batch_first=True, dtype=torch.float64)
    ours = GatedRNN("elman", 3, 8, 1, dtype=torch.float64)
    with torch.no_grad():
        ours.layers[0]["W_h"].copy_(theirs.weight_ih_l0)
        ours.layers[0]["U_h"].copy_(theirs.weight_hh_l0)
        ours.layers[0]["b_h"].copy_(theirs.bias_ih_l0 + theirs.bias_hh_l0)
    x = normal(generator, 4, 30, 3)
    torch.testing.assert_close(rollout(ours, x).states, theirs(x)[0].detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("model", "weights", "complaint"),
    [
        (GatedRNN("gru", 3, 8, 1), nn.GRU(3, 8), "do not fit the cell gru"),
        (GatedRNN("lstm", 3, 8, 1, layernorm=True), nn.LSTM(3, 8), "LayerNorm"),
        (GatedRNN("lstm", 3, 8, 1), nn.LSTM(3, 8, 2), "number of layers"),
        (GatedRNN("lstm", 3, 8, 1), nn.LSTM(3, 9), "shape of"),
        (GatedRNN("lstm", 3, 8, 1), nn.LSTM(3, 8, bidirectional=True), "not those of a plain"),
        (GatedRNN("lstm", 3, 8, 1), nn.GRU(3, 7), "does not hold 4 gates"),
        (GatedRNN("lstm", 3, 8, 1), nn.LSTM(3, 8, proj_size=2), "not those of a plain"),
    ],
)
def test_foreign_weights_are_refused_and_nothing_changes(model, weights, complaint):
    before = copy.deepcopy(model.state_dict())
    with pytest.raises((InputError, UnsupportedError), match=complaint):
        model.load_torch_layout(weights.state_dict())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("cell", CELLS)
def test_is_an_ordinary_module(cell, generator, tmp_path):
    model = small_model(cell, generator, num_layers=2)
    x = normal(generator, 2, 5, 3)
    expected = model(x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), expected)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other = small_model(cell, generator, num_layers=2)
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(other(x), expected)
    assert model.float()(x.float()).dtype == torch.float32
    assert cell.replace("_", "") in repr(model).lower()


@pytest.mark.parametrize("cell", CELLS)
def test_works_with_torch_func(cell, generator):
    model = small_model(cell, generator)
    x = normal(generator, 3, 5, 3)
    params = {n: p.detach() for n, p in model.named_parameters()}

    def loss(p, one):
        return torch.func.functional_call(model, p, (one[None],)).square().mean()

    per_sequence = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, x)
    model(x).square().mean().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(per_sequence[name].mean(0), p.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_initialisation_comes_from_the_generator_alone(cell):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = GatedRNN(cell, 3, 6, 2, num_layers=2, generator=torch.Generator().manual_seed(5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    second = GatedRNN(cell, 3, 6, 2, num_layers=2, generator=torch.Generator().manual_seed(5))
    for (_, a), (_, b) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        assert torch.equal(a, b)
    third = GatedRNN(cell, 3, 6, 2, num_layers=2, generator=torch.Generator().manual_seed(6))
    assert not torch.equal(first.layers[0]["W_" + ("g" if cell == "lstm" else "n" if cell == "torch_gru" else "h")],
                           third.layers[0]["W_" + ("g" if cell == "lstm" else "n" if cell == "torch_gru" else "h")])  # fmt: skip


@pytest.mark.parametrize("s0", [0.5, 0.05, 0.005])
@pytest.mark.parametrize("cell", ["const_gate", "shared_gate", "diag_gate", "gru", "lstm", "torch_gru"])
def test_gate_init_sets_the_retention(cell, s0, generator):
    model = GatedRNN(cell, 3, 64, 1, gate_init=s0, generator=generator, dtype=torch.float64)
    x = torch.zeros(1, 1, 3, dtype=torch.float64)
    part = rollout(model, x)
    params = model.stack.layer_params(0, part.recurrence.params)
    retention = model.cell.block(model.cell.retention(x, part.previous, params), model.cell.rate_block)
    torch.testing.assert_close(retention, torch.full_like(retention, 1 - s0), rtol=1e-12, atol=0)
    noisy = normal(generator, 8, 20, 3)
    part = rollout(model, noisy)
    a = model.cell.block(model.cell.retention(noisy, part.previous, params), model.cell.rate_block)
    assert abs((1 - a).log().mean() - math.log(s0)) < 0.1  # and keeps near it on data


@pytest.mark.parametrize("cell", ["shared_gate", "diag_gate", "gru", "lstm", "torch_gru"])
def test_chrono_draws_retention_times_up_to_the_longest_lag(cell, generator):
    longest = 200
    model = GatedRNN(cell, 3, 400, 1, chrono=longest, generator=generator, dtype=torch.float64)
    name, sign = model.cell.retention_bias
    times = torch.exp(sign * model.layers[0][name])  # retention 1 - 1/(1 + T)
    assert times.min() >= 1
    assert times.max() <= longest - 1
    if cell != "shared_gate":  # one gate: one draw
        assert abs(times.mean() - longest / 2) < 5 * longest / math.sqrt(12 * 400)
    if cell == "lstm":
        assert torch.equal(model.layers[0]["b_i"], -model.layers[0]["b_f"])


def test_forget_bias(generator):
    assert (GatedRNN("lstm", 3, 4, 1, forget_bias=1.0).layers[0]["b_f"] == 1).all()
    assert (GatedRNN("diag_gate", 3, 4, 1, forget_bias=1.0).layers[0]["b_s"] == -1).all()


@pytest.mark.parametrize("cell", ["diag_gate", "gru", "elman"])
def test_recurrent_weights_are_orthogonal(cell, generator):
    U = GatedRNN(cell, 3, 16, 1, generator=generator, dtype=torch.float64).layers[0]["U_h"]
    torch.testing.assert_close(U @ U.T, torch.eye(16, dtype=torch.float64), rtol=0, atol=1e-12)
    W = GatedRNN(cell, 3, 16, 1, recurrent_init="uniform", generator=generator).layers[0]["U_h"]
    assert W.abs().max() <= 0.25


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"gate_init": 0.0}, "strictly between"),
        ({"gate_init": 1.0}, "strictly between"),
        ({"gate_init": 0.1, "chrono": 50}, "at most one"),
        ({"chrono": 2}, "at least 3"),
        ({"recurrent_init": "identity"}, "orthogonal or uniform"),
        ({"activation": "tanh"}, "does not support activation"),
    ],
)
def test_bad_options(options, complaint):
    with pytest.raises((InputError, UnsupportedError), match=complaint):
        GatedRNN("diag_gate", 2, 3, 1, **options)


@pytest.mark.usefixtures("_as_users_run_it")
def test_more_bad_options():
    with pytest.raises(UnsupportedError, match="no retention gate"):
        GatedRNN("elman", 2, 3, 1, gate_init=0.1)
    with pytest.raises(InputError, match="positive integer"):
        GatedRNN("lstm", 2, 0, 1)
    with pytest.raises(InputError, match="constant gate"):
        ConstGate(gate=1.5)
    with pytest.raises(InputError, match="does not fit the network"):
        GatedRNN("lstm", 2, 3, 1)(torch.zeros(4, 5, 3))
    with pytest.raises(InputError, match="unknown activation"):
        GatedRNN("diag_elman", 2, 3, 1, activation="relu")


@pytest.mark.parametrize("cell", ["diag_gate", "lstm"])
@pytest.mark.parametrize("layers", [1, 2])
def test_output_and_features_come_from_one_pass_and_are_those_of_forward(cell, layers, generator):
    model = GatedRNN(cell, 3, 8, 2, layers, generator=generator)
    x = torch.randn(5, 70, 3, generator=generator)
    both = model.output_and_features(x)
    assert both is not None
    output, features = both
    torch.testing.assert_close(output, model(x).detach())
    torch.testing.assert_close(features @ model.readout.weight.T + model.readout.bias, model(x))
    assert not output.requires_grad
    many = GatedRNN(cell, 3, 8, 9, generator=generator)
    assert many.output_and_features(x) is None  # outputs are too many for one pass
    seen = []
    model.readout.register_forward_hook(lambda *call: seen.append(call))
    assert model.output_and_features(x) is None  # somebody looks on
    model(x)
    assert len(seen) == 1
