"""sLSTM: a stand-in with the weights of the xlstm package's layer, vanilla backend."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import group_norm, logsigmoid, pad, silu
from torch.testing import assert_close

import lagreach
from lagreach.errors import UnsupportedError
from lagreach.testing import check_adapter
from lagreach.types import Status
from tests.adapters.scan_cases import SEQ, TIME, Wrapped, lag_totals, mse, numbers, own_gradients, randomise, scan_view

WIDTH, HEADS, UNITS = 6, 2, 3


class Headwise(nn.Module):
    """A matrix for every head."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(numbers(HEADS, UNITS, UNITS, seed=3))

    def forward(self, x):
        return torch.einsum("...hd,hod->...ho", x.unflatten(-1, (HEADS, -1)), self.weight).flatten(-2)


class HeadNorm(nn.Module):
    """A group norm with the heads as groups, for (seq, head, time, unit)."""

    def forward(self, x):
        seq, heads, time, units = x.shape
        flat = x.transpose(1, 2).reshape(seq * time, heads * units)
        return group_norm(flat, heads).view(seq, time, heads, units).transpose(1, 2)


class SLSTMLayer(nn.Module):
    """The attributes and the arithmetic of `sLSTMLayer`, step by step."""

    def __init__(self, convolves=True, backend="vanilla"):
        super().__init__()
        self.fgate, self.igate, self.zgate, self.ogate = (Headwise() for _ in range(4))
        self.group_norm = HeadNorm()
        self.slstm_cell = nn.Module()
        self.slstm_cell.config = SimpleNamespace(backend=backend)
        self.slstm_cell._recurrent_kernel_ = nn.Parameter(0.5 * numbers(HEADS, 4 * UNITS, UNITS))
        self.slstm_cell._bias_ = nn.Parameter(numbers(4 * WIDTH, seed=2))
        if convolves:
            self.conv1d = nn.Module()
            self.conv1d.conv = nn.Conv1d(WIDTH, WIDTH, 4, groups=WIDTH, padding=3)

    def forward(self, x, return_last_state=False):
        convolved = x
        if hasattr(self, "conv1d"):
            conv = self.conv1d.conv
            taps = [pad(x, (0, 0, k, 0))[:, : x.shape[1]] * conv.weight[:, 0, 3 - k] for k in range(4)]
            convolved = silu(sum(taps) + conv.bias)
        raw = torch.stack((self.fgate(convolved), self.igate(convolved), self.zgate(x), self.ogate(x)), dim=-2)
        h, c, n, m = (torch.zeros_like(x[:, 0]) for _ in range(4))
        kernel, out = self.slstm_cell._recurrent_kernel_.view(HEADS, 4, UNITS, UNITS), []
        for t in range(x.shape[1]):
            back = torch.einsum("bhd,hgod->bgho", h.view(-1, HEADS, UNITS), kernel).flatten(-2)
            i, f, z, o = (raw[:, t] + back + self.slstm_cell._bias_.view(4, WIDTH)).unbind(1)
            kept = m + logsigmoid(f)
            m = i if t == 0 else torch.maximum(i, kept)
            c = torch.exp(kept - m).clamp(max=1) * c + torch.exp(i - m).clamp(max=1) * torch.tanh(z)
            n = torch.exp(kept - m).clamp(max=1) * n + torch.exp(i - m).clamp(max=1)
            h = torch.sigmoid(o) * c / n
            out.append(h)
        return (
            self.group_norm(torch.stack(out, 1).unflatten(-1, (HEADS, -1)).transpose(1, 2)).transpose(1, 2).flatten(-2)
        )


X, Y = numbers(SEQ, TIME, 2), numbers(SEQ, TIME, 2, seed=1)


@pytest.fixture(params=[True, False], name="model")
def _model(request):
    torch.manual_seed(0)
    return randomise(Wrapped(SLSTMLayer(request.param)).double(), 0.1)


def test_conformance(model):
    (report,) = check_adapter(model, X)
    assert str(report) == "sLSTM (xLSTM): passed 4 checks (replay, identity, batches, traces)"


def test_lag_gradients_add_up_to_the_model_s_own_gradient(model):
    totals, expected = lag_totals(model, X, Y), own_gradients(model, mse(model, X, Y))
    assert len(totals) == 8 if hasattr(model.layer, "conv1d") else 6
    for name, total in totals.items():
        assert total.abs().max() > 1e-6
        assert_close(total, expected[name], rtol=1e-8, atol=1e-12)


def test_the_forget_gate_is_reported_as_one_path(model):
    (layer,) = lagreach.retention(model, X).layers
    assert not layer.exact
    assert layer.log_decay.shape == (SEQ, TIME, WIDTH)
    first = model.front(X)[:, :1]
    convolved = (
        silu(first * model.layer.conv1d.conv.weight[:, 0, 3] + model.layer.conv1d.conv.bias)
        if hasattr(model.layer, "conv1d")
        else first
    )
    expected = logsigmoid(model.layer.igate(convolved) + model.layer.slstm_cell._bias_.view(4, WIDTH)[1])
    assert_close(layer.log_decay[:, :1], expected.detach())


@pytest.mark.thorough
def test_exact_gains_and_windows(model):
    assert lagreach.fidelity(model, X, Y, [1, 3]).status is Status.FIRST_ORDER_UNAVAILABLE
    diagnosis = lagreach.diagnose(
        model, (numbers(16, TIME, 2), numbers(16, TIME, 2, seed=1)), lags=[0, 1, 4], lags_of="layers"
    )
    assert diagnosis.layers[0].rates is None


def test_the_layout_of_another_backend_is_refused():
    with pytest.raises(UnsupportedError, match="vanilla"):
        scan_view(Wrapped(SLSTMLayer(backend="cuda")).double(), X)
