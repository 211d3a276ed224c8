"""Complex units: a reference LRU, and S5."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import lagreach
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

UNITS = 5


class LRU(nn.Module):
    """The linear recurrent unit of Orvieto et al. (2023), step by step; weights complex or in two parts."""

    def __init__(self, parts=False, scalar_skip=True):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        shape = {"B": (UNITS, WIDTH), "C": (WIDTH, UNITS)}
        drawn = {n: torch.randn(s, generator=generator, dtype=torch.complex128) / 2 for n, s in shape.items()}
        for name, value in drawn.items():
            if parts:
                setattr(self, f"{name}_re", nn.Parameter(value.real.clone()))
                setattr(self, f"{name}_im", nn.Parameter(value.imag.clone()))
            else:
                setattr(self, name, nn.Parameter(value))
        self.nu_log = nn.Parameter(torch.linspace(-3, -0.5, UNITS, dtype=torch.float64))
        self.theta_log = nn.Parameter(torch.linspace(-2, 1, UNITS, dtype=torch.float64))
        self.gamma_log = nn.Parameter(torch.full((UNITS,), -0.4, dtype=torch.float64))
        self.D = nn.Parameter(numbers(WIDTH) if scalar_skip else numbers(WIDTH, WIDTH))
        self.parts = parts

    def forward(self, x):
        b, c = (
            (getattr(self, f"{n}_re") + 1j * getattr(self, f"{n}_im")) if self.parts else getattr(self, n) for n in "BC"
        )
        factor = torch.exp(-torch.exp(self.nu_log) + 1j * torch.exp(self.theta_log))
        state, out = torch.zeros(len(x), UNITS, dtype=b.dtype), []
        for x_t in x.unbind(1):
            state = factor * state + torch.exp(self.gamma_log) * (x_t.to(b.dtype) @ b.T)
            out.append((state @ c.T).real)
        return torch.stack(out, 1) + (x * self.D if self.D.ndim == 1 else x @ self.D.T)


LAYERS = {"complex": LRU, "in two parts": lambda: LRU(parts=True), "with a matrix": lambda: LRU(scalar_skip=False)}


@pytest.fixture(params=LAYERS, name="model")
def _model(request):
    model = Wrapped(LAYERS[request.param]())
    model.front.double()
    model.read.double()
    return model.eval()


X, Y = numbers(SEQ, TIME, 2), numbers(SEQ, TIME, 2, seed=1)


def test_conformance(model):
    (report,) = check_adapter(model, X)
    assert report.cell == "LRU"


def test_size_and_phase(model):
    (layer,) = lagreach.retention(model, X).layers
    factor = torch.exp(-torch.exp(model.layer.nu_log) + 1j * torch.exp(model.layer.theta_log)).detach()
    assert_close(layer.log_decay.exp() * torch.exp(1j * layer.phase), factor.expand(SEQ, TIME, UNITS))
    assert_close(layer.half_lives, math.log(2) / torch.exp(model.layer.nu_log.detach()))


def test_lag_gradients_add_up_to_the_model_s_own_gradient(model):
    totals, expected = lag_totals(model, X, Y), own_gradients(model, mse(model, X, Y))
    for name, total in totals.items():
        assert total.abs().max() > 1e-4
        assert_close(total, expected[name], rtol=1e-9, atol=1e-13)


def test_first_order_is_refused_and_the_exact_gain_is_not(model):
    with pytest.raises(UnsupportedError, match="complex state"):
        lagreach.effective_rates(model, X, [1, 2])
    gains = lagreach.fidelity(model, X, Y, [1, 4])
    assert gains.status is Status.FIRST_ORDER_UNAVAILABLE
    assert torch.isfinite(gains.log10_exact).all()


@pytest.mark.thorough
def test_diagnose():
    torch.manual_seed(0)
    model = Wrapped(LRU())
    model.front.double()
    model.read.double()
    x = numbers(128, 20, 2)
    y = torch.nn.functional.pad(x[:, :-4, :1], (0, 0, 4, 0)).expand(-1, -1, 2)
    diagnosis = lagreach.diagnose(model, (x, y), lags=[0, 1, 2, 4, 8])
    assert 4 in diagnosis.layers[0].window.dependences
    assert diagnosis.layers[0].rates is None


def s5_layer(**options):
    s5 = pytest.importorskip("s5")
    torch.manual_seed(0)
    return s5.S5(WIDTH, 8, **options)


def test_s5():
    model = Wrapped(s5_layer()).eval()
    x, y = X.float(), Y.float()
    (report,) = check_adapter(model, x)
    assert report.cell == "S5"
    totals, expected = lag_totals(model, x, y), own_gradients(model, mse(model, x, y))
    for name, total in totals.items():
        assert_close(total, expected[name], rtol=1e-3, atol=1e-7)
    (layer,) = lagreach.retention(model, x).layers
    step = torch.exp(model.layer.seq.log_step.detach()).reshape(-1)
    assert_close(layer.log_decay, (model.layer.seq.Lambda.detach().real * step).expand(SEQ, TIME, 8))
    assert_close(layer.phase, (model.layer.seq.Lambda.detach().imag * step).expand(SEQ, TIME, 8))


@pytest.mark.parametrize("options", [{"bidir": True}, {"liquid": True}])
def test_variants_of_s5_are_refused(options):
    with pytest.raises(UnsupportedError, match="plain S5"):
        scan_view(Wrapped(s5_layer(**options)), X.float())


@pytest.mark.parametrize("build", [LRU, s5_layer])
def test_weights_for_wanted_half_lives(build):
    layer = randomise(build(), 0.0)
    x = numbers(2, 4, WIDTH).to(next(p for p in layer.parameters() if not p.is_complex()))
    adapter = scan_view(layer, x).layer
    wanted = torch.logspace(0, 2, adapter.decay_shape[0])
    with torch.no_grad():
        for name, value in adapter.retaining(wanted).items():
            layer.get_parameter(name).copy_(value)
    (layer_retention,) = lagreach.retention(layer, x).layers
    assert_close(layer_retention.half_lives, wanted.double(), rtol=1e-4, atol=1e-4)
