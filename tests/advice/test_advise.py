"""Advice about a lag: what is named, for which model, and what is expected after it."""

import copy
import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

import lagreach
from lagreach.advice.advise import Advice, _ordered
from lagreach.advice.changes import (
    KINDS,
    Change,
    cell_change,
    evidence,
    gates_change,
    is_supported,
    length_change,
    nothing,
    orthogonal_change,
    rate_change,
    rounded,
    sequences_change,
    steps_change,
    units_change,
)
from lagreach.advice.gates import NO_GATES, chrono, spread_biases
from lagreach.advice.starts import CELL_OF, alike, is_orthogonal, orthogonal_weights, recurrent_layers, write
from lagreach.errors import InputError
from lagreach.forecasting.limits import BLENDED, UNSEEN

LAG = 20
advise = partial(lagreach.advise, directions=16)


class AtTheEnd(nn.Module):
    def __init__(self, kind, hidden=8):
        super().__init__()
        self.layer = kind(2, hidden, batch_first=True)
        self.readout = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.readout(self.layer(x)[0][:, -1])


def build(kind, seed=0):
    torch.manual_seed(seed)
    return AtTheEnd(kind)


@pytest.fixture(scope="module")
def data():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(128, 24, 2, generator=g)
    x[..., 1] = 0.0
    x[:, 23 - LAG, 1] = 1.0
    return x, x[:, 23 - LAG, :1] + 0.2 * torch.randn(128, 1, generator=g)


@pytest.mark.thorough
def test_gates_of_a_torch_lstm_are_opened_and_the_forecast_says_what_that_brings(data):
    model = build(nn.LSTM)
    before = copy.deepcopy(model.state_dict())
    advice = advise(model, data, LAG, sequences=1000)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())  # it only looks
    assert advice.first.kind == "gates"
    assert advice.share < 0.5 < advice.first.expected
    assert advice.first.low <= advice.first.expected <= advice.first.high
    assert "advise_gates(model, x, lag=20).apply(model)" in str(advice)
    assert "layer.bias_ih_l0[8:16]" in str(advice)
    advice.apply(model)
    retained = torch.sigmoid(model.layer.bias_ih_l0[8:16] + model.layer.bias_hh_l0[8:16]).double()
    torch.testing.assert_close(retained, torch.exp2(-1 / chrono(2 * LAG, 8)), rtol=1e-5, atol=0)


@pytest.mark.thorough
def test_a_plain_network_is_told_of_another_cell_and_of_an_orthogonal_start(data):
    advice = advise(build(nn.RNN, seed=2), data, LAG, sequences=1000)
    assert advice.first.kind == "cell"
    assert advice.first.cell == "lstm"
    assert "orthogonal" in [fact.kind for fact in advice.facts]
    assert "torch.nn.init.orthogonal_(model.layer.weight_hh_l0)" in str(advice)
    assert "no gates to set" in str(lagreach.advise_gates(build(nn.RNN), data[0], LAG))
    assert lagreach.advise_gates(build(nn.RNN), data[0], LAG).layers[0].warnings == (NO_GATES,)


def test_nothing_is_to_do_about_a_lag_that_will_be_recovered(data):
    model = build(nn.LSTM)
    write(model, spread_biases(model, LAG))
    advice = advise(model, data, LAG, sequences=1000)
    assert (advice.first.kind, advice.first.expected) == ("nothing", advice.share)
    assert advice.share >= 0.5
    with pytest.raises(InputError, match="none of the weights"):
        advice.apply(model)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rate", "steps", "kind", "factor"), [(1e-5, 1000, "rate", 200), (3e-3, 30, "steps", 20), (3e-3, 1000, "gates", 1)]
)
def test_weights_that_cannot_move_come_first(data, rate, steps, kind, factor):
    model = build(nn.LSTM)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    advice = advise(model, data, LAG, sequences=1000, optimiser=optimiser, steps=steps)
    assert (advice.first.kind, advice.first.factor) == (kind, factor)


