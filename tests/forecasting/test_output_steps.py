"""Which step an output belongs to: told by what feeds it, by the user, or asked."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

import lagreach
from lagreach.advice.changes import UNITS
from lagreach.errors import InputError, UnsupportedError

TIME = 12
LAGS = [0, 2, 5]


class AtTheEnd(nn.Module):
    """A forecast of several steps from the last state, in one of the shapes that people give it."""

    def __init__(self, *shape, pooled=False):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.out = nn.LSTM(1, 8, batch_first=True), nn.Linear(8, int(np.prod(shape)))
        self.shape, self.pooled = shape, pooled

    def forward(self, x):
        states = self.layer(x)[0]
        return self.out(states.mean(1) if self.pooled else states[:, -1]).unflatten(1, self.shape)


class Mixed(nn.Module):
    """Attention in both directions: every output is fed by all inputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.into, self.mix, self.out = nn.Linear(1, 8), nn.MultiheadAttention(8, 1, batch_first=True), nn.Linear(8, 1)

    def forward(self, x):
        inner = self.into(x)
        return self.out(self.mix(inner, inner, inner)[0])


class Strided(nn.Module):
    """One output for every two steps."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.front, self.layer = nn.Conv1d(1, 6, 2, stride=2), nn.GRU(6, 8, batch_first=True)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return self.out(self.layer(self.front(x.mT).mT)[0])


class EveryStep(nn.Module):
    """A number at every step, in one of the shapes that people give it."""

    def __init__(self, *axis):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.out, self.axis = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 1), axis

    def forward(self, x):
        return self.out(self.layer(x)[0]).reshape(*x.shape[:2], *self.axis)


class Unpacked(EveryStep):
    """The same with sequences of several lengths, unpacked to the longest of their batch."""

    def forward(self, x, lengths):
        packed = rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states = rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]
        return self.out(states).reshape(*states.shape[:2], *self.axis)


def data(horizon=TIME, count=96):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, TIME, 1, generator=generator)
    return x, x[:, -3] + 0.5 * torch.randn(count, horizon, generator=generator)


def forecast(model, given, **options):
    return lagreach.forecast(model, given, **({"lags": LAGS, "directions": 8, "progress": False} | options))


def at_every_step(count=96):
    x, _ = data(count=count)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    return x, nn.functional.pad(x[:, :-2], (0, 0, 2, 0)) + 0.3 * noise


@pytest.mark.parametrize("masked", [False, True])
def test_an_axis_of_one_adds_nothing_to_outputs_and_targets_of_every_step(masked):
    x, y = at_every_step()
    beside = (torch.arange(TIME).expand(96, -1) > 3,) if masked else ()
    made = forecast(EveryStep(1), (x, y, *beside), weights="readout")
    assert made.settings["outputs"] == "per step"
    assert made.found == [False, True, False]
    for axis, targets, said in (
        ((), y, None),
        ((), y, "per step"),
        ((), y[..., 0], None),
        ((1,), y[..., 0], "per step"),
    ):
        other = forecast(EveryStep(*axis), (x, targets, *beside), weights="readout", outputs=said)
        assert other.settings["outputs"] == "per step"
        np.testing.assert_array_equal(other.readable.values, made.readable.values)


def test_whole_numbers_at_every_step_are_targets_of_that_step_too():
    x, y = at_every_step()
    whole = (3 * y).round().long()
    shares = [forecast(EveryStep(), (x, one), weights="readout").readable.values for one in (whole, whole[..., 0])]
    expected = forecast(EveryStep(1), (x, whole.float()), weights="readout").readable.values
    np.testing.assert_array_equal(shares, [expected, expected])


@pytest.mark.parametrize("lags_of", ["layers", "model"])
def test_a_diagnosis_takes_an_axis_of_one_for_nothing(lags_of):
    x, y = at_every_step(64)
    made = [
        lagreach.diagnose(EveryStep(*axis), (x, y), lags=LAGS, lags_of=lags_of, progress=False) for axis in ((), (1,))
    ]
    assert made[0].settings["anchors"] == made[1].settings["anchors"] == TIME
    one, other = (each.layers[0].window.required.sequences for each in made)
    np.testing.assert_array_equal(one, other)


def test_an_axis_of_one_adds_nothing_to_unpacked_sequences():
    x, y = at_every_step()
    lengths = torch.randint(TIME // 2, TIME, (96,), generator=torch.Generator().manual_seed(2))  # all shorter than x
    given = (x, y, None, lengths)
    made, other = (forecast(Unpacked(*axis), given, weights="readout") for axis in ((1,), ()))
    assert made.settings["outputs"] == other.settings["outputs"] == "per step"
    np.testing.assert_array_equal(other.readable.values, made.readable.values)


@pytest.mark.parametrize("shape", [(TIME,), (TIME, 1)])
def test_a_forecast_from_the_last_state_stays_one_when_targets_have_an_axis_of_one(shape):
    x, y = data()
    made = forecast(AtTheEnd(*shape), (x, y[..., None] if shape == (TIME,) else y), weights="readout")
    assert made.settings["outputs"] == "at the end"
    with pytest.raises(InputError, match="a forecast made at the end"):
        forecast(AtTheEnd(TIME, pooled=True), (x, y[..., None]), weights="readout")


@pytest.mark.parametrize("shape", [(TIME,), (TIME, 1), (1, TIME)])
def test_a_forecast_as_long_as_its_look_back_belongs_to_the_end_in_any_shape(shape):
    x, y = data()
    made, flat = forecast(AtTheEnd(*shape), (x, y.unflatten(1, shape))), forecast(AtTheEnd(1, TIME), (x, y))
    assert made.settings["outputs"] == "at the end"
    np.testing.assert_array_equal(made.needed.values, flat.needed.values)
    np.testing.assert_array_equal(made.if_present.values, flat.if_present.values)
    assert made.found == flat.found == [False, True, False]


def test_a_horizon_of_another_length_is_no_longer_refused():
    x, y = data(5)
    made, flat = forecast(AtTheEnd(5, 1), (x, y[..., None])), forecast(AtTheEnd(5), (x, y))
    np.testing.assert_array_equal(made.needed.values, flat.needed.values)


def test_classes_at_the_end_and_masked_targets_belong_to_the_last_step():
    x, y = data()
    classes = forecast(AtTheEnd(TIME, 2), (x, (y > 0).long()), loss="cross_entropy", outputs="at the end")
    masked = forecast(AtTheEnd(TIME, 1), (x, y, torch.ones(96, TIME)))
    assert classes.found == masked.found == [False, True, False]


def test_what_feeds_all_outputs_alike_is_asked_and_the_answer_counts():
    x, y = data()
    for model in (AtTheEnd(TIME, pooled=True), Mixed()):
        targets = y if isinstance(model, AtTheEnd) else y[..., None]
        with pytest.raises(InputError, match="a forecast made at the end"):
            forecast(model, (x, targets), weights="readout")
        said = [forecast(model, (x, targets), weights="readout", outputs=o) for o in ("per step", "at the end")]
        assert [one.settings["outputs"] for one in said] == ["per step", "at the end"]
        assert said[1].found == [False, True, False]


def test_other_words_are_refused():
    with pytest.raises(InputError, match="unknown outputs"):
        forecast(AtTheEnd(TIME), data(), outputs="last")
    with pytest.raises(InputError, match="needs an output at every step"):
        forecast(AtTheEnd(5), data(5), outputs="per step")


@pytest.mark.parametrize("shape", [(TIME,), (TIME, 1)])
def test_advice_compares_networks_with_the_same_outputs(shape):
    x, y = data(count=64)
    advice = lagreach.advise(
        AtTheEnd(*shape),
        (x, y.unflatten(1, shape)),
        9,
        directions=4,
        kinds=[UNITS],
        outputs="at the end",
        progress=False,
    )
    assert advice.forecast.settings["outputs"] == "at the end"
    assert [change.kind for change in advice.changes] == [UNITS]


def strided(lengths):
    x, _ = data()
    generator = torch.Generator().manual_seed(1)
    y = 0.4 * torch.randn(96, TIME // 2, 1, generator=generator)
    y[:, 1:] += x[:, 1:-2:2]  # outputs stand at steps 1, 3, 5, ...: two steps later
    return (x, y, None, torch.randint(TIME // 2, TIME + 1, (96,), generator=generator)) if lengths else (x, y)


@pytest.mark.parametrize("lengths", [False, True])
def test_outputs_behind_a_stride_need_their_steps_and_have_the_lags_of_these(lengths):
    with pytest.raises(UnsupportedError, match="target_steps=") as refused:
        forecast(Strided(), strided(lengths))
    assert " steps=" not in str(refused.value)  # which are those of training here
    x, y, *beside = strided(lengths)
    made, bare = (forecast(Strided(), (x, t, *beside), target_steps=range(1, TIME, 2)) for t in (y, y[..., 0]))
    assert made.found == [False, True, False]
    np.testing.assert_array_equal(made.needed.values, bare.needed.values)


def test_what_lies_beyond_a_length_does_not_count_behind_a_stride():
    x, y, _, lengths = strided(True)
    beyond = torch.arange(1, TIME, 2) >= lengths[:, None]
    other = torch.where(beyond[..., None], 99.0, y)
    both = [forecast(Strided(), (x, t, None, lengths), target_steps=range(1, TIME, 2)) for t in (y, other)]
    np.testing.assert_array_equal(both[0].needed.values, both[1].needed.values)


def test_steps_of_targets_are_asked_for_by_the_name_they_have_here():
    x, y = data(5)
    model = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
    with pytest.raises(InputError, match='pass target_steps="last"'):
        forecast(model, (x, y[..., None]))
