"""Channels or nodes of a graph folded into the batch: rows of a layer that are not rows of the batch."""

import pytest
import torch
from torch import nn

import lagreach
from lagreach.adapters import as_view
from lagreach.adapters.folded import FoldedCell, FoldedView, by_row, by_sequence
from lagreach.cells.lstm import LSTM
from lagreach.cells.torch_gru import TorchGRU
from lagreach.data.batch import Batch
from lagreach.data.pairs import plan_blocks
from lagreach.data.sequences import as_sequences
from lagreach.errors import UnsupportedError
from lagreach.gradients.sequence_gradients import SequenceLinearisation, total_adjoint
from lagreach.papers.livi.matched import matched_statistic
from lagreach.transport.objective import make_objective
from lagreach.transport.rollout import run

CHANNELS = 3


class Forecaster(nn.Module):
    """A channel-independent forecaster: every channel of every sequence is a row of the recurrent layer."""

    def __init__(self, layer, *, interleaved=False, hidden=4, per_step=True):
        super().__init__()
        self.layer = layer
        self.readout = nn.Linear(hidden, 1)
        self.interleaved, self.per_step = interleaved, per_step

    def forward(self, x):
        count, _, channels = x.shape
        rows = x.movedim(2, 0) if self.interleaved else x.movedim(2, 1)  # (channel, seq, time) or (seq, channel, time)
        states = self.layer(rows.flatten(0, 1)[..., None])[0]
        output = self.readout(states if self.per_step else states[:, -1:])[..., 0]
        if self.interleaved:
            return output.unflatten(0, (channels, count)).movedim(0, 2)
        return output.unflatten(0, (count, channels)).movedim(1, 2)