@pytest.mark.thorough
def test_adam_moves_by_its_rate_and_descent_by_the_gradient(data):
    model = build(nn.GRU).double()
    x, y = (part[:32].double() for part in data)  # one batch, so that its gradient is that of all
    adam = torch.optim.Adam(model.parameters(), lr=0.01, eps=0.0)
    slow, fast = (torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9) for lr in (0.01, 0.1))
    far = [
        lagreach.forecast(model, (x, y), 100, [LAG], directions=2, optimiser=one, steps=30).settings["farthest"]
        for one in (adam, slow, fast)
    ]
    assert far[0] == pytest.approx(0.3, rel=1e-6)
    assert far[2] == pytest.approx(10 * far[1], rel=1e-6)
    gradients = torch.autograd.grad((model(x) - y).square().mean(), list(model.parameters()))
    size = torch.cat([part.flatten() for part in gradients]).square()
    assert far[1] == pytest.approx(30 * 0.01 / 0.1 * size[size > 0].mean().sqrt().item(), rel=1e-6)


@pytest.mark.thorough
def test_few_sequences_are_answered_with_more_of_them():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(300, 20, 1, generator=g)
    y = torch.nn.functional.pad(x[:, :-3], (0, 0, 3, 0)) + 2 * torch.randn(300, 20, 1, generator=g)
    model = lagreach.GatedRNN("lstm", 1, 16, 1, generator=g)
    advice = lagreach.advise(model, (x, y), 3, sequences=3, kinds=["sequences"])
    assert advice.why == "few sequences"
    assert advice.first.kind == "sequences"
    none = lagreach.advise(model, (x, y), 3, sequences=3, kinds=["length"])
    assert str(none.first).startswith("Only more sequences would recover this lag")


@pytest.mark.thorough
def test_advice_says_what_its_forecast_has_to_say():
    x, y = torch.randn(2, 40, 16, 1, generator=torch.Generator().manual_seed(0))
    advice = advise(lagreach.GatedRNN("gru", 1, 4, 1), (x, y), 2, sequences=1000)
    assert advice.warnings == advice.forecast.warnings
    assert "! only 40 sequences: shares are rough" in str(advice)


def test_sequences_must_be_longer_than_the_lag(data):
    advice = advise(build(nn.LSTM), data, 40)
    assert advice.first.kind == "length"
    assert "length = 82" in advice.first.code
    assert math.isnan(advice.first.expected)


@pytest.mark.thorough
def test_lags_are_found_in_the_data_if_none_is_named(data):
    assert advise(build(nn.LSTM), data, sequences=1000).lag == LAG
    x = torch.randn(160, 10, 1, generator=torch.Generator().manual_seed(1))
    y = torch.randn(160, 1, generator=torch.Generator().manual_seed(2))
    with pytest.raises(InputError, match="lag="):
        lagreach.advise(lagreach.GatedRNN("lstm", 1, 4, 1), (x, y), target_steps="last")


def test_what_is_not_open_is_not_advised(data):
    advice = advise(build(nn.LSTM), data, LAG, sequences=1000, kinds=["units", "steps"])
    assert {change.kind for change in advice.changes} <= {"units", "steps", "nothing"}
    one = advise(build(nn.LSTM), data, LAG, sequences=1000, kinds="units")
    assert {change.kind for change in one.changes} <= {"units", "nothing"}
    with pytest.raises(InputError, match="unknown kinds"):
        advise(build(nn.LSTM), data, LAG, kinds=["magic"])
    with pytest.raises(InputError, match="number of steps"):
        advise(build(nn.LSTM), data, -1)


def change(kind, expected, factor=1.0):
    return Change(kind, kind, kind, expected=expected, factor=factor)


@pytest.mark.parametrize(
    ("now", "after", "said"),
    [
        (0.35, 0.36, "no change looked at is expected to help; the first of them: units"),
        (0.0, 0.3, "no change looked at is expected to recover half of it; what comes closest: units"),
        (0.35, 0.6, "\nto do: units"),
    ],
)
def test_a_change_that_changes_nothing_is_no_advice(now, after, said):
    assert said in str(Advice(3, now, BLENDED, 1000, (change("units", after),), None))


