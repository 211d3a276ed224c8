"""A number per lag is one object: it is collected, stored, printed, drawn, tracked and compared without another change."""

import dataclasses
import json
from typing import ClassVar

import numpy as np
import pytest
import torch

import lagreach
from lagreach import GatedRNN, diagnose
from lagreach.callbacks.flat import metrics
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.errors import InputError
from lagreach.report import study_page
from lagreach.statistics import LagCurve, LagStatistic, all_statistics
from lagreach.testing import check_statistic
from lagreach.types import Status

LAGS = [0, 1, 3, 8]


class InputSums:
    """Sums of squares of the input at the positions that a lag reaches."""

    def __init__(self, lags):
        self.lags, self.sums, self.count = lags, np.zeros(len(lags)), np.zeros(len(lags))

    def add(self, piece):
        x = piece.part.x.double()
        for i, lag in enumerate(self.lags):
            reached = x[:, : x.shape[1] - lag]
            self.sums[i] += reached.square().sum().item()
            self.count[i] += reached.numel()

    def merge(self, other):
        self.sums += other.sums
        self.count += other.count


class InputPower(LagStatistic):
    """Mean square of the input a lag before the end."""

    name: ClassVar[str] = "input_power"
    title: ClassVar[str] = "Power of the input"
    unit: ClassVar[str] = "variance"
    column: ClassVar[str] = "input power"
    tracked: ClassVar[str] = "power"

    def start(self, plan, dependences):
        return InputSums(plan.bands.lags)

    def curve(self, measured):
        sums = measured.collected
        value = sums.sums / sums.count
        return self.make(sums.lags, value, value - 0.1, value + 0.1, twice=2 * value)


class Forgetful(InputSums):
    def merge(self, other):
        self.sums += other.sums  # and forgets to count


class Wrong(InputPower):
    def start(self, plan, dependences):
        return Forgetful(plan.bands.lags)


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, 16, 2, generator=generator)
    y = 0.5 * torch.randn(48, 16, 1, generator=generator)
    y[:, 3:] += x[:, :-3, :1]
    return x, y


@pytest.fixture(scope="module")
def diagnosed(data):
    model = GatedRNN("diag_gate", 2, 6, 1, gate_init=0.3, generator=torch.Generator().manual_seed(0))
    return diagnose(model, data, lags=LAGS, statistics=[InputPower()], progress=False)


def test_a_statistic_from_outside_shows_up_everywhere(diagnosed, data, tmp_path):
    x = data[0].double()
    expected = [x[:, : 16 - lag].square().mean().item() for lag in LAGS]
    curve = diagnosed.layers[0].window.curves["input_power"]
    np.testing.assert_allclose(curve.value, expected, rtol=1e-12)
    arrays = diagnosed.to_xarray()
    np.testing.assert_array_equal(arrays["input_power"].values[0], curve.value)
    np.testing.assert_array_equal(arrays["input_power_low"].values[0], curve.low)
    np.testing.assert_array_equal(arrays["input_power_twice"].values[0], 2 * curve.value)
    diagnosed.save(tmp_path / "d.nc")
    again = lagreach.load(tmp_path / "d.nc")
    np.testing.assert_array_equal(again.layers[0].window.curves["input_power"].value, curve.value)
    assert list(again.layers[0].window.curves) == list(diagnosed.layers[0].window.curves)
    assert "input power" in str(again)
    assert f"{expected[0]:.3g} (" in str(again)
    assert metrics(again)["lagreach/power_lag_3"] == pytest.approx(expected[2])
    both = lagreach.compare([diagnosed, again]).to_xarray()
    np.testing.assert_allclose(both["input_power"].values, [expected, expected], rtol=1e-12)
    diagnosed.report(tmp_path / "d.html")
    page = (tmp_path / "d.html").read_text()
    assert "Power of the input" in page
    assert '<abbr title="Power of the input">input power</abbr></th>' in page  # a column of the table of lags
    assert page.count('data-label="input power"') == len(LAGS)


def test_every_curve_of_the_package_is_stored_and_read_back(diagnosed, tmp_path):
    diagnosed.save(tmp_path / "d.nc")
    again = lagreach.load(tmp_path / "d.nc")
    for name, curve in diagnosed.layers[0].window.curves.items():
        other = again.layers[0].window.curves[name]
        for field in ("lags", "value", "low", "high"):
            np.testing.assert_array_equal(getattr(other, field), getattr(curve, field))
        assert other.status == curve.status
    assert set(all_statistics()) <= set(diagnosed.layers[0].window.curves)


