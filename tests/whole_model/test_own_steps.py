"""Whether a recurrent layer's steps are those of the data: what stands in front of it and behind it may mix or shift them."""

import pytest
import torch
from torch import nn
from torch.nn.functional import linear, max_pool1d, pad, relu

import lagreach
from lagreach.data.batch import Batch
from lagreach.whole_model.choice import choose_lags

TIME = 24


def later(values, steps):
    return pad(values[:, :-steps], (0, 0, steps, 0))


class Around(nn.Module):
    """A recurrent layer, with a function of the input in front and one of the states behind."""

    def __init__(self, front="plain", tail="plain", kind="LSTM", **options):
        super().__init__()
        torch.manual_seed(0)
        self.front, self.tail = FRONTS[front], TAILS[tail]
        self.read, self.norm, self.drop = nn.Linear(1, 8), nn.LayerNorm(8), nn.Dropout(0.5)
        self.place = nn.Parameter(torch.randn(TIME, 8))
        self.taps, self.strided = nn.Conv1d(1, 8, 3, padding=1), nn.Conv1d(1, 8, 2, stride=2)
        self.layer = getattr(nn, kind)(8, 6, batch_first=True, **options)
        width = 6 * (1 + self.layer.bidirectional)
        self.over_states, self.readout = nn.Conv1d(width, width, 3, padding=1), nn.Linear(width, 1)

    def forward(self, x):
        return self.readout(self.tail(self, self.layer(self.front(self, x))[0]))


class Packed(Around):
    """Sequences are cut where zeros begin."""

    def forward(self, x):
        lengths = (x != 0).any(-1).sum(1)
        rows = nn.utils.rnn.pack_padded_sequence(self.front(self, x), lengths, batch_first=True, enforce_sorted=False)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.layer(rows)[0], batch_first=True, total_length=x.shape[1])
        return self.readout(self.tail(self, states)) + x


class Loop(Around):
    """A loop over a cell."""

    def __init__(self, front, tail="plain"):
        super().__init__(front, tail)
        self.layer = nn.GRUCell(8, 6)

    def forward(self, x):
        state, states = None, []
        for step in self.front(self, x).unbind(1):
            state = self.layer(step, state)
            states.append(state)
        return self.readout(self.tail(self, torch.stack(states, 1)))


class OwnCell(nn.Module):
    """A cell of one's own."""

    def __init__(self):
        super().__init__()
        self.read, self.keep = nn.Linear(8, 6), nn.Linear(6, 6)

    def forward(self, x, state):
        return torch.tanh(self.read(x) + self.keep(state))


class OwnLoop(Loop):
    """A loop over a cell of one's own."""

    def __init__(self, front, tail):
        super().__init__(front, tail)
        self.layer = OwnCell()
        del self.taps, self.strided, self.over_states

    def forward(self, x):
        state, states = x.new_zeros(len(x), 6), []
        for step in self.front(self, x).unbind(1):
            state = self.layer(step, state)
            states.append(state)
        return self.readout(self.tail(self, torch.stack(states, 1)))


class Tokens(Around):
    """An embedding, and what follows."""

    def __init__(self, front):
        super().__init__(front)
        self.embedding = nn.Embedding(11, 1)

    def forward(self, tokens):
        return super().forward(self.embedding(tokens))


class TimeFirst(Around):
    """Channels, and then steps."""

    def forward(self, x):
        return super().forward(x.transpose(1, 2))


