"""Arguments of public functions that cannot be meant end in a sentence, and none leaks a warning of numpy."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import lagreach
from lagreach.callbacks.watched_training import WatchedTraining
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.errors import LagreachError
from tests.forecasting.models import Recurrent, data

LAGS = [0, 2]


def forecast(given=None, model=None, **options):
    return lagreach.forecast(model or Recurrent(), given or data(64), lags=LAGS, weights="readout", **options)


def diagnose(given=None, model=None, **options):
    return lagreach.diagnose(model or Recurrent(), given or data(64), lags=LAGS, **options)


@cache
def forecast_made():
    return forecast()


@cache
def diagnosis_made():
    return diagnose()


def fails(model, steps):
    raise RuntimeError("boom")


class Lazy(Recurrent):
    def __init__(self):
        super().__init__()
        self.read = nn.LazyLinear(1)


def sgd():
    return torch.optim.SGD(Recurrent().parameters(), 0.1)


LOSSES = {
    "does not depend on the outputs": [
        lambda output, y, mask: (output.detach() - y).square().mean((1, 2)),
        lambda output, y, mask: torch.ones(len(output)),
        lambda output, y, mask: torch.ones(len(output), requires_grad=True),
    ],
    "in place": [lambda output, y, mask: output.sub_(y).square().mean((1, 2))],
    "is not finite": [lambda output, y, mask: (output - y).square().mean((1, 2)) * torch.nan],
}


@pytest.mark.parametrize(
    ("message", "loss"), [(message, loss) for message, losses in LOSSES.items() for loss in losses]
)
@pytest.mark.parametrize("of", ["layers", "model"])
@pytest.mark.usefixtures("_as_users_run_it")
def test_losses_that_say_nothing_of_outputs_are_refused(of, message, loss):
    with pytest.raises(LagreachError, match=message):
        diagnose(loss=loss, lags_of=of)


CALLS = {
    "strength is not a number": [
        lambda: forecast(strength="a"),
        lambda: forecast(strength=None),
        lambda: diagnose(strength="a"),
        lambda: forecast_made().at(5, strength="a"),
    ],
    "error is not a number": [lambda: forecast(error=None), lambda: diagnose(error="a")],
    "error is out of range": [lambda: forecast(error=0.5), lambda: diagnose(error=0.5)],
    "error is smaller than": [lambda: forecast(error=1e-4)],
    "flips is too small": [lambda: diagnose(error=1e-4)],
    "budget is out of range": [lambda: forecast(budget=float("inf")), lambda: diagnose(budget=float("inf"))],
    "steps is not a number": [lambda: forecast(steps="a", optimiser=sgd())],
    "steps is out of range": [lambda: forecast(steps=1.5, optimiser=sgd())],
    "does not train": [lambda: forecast(train=fails, pilot=3), lambda: forecast(train=lambda model: None, pilot=3)],
    "x is a sparse tensor": [
        lambda: forecast((data(64)[0].to_sparse(), data(64)[1])),
        lambda: diagnose((data(64)[0].to_sparse(), data(64)[1])),
    ],
    "spelt otherwise here.*\\n.*optimizer=\\n.*optimiser= and steps=": [
        lambda: forecast(optimizer=sgd(), steps=3),
        lambda: lagreach.advise(Recurrent(), data(64), optimizer=sgd(), steps=3),
    ],
    "spelt otherwise here.*\\n.*optimiser=\\n.*optimizer=": [
        lambda: diagnose(optimiser=sgd()),
        lambda: lagreach.cost(Recurrent(), data(64), optimiser=sgd()),
        lambda: lagreach.watch(Recurrent(), data(64), optimiser=sgd()).check(),
    ],
    "to do: +pass target_steps='last'": [lambda: forecast(steps="last")],
    "optimiser alone\\n.*--steps": [lambda: forecast(optimiser=sgd())],
    "this is not data\\n.*NoneType\\n.*batches$": [lambda: lagreach.diagnose(Recurrent(), None)],
    "MeasureSettings": [lambda: diagnose(settings=5)],
    "statistic": [lambda: diagnose(statistics=[5]), lambda: diagnose(statistics=None)],
    "measure is a function": [lambda: diagnose(measure=5)],
    "lazy layers": [lambda: forecast(model=Lazy()), lambda: diagnose(model=Lazy())],
    "not a diagnosis": [
        lambda: lagreach.compare([diagnosis_made(), forecast_made()]),
        lambda: lagreach.compare(["a"]),
        lambda: lagreach.suggest(forecast_made()),
    ],
    "positive": [
        lambda: forecast_made().at("a"),
        lambda: diagnosis_made().window("a"),
        lambda: lagreach.advise(Recurrent(), data(64), sequences="a"),
        lambda: lagreach.watch(Recurrent(), data(64), planned="a"),
    ],
    "not the path of a file": [
        lambda: forecast_made().save(None),
        lambda: diagnosis_made().save(5.5),
        lambda: forecast_made().report(None),
        lambda: lagreach.load(None),
    ],
    "a folder": [lambda: lagreach.load(".")],
    "what was learned": [lambda: lagreach.advise(Recurrent(), data(64), learned="a")],
    "seed is a whole number": [
        *[
            lambda seed=seed: lagreach.advise(Recurrent(), data(64), lag=5, seed=seed)
            for seed in (2**70, 1.5, None, True)
        ],
        lambda: forecast(seed=True),
        lambda: diagnose(seed=True),
        lambda: lagreach.cost(Recurrent(), data(64), seed=True),
    ],
    "steps must list one time index per target": [
        *[lambda steps=steps: diagnose(steps=steps) for steps in (float("nan"), 2**70, [0.5], True)],
        lambda: forecast(target_steps=2**70),
    ],
    "lags must be a sequence of integers": [lambda: lagreach.suggest(diagnosis_made(), 1.5)],
    "the wanted lag must be a positive number of steps": [
        lambda lag=lag: lagreach.advise_gates(nn.LSTM(3, 4, batch_first=True), torch.zeros(1, 9, 3), lag)
        for lag in (2**70, "a", 0)
    ],
    "unknown options": [lambda: lagreach.advise(Recurrent(), data(64), threshold=3)],
    "labels are": [lambda: lagreach.watch(Recurrent(), data(64), labels=5)],
}


@pytest.mark.parametrize(("message", "call"), [(message, call) for message, calls in CALLS.items() for call in calls])
@pytest.mark.usefixtures("_as_users_run_it")
def test_what_cannot_be_meant_is_refused_in_a_sentence(message, call):
    with pytest.raises(LagreachError, match=message):
        call()


@pytest.mark.usefixtures("_as_users_run_it")
def test_a_find_that_finds_nothing_is_refused():
    training = WatchedTraining()
    training._find = lambda model: None
    with pytest.raises(LagreachError, match="find= must return the module"):
        training._begin(Recurrent(), data(64), {})


def test_a_length_is_suggested_for_a_single_lag():
    assert lagreach.suggest(diagnosis_made(), 2) == lagreach.suggest(diagnosis_made(), [2])


@pytest.mark.usefixtures("_as_users_run_it")
def test_numbers_of_numpy_are_numbers():
    assert forecast(sequences=np.int64(5)).sequences == (5,)
    assert forecast_made().at(np.int64(7)).sequences == (7,)


def test_enough_flips_allow_small_errors():
    assert diagnose(error=1e-3, settings=MeasureSettings(flips=9999)).settings["error"] == 1e-3


def test_outputs_of_several_values_take_targets_with_an_axis_of_one():
    x, _ = data(64)
    y = x[:, -1:, :1] + 0.1 * torch.randn(64, 5, 1, generator=torch.Generator().manual_seed(0))
    model = Recurrent(outputs=5, last=True)
    for of in ("layers", "model"):
        same = [diagnose((x, targets), model, lags_of=of, outputs="at the end") for targets in (y, y[..., 0])]
        np.testing.assert_array_equal(*(str(one.window()) for one in same))


def test_a_forecast_says_that_all_weights_are_frozen():
    model = Recurrent()
    assert not any("frozen" in note for note in forecast(model=model).warnings)
    assert any("frozen" in note for note in forecast(model=model.requires_grad_(False)).warnings)


def test_very_large_targets_leave_no_warnings_of_numpy():  # which would be errors here
    x, y = (part.double() for part in data(64))
    assert diagnose((x, 1e150 * y), Recurrent().double()).window() is not None
    str(forecast((x, 1e150 * y), Recurrent().double()))


def test_steps_of_targets_have_one_name_in_all_functions():
    """`steps=` of a diagnosis is `target_steps=` of a forecast, whose steps are those of a training."""
    x, y = data(64)
    model, at_end = Recurrent(), (x, y[:, -1:])
    plain, other = (diagnose(at_end, model, **{name: "last"}) for name in ("steps", "target_steps"))
    np.testing.assert_array_equal(plain.required, other.required)
    assert lagreach.cost(model, at_end, lags=LAGS, target_steps="last").lags == "0, 2"
    total = lagreach.lag_gradients(model, x, y[:, -1:], target_steps="last").total()
    assert all(gradient.isfinite().all() for gradient in total.values())
    with pytest.raises(LagreachError, match="two names of one argument"):
        diagnose(at_end, model, steps="last", target_steps="last")
