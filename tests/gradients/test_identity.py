"""Lag gradients add up to what training gets, or the model is refused, or the result says what is missing."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

import lagreach
from lagreach import lag_gradients
from lagreach.adapters import find_views
from lagreach.cells.elman import Elman
from lagreach.data.batch import Batch
from lagreach.errors import InputError, UnsupportedError
from lagreach.gradients.identity import identity_notes

SEQ, TIME = 6, 8


def data(generator, dtype=torch.float64, count=SEQ):
    x = torch.randn(count, TIME, 4, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randn(count, TIME, 2, generator=generator, dtype=torch.float64).to(dtype)


class Halved(torch.autograd.Function):
    """The identity, whose gradient is not."""

    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


class Loop(nn.Module):
    """A loop over a cell, with something between the steps that leaves the values alone."""

    def __init__(self, kind, between=None):
        super().__init__()
        self.cell, self.read, self.between = getattr(nn, kind)(4, 5), nn.Linear(5, 2), between

    def forward(self, x):
        state, outputs = None, []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            outputs.append(self.read(state[0] if isinstance(state, tuple) else state))
            if self.between is not None:
                state = self.between(t, state)
        return torch.stack(outputs, 1)


def every(steps):
    def cut(t, state):
        if (t + 1) % steps:
            return state
        return tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()

    return cut


@pytest.mark.parametrize("kind", ["RNNCell", "GRUCell", "LSTMCell"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_truncated_backpropagation_is_refused_with_the_lags_that_training_gets(kind, dtype, generator):
    x, y = data(generator, dtype)
    model = Loop(kind, every(3)).to(dtype)
    with pytest.raises(UnsupportedError, match=r"training gets lags 0 to 2 only(\n.*)*before step 3, 6 of 8"):
        lag_gradients(model, x, y)
    sixteen = x.repeat(4, 1, 1), y.repeat(4, 1, 1) + torch.randn(4 * len(y), *y.shape[1:], dtype=dtype)
    with pytest.raises(UnsupportedError, match="training gets lags 0 to 2 only"):
        lagreach.diagnose(model, sixteen, lags=[0, 1], lags_of="layers")
    lag_gradients(model, x[:, :3], y[:, :3])  # as the message says


def test_a_cut_is_seen_however_little_would_get_past_it(generator):
    """The sum of the lag gradients would not show it: a forgetful cell carries nothing so far."""
    model = Loop("GRUCell", every(6)).double()
    with torch.no_grad():
        model.cell.bias_ih[5:10] = -30.0  # the gate that retains
        model.cell.weight_hh.zero_()
    x, y = data(generator)
    with pytest.raises(UnsupportedError, match="lags 0 to 5 only"):
        lag_gradients(model, x, y)


def test_a_beginning_without_gradient_is_a_cut(generator):
    model = Loop("LSTMCell", lambda t, state: every(1)(t, state) if t < 3 else state).double()
    x, y = data(generator)
    with pytest.raises(UnsupportedError, match=r"lags 0 to 4 only(\n.*)*before step 1, 2, 3 of 8"):
        lag_gradients(model, x, y)


def test_a_cut_of_a_part_of_the_state_is_no_end_of_lags(generator):
    """Gradients get past a cut of c by h: the sentence once spoke of lags 0 to 2 only, beside N of longer ones."""
    model = Loop("LSTMCell", lambda t, state: (state[0], state[1].detach()) if t % 3 == 2 else state).double()
    x, y = data(generator)
    with pytest.raises(
        UnsupportedError, match=r"a part of the state of cell is cut.*(\n.*)*before step 3, 6 of 8"
    ) as error:
        lag_gradients(model, x, y)
    assert "only" not in str(error.value)


def total_of(result):
    """The sum over lags, which warns where it is not the whole gradient."""
    if not result.warnings:
        return result.total()
    with pytest.warns(RuntimeWarning, match="do not add up to the whole gradient"):
        return result.total()


def half_of_it(_, state):
    return torch.cat((state[:, :3], state[:, 3:].detach()), 1)


def clipped(_, state):
    state.requires_grad and state.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    return state


@pytest.mark.parametrize("between", [lambda _, state: Halved.apply(state), half_of_it, clipped])
def test_gradients_that_are_changed_between_steps_are_refused(between, generator):
    x, y = data(generator)
    with pytest.raises(InputError, match="do not add up to the gradient that training gets"):
        lag_gradients(Loop("GRUCell", between).double(), x, y)


def test_a_cell_with_another_forward_is_refused(generator):
    """It was replayed by its weights alone, and its output never compared."""

    class Normed(nn.GRUCell):
        def forward(self, x, hx=None):
            return nn.functional.layer_norm(super().forward(x, hx), (5,))

    model = Loop("GRUCell").double()
    model.cell = Normed(4, 5).double()
    x, y = data(generator)
    with pytest.raises(InputError, match="does not compute what its weights say"):
        lag_gradients(model, x, y)


def test_a_loop_over_as_many_steps_as_its_states_ask_for_is_refused(generator):
    class Patient(Loop):
        def forward(self, x):
            state, outputs = None, []
            while len(outputs) < x.shape[1] or (len(outputs) < 12 and float(state.detach().sum()) == 0.0):
                state = self.cell(x[:, min(len(outputs), TIME - 1)], state)
                outputs.append(self.read(state))
            return torch.stack(outputs[: x.shape[1]], 1)

    x, y = data(generator)
    with pytest.raises(UnsupportedError, match="depends on its own states"):
        lag_gradients(Patient("GRUCell").double(), x, y)


class Leaky(nn.Module):
    """A layer of one's own, whose step a cell describes, with a detach that the cell does not know."""

    def __init__(self, cut):
        super().__init__()
        self.W, self.U, self.cut = nn.Parameter(torch.randn(5, 4) / 2), nn.Parameter(torch.randn(5, 5) / 4), cut

    def forward(self, x):
        h, states = x.new_zeros(len(x), 5), []
        for t, x_t in enumerate(x.unbind(1)):
            h = torch.tanh(linear(x_t, self.W) + linear(h.detach() if t == self.cut else h, self.U))
            states.append(h)
        return torch.stack(states, 1)


