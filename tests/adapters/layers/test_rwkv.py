"""RWKV, version 4, of transformers."""

from functools import cache

import pytest
import torch
from torch.testing import assert_close

import lagreach
from lagreach.errors import UnsupportedError
from lagreach.testing import check_adapter
from tests.adapters.scan_cases import (
    SEQ,
    TIME,
    Wrapped,
    lag_totals,
    mse,
    numbers,
    own_gradients,
    randomise,
    scan_view,
    tokens,
)

WIDTH = 8


@cache
def modeling():
    return pytest.importorskip("transformers.models.rwkv.modeling_rwkv")


def config():
    return modeling().RwkvConfig(vocab_size=11, hidden_size=WIDTH, num_hidden_layers=2, context_length=16)


@pytest.fixture(name="model")
def _model():
    torch.manual_seed(0)
    layer = modeling().RwkvForCausalLM(config()).rwkv.blocks[1].attention
    return randomise(Wrapped(layer, WIDTH), 0.4)


X, Y = numbers(SEQ, TIME, 2, dtype=torch.float32), numbers(SEQ, TIME, 2, seed=1, dtype=torch.float32)


def test_conformance(model):
    (report,) = check_adapter(model, X)
    assert report.cell == "RWKV-4"


def test_decays_belong_to_the_channels(model):
    (layer,) = lagreach.retention(model, X).layers
    expected = torch.exp(-torch.exp(model.layer.time_decay.detach()))
    assert_close(layer.log_decay.exp(), expected.expand(SEQ, TIME, WIDTH))
    assert_close(layer.log10_gain([4]), 4 * torch.log10(expected).double()[None], rtol=1e-5, atol=1e-5)


def test_lag_gradients_add_up_to_the_model_s_own_gradient(model):
    """The decay acts through the scan alone; keys and values also have the bonus beside it."""
    totals, expected = lag_totals(model, X, Y), own_gradients(model, mse(model, X, Y))
    assert expected["layer.time_decay"].abs().max() > 1e-5
    assert_close(totals["layer.time_decay"], expected["layer.time_decay"], rtol=1e-3, atol=1e-8)


def test_with_the_bonus_taken_off(model):
    """Keys and values, with the path beside the scan computed apart by freezing the states."""
    view = scan_view(model, X)
    totals, whole = lag_totals(model, X, Y), own_gradients(model, mse(model, X, Y))
    layer = model.layer
    scan_inputs = view.layer.read_call(model.front(X))
    with torch.no_grad():
        written = view.layer.cell.write(scan_inputs.x, view.layer.weights())
        state, past = torch.zeros(SEQ, WIDTH, 2), []
        for t in range(TIME):
            past.append(state)
            decay = torch.exp(written.log_decay[:, t])[..., None]
            state = decay * state + written.value[:, t].unflatten(-1, (WIDTH, 2))
    numerator, denominator = torch.stack(past, 1).unbind(-1)
    receptance, key, value, _ = layer.extract_key_value(model.front(X))
    bonus = torch.exp(key + layer.time_first)
    output = layer.output(receptance * (numerator + bonus * value) / (denominator + bonus))
    beside = own_gradients(model, (model.read(output) - Y).square().mean())
    for name in (f"layer.{short}" for short in ("key.weight", "value.weight", "time_mix_key", "time_mix_value")):
        assert totals[name].abs().max() > 1e-5
        assert_close(totals[name], whole[name] - beside[name], rtol=1e-3, atol=1e-7)


@pytest.mark.thorough
def test_language_model():
    torch.manual_seed(0)
    model = modeling().RwkvForCausalLM(config())
    assert len(check_adapter(model, tokens(2, TIME))) == 2
    diagnosis = lagreach.diagnose(
        model, (tokens(16, TIME), tokens(16, TIME, seed=1)), "cross_entropy", lags=[0, 1, 4], lags_of="layers"
    )
    assert len(diagnosis.layers) == 2


def test_keys_that_cannot_be_exponentiated_are_refused(model):
    with torch.no_grad():
        model.layer.key.weight.mul_(300)
    with pytest.raises(UnsupportedError, match="double"):
        scan_view(model, X)


def test_decays_for_wanted_half_lives(model):
    wanted = torch.logspace(0, 3, WIDTH)
    with torch.no_grad():
        model.layer.time_decay.copy_(scan_view(model, X).layer.retaining(wanted)["time_decay"])
    (layer,) = lagreach.retention(model, X).layers
    assert_close(layer.half_lives, wanted.double(), rtol=1e-4, atol=1e-4)