@pytest.mark.parametrize(
    ("named", "why", "share", "first"),
    [
        ([("units", 0.9), ("gates", 0.8)], BLENDED, 0.1, "gates"),  # what costs less, if it is nearly as good
        ([("units", 0.9), ("gates", 0.6)], BLENDED, 0.1, "units"),
        ([("units", 0.3), ("gates", 0.1)], BLENDED, 0.0, "units"),  # nothing is good enough: what comes closest
        ([("units", 0.3), ("gates", 0.1)], UNSEEN, 0.0, "gates"),  # what does not arrive is let through
        ([("gates", 0.8), ("cell", 0.95)], BLENDED, 0.7, "cell"),  # a promise that failed: what promises most
    ],
)
def test_what_comes_first(named, why, share, first):
    ordered = _ordered([change(*one) for one in named], why, share)
    assert ordered[0].kind == first
    assert len(ordered) == len(named)


def test_only_kinds_that_did_better_than_a_random_change_are_advice():
    by_kind = evidence()
    assert set(by_kind) <= set(KINDS)
    for kind, numbers in by_kind.items():
        assert is_supported(kind) == numbers["supported"]
        assert numbers["promised"]["worked"] <= numbers["worked"] <= numbers["of"]
        if kind != "nothing":  # which is held against silence, not against a change
            assert not numbers["supported"] or numbers["worked"] > numbers["random"]
    assert set(by_kind) == set(KINDS)  # every kind was tested
    assert not is_supported("orthogonal")
    assert change("gates", 0.9).record == (
        "worked in {worked} of {of} cases of the advice study in which half or more was expected".format(
            **by_kind["gates"]["promised"]
        )
    )
    assert json.dumps(by_kind)


def test_networks_of_another_size_or_cell():
    model = lagreach.GatedRNN("diag_gate", 2, 6, 3, gate_init=0.2)
    larger = alike(model, 2, 3, units=24)
    assert (larger.cell.name, larger.hidden_size, larger.start) == ("diag_gate", 24, {"gate_init": 0.2})
    assert torch.allclose(larger.layers[0]["b_s"], model.layers[0]["b_s"][:1])
    other = alike(model, 2, 3, cell="lstm", lag=9)
    assert torch.allclose(other.layers[0]["b_f"], -other.layers[0]["b_i"])
    stand_in = alike(AtTheEnd(nn.GRU), 2, 1, units=5)
    assert (stand_in.cell.name, stand_in.hidden_size) == ("torch_gru", 5)
    assert alike(AtTheEnd(nn.GRU), 3, 1) is None  # the layer reads something else than the inputs
    assert alike(nn.Sequential(AtTheEnd(nn.GRU), AtTheEnd(nn.GRU)), 2, 1) is None


def test_orthogonal_weights_are_for_plain_networks_alone():
    assert orthogonal_weights(AtTheEnd(nn.LSTM)) == {}
    (weight,) = orthogonal_weights(AtTheEnd(nn.RNN)).values()
    torch.testing.assert_close(weight @ weight.T, torch.eye(8), atol=1e-5, rtol=0)


def test_factors_are_round():
    assert [rounded(factor) for factor in (1.2, 2.0, 4.0, 83.0, 1e9)] == [2, 2, 5, 100, 5000]


class Stack(nn.Module):
    def __init__(self, kind, layers):
        super().__init__()
        self.body = nn.ModuleDict({"rnn": kind(2, 8, num_layers=layers, batch_first=True)})
        self.readout = nn.Linear(8, 1, bias=False)

    def forward(self, x):
        return self.readout(self.body["rnn"](x)[0][:, -1])


MODELS = {
    "nn.LSTM": lambda: AtTheEnd(nn.LSTM),
    "nn.GRU": lambda: AtTheEnd(nn.GRU),
    "nn.RNN": lambda: AtTheEnd(nn.RNN),
    "two layers": lambda: Stack(nn.LSTM, 2),
    "two plain layers": lambda: Stack(nn.RNN, 2),
    "GatedRNN": lambda: lagreach.GatedRNN("lstm", 2, 8, 1, gate_init=None),
    "GatedRNN elman": lambda: lagreach.GatedRNN("elman", 2, 8, 1, recurrent_init="uniform"),
}


