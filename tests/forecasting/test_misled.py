"""What once misled a forecast in silence, or stopped it with a traceback, as it would a diagnosis."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import lagreach
from lagreach.adapters.coupling import refuse_coupling
from lagreach.data.batch import Batch
from lagreach.errors import InputError, UnstableModelError, UnsupportedError
from lagreach.forecasting.linearise import NOT_EXACT
from lagreach.forecasting.network import as_network
from lagreach.forecasting.training_gradients import CUT, cut_gradients


class Reads(nn.Module):
    def __init__(self, outputs=1):
        super().__init__()
        self.rnn, self.out = nn.LSTM(1, 6, batch_first=True), nn.Linear(6, outputs)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


class Loop(nn.Module):
    """A loop over a cell that lets go of its gradient every few steps, or does not; its state may be rounded."""

    def __init__(self, *, detach, rounded=False):
        super().__init__()
        self.cell, self.out, self.detach, self.rounded = nn.GRUCell(1, 6), nn.Linear(6, 1), detach, rounded

    def forward(self, x):
        state, outputs = x.new_zeros(len(x), 6), []
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state.detach() if self.detach and step % 4 == 0 else state)
            state = state.float().to(x.dtype) if self.rounded else state
            outputs.append(self.out(state))
        return torch.stack(outputs, 1)


class Deaf(nn.Module):
    """An output that nothing of the input arrives at; beside it a layer that is not used, or units that are dead."""

    def __init__(self, dead=False):
        super().__init__()
        self.bias, self.into, self.dead = nn.Parameter(torch.ones(1)), nn.Linear(1, 6), dead
        self.out = nn.Linear(6, 1)

    def forward(self, x):
        if self.dead:
            return self.out(torch.relu(self.into(x) - 1e6))
        return self.bias.expand(len(x), x.shape[1], 1)


def drawn(count=64, time=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, time, 1, generator=generator)
    y = 0.5 * torch.randn(count, time, 1, generator=generator)
    y[:, 3:] += x[:, :-3]
    return x, y


def forecast(model, data, **options):
    return lagreach.forecast(model, data, **({"directions": 8, "progress": False} | options))


@pytest.mark.parametrize("dead", [False, True])
def test_models_that_nothing_of_the_input_arrives_in_are_refused(dead):
    for ask in (lagreach.forecast, lagreach.advise):
        with pytest.raises(InputError, match="does not depend on its input"):
            ask(Deaf(dead), drawn(), progress=False)


def test_inputs_that_are_alike_in_the_first_sequences_do_not_make_a_model_deaf():
    x, y = drawn()
    x[:2] = 0
    assert forecast(Reads(), (x, y), lags=[0, 3], weights="readout").found == [False, True]


def test_targets_that_do_not_vary_are_refused():
    x, y = drawn()
    with pytest.raises(InputError, match="same in every sequence"):
        forecast(Reads(), (x, torch.ones_like(y)))
    with pytest.raises(InputError, match="same in every sequence"):
        forecast(Reads(3), (x, torch.zeros(64, 12, dtype=torch.long)), loss="cross_entropy")


def test_inputs_that_all_sequences_share_are_not_denied_a_dependence():
    x, y = drawn()
    shared = forecast(Reads(), (x[:1].repeat(64, 1, 1), y))
    assert np.isnan(shared.adjusted_p).all()
    assert set(shared.limits.values) == {"unknown"}
    assert "cannot be told from these sequences" in str(shared)
    assert any("same in every sequence" in warning for warning in shared.warnings)


def test_only_lags_whose_inputs_are_all_shared_cannot_be_told():
    x, y = drawn()
    x[:, :4] = x[:1, :4]  # of lags above seven, nothing but the first four steps is ever an input
    assert np.isnan(forecast(Reads(), (x, y)).adjusted_p).tolist() == [lag > 7 for lag in range(12)]


def with_a_shared_column(seed, strength=0.0, own=0.0):
    """A course over time in an input and one in the targets, both the same in all sequences; the other input may matter."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(256, 24, 2, generator=generator)
    x[..., 0] = torch.randn(1, 24, generator=generator) + own * x[..., 0]
    y = torch.randn(1, 24, 1, generator=generator) + 0.5 * torch.randn(256, 24, 1, generator=generator)
    y[:, 3:] += strength * x[:, :-3, 1:]
    return x, y


def found(data):
    model = lagreach.GatedRNN("lstm", 2, 8, 1, generator=torch.Generator().manual_seed(0))
    return forecast(model, data, lags=[0, 1, 3, 8], weights="readout")