def test_a_page_of_a_study_shows_it_too(diagnosed, tmp_path):
    study_page("A study", [diagnosed], [], [], tmp_path / "s.html", names=["one"], answer=[])
    assert "Power of the input" in (tmp_path / "s.html").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(all_statistics()))
def test_statistics_of_the_package_pass_their_own_kit(name):
    assert "ok" in check_statistic(all_statistics()[name])


@pytest.mark.thorough
def test_one_from_outside_passes_the_kit_and_a_wrong_one_does_not():
    assert "ok" in check_statistic(InputPower())

    with pytest.raises(AssertionError, match="merged"):
        check_statistic(Wrong())


@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize(
    ("statistics", "message"),
    [
        ([InputPower], "pass Mine"),
        ([InputPower(), InputPower()], "same name"),
        ([type("Spaced", (InputPower,), {"name": "two words"})()], "word"),
        ([type("Odd", (InputPower,), {"reads": frozenset({"tea leaves"})})()], "tea leaves"),
        ([type("Taken", (InputPower,), {"name": "memory"})()], "same name"),
    ],
)
def test_what_is_no_statistic_is_refused(data, statistics, message):
    with pytest.raises(InputError, match=message):
        diagnose(GatedRNN("elman", 2, 3, 1), data, lags=[0], statistics=statistics, progress=False)


def test_a_curve_has_a_value_for_every_lag():
    three = np.zeros(3)
    with pytest.raises(InputError, match="other numbers"):
        LagCurve("c", "c", np.arange(2), three, three, three, (Status.OK,) * 3)


def test_logarithms_become_numbers_and_the_best_layer_counts():
    three = np.array([0.0, -1.0, np.nan])
    curve = LagCurve("c", "c", np.arange(3), three, three, three, (Status.OK,) * 3, log10=True)
    np.testing.assert_allclose(curve.linear().value, [1.0, 0.1, np.nan])
    assert curve.better(1.0, 2.0) == 2.0
    assert dataclasses.replace(curve, larger_is="worse").better(1.0, np.nan) == 1.0


def test_numbers_of_curves_are_those_of_the_records(diagnosed):
    layer = diagnosed.layers[0]
    window, curves = layer.window, layer.window.curves
    np.testing.assert_array_equal(curves["required_if_present"].value, window.required_if_present().sequences)
    np.testing.assert_array_equal(curves["required"].low, window.required.low)
    np.testing.assert_array_equal(curves["log10_gain"].value, layer.fidelity.log10_exact.numpy())
    np.testing.assert_array_equal(curves["memory"].value, window.memory.capacity)
    past = np.array(LAGS) > 0
    np.testing.assert_allclose(curves["growth"].value[past] * np.array(LAGS)[past], curves["log10_gain"].value[past])
    np.testing.assert_allclose(curves["gradient_ratio"].value[1], 0.0)
    np.testing.assert_allclose(curves["capacity"].value, np.minimum(1, 6 / (np.array(LAGS) + 1)))
    relied = curves["reliance"]
    assert [lag for lag, v in zip(LAGS, relied.value, strict=True) if np.isfinite(v)] == list(window.reliance.lags)


def test_a_constant_gate_has_the_half_life_of_its_retention():
    """Retention 1 - s a step: half is left after ln 2 / -ln(1 - s) steps."""
    generator = torch.Generator().manual_seed(0)
    model = GatedRNN("const_gate", 1, 4, 1, gate_init=0.2, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        for name, weight in model.layers[0].items():
            if name.startswith("U"):
                weight.zero_()
    x, y = torch.randn(2, 24, 16, 1, generator=generator, dtype=torch.float64)
    diagnosis = diagnose(model, (x, y), lags=[1, 2, 4, 8], settings=MeasureSettings(blocks=8), progress=False)
    expected = np.log(2) / -np.log(0.8) / np.array([1, 2, 4, 8])
    np.testing.assert_allclose(diagnosis.layers[0].window.curves["half_life"].value, expected, rtol=1e-6)


def test_metrics_are_plain_json(diagnosed):
    numbers = {k: v for k, v in metrics(diagnosed).items() if np.isfinite(v)}
    assert json.loads(json.dumps(numbers)) == numbers
    assert any(name.startswith("lagreach/readable_lag_") for name in numbers)