def every_change(model):
    """All changes that fit a model, of every kind."""
    biases, recurrent = spread_biases(model, LAG), orthogonal_weights(model)
    made = [gates_change(model, biases, LAG)] if biases else []
    made += [orthogonal_change(model, recurrent)] if recurrent else []
    now = like.cell.name if (like := alike(model, 2, 1)) else ""
    others = [cell for cell in ("lstm", "elman") if cell != now]
    made += [units_change(model, 4), *(cell_change(model, cell, LAG, factor) for cell in others for factor in (1, 4))]
    made += [sequences_change(100, 500.0), steps_change(800, 5, ""), rate_change(1e-3, 10, ""), length_change(24, 40)]
    return [*made, nothing()]


@pytest.mark.thorough
def test_weights_that_cannot_move_are_not_told_to_train_on(data):
    """The forecast is of a network whose weights may move; with a rate of 1e-6 they do not, and "nothing to do" was said."""
    model = lagreach.GatedRNN("lstm", 2, 16, 1, chrono=2 * LAG, generator=torch.Generator().manual_seed(0))
    slow = torch.optim.Adam(model.parameters(), lr=1e-6)
    options = {"sequences": 5000, "target_steps": "last", "optimiser": slow, "steps": 100}
    assert advise(model, data, LAG, sequences=5000, target_steps="last").first.kind == "nothing"
    assert advise(model, data, LAG, **options).first.kind in ("rate", "steps")


@pytest.mark.parametrize("name", MODELS)
def test_the_code_that_is_printed_runs_and_does_what_is_said(name, data):
    torch.manual_seed(0)
    kinds, first = set(), MODELS[name]()
    for change in every_change(first):
        model = copy.deepcopy(first)
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        printed = str(change).partition("\n    ")[2]
        held = {"model": model, "x": data[0], "optimiser": optimiser, "torch": torch, "lagreach": lagreach}
        exec("\n".join(line.removeprefix("    ") for line in printed.splitlines()), held)
        kinds.add(change.kind)
        (_, layer), *_ = recurrent_layers(held["model"])
        hidden = 8 * (4 if change.kind in ("units", "cell") and change.factor > 1 else 1)
        assert layer.hidden_size == hidden
        assert held["model"](data[0]).shape[0] == len(data[0])  # it still runs
        if change.kind == "cell":
            known = layer.cell.name if isinstance(layer, lagreach.GatedRNN) else CELL_OF[type(layer)]
            assert known == change.cell
        if change.kind == "gates":
            values = dict(held["model"].named_parameters())
            assert all(torch.allclose(values[key], value) for key, value in change.weights.items())
        if change.kind == "orthogonal" or change.cell == "elman":
            assert is_orthogonal(held["model"], orthogonal_weights(held["model"]))
        if change.kind == "rate":
            assert optimiser.param_groups[0]["lr"] == pytest.approx(1e-2)
        numbers = {"sequences": 500, "steps": 4000, "length": 82}
        assert held.get(change.kind) == numbers.get(change.kind)
    assert kinds >= set(KINDS) - {"gates", "orthogonal"}


def test_a_stack_is_told_of_all_its_biases():
    model = Stack(nn.LSTM, 2)
    says = gates_change(model, spread_biases(model, LAG), LAG).says
    assert "body.rnn.bias_ih_l0[8:16]" in says
    assert "the same in body.rnn.bias_ih_l1" in says


@pytest.mark.parametrize(
    ("lag", "options", "said"),
    [
        ("a", {}, "'a'"),
        (1.5, {}, "1.5"),
        (-1, {}, "-1"),
        (3, {"learned": 2.0}, "learned=2.0"),
        (3, {"lags": [1]}, "lags"),
    ],
)
@pytest.mark.usefixtures("_as_users_run_it")
def test_questions_without_sense_are_refused(lag, options, said):
    x = torch.randn(32, 8, 1)
    with pytest.raises(InputError) as refused:
        lagreach.advise(lagreach.GatedRNN("gru", 1, 4, 1), (x, x), lag, **options)
    assert said in str(refused.value)