@pytest.mark.parametrize("own", [0.0, 0.5])
def test_what_all_sequences_share_is_no_dependence_and_what_they_do_not_share_still_is(own):
    assert not any(found(with_a_shared_column(0, own=own)).found)
    assert found(with_a_shared_column(0, strength=0.3, own=own)).found == [False, False, True, False]


def test_a_column_that_all_sequences_share_is_said():
    said = "column 0 of the input is the same in every sequence"
    assert any(said in warning for warning in found(with_a_shared_column(0)).warnings)
    assert not any(said in warning for warning in found(with_a_shared_column(0, own=0.5)).warnings)


@pytest.mark.thorough
def test_shared_columns_are_named_no_more_often_than_the_error_allows():
    named = sum(any(found(with_a_shared_column(seed)).found) for seed in range(40))
    assert named <= 5  # one in twenty, and what chance adds to it in forty draws
    assert all(found(with_a_shared_column(seed, strength=0.3)).found[2] for seed in range(10))


@pytest.mark.thorough
def test_copies_and_overlapping_windows_are_said():
    x, y = drawn(24)
    copies = forecast(Reads(), (x.repeat(3, 1, 1), y.repeat(3, 1, 1)))
    assert any("48 of 72 sequences are copies" in warning for warning in copies.warnings)
    series = torch.randn(300, 2, generator=torch.Generator().manual_seed(1))
    windows = torch.stack([series[i : i + 12] for i in range(289)])
    overlapping = forecast(Reads(), (windows[..., :1], windows[..., 1:]))
    assert any("the sequences overlap" in warning for warning in overlapping.warnings)


def test_random_walks_cannot_be_told():
    walks = torch.randn(400, 2, generator=torch.Generator().manual_seed(2)).cumsum(0)
    made = forecast(Reads(), lagreach.cut_series(walks[:, :1], walks[:, 1:], 12))
    assert np.isnan(made.adjusted_p).all()
    assert not any(made.found)


@pytest.mark.thorough
def test_a_loop_that_detaches_is_said_and_one_that_does_not_is_not():
    assert CUT in forecast(Loop(detach=True), drawn()).warnings
    assert CUT not in forecast(Loop(detach=False), drawn()).warnings


def cut(model, x):
    """What is said of the gradients of a model."""
    batch = Batch(x[:2], torch.zeros(2, 1))
    return cut_gradients(as_network(model, batch), batch)


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize("rounded", [False, True])
def test_a_model_that_rounds_inside_is_not_taken_for_one_that_detaches(seed, rounded):
    torch.manual_seed(seed)
    x, _ = drawn(time=24)
    assert cut(Loop(detach=True, rounded=rounded), x) == CUT
    assert cut(Loop(detach=False, rounded=rounded), x) is None


@pytest.mark.parametrize("detach", [False, True])
def test_the_row_of_an_embedding_for_padding_has_no_gradient_and_is_no_cut(detach):
    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.read = nn.Embedding(4, 8, padding_idx=0), nn.Linear(8, 1)
            nn.init.normal_(self.tokens.weight)  # as some libraries do, its padding row too

        def forward(self, x):
            values = self.tokens(x)
            return self.read(torch.tanh(values.detach() if detach else values))

    torch.manual_seed(0)
    assert cut(Embedded(), torch.arange(24).view(2, 12) % 4) == (CUT if detach else None)


class Packed(Reads):
    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.out(self.rnn(packed)[1][0][-1])


def test_derivatives_are_exact_also_where_a_call_hands_x_on_as_it_is():
    x, _ = drawn()
    lengths = torch.randint(6, 13, (64,), generator=torch.Generator().manual_seed(1))
    data = {"x": x * (torch.arange(12) < lengths[:, None])[..., None], "y": x[:, 2], "lengths": lengths}
    torch.manual_seed(0)
    model = Packed()
    made, own = (
        forecast(model, data, call=call) for call in (lambda model, batch: model(batch.x, batch.lengths), None)
    )
    assert NOT_EXACT not in made.warnings
    np.testing.assert_array_equal(made.reachable.values, own.reachable.values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gives_the_shares_of_the_same_weights_in_single(dtype):
    model = Reads().to(dtype)
    same = Reads()
    same.load_state_dict({name: weight.float() for name, weight in model.state_dict().items()})
    made, expected = (forecast(one, drawn(), weights="readout") for one in (model, same))
    np.testing.assert_array_equal(made.readable.values, expected.readable.values)
    assert next(model.parameters()).dtype == dtype
    assert any(str(dtype).removeprefix("torch.") in warning for warning in made.warnings)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sequences": "abc"}, "'abc'"),
        ({"sequences": [10.5]}, "10.5"),
        ({"error": 0.0}, "error=0.0"),
        ({"error": 2.0}, "error=2.0"),
        ({"directions": math.nan}, "directions=nan"),
        ({"directions": 2.5}, "directions=2.5"),
        ({"budget": 0}, "budget=0"),
        ({"budget": math.nan}, "budget=nan"),
        ({"memory": -5}, "memory=-5"),
        ({"pilot": -1}, "pilot=-1"),
    ],
)
@pytest.mark.usefixtures("_as_users_run_it")
def test_limits_that_are_none_are_refused(options, said):
    with pytest.raises(InputError) as refused:
        forecast(Reads(), drawn(), **options)
    assert said in str(refused.value)