class GraphNetwork(nn.Module):
    """Nodes folded into the batch, mixed before and behind the layer."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(CHANNELS, CHANNELS)
        self.layer = nn.GRU(1, 4, num_layers=2, batch_first=True)
        self.readout = nn.Linear(CHANNELS * 4, 2)

    def forward(self, x):
        rows = self.mix(x).movedim(2, 1).flatten(0, 1)[..., None]
        return self.readout(self.layer(rows)[0].unflatten(0, (len(x), -1)).movedim(1, 2).flatten(2))


class OnlyRead(nn.Module):
    """A layer whose rows no sequence owns: all rows of the batch are averaged."""

    def __init__(self):
        super().__init__()
        self.layer, self.readout = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x):
        return self.readout(self.layer(x.movedim(2, 1).flatten(0, 1)[..., None])[0].mean(0)).expand(len(x), -1, -1)


def made(module, seed=0):
    torch.manual_seed(seed)
    return module().double()


def data(sequences=6, time=9, outputs=CHANNELS):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(sequences, time, CHANNELS, generator=generator, dtype=torch.float64)
    y = torch.randn(sequences, time, outputs, generator=generator, dtype=torch.float64)
    y[:, 3:] += 2 * x[:, :-3, :outputs]
    return x, y


MODELS = {
    "lstm": lambda: Forecaster(nn.LSTM(1, 4, batch_first=True)),
    "interleaved": lambda: Forecaster(nn.LSTM(1, 4, batch_first=True), interleaved=True),
    "two layers": lambda: Forecaster(nn.GRU(1, 4, num_layers=2, batch_first=True)),
    "projected": lambda: Forecaster(nn.LSTM(1, 4, proj_size=2, batch_first=True), hidden=2),
    "graph": GraphNetwork,
}


def folded_view(model, x, y):
    view = as_view(model, Batch(x[:2], y[:2]))
    return by_sequence(view, Batch(x[:2], y[:2]))


@pytest.mark.parametrize("name", MODELS)
def test_each_sequence_keeps_its_own_lag_gradients(name):
    """Seen by sequences, every sequence's lag gradients are those of the sequence alone, which are autograd's."""
    model = made(MODELS[name])
    x, y = data(outputs=2 if name == "graph" else CHANNELS)
    view = folded_view(model, x, y)
    assert isinstance(view, FoldedView)
    assert view.rows == CHANNELS
    for rows in (slice(0, 6), slice(4, 5)):
        folded, plain = (lagreach.lag_gradients(m, x[rows], y[rows]) for m in (view, by_row(view)))
        for weight, gradient in folded.grads.items():
            torch.testing.assert_close(gradient, plain.grads[weight], rtol=1e-10, atol=1e-12)
        model.zero_grad()
        (model(x[rows]) - y[rows]).square().mean().backward()
        for weight, gradient in folded.total().items():
            torch.testing.assert_close(gradient, model.get_parameter(weight).grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_the_whole_gradient_of_each_sequence_is_autograds(name):
    model = made(MODELS[name])
    x, y = data(outputs=2 if name == "graph" else CHANNELS)
    batch = Batch(x, y)
    part = run(folded_view(model, x, y).bind(batch))
    objective = make_objective("mse", batch, part.recurrence, tuple(part.output.shape), input_time=x.shape[1])
    names = list(part.recurrence.params)
    pulled = SequenceLinearisation(part, names).pull(total_adjoint(part, objective))
    for n in range(len(x)):
        loss = (model(x[n : n + 1]) - y[n : n + 1]).square().mean()
        gradients = torch.autograd.grad(loss, [model.get_parameter(weight) for weight in names])
        expected = torch.cat([gradient.flatten() for gradient in gradients])
        torch.testing.assert_close(torch.from_numpy(pulled[n]), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.thorough
def test_a_diagnosis_does_not_depend_on_how_rows_are_folded():
    """Channel-independent and interleaved rows are one model: the same window; and the dependence is found."""
    x, y = data(96, 12)
    windows = [lagreach.diagnose(made(MODELS[n]), (x, y), lags=[0, 1, 3, 5]).layers[0] for n in ("lstm", "interleaved")]
    assert windows[0].window.dependences == windows[1].window.dependences == (3,)
    for one, other in (
        (windows[0].window.required.sequences, windows[1].window.required.sequences),
        (windows[0].window.probe.sequences, windows[1].window.probe.sequences),
        (windows[0].fidelity.log10_exact, windows[1].fidelity.log10_exact),
        (windows[0].rates.log10_rates, windows[1].rates.log10_rates),
    ):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), rtol=1e-6, atol=1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize("transport", ["exact", "first-order"])
def test_models_with_nodes_in_the_batch_are_diagnosed(transport):
    x, y = data(96, 12, outputs=2)
    diagnosis = lagreach.diagnose(made(GraphNetwork), (x, y), lags=[0, 1, 3, 5], transport=transport)
    assert diagnosis.layers[0].window.dependences == (3,)
    assert diagnosis.layers[0].rates.rates.shape == (4, 8)  # units of two layers, not of nodes


@pytest.mark.parametrize("interleaved", [False, True])
def test_rates_are_means_over_rows_and_lengths_belong_to_sequences(interleaved):
    """Twin: every row as a sequence of its own."""
    x, _ = data()
    torch.manual_seed(0)
    layer = nn.LSTM(1, 4, batch_first=True).double()
    model = Forecaster(layer, interleaved=interleaved).double()
    alone = Forecaster(layer).double()
    lengths = torch.tensor([9, 4, 7, 2, 9, 5])
    rows = x.movedim(2, 1).reshape(-1, 9, 1)
    for of_sequences, repeated in ((None, None), (lengths, lengths.repeat_interleave(CHANNELS))):
        rates = lagreach.effective_rates(model, x, range(8), lengths=of_sequences)
        expected = lagreach.effective_rates(alone, rows, range(8), lengths=repeated)
        torch.testing.assert_close(rates.log10_rates, expected.log10_rates, rtol=1e-10, atol=1e-10)


@pytest.mark.thorough
def test_the_matched_statistic_has_a_value_for_each_sequence():
    x, y = data(40, 12)
    values = [
        matched_statistic(made(MODELS[n]), x, y, [1, 3], orientation="none").values for n in ("lstm", "interleaved")
    ]
    assert values[0].shape == (20, 2)
    torch.testing.assert_close(*map(torch.from_numpy, values), rtol=1e-8, atol=1e-12)


def test_rows_that_cannot_be_told_apart_are_refused():
    x, y = data(20, 6)

    class Uneven(nn.Module):
        """The first sequence has a row more than the others."""

        def __init__(self):
            super().__init__()
            self.layer, self.readout = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 1)

        def forward(self, x):
            rows = torch.cat((x[:1, :, :1], x.movedim(2, 1).flatten(0, 1)[..., None]))
            return self.readout(self.layer(rows)[0])[1:, :, 0].unflatten(0, (len(x), -1)).movedim(1, 2)

    class Shuffled(Forecaster):
        """Rows lie in an order of their own."""

        def forward(self, x):
            order = torch.randperm(len(x) * CHANNELS, generator=torch.Generator().manual_seed(3))
            states = self.layer(x.movedim(2, 1).flatten(0, 1)[order][..., None])[0]
            return self.readout(states)[order.argsort()][..., 0].unflatten(0, (len(x), -1)).movedim(1, 2)

    for model, sentence in (
        (made(Uneven), "does not run on a fixed number of rows for each sequence"),
        (made(lambda: Shuffled(nn.GRU(1, 4, batch_first=True))), "an order that is not understood"),
    ):
        with pytest.raises(UnsupportedError, match=sentence):
            lagreach.diagnose(model, (x, y), lags=[0, 1])
        with pytest.raises(UnsupportedError, match=sentence):
            lagreach.effective_rates(model, x, [0, 1])
        total = lagreach.lag_gradients(model, x, y).total()  # sums over all rows need no order
        model.zero_grad()
        (model(x) - y).square().mean().backward()
        torch.testing.assert_close(total["layer.weight_ih_l0"], model.layer.weight_ih_l0.grad)
    with pytest.raises(UnsupportedError, match="depends on"):
        lagreach.diagnose(made(OnlyRead), (x, y[..., :1]), lags=[0, 1])


@pytest.mark.parametrize("inner", [LSTM(), TorchGRU()])
def test_factors_of_a_folded_cell_are_those_of_its_rows(inner):
    x, s, params = inner.example(torch.Generator().manual_seed(0), sequences=2 * CHANNELS)
    folded = FoldedCell(inner, CHANNELS)
    wide = x.unflatten(0, (2, CHANNELS)).movedim(1, 2)
    states = folded.fold(s.unflatten(0, (2, CHANNELS)).movedim(1, 2))
    assert torch.equal(folded.unfold(states).movedim(2, 1).flatten(0, 1), s)
    factors, expected = folded.factors(wide.flatten(2), states, params), inner.factors(x, s, params)
    assert factors.is_uniform == expected.is_uniform
    for one, other in zip(factors, expected, strict=True):
        for part, whole in zip(other, one, strict=True):
            torch.testing.assert_close(whole.unflatten(2, (CHANNELS, -1)).movedim(2, 1).flatten(0, 1), part)


def test_pairs_are_pairs_of_sequences():
    x, y = data(40, 6)
    assert plan_blocks(as_sequences((x, y)), 32, 0).sequences == 40
    diagnosis = lagreach.diagnose(made(MODELS["lstm"]), (x, y), lags=[0, 1])
    assert diagnosis.layers[0].window.sequences == 40