@dataclass(frozen=True)
class LeakyCell(lagreach.Cell):
    name: ClassVar[str] = "leaky"

    def shapes(self, input_size, hidden_size):
        return {"W": (hidden_size, input_size), "U": (hidden_size, hidden_size)}

    def step(self, x, s, params):
        return torch.tanh(linear(x, params["W"]) + linear(s, params["U"]))


@pytest.mark.parametrize("cut", [None, 4])
def test_a_detach_inside_a_layer_of_ones_own(cut, generator):
    torch.manual_seed(0)
    model = nn.Sequential(Leaky(cut), nn.Linear(5, 2)).double()
    x, y = data(generator, count=16)
    if cut is None:
        lagreach.diagnose(model, (x, y), lags=[0, 1], cell={"0": LeakyCell()}, params=lambda name: name == "0.W")
        return
    with pytest.raises(InputError, match="do not add up to the gradient that training gets"):
        lagreach.diagnose(model, (x, y), lags=[0, 1], cell={"0": LeakyCell()}, params=lambda name: name == "0.W")


def test_a_cell_whose_own_pullback_is_wrong_is_refused(generator, monkeypatch):
    right = Elman.pullback

    def wrong(self, x, s, params):
        return right(self, x, s, params | {"U_h": 0.9 * params["U_h"]})

    x, y = data(generator)
    model = lagreach.GatedRNN("elman", 4, 5, 2).double()
    assert lag_gradients(model, x, y).warnings == ()
    monkeypatch.setattr(Elman, "pullback", wrong)
    with pytest.raises(InputError, match="do not add up to the gradient that training gets"):
        lag_gradients(model, x, y)


class Tied(nn.Module):
    """A head, or a second layer, that uses a weight of the recurrence."""

    def __init__(self, how):
        super().__init__()
        self.how, self.rnn, self.read = how, nn.GRU(4, 4, batch_first=True), nn.Linear(4, 2)
        self.second = nn.GRU(4, 4, batch_first=True) if how == "second" else None
        if how == "second":
            self.second.weight_ih_l0 = self.rnn.weight_ih_l0

    def forward(self, x):
        h = self.rnn(x)[0]
        if self.how == "head":
            h = h @ self.rnn.weight_ih_l0[:4]
        return self.read(h if self.second is None else self.second(h)[0])


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["none", "head", "second"])
def test_weights_that_are_used_elsewhere(how, generator):
    model = Tied(how).double()
    x, y = data(generator)
    results = [lag_gradients(view, x, y) for view in find_views(model, Batch(x, y))]
    (model(x) - y).square().mean().backward()
    whole = {name: weight.grad for name, weight in model.named_parameters(remove_duplicate=False)}
    for result in results:
        said = {name for name in result.grads if any(name in warning for warning in result.warnings)}
        wrong = {
            name
            for name, total in total_of(result).items()
            if (total - whole[name]).norm() > 1e-9 * (whole[name].norm() + 1e-3)
        }
        assert said == wrong
    if how == "second":  # the uses of both layers together are the whole
        both = total_of(results[0])["rnn.weight_ih_l0"] + total_of(results[1])["second.weight_ih_l0"]
        torch.testing.assert_close(both, whole["rnn.weight_ih_l0"], rtol=1e-10, atol=1e-12)
    assert {bool(result.warnings) for result in results} == {how != "none"}
    many = [torch.randn(4 * len(v), *v.shape[1:], generator=generator, dtype=v.dtype) for v in (x, y)]
    diagnosis = lagreach.diagnose(model, many, lags=[0, 1], lags_of="layers")
    assert any("also used outside the recurrence" in warning for warning in diagnosis.warnings) == (how != "none")
    assert "weight_ih_l0" in str(results[0]) or how == "none"


