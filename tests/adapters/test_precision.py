"""Models in half precision are looked at in float32, on a copy, and say so."""

import numpy as np
import pytest
import torch
from torch import nn

import lagreach
from lagreach.adapters import as_view
from lagreach.adapters.precision import in_single_precision
from lagreach.adapters.view import GatedView, gated_view
from lagreach.data.batch import Batch
from lagreach.diagnosis.bare_step import diagnose_step
from lagreach.errors import UnsupportedError

HALF = [torch.bfloat16, torch.float16]


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = getattr(nn, kind)(2, 6, batch_first=True)
        self.readout = nn.Linear(6, 1)

    def forward(self, x):
        return self.readout(self.layer(x)[0])


class Uncopyable(Net):
    def __deepcopy__(self, memo):
        raise RuntimeError("holds a socket")


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 12, 2, generator=generator)
    return x, torch.roll(x[..., :1], 2, 1) + 0.1 * torch.randn(64, 12, 1, generator=generator)


MODELS = {
    "LSTM": lambda: Net("LSTM"),
    "GRU": lambda: Net("GRU"),
    "GatedRNN": lambda: lagreach.GatedRNN("lstm", 2, 6, 1, generator=torch.Generator().manual_seed(0)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_half_precision_is_diagnosed_as_its_weights_in_float32(name, dtype):
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype)
    before = {weight: value.clone() for weight, value in model.state_dict().items()}
    x, y = data()
    diagnosis, expected = (lagreach.diagnose(m, (x, y), lags=[0, 1, 2, 4]) for m in (model, in_single_precision(model)))
    one, other = diagnosis.layers[0].window, expected.layers[0].window
    np.testing.assert_array_equal(one.probe.sequences, other.probe.sequences)
    np.testing.assert_array_equal(one.adjusted_p, other.adjusted_p)
    assert one.dependences == (2,)
    note = f"the model is in {str(dtype).removeprefix('torch.')}"
    assert any(note in warning and "copy in float32" in warning for warning in diagnosis.warnings)
    assert not any("copy in float32" in warning for warning in expected.warnings)
    for weight, value in model.state_dict().items():  # the model is left as it was
        assert value.dtype == dtype
        assert torch.equal(value, before[weight])


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", HALF)
def test_everything_else_takes_such_models_too(dtype):
    torch.manual_seed(0)
    model, (x, y) = Net("GRU").to(dtype), data()
    single = in_single_precision(model)
    total = lagreach.lag_gradients(model, x, y).total()
    (single(x) - y).square().mean().backward()
    for name, gradient in total.items():
        torch.testing.assert_close(gradient, single.get_parameter(name).grad, rtol=1e-4, atol=1e-6)
    for measured in (lagreach.effective_rates(model, x, [1, 2]), lagreach.retention(model, x)):
        assert "nan" not in str(measured)
    assert lagreach.fidelity(model, x.to(dtype), y.to(dtype), [1, 2]).log10_exact.isfinite().all()
    adam = torch.optim.Adam(model.parameters(), eps=1e-3)  # what float16 can hold
    (model(x.to(dtype)) - y.to(dtype)).square().mean().backward()
    adam.step()
    assert lagreach.diagnose(model, (x, y), lags=[0, 1], optimizer=adam).settings["optimizer"] == "Adam"


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", HALF)
def test_bare_steps_and_finished_recurrences(dtype):
    x, y = data()

    def step(x, s, params):
        return torch.tanh(x @ params["W_x"].T + 0.5 * s)

    readout = torch.ones(1, 4, dtype=dtype), torch.zeros(1, dtype=dtype)
    weights = {"W_x": torch.randn(4, 2, generator=torch.Generator().manual_seed(0)).to(dtype)}
    diagnosis = diagnose_step(
        step, weights, (x, y), readout=readout, state_size=4, input_params=lambda name: True, lags=[0, 2]
    )
    assert diagnosis.layers[0].window.dependences == (2,)
    recurrence = gated_view(MODELS["GatedRNN"]().to(dtype)).template
    for finished in (recurrence, GatedView(recurrence)):
        with pytest.raises(UnsupportedError, match="half precision"):
            as_view(finished, Batch(x, y))


def test_what_cannot_be_copied_is_refused():
    with pytest.raises(UnsupportedError, match="cannot be copied") as error:
        lagreach.diagnose(Uncopyable("GRU").bfloat16(), data(), lags=[0, 1], lags_of="layers")
    assert "pass model.float()" in str(error.value)


def test_mamba_as_its_checkpoints_load():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    settings = {"vocab_size": 11, "hidden_size": 8, "state_size": 2, "num_hidden_layers": 1, "time_step_rank": 2}
    model = transformers.MambaForCausalLM(transformers.MambaConfig(**settings)).bfloat16()
    x = torch.randint(0, 11, (16, 8))
    diagnosis = lagreach.diagnose(model, (x, x.roll(1, 1)), loss="cross_entropy", lags=[0, 1])
    assert diagnosis.layers[0].window.sequences == 16
    assert any("bfloat16" in warning for warning in diagnosis.warnings)
