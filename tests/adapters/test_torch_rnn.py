"""Recurrent layers of torch.nn inside a user's model: the identity over the product of everything they can do."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import lagreach
from lagreach import effective_rates, fidelity, lag_gradients
from lagreach.adapters import find_views
from lagreach.adapters.torch_cells import cell_of
from lagreach.cells import unroll
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError
from lagreach.testing import check_cell
from lagreach.types import Status

SEQ, TIME = 3, 6
LENGTHS = torch.tensor([6, 3, 4])
HEADS = ("output", "last", "h_n", "c_n", "mean", "attention")


class Net(nn.Module):
    """Something in front, a recurrent layer, something behind."""

    def __init__(self, kind, layers, bidirectional, projected, packed, batch_first, given_state, head):
        super().__init__()
        options = {"proj_size": 3} if projected else {}
        self.front = nn.Linear(4, 5)
        self.rnn = getattr(nn, kind)(
            5,
            6,
            layers,
            bidirectional=bidirectional,
            batch_first=batch_first,
            dropout=0.3 if layers > 1 else 0.0,
            **options,
        )
        self.kind, self.packed, self.batch_first, self.head, self.given_state = (
            kind,
            packed,
            batch_first,
            head,
            given_state,
        )
        hidden = 3 if projected else 6
        width = {"h_n": hidden, "c_n": 6}.get(head, hidden * (2 if bidirectional else 1))
        self.read = nn.Linear(width, 2)
        self.score = nn.Linear(width, 1)
        directions = 2 if bidirectional else 1
        shape = (layers * directions, SEQ, hidden)
        h_0 = torch.linspace(-1, 1, shape[0] * SEQ * hidden).view(shape)
        c_0 = torch.linspace(1, -1, shape[0] * SEQ * 6).view(shape[0], SEQ, 6)
        self.register_buffer("h_0", h_0)
        self.register_buffer("c_0", c_0)

    def forward(self, x, lengths=None):
        z = torch.relu(self.front(x))
        z = z if self.batch_first else z.transpose(0, 1)
        if self.packed:
            z = pack_padded_sequence(z, lengths, batch_first=self.batch_first, enforce_sorted=False)
        state = None
        if self.given_state:
            h, c = self.h_0[:, : len(x)].contiguous(), self.c_0[:, : len(x)].contiguous()
            state = (h, c) if self.kind == "LSTM" else h
        output, final = self.rnn(z, state)
        if self.packed:
            output = pad_packed_sequence(output, batch_first=self.batch_first, total_length=x.shape[1])[0]
        output = output if self.batch_first else output.transpose(0, 1)
        last = (lengths if self.packed else torch.full((len(x),), x.shape[1])) - 1
        if self.head == "output":
            return self.read(output)
        if self.head == "last":
            return self.read(output[torch.arange(len(x)), last])
        if self.head == "h_n":
            return self.read((final[0] if self.kind == "LSTM" else final)[-1])
        if self.head == "c_n":
            return self.read(final[1][-1])
        if self.head == "mean":
            return self.read(output.mean(1))
        return self.read((torch.softmax(self.score(output), 1) * output).sum(1))


def combinations():
    flags = [False, True]
    for kind, layers, bi, proj, packed, first, state, head in product(
        ("RNN", "GRU", "LSTM"), (1, 2, 3), flags, flags, flags, flags, flags, HEADS
    ):
        if kind == "LSTM" or not (proj or head == "c_n"):
            yield kind, layers, bi, proj, packed, first, state, head


ALL = list(combinations())
QUICK, MORE = ALL[::73], ALL[::13]  # coprime to the sizes of all factors, so every value of every factor occurs in each


def check_identity(combination):
    torch.manual_seed(0)
    model = Net(*combination).double().eval()
    head, packed = combination[-1], combination[4]
    x = torch.randn(SEQ, TIME, 4, dtype=torch.float64)
    y = torch.randn(SEQ, TIME, 2, dtype=torch.float64) if head == "output" else torch.randn(SEQ, 2, dtype=torch.float64)
    lengths = LENGTHS if packed else None
    error = ((model(x, lengths) if packed else model(x)) - y).square().mean(-1)
    if head == "output" and packed:
        weight = (torch.arange(TIME) < LENGTHS[:, None]).double()
        loss = ((error * weight).sum(1) / weight.sum(1)).mean()
    else:
        loss = error.mean()
    grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    expected = dict(zip([name for name, _ in model.named_parameters()], grads, strict=True))
    views = find_views(model, Batch(x, y, None, lengths))
    layers, bidirectional = combination[1], combination[2]
    assert len(views) == (2 * layers if bidirectional else 1)
    seen = set()
    for view in views:
        assert view.local == bidirectional
        total = lag_gradients(view, x, y, lengths=lengths, chunk=SEQ).total()
        for name, grad in total.items():
            reference = torch.zeros_like(grad) if expected[name] is None else expected[name]
            torch.testing.assert_close(grad, reference, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")
        seen |= set(total)
    assert seen == {name for name in expected if name.startswith("rnn.")}


@pytest.mark.parametrize("combination", QUICK, ids=str)
def test_identity(combination):
    check_identity(combination)


@pytest.mark.thorough
@pytest.mark.parametrize("combination", MORE, ids=str)
def test_identity_of_more_combinations(combination):
    check_identity(combination)


@pytest.mark.slow
@pytest.mark.parametrize("combination", ALL, ids=str)
def test_identity_everywhere(combination):
    check_identity(combination)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "module", [nn.RNN(3, 4), nn.RNN(3, 4, nonlinearity="relu", bias=False), nn.GRU(3, 4), nn.LSTM(3, 4)]
)
def test_cells_in_torch_layout_conform(module):
    check_cell(cell_of(module))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_replay_agrees_with_the_module(kind, dtype, tolerance, generator):
    module = getattr(nn, kind)(3, 8, 2, batch_first=True, dtype=dtype)
    x = torch.randn(4, 30, 3, generator=generator, dtype=dtype)
    view = find_views(module, Batch(x, torch.zeros(4, 30, 8)))[0]
    bound = view.bind(Batch(x, torch.zeros(4, 30, 8)))
    states = unroll(bound.recurrence.stack, bound.x, bound.recurrence.initial_state(x), bound.recurrence.params)
    torch.testing.assert_close(bound.recurrence.stack.output(states), module(x)[0], rtol=0, atol=tolerance)


@pytest.mark.parametrize(("kind", "cell"), [("RNN", nn.RNNCell), ("GRU", nn.GRUCell), ("LSTM", nn.LSTMCell)])
def test_each_lag_against_brute_force(kind, cell, generator):
    """A second implementation: one torch cell per step with weights of its own, one backward pass per anchor."""
    module = getattr(nn, kind)(3, 5, batch_first=True).double()
    x = torch.randn(SEQ, TIME, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(SEQ, TIME, 5, generator=generator, dtype=torch.float64)
    names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    copies, state, outputs = [], None, []
    for t in range(TIME):
        copy = cell(3, 5).double()
        copy.load_state_dict({name: getattr(module, f"{name}_l0").detach() for name in names})
        copies.append(copy)
        state = copy(x[:, t], state)
        outputs.append(state[0] if kind == "LSTM" else state)
    delta = [2 * (h.detach() - y[:, t]) / y.numel() for t, h in enumerate(outputs)]
    gradients = lag_gradients(module, x, y).grads
    for lag in range(TIME):
        for name in names:
            expected = torch.zeros_like(getattr(module, f"{name}_l0"))
            for t in range(lag, TIME):
                weight = getattr(copies[t - lag], name)
                (part,) = torch.autograd.grad((outputs[t] * delta[t]).sum(), weight, retain_graph=True)
                expected += part
            torch.testing.assert_close(gradients[f"{name}_l0"][lag], expected, rtol=1e-10, atol=1e-12)


class CellLoop(nn.Module):
    def __init__(self, kind="LSTMCell", feedback=False, tampered=False):
        super().__init__()
        self.cell, self.read = getattr(nn, kind)(3, 5), nn.Linear(5, 2)
        self.feedback, self.tampered = feedback, tampered

    def forward(self, x):
        state, outputs = None, []
        for t in range(x.shape[1]):
            inputs = x[:, t]
            if self.feedback and outputs:
                inputs = inputs + outputs[-1].sum(-1, keepdim=True)
            state = self.cell(inputs, state)
            h = state[0] if isinstance(state, tuple) else state
            outputs.append(self.read(h))
            if self.tampered:
                state = tuple(0.5 * s for s in state) if isinstance(state, tuple) else 0.5 * state
        return torch.stack(outputs, 1)


@pytest.mark.parametrize("kind", ["RNNCell", "GRUCell", "LSTMCell"])
def test_loops_over_cells(kind, generator):
    model = CellLoop(kind).double()
    x = torch.randn(3, 7, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(3, 7, 2, generator=generator, dtype=torch.float64)
    total = lag_gradients(model, x, y).total()
    (model(x) - y).square().mean().backward()
    for name, parameter in model.cell.named_parameters():
        torch.testing.assert_close(total[f"cell.{name}"], parameter.grad, rtol=1e-10, atol=1e-12)


class Wrapped(nn.Module):
    """A model with one thing wrong with it."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault
        self.rnn = nn.GRU(3, 5, batch_first=True)
        self.norm = nn.BatchNorm1d(5)
        self.start = nn.Parameter(torch.zeros(1, 1, 5))
        self.read = nn.Linear(5, 1)

    def forward(self, x):
        if self.fault == "learned":
            h, _ = self.rnn(x, self.start.expand(1, len(x), 5).contiguous())
        elif self.fault == "twice":
            h, _ = self.rnn(x)
            h, _ = self.rnn(torch.cat((h[..., :3],), -1))
        elif self.fault == "unused":
            h = torch.cat((x, x), -1)[..., :5]
        else:
            h, _ = self.rnn(x)
        if self.fault == "norm":
            h = self.norm(h.transpose(1, 2)).transpose(1, 2)
        if self.fault == "coupled":
            h = h - h.mean(0, keepdim=True)
        if self.fault == "random":
            h = h + torch.rand_like(h)
        return self.read(h)


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (Wrapped("learned"), "initial state is learned"),
        (Wrapped("twice"), "called 2 times"),
        (Wrapped("unused"), "is not called"),
        (Wrapped("norm"), "BatchNorm in training mode"),
        (Wrapped("coupled"), "depends on the other sequences"),
        (Wrapped("random"), "two runs of the model"),
        (CellLoop(feedback=True), "fed back as inputs"),
        (CellLoop(tampered=True), "changed between steps"),
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), "no recurrent layer.*(\n.*)*ReLU"),
        (
            nn.utils.parametrizations.weight_norm(nn.LSTM(3, 4, batch_first=True), "weight_hh_l0"),
            "computed, not stored",
        ),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(model, complaint, generator):
    if not (isinstance(model, Wrapped) and model.fault == "norm"):
        model.eval()
    x = torch.randn(4, 6, 3, generator=generator)
    with pytest.raises(UnsupportedError, match=complaint):
        find_views(model, Batch(x, torch.zeros(4, 6, 1)))
    for module in model.modules():
        assert not module._forward_hooks
        assert "forward" not in vars(module)


