"""What misled a new user, each as it was met: lags that automatic bands hid, "learned" without learning, heads that pool."""

import pytest
import torch
from torch import nn

import lagreach
from lagreach.types import Status


class Read(nn.Module):
    """A layer, and a readout of its last state or of the mean over time."""

    def __init__(self, kind, hidden, pool=False):
        super().__init__()
        self.layer, self.readout, self.pool = kind(2, hidden, batch_first=True), nn.Linear(hidden, 1), pool

    def forward(self, x):
        states = self.layer(x)[0]
        return self.readout(states.mean(1) if self.pool else states[:, -1])


def marked(count, length, lag, seed=0):
    """The target is the marked input so many steps before the end."""
    x = torch.randn(count, length, 2, generator=torch.Generator().manual_seed(seed))
    x[..., 1] = 0.0
    x[:, length - 1 - lag, 1] = 1.0
    return x, x[:, length - 1 - lag, :1]


def fresh(kind, hidden=16, seed=0, **options):
    torch.manual_seed(seed)
    return Read(kind, hidden, **options)


@pytest.mark.thorough
def test_automatic_lags_find_what_every_lag_finds():
    """In a band of several lags the noise of the nearest one hid the others: nothing was found at lag 40 in half of the runs."""
    data = marked(300, 45, 40)
    model = fresh(nn.LSTM, 16)
    automatic, every = (lagreach.measure_window(model, data, lags=lags).dependences for lags in ("auto", range(45)))
    assert automatic == every == (40,)


def test_a_forecast_looks_at_every_lag():
    made = lagreach.forecast(fresh(nn.LSTM, 8), marked(128, 45, 33), weights="readout")
    assert made.lags == tuple(range(45))
    assert [lag for lag, word in zip(made.lags, made.limits.values, strict=True) if word != "none found"] == [33]


def test_a_network_that_is_worse_than_a_constant_has_learned_nothing():
    """An untrained network with a loud readout leans the right way by chance, and the loss rises without the input."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(300, 24, 1, generator=g)
    y = nn.functional.pad(x[:, :-8], (0, 0, 8, 0))
    model = lagreach.GatedRNN("diag_elman", 1, 16, 1, generator=torch.Generator().manual_seed(0), gate_init=0.02)
    with torch.no_grad():
        model.readout.weight.mul_(3)
        lean = model.readout.weight.clone()
        states = model(x)[:, 8:, 0]
        model.readout.weight.copy_(lean * torch.sign((states * y[:, 8:, 0]).mean()))
    window = lagreach.measure_window(model, (x, y), lags=[0, 4, 8])
    assert window.reliance.rise[window.reliance.lags.index(8)] > 0.02
    assert window.reliance.explained < 0
    assert window.limit(8) is not Status.LIMIT_LEARNED


def test_how_much_is_learned_is_said():
    """Three units that hold a quarter of the target were called "learned", and no more was said."""
    x = torch.randn(200, 16, 1, generator=torch.Generator().manual_seed(0))
    y = x + 1.7 * torch.randn(200, 16, 1, generator=torch.Generator().manual_seed(1))
    model = lagreach.GatedRNN("diag_gate", 1, 2, 1, gate_init=0.99)
    with torch.no_grad():
        model.layers[0]["U_h"].zero_()
        model.layers[0]["W_h"].fill_(0.1)  # nearly linear
        model.readout.weight.fill_(5.0)
    said = lagreach.diagnose(model, (x, y), lags=[0, 1, 2])
    explained = said.layers[0].window.reliance.explained
    assert 0.15 < explained < 0.35  # 1 / (1 + 1.7^2)
    assert said.layers[0].window.limit(0) is Status.LIMIT_LEARNED
    assert f"explains {explained:.0%} of the target and has learned" in str(said)


def part_learned(share, sequences=300, seed=0):
    """A network without memory whose output is so many times the best one, and the share of lag 0 that it has learned."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(sequences, 16, 1, generator=g)
    y = x + torch.randn(sequences, 16, 1, generator=g)
    model = lagreach.GatedRNN("diag_gate", 1, 2, 1, gate_init=0.999)
    with torch.no_grad():
        model.layers[0]["U_h"].zero_()
        model.layers[0]["W_h"].fill_(0.01)  # nearly linear
        model.readout.weight.fill_(50.0 * share)
        model.readout.bias.zero_()
    return lagreach.diagnose(model, (x, y), lags=[0, 1, 2])


@pytest.mark.thorough
@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_the_share_of_the_lag_is_said(share):
    """Of what lag 0 explains, a model that puts out a times as much has learned 2 a - a^2, whatever the noise beside it."""
    diagnosis = part_learned(share)
    window = diagnosis.layers[0].window
    expected = 2 * share - share**2
    assert window.learned(0) == pytest.approx(expected, abs=0.08)
    assert (window.limit(0) is Status.LIMIT_LEARNED) == (expected > 0.5)
    assert f"has learned {window.learned(0):.0%} of lag 0" in str(diagnosis)


def test_a_lag_that_does_more_harm_than_good_is_not_learned():
    """Three times too loud: the loss rises when the input is exchanged, but the model were better off without it."""
    window = part_learned(3.0).layers[0].window
    assert window.reliance.rise[0] > 0.02
    assert window.learned(0) == 0.0
    assert window.limit(0) is not Status.LIMIT_LEARNED


@pytest.mark.thorough
def test_a_pooling_head_sees_old_inputs_without_the_recurrence():
    data = marked(200, 24, 15)
    pooled = lagreach.diagnose(fresh(nn.LSTM, pool=True), data, lags=[0, 8, 15])
    plain = lagreach.diagnose(fresh(nn.LSTM), data, lags=[0, 8, 15])
    assert "arrive at lag 0 as well" in str(pooled).replace("\n", " ")
    assert "gate bias" not in str(pooled)
    assert "at lag 0, so a lag out of reach here" in " ".join(str(pooled).split())
    assert "lag 0 as well" not in str(plain)


def test_a_plain_recurrence_gets_a_remedy():
    said = " ".join(str(lagreach.diagnose(fresh(nn.RNN), marked(200, 24, 19), lags=[0, 5, 19])).split())
    assert "torch.nn.init.orthogonal_" in said
    assert "advise_gates(model, x, lag=19).apply(model)" in said


@pytest.mark.parametrize("steps", [None, 3])
def test_small_columns_are_named(steps):
    x = torch.randn(64, 12, 3, generator=torch.Generator().manual_seed(0))
    y, lengths = x[..., :1].roll(1, 1), None if steps is None else torch.full((64,), 12 - steps)
    torch.manual_seed(0)
    model = lagreach.GatedRNN("gru", 3, 6, 1)

    def said(x):
        data = {"x": x, "y": y} | ({} if lengths is None else {"lengths": lengths})
        return [
            note
            for note in lagreach.diagnose(model, data, lags=[0, 1], progress=False).warnings
            if "differ in scale" in note
        ]

    assert not said(x)
    x[..., 1] *= 0.01
    (note,) = said(x)
    assert "column 1 varies" in note