def test_one_sequence_is_refused_as_everywhere():
    x = torch.randn(1, 8, 1)
    with pytest.raises(InputError, match="too few sequences"):
        lagreach.advise(lagreach.GatedRNN("gru", 1, 4, 1), (x, x), 3)


class OddNames(nn.Module):
    """Names that Python's dots cannot reach."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"my-rnn": nn.LSTM(2, 8, batch_first=True), "read out": nn.Linear(8, 1)})

    def forward(self, x):
        return self.parts["read out"](self.parts["my-rnn"](x)[0][:, -1])


class Keyword(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module("class", nn.LSTM(2, 8, batch_first=True))
        self.readout = nn.Linear(8, 1)

    def forward(self, x):
        return self.readout(getattr(self, "class")(x)[0][:, -1])


@pytest.mark.parametrize("kind", [OddNames, Keyword])
def test_printed_code_reaches_modules_of_any_name(kind, data):
    for factor in (1, 4):
        held = {"model": kind(), "torch": torch, "lagreach": lagreach, "x": data[0]}
        exec(cell_change(held["model"], "elman", LAG, factor).code.replace("\n    ", "\n"), held)
        (_, layer), *_ = recurrent_layers(held["model"])
        assert isinstance(layer, nn.RNN)
        assert layer.hidden_size == 8 * factor
        assert held["model"](data[0]).shape[0] == len(data[0])


def test_a_record_is_that_of_cases_alike():
    model = AtTheEnd(nn.LSTM)
    other = cell_change(model, "elman", LAG)
    assert "half or more" in replace(other, expected=0.9).record
    assert replace(other, expected=0.01).record == ""  # no such case was studied
    gates = gates_change(model, spread_biases(model, LAG), LAG)
    assert "less than half" in replace(gates, expected=0.1).record
    assert nothing().record == ""  # nothing was promised
    assert replace(nothing(), expected=0.9).record


class Classes(nn.Module):
    """Logits at every step, at the last one (of packed sequences too), or of `several` steps ahead."""

    def __init__(self, where, kind=nn.LSTM, width=2, several=1):
        super().__init__()
        self.where, self.several = where, several
        self.layer = kind(2, 4, batch_first=True)
        self.readout = nn.Linear(4, width * several)

    def forward(self, x, lengths=None):
        if self.where == "packed":
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return self.readout(self.layer(packed)[1][0][-1])
        states = self.layer(x)[0]
        if self.where == "per step":
            return self.readout(states)
        logits = self.readout(states[:, -1])
        return logits.unflatten(1, (self.several, -1)) if self.several > 1 else logits


LOGITS = {"loss": "cross_entropy"}
CLASSES = {
    "one a sequence": (lambda: Classes("last"), lambda c: (c[:, -4],), LOGITS),
    "with an axis": (lambda: Classes("last", nn.GRU), lambda c: (c[:, -4, None],), LOGITS),
    "per step": (lambda: Classes("per step", width=3), lambda c: (c,), LOGITS),
    "packed": (lambda: Classes("packed"), lambda c: (c[:, -4], None, torch.full((len(c),), 11)), LOGITS),
    "several ahead": (lambda: Classes("last", several=3), lambda c: (c[:, -6:-3],), LOGITS),
    "rounded": (lambda: Classes("per step", width=1), lambda c: (c[..., None],), {}),
    "two values at the last step": (lambda: Classes("per step"), lambda c: (c[:, -5:-3].float(),), {}),
}


@pytest.mark.parametrize("name", CLASSES)
def test_classes_are_advised_about_like_values(name):
    x = torch.randn(64, 12, 2, generator=torch.Generator().manual_seed(0))
    build, targets, options = CLASSES[name]
    advice = advise(build(), (x, *targets((x[..., 0] > 0).long())), 3, kinds=["units"], learned=0.0, **options)
    assert {change.kind for change in advice.changes} <= {"units", "nothing"}
    assert any(not math.isnan(change.expected) for change in advice.changes)
