"""minGRU and minLSTM: the package, and versions that users write."""

import pytest
import torch
from torch import nn
from torch.nn.functional import logsigmoid
from torch.testing import assert_close

import lagreach
from lagreach.errors import InputError, UnsupportedError
from lagreach.testing import check_adapter
from tests.adapters.scan_cases import (
    SEQ,
    TIME,
    WIDTH,
    Wrapped,
    lag_totals,
    loop,
    mse,
    numbers,
    own_gradients,
    randomise,
    scan_view,
)


class MinGRU(nn.Module):
    """As in the paper, without logarithms: one projection for the gate, one for the candidate."""

    def __init__(self, candidate=lambda h: h, bias=True):
        super().__init__()
        self.linear_z, self.linear_h = (nn.Linear(WIDTH, WIDTH, bias=bias) for _ in range(2))
        self.candidate = candidate

    def forward(self, x, h_0=None):
        z = self.linear_z(x)
        value = torch.sigmoid(z) * self.candidate(self.linear_h(x))
        if h_0 is not None:
            value = torch.cat((value[:, :1] + torch.sigmoid(-z[:, :1]) * h_0[:, None], value[:, 1:]), dim=1)
        return loop(logsigmoid(-z), value)


class MinLSTM(nn.Module):
    """As in the paper: forget and input gate, normalised."""

    def __init__(self):
        super().__init__()
        self.linear_f, self.linear_i, self.linear_h = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        f, i = torch.sigmoid(self.linear_f(x)), torch.sigmoid(self.linear_i(x))
        return loop(torch.log(f / (f + i)), i / (f + i) * self.linear_h(x))


def package(kind, **options):
    module = pytest.importorskip(f"minGRU_pytorch.{kind}")
    return getattr(module, kind)(WIDTH, **options)


LAYERS = {
    "package": lambda: package("minGRU"),
    "package, expanded": lambda: package("minGRU", expansion_factor=2.0),
    "package, LSTM": lambda: package("minLSTM"),
    "package, LSTM, expanded": lambda: package("minLSTM", expansion_factor=2.0),
    "own": MinGRU,
    "own without biases": lambda: MinGRU(bias=False),
    "own with tanh": lambda: MinGRU(torch.tanh),
    "own LSTM": MinLSTM,
}


@pytest.fixture(params=LAYERS, name="model")
def _model(request):
    return randomise(Wrapped(LAYERS[request.param]()).double())


def test_conformance(model):
    (report,) = check_adapter(model, numbers(SEQ, TIME, 2))
    assert report.cell in ("minGRU", "minLSTM")


def test_lag_gradients_add_up_to_the_model_s_own_gradient(model):
    x, y = numbers(SEQ, TIME, 2), numbers(SEQ, TIME, 2, seed=1)
    totals, expected = lag_totals(model, x, y), own_gradients(model, mse(model, x, y))
    for name, total in totals.items():
        assert total.abs().max() > 1e-4
        assert_close(total, expected[name], rtol=1e-9, atol=1e-13)


def test_decays_are_those_that_a_hook_sees():
    model = Wrapped(package("minGRU", expansion_factor=2.0)).double()
    x, seen = numbers(SEQ, TIME, 2), []
    handle = model.layer.to_hidden_and_gate.register_forward_hook(lambda module, args, out: seen.append(out))
    model(x)
    handle.remove()
    (layer,) = lagreach.retention(model, x).layers
    assert_close(layer.log_decay.exp(), 1 - torch.sigmoid(seen[0].chunk(2, dim=-1)[1]).detach())
    model = Wrapped(package("minLSTM")).double()
    handle = model.layer.to_hidden_and_f_i_gate.register_forward_hook(lambda module, args, out: seen.append(out))
    model(x)
    handle.remove()
    f, i = (torch.sigmoid(part) for part in seen[1].chunk(3, dim=-1)[1:])
    (layer,) = lagreach.retention(model, x).layers
    assert_close(layer.log_decay.exp(), (f / (f + i)).detach())


def test_an_initial_state_is_replayed():
    class Model(Wrapped):
        def forward(self, x):
            return self.read(self.layer(self.front(x), torch.full((len(x), WIDTH), 0.7, dtype=x.dtype)))

    model = Model(MinGRU()).double()
    x, y = numbers(SEQ, TIME, 2), numbers(SEQ, TIME, 2, seed=1)
    totals, expected = lag_totals(model, x, y), own_gradients(model, mse(model, x, y))
    assert_close(totals["layer.linear_z.weight"], expected["layer.linear_z.weight"], rtol=1e-9, atol=1e-13)


def test_the_last_state_is_handed_back():
    class Model(Wrapped):
        def forward(self, x):
            output, final = self.layer(self.front(x), return_next_prev_hidden=True)
            return self.read(output + final)

    model = Model(package("minGRU")).double()
    x, y = numbers(SEQ, TIME, 2), numbers(SEQ, TIME, 2, seed=1)
    totals, expected = lag_totals(model, x, y), own_gradients(model, mse(model, x, y))
    for name, total in totals.items():
        assert_close(total, expected[name], rtol=1e-9, atol=1e-13)


def test_diagnose_finds_a_planted_lag():
    torch.manual_seed(0)
    x = numbers(128, 20, 2)
    y = torch.nn.functional.pad(x[:, :-4, :1], (0, 0, 4, 0)).expand(-1, -1, 2)
    diagnosis = lagreach.diagnose(Wrapped(MinGRU()).double(), (x, y), lags=[0, 1, 2, 4, 8])
    assert diagnosis.layers[0].window.dependences == (4,)
    assert not diagnosis.layers[0].local


def test_something_that_only_looks_like_one_is_refused():
    with pytest.raises(InputError, match="looks like minGRU"):
        scan_view(Wrapped(MinGRU(torch.sin)), numbers(2, TIME, 2, dtype=torch.float32))


@pytest.mark.parametrize("build", [MinGRU, MinLSTM])
def test_biases_for_wanted_half_lives(build):
    layer = build()
    wanted = torch.logspace(0.1, 2, WIDTH)
    with torch.no_grad():
        for name, value in scan_view(layer, numbers(2, 4, WIDTH, dtype=torch.float32)).layer.retaining(wanted).items():
            layer.get_parameter(name).copy_(value)
    (layer_retention,) = lagreach.retention(layer, torch.zeros(1, 4, WIDTH)).layers
    assert_close(layer_retention.half_lives, wanted.double(), rtol=1e-3, atol=1e-3)


def test_a_layer_without_biases_has_nothing_to_set():
    view = scan_view(MinGRU(bias=False), numbers(2, 4, WIDTH, dtype=torch.float32))
    with pytest.raises(UnsupportedError, match="no biases"):
        view.layer.retaining(torch.ones(WIDTH))