class Encoded(nn.Module):
    """A recurrent encoder that does not learn, below a layer that does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.layer = nn.LSTM(1, 8, batch_first=True), nn.LSTM(8, 6, batch_first=True)
        self.readout = nn.Linear(6, 1)

    def forward(self, x):
        return self.readout(self.layer(self.encoder(x)[0].detach())[0])


FRONTS = {
    "plain": lambda model, x: model.read(x),
    "norm, dropout, positions": lambda model, x: model.drop(model.norm(model.read(x) + model.place[: x.shape[1]])),
    "fewer steps": lambda model, x: model.read(x[:, :-1]),
    "a step in front": lambda model, x: pad(model.read(x), (0, 0, 1, 0)),
    "convolution": lambda model, x: model.taps(x.transpose(1, 2)).transpose(1, 2),
    "rectified": lambda model, x: relu(model.taps(x.transpose(1, 2)) - 1).transpose(1, 2),
    "causal convolution": lambda model, x: model.taps(pad(x.transpose(1, 2), (1, 0)))[..., :-1].transpose(1, 2),
    "delay": lambda model, x: model.read(later(x, 2)),
    "moving average": lambda model, x: model.read((x + later(x, 1) + later(x, 2)) / 3),
    "difference": lambda model, x: model.read(x - later(x, 1)),
    "sum": lambda model, x: model.read(x.cumsum(1)),
    "lagged": lambda model, x: linear(torch.cat([x, later(x, 3)], -1), model.read.weight.repeat(1, 2)),
    "normalised windows": lambda model, x: model.read((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)),
    "strided": lambda model, x: model.strided(x.transpose(1, 2)).transpose(1, 2),
    "max-pool": lambda model, x: max_pool1d(model.taps(x.transpose(1, 2)), 2).transpose(1, 2),
}
TAILS = {
    "plain": lambda model, states: states,
    "last": lambda model, states: states[:, -1],
    "mean": lambda model, states: states.mean(1),
    "moving average": lambda model, states: (states + later(states, 1)) / 2,
    "convolution": lambda model, states: model.over_states(states.transpose(1, 2)).transpose(1, 2),
    "shift": lambda model, states: later(states, 2),
}
STRIDED = ("strided", "max-pool")
FEWER = ("fewer steps", "a step in front")
OWN = ("plain", "norm, dropout, positions", *FEWER)


def inputs():
    return torch.randn(4, TIME, 1, generator=torch.Generator().manual_seed(1))


def chosen(model, x=None, **options):
    x = inputs() if x is None else x
    with torch.no_grad():
        return choose_lags(model, Batch(x, model(x)), **options)


@pytest.mark.parametrize("front", [front for front in FRONTS if front not in OWN])
def test_behind_a_front_that_mixes_steps_lags_are_those_of_the_whole_model(front):
    choice = chosen(Around(front, "last" if front in STRIDED else "plain"))
    assert choice.of == "model"
    assert "in front of layer" in choice.why
    assert chosen(Around(front, "last" if front in STRIDED else "plain"), of_layers=True).of == "layers"


@pytest.mark.parametrize("tail", ["moving average", "convolution", "shift"])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"num_layers": 2}], ids=str)
def test_before_a_tail_that_mixes_steps_lags_are_those_of_the_whole_model(tail, options):
    choice = chosen(Around(tail=tail, **options))
    assert choice.of == "model"
    assert "behind layer" in choice.why


@pytest.mark.parametrize("model", [Loop("convolution"), Loop("plain", "shift"), OwnLoop("plain", "shift")])
def test_loops_over_cells_are_no_exception(model):
    assert chosen(model).of == "model"


def test_lags_of_a_bidirectional_layer_behind_a_convolution():
    assert chosen(Around("convolution", bidirectional=True)).of == "model"


@pytest.mark.parametrize("front", OWN)
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"num_layers": 2, "kind": "GRU"}], ids=str)
def test_what_treats_steps_on_their_own_leaves_lags_to_the_layer(front, options):
    choice = chosen(Around(front, **options))
    assert (choice.of, choice.notes) == ("layers", ())


@pytest.mark.parametrize("tail", ["last", "mean"])
def test_heads_that_give_one_output_leave_lags_to_the_layer(tail):
    assert chosen(Around(tail=tail)).of == "layers"


@pytest.mark.parametrize("model", [Loop("plain"), OwnLoop("plain", "plain")])
def test_loops_over_steps_of_their_own_are_carried_back(model):
    assert chosen(model).of == "layers"


def test_sequences_that_a_model_packs_by_their_zeros():
    x = inputs()
    x[0, 15:] = x[2, 9:] = x[3, 23:] = 0
    assert chosen(Packed(), x).of == "layers"
    assert chosen(Packed("delay"), x).of == "model"


def test_steps_may_stand_on_another_axis_of_the_input():
    channels = torch.randn(4, 1, TIME, generator=torch.Generator().manual_seed(1))
    assert chosen(TimeFirst(), channels).of == "layers"


@pytest.mark.parametrize(("front", "of"), [("plain", "layers"), ("delay", "model")])
def test_tokens(front, of):
    assert chosen(Tokens(front), torch.randint(0, 11, (4, TIME), generator=torch.Generator().manual_seed(1))).of == of


def test_where_nothing_can_be_exchanged_nothing_is_said():
    assert chosen(Around("delay"), inputs()[:1].repeat(3, 1, 1)).of == "layers"


@pytest.mark.parametrize(
    ("model", "why"),
    [(Encoded(), "no gradient gets from its output"), (Around("strided"), "not one for each step of the input")],
)
def test_layers_whose_lags_are_not_those_of_the_data_say_so(model, why):
    choice = chosen(model)
    assert choice.of == "layers"
    assert "need not be one of the data" in choice.notes[-1]
    assert why in choice.notes[-1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "around", [{"front": "convolution"}, {"front": "delay"}, {"front": "lagged"}, {"tail": "shift"}], ids=str
)
def test_only_the_true_lag_is_named(around):
    """Lags 4, 5 and 6 were named behind a convolution, 3 behind a delay of two, and 2 and 5 where inputs came twice."""
    torch.manual_seed(0)
    x = torch.randn(300, TIME, 1)
    y = later(x, 5) + 0.3 * torch.randn(300, TIME, 1)
    diagnosis = lagreach.diagnose(Around(**around), (x, y), lags=range(9))
    assert diagnosis.settings["lags_of"] == "model"
    assert diagnosis.layers[0].window.dependences == (5,)
