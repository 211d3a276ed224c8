"""Diagnoses of whole models from end to end: found, said, saved, drawn, tracked, costed."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import lagreach
from lagreach.callbacks.flat import metrics
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.errors import InputError, UnsupportedError
from lagreach.types import Status
from tests.whole_model import cases
from tests.whole_model.cases import INPUT, made

LAG = 4


def data(count=128, time=14, lag=LAG, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, time, INPUT, generator=generator)
    y = torch.randn(count, time, 1, generator=generator)
    y[:, lag:] += 1.5 * x[:, : time - lag, :1]
    return x, y


@pytest.fixture(scope="module")
def diagnosis():
    return lagreach.diagnose(made(cases.CausalTransformer).float(), data(), lags=[0, 1, LAG, 9])


def test_the_planted_lag_is_found_and_the_result_says_whose_lags_they_are(diagnosis):
    (layer,) = diagnosis.layers
    assert layer.name == "whole model"
    assert not layer.local
    assert layer.window.dependences == (LAG,)
    assert layer.window.limit(LAG) is not Status.LIMIT_LEARNED  # nothing was trained
    assert diagnosis.settings["lags_of"] == "model"
    assert diagnosis.settings["lags_of_why"] == "it has no recurrent layer"
    assert diagnosis.settings["input_module"] == "read"
    text = str(diagnosis)
    assert "lags of the whole model: it has no recurrent layer" in text
    assert "input read by read: read (Linear) is given the input; 14 outputs of each sequence carried back" in text
    assert "linear memory" not in text
    assert "gate bias" not in text


def test_needed_sequences_grow_with_the_lag_in_a_transformer_as_its_gain_falls(diagnosis):
    window, gain = diagnosis.layers[0].window, diagnosis.layers[0].fidelity.exact
    needed = window.required_if_present().sequences
    assert (np.diff(needed) > 0).all()
    assert gain[0] == pytest.approx(1)
    assert (gain[1:] < 0.5).all()
    assert layer_status(diagnosis) == {Status.FIRST_ORDER_OF_LAYERS}


def layer_status(diagnosis):
    return set(diagnosis.layers[0].fidelity.status_by_lag)


def test_it_is_saved_read_drawn_and_tracked_like_any_other(diagnosis, tmp_path):
    pytest.importorskip("matplotlib")
    diagnosis.save(tmp_path / "found.nc")
    again = lagreach.load(tmp_path / "found.nc")
    assert str(again) == str(diagnosis)
    assert again.settings["input_module"] == "read"
    diagnosis.report(tmp_path / "found.html")
    page = (tmp_path / "found.html").read_text()
    assert "lags of the whole model" in page
    from matplotlib import pyplot

    from lagreach.report import figures

    for draw in (
        figures.window,
        figures.reach,
        figures.gain,
        figures.dependence,
        figures.noise,
        figures.tail,
        figures.scales,
    ):
        draw(diagnosis)
        pyplot.close("all")
    assert str(lagreach.suggest(diagnosis))
    tracked = metrics(diagnosis)
    assert math.isnan(tracked["lagreach/memory"])
    assert tracked["lagreach/dependences"] == 1
    assert np.isfinite(diagnosis.curve("log10_gain").values).all()
    assert "capacity" not in diagnosis.layers[0].window.curves


def test_what_it_would_cost(diagnosis):
    cost = lagreach.cost(made(cases.CausalTransformer).float(), data(), lags=[0, 1])
    assert cost.layers == ("whole model (input read by read)",)
    assert cost.sequences == 128
    assert cost.weights == 8 * INPUT
    assert 0 < cost.seconds_if_nothing <= cost.seconds <= cost.seconds_if_many
    assert cost.memory > 0


def test_a_budget_takes_a_fair_part():
    x, y = data(count=400)
    small = lagreach.diagnose(made(cases.Flat).float(), (x, y), lags=[0, LAG], budget=1e-3)
    assert small.settings["used"] == 16
    assert any("a subsample of 16 of 400" in note for note in small.warnings)
    with pytest.raises(InputError, match="budget is out of range"):
        lagreach.diagnose(made(cases.Flat).float(), (x, y), budget=0)


@pytest.mark.thorough
def test_training_makes_the_model_rely_on_the_lag():
    model = made(cases.CausalTransformer, width=16).float()
    x, y = data(count=1024, time=8, lag=2, seed=1)
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for step in range(120):
        rows = slice(64 * (step % 16), 64 * (step % 16) + 64)
        loss = (model(x[rows]) - y[rows]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    window = lagreach.diagnose(model, data(count=192, time=8, lag=2, seed=2), lags=range(6)).layers[0].window
    assert window.limit(2) is Status.LIMIT_LEARNED
    assert 2 in window.dependences
    place = window.reliance.lags.index(2)
    assert window.reliance.rise[place] > 0.5


@pytest.mark.thorough
def test_a_recurrent_model_can_be_asked_for_either():
    model = made(cases.Recurrent).float()
    layers = lagreach.diagnose(model, data(), lags=[0, 1, LAG])
    whole = lagreach.diagnose(model, data(), lags=[0, 1, LAG], lags_of="model")
    assert layers.settings["lags_of"] == "layers"
    assert layers.layers[0].name == "layer"
    assert whole.layers[0].name == "whole model"
    assert whole.settings["lags_of_why"] == "as asked for"
    assert layers.layers[0].window.dependences == whole.layers[0].window.dependences == (LAG,)


def test_choices_that_only_recurrent_layers_have_are_refused():
    model = made(cases.CausalTransformer).float()
    for option in ({"transport": "first-order"}, {"noise": "lag"}, {"params": "all"}):
        with pytest.raises(UnsupportedError, match="do not have this choice"):
            lagreach.diagnose(model, data(), **option)
    with pytest.raises(UnsupportedError, match="direction='random'"):
        lagreach.diagnose(model, data(), settings=MeasureSettings(direction="random"))


def test_the_raw_mean_gradient_on_request():
    diagnosis = lagreach.diagnose(made(cases.CausalTransformer).float(), data(), lags=[0, LAG], signal="gradient")
    assert 0 in diagnosis.layers[0].window.dependences  # the echo of the model's own output, which swapping takes out


@pytest.mark.thorough
def test_outputs_that_look_ahead_are_said():
    x, y = data()
    diagnosis = lagreach.diagnose(
        made(cases.BidirectionalTransformer).float(), (x, y), lags=[0, LAG], outputs="per step"
    )
    assert any("look at later inputs" in note for note in diagnosis.layers[0].window.warnings)
    causal = lagreach.diagnose(made(cases.CausalTransformer).float(), (x, y), lags=[0, LAG])
    assert not any("later inputs" in note for note in causal.layers[0].window.warnings)


class Forecaster(nn.Module):
    """As many steps ahead as it looks back."""

    def __init__(self, time=14):
        super().__init__()
        self.read = nn.Linear(INPUT, 6)
        self.ahead = nn.Linear(6, time)

    def forward(self, x):
        return self.ahead((0.3 * self.read(x).cumsum(1)).tanh()[:, -1])[..., None]


def test_forecasts_count_lags_from_the_end_of_the_input_when_told_so():
    x, _ = data()
    y = torch.randn(128, 14, 1, generator=torch.Generator().manual_seed(3)) + 4 * x[:, -3, :1, None]
    torch.manual_seed(0)
    model = Forecaster()
    with torch.no_grad():
        model.ahead.weight.abs_()  # every step of the forecast asks for the same
    with pytest.raises(InputError, match="a forecast made at the end"):
        lagreach.diagnose(model, (x, y), lags=[0, 2, 5])
    aligned = lagreach.diagnose(model, (x, y), lags=[0, 2, 5], outputs="per step")
    assert any('outputs="at the end"' in note for note in aligned.layers[0].window.warnings)
    ends = lagreach.diagnose(model, (x, y), lags=[0, 2, 5], outputs="at the end")
    assert ends.layers[0].window.dependences == (2,)
    assert not any("later inputs" in note for note in ends.layers[0].window.warnings)


def test_bad_data_are_refused_in_a_sentence():
    model = made(cases.CausalTransformer).float()
    x, y = data(count=40)
    with pytest.raises(InputError, match="too few sequences"):
        lagreach.diagnose(model, (x[:10], y[:10]))
    bad = x.clone()
    bad[35, 2, 1] = float("nan")
    with pytest.raises(InputError, match="the input x holds a value that is not finite"):
        lagreach.diagnose(model, (bad, y), lags=[0])
    bad = y.clone()
    bad[35, 2] = float("inf")
    with pytest.raises(InputError, match="the target y holds a value that is not finite"):
        lagreach.diagnose(model, (x, bad), lags=[0])
    with pytest.raises(InputError, match="does not run on the data"):
        lagreach.diagnose(model, (x[..., :1], y), lags=[0])


def test_losses_of_ones_own_at_the_outputs_they_look_at():
    def last_half(output, y, mask):
        return (output - y)[:, 7:].square().mean((1, 2))

    diagnosis = lagreach.diagnose(made(cases.CausalTransformer).float(), data(), loss=last_half, lags=[0, LAG])
    assert diagnosis.layers[0].window.dependences == (LAG,)
    assert diagnosis.settings["anchors"] == 7


@pytest.mark.thorough
def test_of_correlated_inputs_only_what_neighbours_leave_is_exchanged():
    """An autoregressive input: swapping targets names neighbours of the true lag too, partial dependence does not."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 18, 1, generator=generator)
    for step in range(1, 18):
        x[:, step] = 0.8 * x[:, step - 1] + 0.6 * x[:, step]
    y = 0.5 * torch.randn(400, 18, 1, generator=generator)
    y[:, LAG:] += x[:, :-LAG]
    window = lagreach.diagnose(made(cases.CausalTransformer, inputs=1).float(), (x, y), lags=range(8)).layers[0].window
    assert window.dependences == (LAG,)
    assert {LAG - 1, LAG, LAG + 1} <= set(window.marginal_dependences)
    # of an AR(1) with 0.8, given both neighbours: (1 - a^2) / (1 + a^2)
    assert window.left == pytest.approx(0.36 / 1.64, rel=0.1)
    assert any("dependences are partial" in note for note in window.warnings)


