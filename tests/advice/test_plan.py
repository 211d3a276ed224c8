"""Planning: numbers and windows agree with the detection theory, and results print, serialise and draw."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lagreach.advice.plan import plan
from lagreach.detection import required_sequences
from lagreach.errors import InputError
from lagreach.types import Status

SHAPES = {
    "power": ({"beta": 0.8}, lambda lag: lag**-0.8),
    "exponential": ({"tau": 25.0}, lambda lag: np.exp(-lag / 25.0)),
    "logarithmic": ({}, lambda lag: 1 / np.log1p(lag)),
    "stretched": ({"tau": 6.0, "b": 0.5}, lambda lag: np.exp(-np.sqrt(lag / 6.0))),
}
NOISES = [{}, {"alpha": 1.7}, {"alpha": 2.0}, {"kappa": 2.3}]


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("law", SHAPES)
def test_requirements_are_those_of_detection(law, noise):
    shape, envelope = SHAPES[law]
    study = plan(law, **shape, scale=0.6, signal=2.0, sigma=5.0, error=0.02, lags=[1, 3, 10, 200], batch=8, **noise)
    lags = np.array([1.0, 3.0, 10.0, 200.0])
    np.testing.assert_allclose(study.envelope, 0.6 * envelope(lags), rtol=1e-12)
    np.testing.assert_allclose(study.separation, 1.2 * envelope(lags), rtol=1e-12)
    np.testing.assert_allclose(
        study.mean.required, required_sequences(study.separation, 5.0, error=0.02, **noise), rtol=1e-9
    )
    np.testing.assert_allclose(
        study.clipped.required,
        required_sequences(study.separation, 5.0, error=0.02, criterion="robust", batch=8, **noise),
        rtol=1e-9,
    )
    assert study.mean.window is None
    assert study.mean.status is Status.OK


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("law", ["power", "exponential", "stretched"])
def test_window_is_the_largest_affordable_lag(law, noise):
    shape, _ = SHAPES[law]
    lags = np.arange(1, 20_001)
    for sequences in (500, 8000, 1e5):
        study = plan(law, **shape, sigma=2.0, sequences=sequences, lags=lags, **noise)
        for way in (study.mean, study.clipped):
            affordable = lags[way.required <= sequences]
            if affordable.size == 0:
                assert way.window is None
                assert way.status is Status.NOT_EVEN_LAG_ONE
            else:
                assert way.window == affordable.max()


@settings(max_examples=60, deadline=None)
@given(lag=st.integers(1, 400), beta=st.floats(0.3, 2.0), sigma=st.floats(0.5, 8.0), alpha=st.floats(1.3, 2.0))
def test_the_number_a_lag_needs_buys_that_lag(lag, beta, sigma, alpha):
    needed = plan("power", beta=beta, sigma=sigma, alpha=alpha, lags=[lag])
    for name in ("mean", "clipped"):
        n = float(getattr(needed, name).required[0])
        if n >= 1:
            study = plan("power", beta=beta, sigma=sigma, alpha=alpha, sequences=n)
            assert getattr(study, name).window == lag
            fewer = plan("power", beta=beta, sigma=sigma, alpha=alpha, sequences=max(1.0, 0.99 * n))
            window = getattr(fewer, name).window
            assert (window or 0) <= lag


def test_gaussian_power_window_in_closed_form():
    # N(l) = (2 z 5 l)^2 = 8000 at l = sqrt(8000)/(10 z) = 5.44
    study = plan("power", beta=1, sigma=5, sequences=8000)
    assert study.mean.window == int(np.sqrt(8000) / (2 * 1.6448536269514722 * 5))
    assert study.kappa == 2.0
    assert study.alpha is None


def test_clipping_beats_the_mean_under_heavy_tails_only():
    heavy = plan("power", beta=1, signal=1, sigma=5, alpha=1.7, error=0.05, sequences=8000)
    assert heavy.clipped.window > heavy.mean.window
    light = plan("exponential", tau=20, sigma=5, sequences=8000)
    assert light.clipped.window <= light.mean.window


def test_growth_exponents_of_both_ways():
    n = np.array([1e6, 1e8])
    study = plan("power", beta=0.5, sigma=1.0, alpha=1.5, sequences=1e6)
    np.testing.assert_allclose(np.diff(np.log(study.mean.growth.at(n))) / np.log(100), 1 / (3 * 0.5), rtol=1e-9)
    np.testing.assert_allclose(np.diff(np.log(study.clipped.growth.at(n))) / np.log(100), 1 / (2 * 0.5), rtol=1e-9)


def test_no_mean_for_alpha_at_most_one():
    study = plan("stretched", tau=20, b=0.5, sigma=5, alpha=0.9, sequences=8000)
    assert np.all(np.isinf(study.mean.required))
    assert study.mean.window is None
    assert study.mean.status is Status.NO_CONCENTRATION
    assert study.clipped.window >= 1
    assert "no number of them suffices" in str(study)
    assert study.to_dict()["kappa"] is None
    assert study.to_dict()["mean"]["required"][0] is None


def test_fragile_exponent_is_said():
    assert "moves N a hundredfold" in str(plan("power", beta=1, alpha=1.05, sequences=100))
    beyond = plan("power", beta=1, sigma=50, alpha=1.005, sequences=100)  # N beyond float range
    assert np.all(np.isinf(beyond.mean.required))
    assert beyond.mean.status is Status.EXPONENT_FRAGILE


def test_logarithmic_envelope_may_have_no_end():
    study = plan("logarithmic", sigma=0.1, sequences=1e6)
    assert study.mean.window is None
    assert study.mean.status is Status.WINDOW_UNBOUNDED
    assert "any practical lag" in study.verdict()
    assert "any lag" in study.figure().axes[0].get_title(loc="left")


def test_table_is_readable():
    text = str(plan("power", beta=1, signal=1, sigma=5, alpha=1.7, error=0.05, sequences=8000))
    assert "f(l) = l^-1" in text
    assert "stable with alpha = 1.7 and scale 5" in text
    assert "With 8,000 sequences the mean shows lag 1, clipping shows lags up to 3." in text
    assert max(map(len, text.splitlines())) <= 110
    assert "standard deviation 5" in str(plan("exponential", tau=3, sigma=5))
    assert "half range 5" in str(plan("exponential", tau=3, sigma=5, kappa=2.5))
    assert "after means of 4" in str(plan("exponential", tau=3, sigma=5, batch=4))
    assert "Give `sequences`" in str(plan("exponential", tau=3))


@pytest.mark.parametrize("noise", [*NOISES, {"alpha": 0.8}], ids=str)
def test_dictionary_is_json(noise):
    study = plan("exponential", tau=2.0, sigma=3.0, sequences=1000, lags=[1, 2, 5000], **noise)
    loaded = json.loads(json.dumps(study.to_dict(), allow_nan=False))
    assert loaded["lags"] == [1.0, 2.0, 5000.0]
    assert loaded["clipped"]["window"] == study.clipped.window
    assert loaded["mean"]["required"][2] is None  # beyond float range
    assert loaded["mean"]["status"] == study.mean.status.name
    assert loaded["mean"]["advice"] == str(study.mean.status)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_figure_is_saved(tmp_path, suffix):
    study = plan("power", beta=1, sigma=5, alpha=1.7, sequences=8000)
    path = tmp_path / f"plan.{suffix}"
    figure = study.figure(path)
    assert path.stat().st_size > 5000
    assert "matplotlib.pyplot" not in type(figure.canvas).__module__


@pytest.mark.parametrize("sequences", [None, 3, 8000])
@pytest.mark.parametrize("noise", [*NOISES, {"alpha": 0.9}, {"alpha": 1.05}], ids=str)
@pytest.mark.parametrize("law", SHAPES)
def test_figure_shows_curves_and_windows(law, noise, sequences):
    study = plan(law, **SHAPES[law][0], sigma=3.0, sequences=sequences, **noise)
    axes = study.figure().axes[0]
    curves = [line for line in axes.lines if len(line.get_xdata()) > 100]
    assert len(curves) == sum(way.growth is not None for way in (study.mean, study.clipped))
    marks = sorted(float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "o")
    assert marks == sorted(float(way.window) for way in (study.mean, study.clipped) if way.window is not None)
    labels = [text.get_text() for text in axes.texts]
    assert any("mean over sequences" in label for label in labels)
    if sequences is not None:
        assert any(f"{sequences:,}\nsequences" in label for label in labels)


def test_planning_does_not_import_matplotlib(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    plan("power", beta=1, sequences=100)
    assert not any(name.split(".")[0] == "matplotlib" for name in sys.modules)


@pytest.mark.parametrize(
    "arguments",
    [
        {"law": "cubic"},
        {"law": "power"},
        {"law": "power", "beta": 1.0, "tau": 2.0},
        {"law": "power", "beta": -1.0},
        {"law": "exponential", "tau": np.nan},
        {"law": "logarithmic", "b": 1.0},
        {"signal": 0.0},
        {"sigma": np.inf},
        {"scale": 0.0},
        {"alpha": 1.5, "kappa": 3.0},
        {"alpha": 2.5},
        {"kappa": 1.0},
        {"error": 0.7},
        {"sequences": 0},
        {"sequences": np.nan},
        {"lags": []},
        {"lags": [0, 1]},
        {"batch": 0},
        {"batch": 1.5},
        {"clip": -1.0},
    ],
)
def test_bad_plans_are_refused(arguments):
    base = {"law": "power", "beta": 1.0} if "law" not in arguments else {}
    with pytest.raises(InputError):
        plan(**{**base, **arguments})


def test_whole_numbers_of_any_size_are_sequences():
    many = plan("power", beta=1, sigma=5, sequences=10**23)
    assert many.sequences == 1e23
    assert many.mean.window == plan("power", beta=1, sigma=5, sequences=1e23).mean.window
    with pytest.raises(InputError, match="at least one sequence"):
        plan("power", beta=1, sigma=5, sequences=10**400)