def test_layers_that_share_weights_inside_a_module(generator):
    x, y = data(generator)
    rnn = nn.LSTM(4, 4, 2, batch_first=True)
    rnn.weight_ih_l1 = rnn.weight_ih_l0
    model = nn.ModuleDict({"rnn": rnn, "read": nn.Linear(4, 2)}).double()
    model.forward = lambda x: model["read"](model["rnn"](x)[0])
    result = lag_gradients(model, x, y)
    (model(x) - y).square().mean().backward()
    both = total_of(result)["rnn.weight_ih_l0"] + total_of(result)["rnn.weight_ih_l1"]
    torch.testing.assert_close(both, rnn.weight_ih_l0.grad, rtol=1e-10, atol=1e-12)
    assert "rnn.weight_ih_l0 and rnn.weight_ih_l1 are also used" in result.warnings[0]
    gated = lagreach.GatedRNN("gru", 4, 4, 2, num_layers=2).double()
    gated.layers[1]["W_h"] = gated.layers[0]["W_h"]
    assert "layers.0.W_h and layers.1.W_h are also used" in lag_gradients(gated, x, y).warnings[0]


def test_hooks_and_frozen_weights(generator):
    x, y = data(generator)
    model = Tied("none").double()
    free = lag_gradients(model, x, y)
    model.rnn.requires_grad_(False)
    frozen = lag_gradients(model, x, y)
    assert frozen.warnings == ()
    assert all(torch.equal(value, free.grads[name]) for name, value in frozen.grads.items())
    assert not any(weight.requires_grad for weight in model.rnn.parameters())
    model.rnn.requires_grad_(True)
    model.rnn.weight_hh_l0.register_hook(lambda gradient: gradient / 2)
    assert "rnn.weight_hh_l0 is also used outside the recurrence" in lag_gradients(model, x, y).warnings[0]
    assert all(weight.grad is None for weight in model.parameters())
    assert all(flat is weight for flat, weight in zip(model.rnn._flat_weights, model.rnn.parameters(), strict=True))
    assert not model.rnn._weights_have_changed()  # else its next call on a GPU would lay its weights out anew


def test_an_output_without_gradient_is_refused(generator):
    class Closed(Tied):
        @torch.no_grad()
        def forward(self, x):
            return super().forward(x)

    x, y = data(generator)
    with pytest.raises(UnsupportedError, match="output has no gradient"):
        lag_gradients(Closed("none").double(), x, y)


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM", "gru", "elman"])
def test_rounding_of_single_precision_is_no_difference(kind, scale, generator):
    """Also where the network is chaotic and blows rounding up."""
    torch.manual_seed(0)
    if kind.isupper():
        layer = getattr(nn, kind)(4, 8, batch_first=True)
        model = nn.ModuleDict({"rnn": layer, "read": nn.Linear(8, 2)})
        model.forward = lambda x: model["read"](model["rnn"](x)[0])
    else:
        model = lagreach.GatedRNN(kind, 4, 8, 2)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(scale)
    x, y = torch.randn(3, 60, 4, generator=generator), torch.randn(3, 60, 2, generator=generator)
    (view,) = find_views(model, Batch(x, y))
    assert identity_notes(view, Batch(x, y), "mse") == ()


@pytest.mark.thorough
def test_targets_that_are_the_inputs_are_pointed_out(generator):
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.rnn, self.read = nn.Embedding(7, 4), nn.GRU(4, 5, batch_first=True), nn.Linear(5, 7)

        def forward(self, x):
            return self.read(self.rnn(self.embed(x))[0])

    tokens = torch.randint(0, 7, (24, TIME), generator=generator)
    ignored = tokens.clone()
    ignored[:, :2] = -100
    model = Language()
    for y, expected in [(tokens, True), (ignored, True), (tokens.roll(-1, 1), False)]:
        diagnosis = lagreach.diagnose(model, (tokens, y), loss="cross_entropy", lags=[0, 1])
        assert any("the targets equal the inputs" in warning for warning in diagnosis.warnings) == expected
