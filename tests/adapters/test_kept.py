"""Models that keep a state between calls: named, and left as they were."""

import pytest
import torch
from torch import nn

import lagreach
from lagreach.adapters import find_views
from lagreach.adapters.kept import Kept, remembered
from lagreach.data.batch import Batch
from lagreach.errors import InputError, UnsupportedError


class Stateful(nn.Module):
    """Hands its state on from batch to batch, as training by truncated backpropagation does."""

    def __init__(self, kind="LSTM", where="attribute"):
        super().__init__()
        self.rnn, self.read = getattr(nn, kind)(3, 4, batch_first=True), nn.Linear(4, 1)
        self.where = where
        self.state = None
        self.register_buffer("last", torch.zeros(1, 1, 4))
        self.states = []

    def forward(self, x):
        if self.where == "list":
            output, state = self.rnn(x, self.states[-1] if self.states else None)
            self.states.append(state.detach())
        elif self.where == "in place":
            output, state = self.rnn(x, self.last.expand(1, len(x), 4).contiguous())
            self.last.copy_(state[:, :1].detach() + 1)
        else:
            output, state = self.rnn(x, self.state)
            self.state = tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()
        return self.read(output)


def data(generator, count=24):
    return torch.randn(count, 6, 3, generator=generator), torch.randn(count, 6, 1, generator=generator)


def reset_and_call(model, batch):
    model.state = None
    return model(batch.x)


@pytest.mark.parametrize(
    ("model", "name"), [(Stateful("LSTM"), "state"), (Stateful("GRU"), "state"), (Stateful("GRU", "list"), "states")]
)
def test_a_state_that_is_kept_is_named_with_what_to_do(model, name, generator):
    x, y = data(generator)
    with pytest.raises(UnsupportedError, match=rf"keeps a state between calls, in model\.{name}") as refusal:
        find_views(model, Batch(x, y))
    assert f"def call(model, batch): model.{name} = None; return model(batch.x)" in str(refusal.value)
    assert model.state is None
    assert model.states == []


class KeepsAttention(nn.Module):
    """Attends to what the batch before left, which only lags of the whole model can be asked of."""

    def __init__(self):
        super().__init__()
        self.look, self.read, self.memory = nn.Linear(3, 4), nn.Linear(4, 1), None

    def forward(self, x):
        hidden = self.look(x).cumsum(1).tanh()
        shown = hidden if self.memory is None else hidden + self.memory
        self.memory, self.calls = hidden.detach(), torch.ones(1)
        return self.read(shown)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Stateful("LSTM"), "model.state"),
        pytest.param(lambda: Stateful("GRU", "list"), "model.states", marks=pytest.mark.thorough),
        pytest.param(KeepsAttention, "model.memory and model.calls", marks=pytest.mark.thorough),
    ],
)
def test_a_diagnosis_starts_every_sequence_without_a_state_and_says_so(make, name, generator):
    torch.manual_seed(0)
    model = make()
    x, y = data(generator)
    started_fresh = lagreach.diagnose(model, (x, y), lags=[0, 1])
    assert any(
        f"keeps a state between calls, in {name}: every sequence was started without" in w
        for w in started_fresh.warnings
    )
    assert getattr(model, "state", None) is None
    assert not getattr(model, "states", [])

    def reset(module, batch):
        module.state, module.states, module.memory = None, [], None
        return module(batch.x)

    by_hand = lagreach.diagnose(model, (x, y), lags=[0, 1], call=reset)
    one, other = (diagnosis.layers[0].window.adjusted_p.tolist() for diagnosis in (started_fresh, by_hand))
    assert one == other


def test_a_state_left_by_another_batch_is_named(generator):
    model = Stateful("GRU")
    x, y = data(generator)
    model(x[:7])
    with pytest.raises(InputError, match=r"if model\.state is a state left by an earlier call"):
        lagreach.diagnose(model, (x, y), lags=[0, 1])


def test_a_state_changed_in_place_is_told_from_nothing_at_all(generator):
    x, y = data(generator)
    with pytest.raises(UnsupportedError, match=r"keeps a state between calls, say in model\.last"):
        find_views(Stateful("GRU", "in place"), Batch(x, y))


@pytest.mark.thorough
def test_a_call_that_resets_the_state_works_and_leaves_the_training_its_state(generator):
    model = Stateful("GRU")
    x, y = data(generator)
    model(x[:5])
    before = model.state
    measured = lagreach.diagnose(model, (x, y), lags=[0, 1], call=reset_and_call)
    assert model.state is before
    fresh = Stateful("GRU", "list")  # the same weights, without any state
    fresh.load_state_dict(model.state_dict())

    def call(module, batch):
        module.states = []
        return module(batch.x)

    again = lagreach.diagnose(fresh, (x, y), lags=[0, 1], call=call)
    one, other = (diagnosis.layers[0].window.adjusted_p.tolist() for diagnosis in (measured, again))
    assert one == other


def test_a_cache_that_changes_nothing_is_no_state(generator):
    class Cached(Stateful):
        def forward(self, x):
            output = self.rnn(x)[0]
            self.state, self.shown = output.detach(), [output.detach()]
            return self.read(output)

    model = Cached("GRU")
    x, y = data(generator)
    find_views(model, Batch(x, y))
    assert model.state is None
    assert not hasattr(model, "shown")


def test_a_model_made_for_one_number_of_sequences_is_refused(generator):
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.read = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 1)

        def forward(self, x):
            return self.read(self.rnn(x, x.new_zeros(1, 2, 4))[0])

    x, y = data(generator, 2)
    with pytest.raises(InputError, match="does not run on a single sequence"):
        find_views(Fixed(), Batch(x, y))


def test_everything_is_put_back():
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    kept, inner = torch.ones(2), [torch.zeros(1)]
    model.pair, model.pile, model.by_name = (kept, None), [inner], {"a": kept}
    model[0].register_buffer("held", torch.zeros(3))
    held = model[0].held
    with remembered(model) as before:
        model.pair = (kept, kept)
        inner.append(kept)
        model.by_name["b"] = kept
        model[0].held = torch.ones(3)
        model[1].new = kept
        assert set(before.changed()) == {"pair", "pile", "by_name", "0.held", "1.new"}
    assert model.pair == (kept, None)
    assert model.pile == [inner]
    assert len(inner) == 1
    assert model.by_name == {"a": kept}
    assert model[0].held is held
    assert not hasattr(model[1], "new")
    assert Kept(model).changed() == []
