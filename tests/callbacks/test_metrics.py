"""What a watched training hands to trackers: the numbers of its diagnoses under documented names."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import lagreach
from lagreach.callbacks import as_logger, metrics, watch
from lagreach.callbacks.flat import NAMES, PREFIX
from lagreach.errors import InputError
from tests.callbacks.training import QUICK, Net, sequences

DOCS = Path(__file__).parent.parent.parent / "docs"


class Scalars:
    def __init__(self):
        self.seen = []

    def add_scalar(self, name, value, step):
        self.seen.append((name, value, step))


class MetricsLogger:
    def __init__(self):
        self.seen = []

    def log_metrics(self, metrics, step=None):
        self.seen += [(name, value, step) for name, value in metrics.items()]


class Run:
    def __init__(self):
        self.seen = []

    def log(self, data, step=None, commit=None):
        self.seen += [(name, value, step) for name, value in data.items()]


def test_all_trackers_get_the_same_numbers():
    trackers, plain = [Scalars(), MetricsLogger(), Run()], []
    watched = watch(
        Net(), sequences(), logger=[*trackers, lambda values, step: plain.append((values, step))], log_lags=[2], **QUICK
    )
    diagnosis = watched.step()
    expected = {name: value for name, value in metrics(diagnosis, lags=[2]).items() if math.isfinite(value)}
    assert plain == [(expected, 1)]
    for tracker in trackers:
        assert tracker.seen == [(name, value, 1) for name, value in expected.items()]
        assert all(type(value) is float for _, value, _ in tracker.seen)
    assert "lagreach/n_lag_2" in expected
    assert "lagreach/n_lag_5" not in expected
    with pytest.raises(InputError, match="log_metrics, add_scalar or log"):
        as_logger(object())


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.low, self.high = nn.GRU(2, 4, batch_first=True), nn.GRU(4, 4, batch_first=True)
        self.read = nn.Linear(4, 1)

    def forward(self, x):
        return self.read(self.high(self.low(x)[0])[0])


def test_metrics_are_the_numbers_of_the_diagnosis_under_documented_names():
    x, y = sequences(64)
    diagnosis = lagreach.diagnose(Two(), (x, y), settings=QUICK["settings"], lags_of="layers")
    flat = metrics(diagnosis, sequences=[10**9])
    assert flat["lagreach/window_1000000000"] == diagnosis.window(10**9).lag
    window = diagnosis.window()
    assert [flat["lagreach/window_64_low"], flat["lagreach/window_64_high"]] == pytest.approx(
        [math.nan if end is None else end for end in window.interval], nan_ok=True
    )
    assert flat["lagreach/n_lag_4"] == diagnosis.required_if_present.sel(lag=4).min().item()
    assert flat["lagreach/gain_lag_4"] == pytest.approx(diagnosis.gain.sel(lag=4).max().item(), rel=1e-12)
    assert flat["lagreach/used"] == 64
    assert flat["lagreach/kappa"] == diagnosis.layers[0].window.concentration.exponent
    assert flat["lagreach/low/window_1000000000"] == diagnosis.window(10**9, layer="low").lag
    found_at = {lag for one in diagnosis.layers for lag in one.window.dependences}
    assert flat["lagreach/dependences"] == len(found_at)
    assert flat["lagreach/longest_dependence"] == max(found_at)
    # every name is one of the documented ones, and every documented one occurs
    general = {re.sub(r"lag_\d+", "lag_L", re.sub(r"window_\d+", "window_N", name)) for name in flat}
    general = {re.sub("/(low|high)/", "/LAYER/", name) for name in general}
    assert general == {PREFIX + name for name in NAMES}
    table = (DOCS / "callbacks.md").read_text()
    for name in NAMES:
        assert f"`{PREFIX}{name}`" in table
    with pytest.raises(InputError, match="not examined"):
        metrics(diagnosis, lags=[99])


@pytest.mark.thorough
def test_of_many_lags_powers_of_two_are_shown():
    x, y = sequences(32)
    longer = torch.cat((x, x), 1), torch.cat((y, y), 1)
    flat = metrics(lagreach.diagnose(Net().eval(), longer, settings=QUICK["settings"]))
    assert [int(name.rsplit("_")[-1]) for name in flat if "/n_lag" in name] == [1, 2, 4, 8, 16]
