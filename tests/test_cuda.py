"""The same answers on a GPU; run with `make test-gpu` where there is one."""

import numpy as np
import pytest
import torch
from torch import nn

from lagreach import GatedRNN, diagnose, effective_rates, fidelity, forecast, lag_gradients, measure_window
from lagreach.diagnosis.measure import MeasureSettings
from lagreach.errors import InputError
from tests.cases import CELLS, normal, small_model
from tests.forecasting.models import Attention, Recurrent, Tokens, lagged

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("cell", CELLS)
def test_transport_agrees_with_the_cpu(cell, generator):
    model = small_model(cell, generator, num_layers=2)
    x, y = normal(generator, 4, 30, 3), normal(generator, 4, 30, 2)
    here = lag_gradients(model, x, y), fidelity(model, x, y, lags=[0, 1, 29]), effective_rates(model, x, lags=[1, 29])
    model.cuda()
    there = lag_gradients(model, x, y), fidelity(model, x, y, lags=[0, 1, 29]), effective_rates(model, x, lags=[1, 29])
    for name, grad in here[0].grads.items():
        torch.testing.assert_close(there[0].grads[name].cpu(), grad, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(there[1].exact, here[1].exact, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(there[2].rates, here[2].rates, rtol=1e-10, atol=1e-12)


def test_windows_agree_with_the_cpu(generator):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.read = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 1)

        def forward(self, x):
            return self.read(self.lstm(x)[0])

    model = Net().double()
    x = normal(generator, 64, 24, 3)
    y = torch.nn.functional.pad(x[:, :-3, :1], (0, 0, 3, 0))
    here = measure_window(model, (x, y), lags=[0, 1, 3, 8])
    there = measure_window(model.cuda(), (x, y), lags=[0, 1, 3, 8])
    np.testing.assert_allclose(there.required.sequences, here.required.sequences, rtol=1e-8)
    np.testing.assert_allclose(there.probe.sequences, here.probe.sequences, rtol=1e-8)
    assert there.dependences == here.dependences == (3,)


@pytest.mark.parametrize("transport", ["exact", "first-order"])
@pytest.mark.parametrize("cell", ["const_gate", "diag_gate", "gru", "lstm"])
def test_windows_in_float32_agree_with_the_cpu(cell, transport, generator):
    """In float32 the fused kernels run, forward, backward and for tangents."""
    model = GatedRNN(cell, 3, 64, 1, generator=generator)
    x = normal(generator, 64, 24, 3).float()
    data = (x, torch.nn.functional.pad(x[:, :-3, :1], (0, 0, 3, 0)))
    settings = MeasureSettings(transport=transport)
    here = measure_window(model, data, lags=[0, 1, 3, 8], settings=settings)
    there = measure_window(model.cuda(), data, lags=[0, 1, 3, 8], settings=settings)
    np.testing.assert_allclose(there.probe.sequences, here.probe.sequences, rtol=1e-2)
    assert there.dependences == here.dependences


WIDE_OUTPUT = {"hidden": 16, "length": 64, "out": 1000, "loss": "cross_entropy"}
MANY_WEIGHTS = {"hidden": 128, "length": 8, "params": "all", "sequences": 2000}


@pytest.mark.parametrize("noise", ["gradient", "lag"])
@pytest.mark.parametrize("transport", ["exact", "first-order"])
@pytest.mark.parametrize(
    ("cell", "shape"),
    [("diag_gate", {}), ("torch_gru", {}), ("lstm", {}), ("gru", WIDE_OUTPUT), ("lstm", MANY_WEIGHTS)],
    ids=["diag_gate", "torch_gru", "lstm", "wide output", "many weights"],
)
def test_a_diagnosis_stays_within_its_memory(cell, shape, transport, noise):
    sizes = {"hidden": 64, "length": 256, "out": 1, "loss": "mse", "params": "input", "sequences": 400} | shape
    size, length, memory = sizes["sequences"], sizes["length"], 256 * 2**20
    model = GatedRNN(cell, 4, sizes["hidden"], sizes["out"]).cuda()
    x = torch.randn(size, length, 4)
    y = torch.randint(sizes["out"], (size, length)) if sizes["out"] > 1 else torch.randn(size, length, 1)

    def run(sequences):
        diagnose(
            model, (x[:sequences], y[:sequences]), sizes["loss"], [0, 1, 5], params=sizes["params"], progress=False,
            transport=transport, noise=noise, memory=memory,
        )  # fmt: skip

    run(32)  # compiles
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(size)
    taken = torch.cuda.max_memory_allocated() - before
    assert memory / 8 < taken <= memory


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lags_of", ["model", "layers"])
def test_a_language_model_agrees_with_the_cpu(lags_of):
    """A stack of Mamba layers in double precision, as a whole and within its layers."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {
        "vocab_size": 16,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "state_size": 4,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    model = transformers.MambaForCausalLM(transformers.MambaConfig(**shape, pad_token_id=None)).double()
    text = torch.randint(0, 16, (64, 16), generator=torch.Generator().manual_seed(0))
    text[:, 4:] = torch.where(torch.rand(64, 12) < 0.8, text[:, :-4], text[:, 4:])
    data, options = {"input_ids": text, "labels": text}, {"lags": [0, 1, 3, 8], "lags_of": lags_of, "progress": False}
    here = diagnose(model, data, **options)
    there = diagnose(model.cuda(), data, **options)
    for one, other in zip(there.layers, here.layers, strict=True):
        np.testing.assert_allclose(one.window.probe.sequences, other.window.probe.sequences, rtol=1e-3)
        assert one.window.dependences == other.window.dependences


def agree(model, data, *, device="cuda", atol, **options):
    """Forecast on the CPU and there; the model keeps its weights and ends where it was sent."""
    here, there = (forecast(model.to(place), data, [100, 10_000], **options) for place in ("cpu", device))
    assert here.settings["derivatives"] == there.settings["derivatives"]
    for name in ("readable", "reachable", "budgeted"):
        ours, theirs = getattr(here, name), getattr(there, name)
        np.testing.assert_allclose(theirs.values, ours.values, atol=atol)
        np.testing.assert_allclose(theirs.low.values, ours.low.values, atol=2 * atol)
    np.testing.assert_allclose(there.adjusted_p, here.adjusted_p, atol=1e-3)
    assert there.limits.values.tolist() == here.limits.values.tolist()
    return there


WAYS = [(kind, way) for kind in ("LSTM", "GRU", "RNN") for way in ("backward", "difference")]


@pytest.mark.parametrize(("kind", "derivatives"), [*WAYS, ("RNN", "forward")])
def test_forecasts_agree_with_the_cpu(kind, derivatives, generator):
    model = Recurrent(kind).double()
    x = normal(generator, 64, 20, 2)
    y = lagged(x, 2) + 0.5 * normal(generator, 64, 20, 1)
    options = {"lags": [0, 2, 7], "directions": 24, "derivatives": derivatives, "steps": 200}
    agree(model, (x, y), atol=1e-5, optimiser=torch.optim.Adam(model.parameters()), **options)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_forecasts_say_that_cells_of_torch_have_no_forward_mode_on_a_gpu(kind, generator):
    x = normal(generator, 64, 20, 2)
    with pytest.raises(InputError, match="no forward mode"):
        forecast(Recurrent(kind).double().cuda(), (x, lagged(x, 2)), lags=[0, 2], directions=16, derivatives="forward")


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_forecasts_of_cudnn_layers_in_float32_agree_with_the_cpu(kind, generator):
    """By default cuDNN rounds what recurrent layers multiply to ten bits, and the layer is replayed in full precision."""
    model = Recurrent(kind)
    x = normal(generator, 64, 80, 2).float()
    y = lagged(x, 2) + 0.5 * normal(generator, 64, 80, 1).float()
    options = {"lags": [0, 2, 7], "directions": 24, "derivatives": "backward"}
    agree(model, (x, y), atol=5e-3, **options)
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("cell", ["const_gate", "diag_gate", "gru", "lstm"])
def test_forecasts_of_fused_cells_agree_with_the_cpu(cell, generator):
    model = GatedRNN(cell, 2, 32, 1, gate_init=0.2, generator=generator)
    x = normal(generator, 64, 80, 2).float()
    y = lagged(x, 2) + 0.5 * normal(generator, 64, 80, 1).float()
    agree(model, (x, y), atol=5e-3, lags=[0, 2, 7], directions=24, derivatives="backward")


@pytest.mark.parametrize("kind", ["attention", "classes", "lengths", "following"])
def test_forecasts_of_other_models_and_data_agree_with_the_cpu(kind, generator):
    x = normal(generator, 64, 20, 2)
    y, model, options = lagged(x, 2) + 0.5 * normal(generator, 64, 20, 1), Recurrent(), {}
    data = {"x": x, "y": y}
    if kind == "attention":
        model = Attention(20)
    elif kind == "classes":
        tokens = torch.randint(0, 6, (64, 20), generator=generator)
        data, model, options = {"x": tokens, "y": tokens.roll(1, 1)}, Tokens(), {"loss": "cross_entropy"}
    elif kind == "lengths":
        data["lengths"] = torch.randint(8, 21, (64,), generator=generator)
    else:
        data["x"] = x.cumsum(1) / 3
    agree(model.double(), data, atol=1e-4, lags=[0, 2, 7], directions=24, **options)
