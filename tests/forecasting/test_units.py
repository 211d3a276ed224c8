"""A fit with a constant does not know the units of its targets, nor their mean: neither does a forecast."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import lagreach
from lagreach.data.sequences import as_sequences
from lagreach.forecasting.plan import make_plan
from lagreach.forecasting.run import ForecastRun
from lagreach.statistics.linear_share import Start
from tests.forecasting.models import Recurrent, data

LAGS = [0, 2, 5]
MODELS = {
    "carried back": Recurrent,
    "at the end": lambda: Recurrent("RNN", last=True),
    "summed as it runs": lambda: lagreach.GatedRNN("lstm", 2, 8, 1, generator=torch.Generator().manual_seed(0)),
    "several outputs": lambda: Recurrent(outputs=2),
}
TOLERANCE = 3e-3  # a few sequences tell where a fit starts, and whether outputs stay as they are


def in_units(kind, scale, mean):
    x, y = data(128, 16)
    y = y.double()
    if kind == "several outputs":
        y = torch.cat((y, 0.5 * y.roll(1, 0)), dim=2)
    y = scale * y + mean
    model = MODELS[kind]()
    return lagreach.forecast(model, (x, y[:, -1] if kind == "at the end" else y), [50, 1000], LAGS, directions=16)


@cache
def usual(kind):
    return in_units(kind, 1.0, 0.0)


@pytest.mark.parametrize("mean", [0.0, 10.0, 1e3])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("kind", MODELS)
def test_units_and_means_of_targets_do_not_matter(kind, scale, mean):
    plain, other = usual(kind), in_units(kind, scale, scale * mean)
    for name in ("if_present", "in_data", "readable", "reachable"):
        np.testing.assert_allclose(getattr(other, name), getattr(plain, name), atol=TOLERANCE, err_msg=name)
    np.testing.assert_allclose(other.needed, plain.needed, rtol=0.02)
    assert other.limits.values.tolist() == plain.limits.values.tolist()
    assert other.settings["design_effect"] == pytest.approx(plain.settings["design_effect"], rel=0.01)
    assert any("scale the targets" in note for note in other.warnings) is (mean > 0 or scale != 1)


@pytest.mark.parametrize("scale", [1e-200, 1e-20, 1e150])
def test_a_dependence_is_found_whatever_the_units(scale):
    x, y = data(128, 16)
    made = lagreach.forecast(Recurrent(), (x, scale * y.double()), [100], LAGS, weights="readout")
    assert made.found == [False, True, False]
    assert any("scale the targets" in note for note in made.warnings)


@pytest.mark.parametrize("kind", ["carried back", "summed as it runs"])
@pytest.mark.parametrize("times", [0.0, 3.0, 30.0, 1e4])
def test_the_scale_of_an_untrained_readout_does_not_matter(kind, times):
    model = MODELS[kind]()
    readout = model.read if kind == "carried back" else model.readout
    shares = []
    for factor in (1.0, times):
        with torch.no_grad():
            readout.weight.mul_(factor)
        made = lagreach.forecast(model, data(128, 16), [50], LAGS, weights="readout")
        shares.append([*made.in_data.values[1], *made.readable.values[:, 0]])
    np.testing.assert_allclose(*shares, atol=0.01)


@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_shares_of_targets_with_a_mean_are_those_of_ridge_fits_with_a_constant(mean):
    x, y = data(800, 16)
    y = y.double() + mean
    model = Recurrent("RNN")
    made = lagreach.forecast(model, (x, y[:, -1]), [50], [2], weights="readout", target_steps="last")
    with torch.no_grad():
        states = model.layer(x)[0][:, -1].double()
    old, aims = x[:, -3, 0].double(), y[:, -1, 0]
    penalties = torch.logspace(-4, 3, 40, dtype=torch.float64)
    loss, slope = torch.zeros(2, 40, dtype=torch.float64)
    for part in range(16):  # fits to 50 sequences each, judged by the others
        mine = torch.zeros(800, dtype=torch.bool)
        mine[50 * part : 50 * (part + 1)] = True
        then = old[~mine] - old[~mine].mean()
        phi, r = states[mine] - states[mine].mean(0), aims[mine] - aims[mine].mean()
        for k, penalty in enumerate(penalties):
            w = torch.linalg.solve(phi.T @ phi + penalty * torch.eye(8, dtype=torch.float64), phi.T @ r)
            said = (states[~mine] - states[mine].mean(0)) @ w
            loss[k] += (aims[~mine] - aims[mine].mean() - said).square().mean()
            slope[k] += (said * then).mean() / (aims[~mine] * then).mean()
    assert float(made.in_data[0, 0]) == pytest.approx(float(slope[loss.argmin()]) / 16, abs=0.06)


def test_outputs_that_know_something_stay_as_they_are():
    x, y = data(128, 16)
    model = Recurrent()
    with torch.no_grad():
        states = model.layer(x)[0].flatten(0, 1)
        states = torch.cat((states, torch.ones(len(states), 1)), dim=1)
        fitted = torch.linalg.lstsq(states, y.flatten(0, 1)).solution[:, 0]
        model.read.weight.copy_(0.8 * fitted[:-1])
        model.read.bias.copy_(0.8 * fitted[-1:])
    plan = make_plan(as_sequences((x, y)), LAGS, 0)
    assert ForecastRun(model, plan, "mse", None, None, 0).measurement.start is None


def test_each_output_starts_by_itself_and_what_does_not_count_may_be_anything():
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    targets = torch.stack((1.1 * outputs[:, 0], 1e4 + 50 * outputs[:, 1], torch.full((60,), 7.0)), dim=1)
    weights = (torch.arange(60) < 50).double()
    targets[50:], outputs[50:] = torch.nan, torch.inf
    start = Start.of(weights, targets, outputs)
    torch.testing.assert_close(start.share, torch.tensor([1.0, 50.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(start.mean, torch.tensor([0.0, 1e4, 7.0], dtype=torch.float64))
    left = (start.targets(targets[None, :50]) - start.outputs(outputs[None, :50])) * start.size
    torch.testing.assert_close(left[0, :, 1:], torch.zeros(50, 2, dtype=torch.float64), atol=1e-9, rtol=0)
    assert 0 < start.missed < 1e-4


def test_lags_that_were_not_looked_at_are_not_called_products():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 16, 2, generator=generator)
    y = torch.nn.functional.pad(x[:, :-3, :1], (0, 0, 3, 0)) + 0.3 * torch.randn(256, 16, 1, generator=generator)
    some = str(lagreach.forecast(Recurrent("RNN"), (x, y), [1000], [0, 1], directions=64))
    assert (
        "by lags that were not looked at, or by products or other functions of several inputs: pass lags=range(16)"
        in some
    )


def test_inputs_that_share_what_they_say_are_not_called_products():
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(300, 40, 1, generator=generator)
    copy = torch.nn.functional.pad(first[:, :-3], (0, 0, 3, 0)) + 0.3 * torch.randn(300, 40, 1, generator=generator)
    y = torch.nn.functional.pad(first[:, :-5], (0, 0, 5, 0)) + 1.5 * torch.randn(300, 40, 1, generator=generator)
    made = lagreach.forecast(Recurrent("RNN"), (torch.cat((first, copy), dim=2), y), [1000], range(40), directions=64)
    assert made.settings["follow"]
    text = str(dataclasses.replace(made, adjusted_p=np.ones(40)))
    assert "by what inputs that follow from each other share, so that single lags could not be told" in text
    assert "not looked at" not in text


class SeldomActive(nn.Module):
    """One unit is active in few sequences, and very much so."""

    def __init__(self, size):
        super().__init__()
        self.layer, self.out, self.size = nn.LSTM(1, 12, batch_first=True), nn.Linear(13, 1), size

    def forward(self, x):
        seldom = (x[:, :1].abs() > 2.58).to(x) * x * self.size
        return self.out(torch.cat((self.layer(x)[0], seldom), -1))


@pytest.mark.parametrize("size", [1.0, 100.0])
def test_a_unit_that_is_seldom_active_is_warned_of(size):
    torch.manual_seed(3)
    model, generator = SeldomActive(size), torch.Generator().manual_seed(9)
    x, y = (torch.randn(2000, 12, 1, generator=generator) for _ in range(2))
    made = lagreach.forecast(model, (x, y), 500, [0, 1], weights="readout", outputs="per step", progress=False)
    assert any("very much more than the others" in note for note in made.warnings) == (size > 1)