def test_inputs_that_follow_from_their_neighbours_cannot_be_told_apart():
    x, y = data()
    constant = x[:, :1].expand(-1, 14, -1).clone()
    diagnosis = lagreach.diagnose(made(cases.CausalTransformer).float(), (constant, y), lags=[0, LAG])
    assert any("cannot be told apart" in note for note in diagnosis.layers[0].window.warnings)


@pytest.mark.thorough
def test_inputs_that_all_sequences_share_tell_nothing():
    x, y = data()
    calendar = x[:1].expand(len(x), -1, -1).clone()
    window = lagreach.diagnose(made(cases.CausalTransformer).float(), (calendar, y), lags=[0, LAG]).layers[0].window
    assert np.isnan(window.adjusted_p).all()
    assert any("the same in every sequence" in note for note in window.warnings)
    mixed = torch.cat((x[..., :2], calendar[..., 2:]), dim=-1)
    some = lagreach.diagnose(made(cases.CausalTransformer).float(), (mixed, y), lags=[0, LAG]).layers[0].window
    assert any("column 2 of the input is the same in every sequence" in note for note in some.warnings)
    assert some.dependences == (LAG,)


@pytest.mark.thorough
def test_a_lag_inside_a_wide_band_is_named_itself():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 40, 1, generator=generator)
    y = torch.randn(256, 40, 1, generator=generator)
    y[:, 27:] += 4 * x[:, :-27]
    diagnosis = lagreach.diagnose(made(cases.CausalTransformer, inputs=1).float(), (x, y))
    window = diagnosis.layers[0].window
    assert window.dependences == (27,)
    assert 27 not in window.lags.tolist()  # it lies inside a band
    assert "depend on lag 27" in str(diagnosis)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["MambaForCausalLM", "LlamaForCausalLM"])
def test_language_models_from_end_to_end(name):
    pytest.importorskip("transformers")
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, cases.TOKENS, (64, 10), generator=generator)
    target = torch.randint(0, cases.TOKENS, (64, 10), generator=generator)
    target[:, 2:] = torch.where(torch.rand(64, 8, generator=generator) < 0.8, tokens[:, :-2], target[:, 2:])
    model = cases.hugging_face(name).to(torch.bfloat16)
    diagnosis = lagreach.diagnose(model, (tokens, target), loss="cross_entropy", lags=[0, 2, 5])
    assert diagnosis.layers[0].name == "whole model"
    assert diagnosis.layers[0].window.dependences == (2,)