def test_numbers_that_are_no_inputs_or_targets_are_refused():
    x, y = drawn()
    for wrong in (x > 0, x.cfloat()):
        with pytest.raises(InputError, match="numbers or tokens"):
            forecast(Reads(), (wrong, y))
    with pytest.raises(InputError, match="complex"):
        forecast(Reads(), (x, y.cfloat()))
    with pytest.raises(InputError, match="complex"):
        lagreach.diagnose(Reads(), (x, y.cfloat()), lags=[0, 3])


class StepsFirst(nn.Module):
    """A model whose layer takes the first axis for steps; nothing in forward says so."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        if kind == "attention":
            self.front, self.layer = nn.Linear(1, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        else:
            self.layer = getattr(nn, kind)(1, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        if self.kind == "attention":  # causal, along the axis of sequences
            return self.out(self.layer(self.front(x), nn.Transformer.generate_square_subsequent_mask(len(x))))
        return self.out(self.layer(x)[0])


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "attention"])
def test_layers_that_take_sequences_for_steps_are_refused_by_name_everywhere(kind):
    x, y = drawn()
    for look in (
        lambda: forecast(StepsFirst(kind), (x, y), weights="readout"),
        lambda: lagreach.diagnose(StepsFirst(kind), (x, y), lags=[0, 3]),
        lambda: lagreach.advise(StepsFirst(kind), (x, y), lag=3, sequences=500),
    ):
        with pytest.raises(
            UnsupportedError, match=r"depends on the other sequences.*(\n.*)*layer.*with batch_first=True"
        ):
            look()


def test_a_call_that_turns_the_axes_is_taken():
    def turned(model, batch):
        return model(batch.x.transpose(0, 1)).transpose(0, 1)

    assert len(forecast(StepsFirst("LSTM"), drawn(), weights="readout", call=turned).readable)


@pytest.mark.parametrize("lengths", [[12, 5], [5, 12]])
def test_sequences_that_are_unpacked_to_the_longest_of_their_batch_are_not_mixed(lengths):
    model, packed = Reads().eval(), nn.utils.rnn.pack_padded_sequence

    def call(model, batch):
        states, _ = model.rnn(packed(batch.x, batch.lengths, batch_first=True, enforce_sorted=False))
        return model.out(nn.utils.rnn.pad_packed_sequence(states, batch_first=True)[0])  # its bias beyond the end

    x, y = drawn(2)
    batch = Batch(x, y, lengths=torch.tensor(lengths))
    refuse_coupling(model, call, batch, 12)
    with pytest.raises(
        UnstableModelError, match="depends on the other sequences"
    ):  # the same call, of a model that mixes
        refuse_coupling(model, lambda *given: call(*given).cumsum(0), batch, 12)


class Padded(nn.Module):
    """In evaluation torch makes nested tensors of sequences that are padded, unless it is told not to."""

    def __init__(self):
        super().__init__()
        self.read_in, self.out = nn.Linear(4, 8), nn.Linear(8, 1)
        self.encode = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)

    def forward(self, x, lengths):
        padding = torch.arange(x.shape[1]) >= lengths[:, None]
        return self.out(self.encode(self.read_in(x), src_key_padding_mask=padding))


def test_transformers_with_padding_are_seen_without_nested_tensors():
    torch.manual_seed(0)
    x, lengths = torch.randn(64, 10, 4), torch.randint(4, 11, (64,))
    data = {"x": x, "y": x.roll(2, 1)[..., :1], "lengths": lengths}
    made = lagreach.forecast(Padded(), data, lags=[0, 2], outputs="per step", directions=8)
    assert np.isfinite(made.if_present.values).all()
    assert lagreach.diagnose(Padded(), data, lags=[0, 2], outputs="per step", progress=False).layers
    assert torch.backends.mha.get_fastpath_enabled()
