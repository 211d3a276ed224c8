"""mLSTM: transformers, and a stand-in with the weights of the xlstm package's cell."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import logsigmoid
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

WIDTH, HEADS = 8, 2


def hf_config(**options):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": WIDTH, "num_heads": HEADS, "num_hidden_layers": 2, "vocab_size": 11, "chunk_size": 16}
    return transformers.xLSTMConfig(**sizes, **options)


def hf_layer(**options):
    modeling = pytest.importorskip("transformers.models.xlstm.modeling_xlstm")
    return modeling.xLSTMLayer(hf_config(**options))


class HeadNorm(nn.Module):
    """A layer norm for each head."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return nn.functional.layer_norm(x, x.shape[-1:]) * self.weight.view(HEADS, 1, -1)


class MLSTMCell(nn.Module):
    """The attributes and the arithmetic of xlstm's `mLSTMCell`, stabilised, step by step."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(num_heads=HEADS, embedding_dim=WIDTH)
        self.igate, self.fgate = nn.Linear(3 * WIDTH, HEADS), nn.Linear(3 * WIDTH, HEADS)
        self.outnorm = HeadNorm()

    def forward(self, q, k, v):
        x = torch.cat((q, k, v), dim=-1)
        take, forget = self.igate(x), logsigmoid(self.fgate(x))
        q, k, v = (u.unflatten(-1, (HEADS, -1)) for u in (q, k, v))
        k = k / k.shape[-1] ** 0.5
        memory, size, out = q.new_zeros(len(q), HEADS, 4, 4), q.new_zeros(len(q), HEADS, 4), []
        top = torch.full_like(take[:, 0], -torch.inf)
        for t in range(q.shape[1]):
            before, top = top, torch.maximum(forget[:, t] + top, take[:, t])
            keep, add = torch.exp(forget[:, t] + before - top)[..., None], torch.exp(take[:, t] - top)[..., None]
            memory = keep[..., None] * memory + add[..., None] * k[:, t, :, :, None] * v[:, t, :, None]
            size = keep * size + add * k[:, t]
            norm = torch.maximum((size * q[:, t]).sum(-1).abs(), torch.exp(-top))
            out.append((q[:, t, :, :, None] * memory).sum(-2) / (norm + 1e-6)[..., None])
        return self.outnorm(torch.stack(out, 2)).transpose(1, 2).flatten(-2)


class Direct(nn.Module):
    """Projections around the cell."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.cell = MLSTMCell()

    def forward(self, x):
        return self.cell(q=self.q(x), k=self.k(x), v=self.v(x))


LAYERS = {
    "single": hf_layer,
    "single with biases": lambda: hf_layer(use_bias=True),
    "fused": lambda: hf_layer(weight_mode="fused"),
    "xlstm": Direct,
}
X, Y = (numbers(SEQ, TIME, 2, seed=s, dtype=torch.float32) for s in (0, 1))


@pytest.fixture(params=LAYERS, name="model")
def _model(request):
    torch.manual_seed(0)
    return randomise(Wrapped(LAYERS[request.param](), WIDTH))


def test_conformance(model):
    (report,) = check_adapter(model, X)
    assert report.cell == "mLSTM (xLSTM)"


def test_lag_gradients_add_up_to_the_model_s_own_gradient(model):
    """For what acts through the scan alone: gates, keys and values."""
    totals, expected = lag_totals(model, X, Y), own_gradients(model, mse(model, X, Y))
    for name, total in totals.items():
        rows = slice(4, 16) if "qkv" in name else slice(None)  # behind the query and before the output gate
        assert total[rows].abs().max() > 1e-6
        assert_close(total[rows], expected[name][rows], rtol=2e-3, atol=1e-6)


def test_decays_are_those_of_the_forget_gate():
    model = randomise(Wrapped(hf_layer(), WIDTH))
    seen = []
    handle = model.layer.fgate_preact.register_forward_hook(lambda module, args, out: seen.append(out))
    model(X)
    handle.remove()
    (layer,) = lagreach.retention(model, X).layers
    assert_close(layer.log_decay.exp(), torch.sigmoid(15 * torch.tanh(seen[0] / 15)).detach())


@pytest.mark.thorough
def test_language_model():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.xLSTMForCausalLM(hf_config())
    assert len(check_adapter(model, tokens(2, TIME))) == 2
    diagnosis = lagreach.diagnose(
        model, (tokens(16, TIME), tokens(16, TIME, seed=1)), "cross_entropy", lags=[0, 1, 4], lags_of="layers"
    )
    assert len(diagnosis.layers) == 2


def test_gates_that_cannot_be_exponentiated_are_refused():
    layer = Direct()
    nn.init.constant_(layer.cell.igate.bias, 80.0)
    with pytest.raises(UnsupportedError, match="double"):
        scan_view(Wrapped(layer, WIDTH), X)


@pytest.mark.parametrize("kind", LAYERS)
def test_biases_for_wanted_half_lives(kind):
    layer = LAYERS[kind]()
    view = scan_view(Wrapped(layer, WIDTH), X)
    wanted = torch.tensor([3.0, 70.0])
    gated = layer.cell if kind == "xlstm" else layer
    with torch.no_grad():
        for name, weight in gated.named_parameters():
            if "gate" in name and name.endswith("weight"):
                weight.zero_()
        for name, value in view.layer.retaining(wanted).items():
            gated.get_parameter(name).copy_(value)
    (layer_retention,) = lagreach.retention(Wrapped(layer, WIDTH), X).layers
    assert_close(layer_retention.half_lives, wanted.double(), rtol=1e-3, atol=1e-3)