def test_several_layers_are_layer_local(generator):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.GRU(3, 4, batch_first=True), nn.LSTM(4, 5, batch_first=True)
            self.read = nn.Linear(5, 1)

        def forward(self, x):
            return self.read(self.second(self.first(x)[0])[0])

    model = Two().double()
    x = torch.randn(3, 7, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(3, 7, 1, generator=generator, dtype=torch.float64)
    views = find_views(model, Batch(x, y))
    assert [(view.name, view.local) for view in views] == [("first", True), ("second", True)]
    (model(x) - y).square().mean().backward()
    grads = dict(model.named_parameters())
    for view in views:
        for name, total in lag_gradients(view, x, y).total().items():
            torch.testing.assert_close(total, grads[name].grad, rtol=1e-10, atol=1e-12)
    with pytest.raises(Exception, match="several recurrences"):
        lag_gradients(model, x, y)


def test_projected_lstm_has_no_first_order_but_an_exact_gain(generator):
    model = nn.Sequential(nn.LSTM(3, 6, proj_size=2, batch_first=True))
    x, y = torch.randn(3, 9, 3, generator=generator), torch.randn(3, 9, 2, generator=generator)
    with pytest.raises(UnsupportedError, match="projection has no such units"):
        effective_rates(model, x, lags=[1])
    gains = fidelity(model, x, y, lags=[0, 1, 3])
    assert torch.isfinite(gains.log10_exact).all()
    assert torch.isnan(gains.log10_first_order[1:]).all()
    assert gains.status is Status.FIRST_ORDER_UNAVAILABLE
    whole = lagreach.diagnose(
        model, [torch.randn(8 * len(v), *v.shape[1:], dtype=v.dtype) for v in (x, y)], lags=[0, 1]
    )
    assert whole.layers[0].rates is None
    assert np.isnan(whole.envelope.values).all()
