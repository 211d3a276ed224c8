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


class Bare(InputPower):
    """Nothing but what every statistic must have."""

    name: ClassVar[str] = "bare"
    title: ClassVar[str] = "A bare number"
    unit: ClassVar[str] = ""
    column: ClassVar[str | None] = None
    tracked: ClassVar[str | None] = None


class PowerThatArrives(InputPower):
    """What was collected in a pass, beside what is measured after it."""

    name: ClassVar[str] = "power_that_arrives"
    reads: ClassVar[frozenset[str]] = frozenset({"states", "gains", "rates"})

    def curve(self, measured):
        sums = measured.collected
        assert measured.rates.lags.tolist() == list(sums.lags)
        return self.make(measured.gains.lags.numpy(), sums.sums / sums.count * measured.gains.exact.numpy())


class LayerNumber(LagStatistic):
    """A number that each layer has another of: one for the first that is asked, two for the second, ..."""

    name: ClassVar[str] = "layer_number"
    title: ClassVar[str] = "Number of the layer"
    reads: ClassVar[frozenset[str]] = frozenset({"window"})

    def __init__(self):
        self.asked = 0

    def curve(self, measured):
        self.asked += 1
        return self.make(measured.window.lags, np.full(len(measured.window.lags), float(self.asked)))


class Costly(LayerNumber):
    """The same, where less is better."""

    name: ClassVar[str] = "costly"
    larger_is: ClassVar[str] = "worse"


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


def test_a_bare_statistic_is_printed_tracked_and_compared(data):
    model = GatedRNN("diag_gate", 2, 6, 1, generator=torch.Generator().manual_seed(0))
    diagnosis = diagnose(model, data, lags=LAGS, statistics=[Bare()], progress=False)
    value = diagnosis.curve("bare").values
    assert "bare" in str(diagnosis)
    assert metrics(diagnosis)["lagreach/bare_lag_3"] == pytest.approx(value[2])
    printed = str(lagreach.compare([diagnosis, diagnosis], ["one", "two"]))
    assert "A bare number, at lags 0, 1, 3, 8:" in printed
    assert printed.count("  ".join(f"{v:.3g}" for v in value)) == 2


def test_gains_and_rates_are_there_for_a_statistic_that_reads_them(data, tmp_path):
    model = GatedRNN("diag_gate", 2, 6, 1, gate_init=0.3, generator=torch.Generator().manual_seed(0))
    both = [InputPower(), PowerThatArrives()]
    diagnosis = diagnose(model, data, lags=LAGS, statistics=both, progress=False)
    curves = diagnosis.layers[0].window.curves
    expected = curves["input_power"].value * diagnosis.gain.values
    np.testing.assert_allclose(curves["power_that_arrives"].value, expected, rtol=1e-12)
    diagnosis.save(tmp_path / "d.nc")
    again = lagreach.load(tmp_path / "d.nc").curve("power_that_arrives")
    np.testing.assert_array_equal(again.values, curves["power_that_arrives"].value)
    assert "ok" in check_statistic(PowerThatArrives())


def test_where_there_are_no_rates_one_that_reads_them_has_no_curve(data):
    class Projected(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.LSTM(2, 6, proj_size=3, batch_first=True)
            self.read = torch.nn.Linear(3, 1)

        def forward(self, x):
            return self.read(self.layer(x)[0])

    torch.manual_seed(0)
    diagnosis = diagnose(Projected(), data, lags=LAGS, statistics=[PowerThatArrives()], progress=False)
    assert diagnosis.layers[0].rates is None
    assert "power_that_arrives" not in diagnosis.layers[0].window.curves


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "required_low"}, "required_low of 'required' and of 'required_low'"),
        ({"curve": lambda self, _: self.make([5], np.zeros(1))}, "other lags"),
        ({"curve": lambda self, _: 1 / 0}, "division by zero"),
    ],
)
def test_a_wrong_statistic_is_left_out_and_costs_nothing_else(data, wrong, message):
    statistic = type("Wrong", (InputPower,), wrong)()
    model = GatedRNN("elman", 2, 3, 1, generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match=f"(?s)was left out: .*{message}"):
        diagnosis = diagnose(model, data, lags=LAGS, statistics=[statistic], progress=False)
    assert statistic.name not in diagnosis.layers[0].window.curves
    assert diagnosis.required_if_present.shape == (len(LAGS),)
    with pytest.raises(UserWarning, match="was left out"):
        check_statistic(statistic)


def test_of_several_layers_a_comparison_takes_the_better_one(data):
    torch.manual_seed(0)
    net = GatedRNN("diag_gate", 2, 6, 1, generator=torch.Generator().manual_seed(0))

    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (torch.nn.GRU(size, 4, batch_first=True) for size in (2, 4))
            self.read = torch.nn.Linear(4, 1)

        def forward(self, x):
            return self.read(self.second(self.first(x)[0])[0])

    two = diagnose(Two(), data, lags=LAGS, statistics=[LayerNumber(), Costly()], progress=False, lags_of="layers")
    one = diagnose(net, data, lags=LAGS, statistics=[LayerNumber(), Costly()], progress=False)
    arrays = lagreach.compare([two, one]).to_xarray()
    assert arrays["layer_number"].values.tolist() == [[2.0] * 4, [1.0] * 4]
    assert arrays["costly"].values.tolist() == [[1.0] * 4, [1.0] * 4]
    np.testing.assert_array_equal(arrays["gain"].values[0], two.gain.max("layer").values)
    np.testing.assert_array_equal(
        arrays["required"].sel(lag=LAGS).values[0], two.required.min("layer").sel(lag=LAGS).values
    )


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
        ([type("Axis", (InputPower,), {"name": "lag"})()], "another meaning"),
        ([type("InFiles", (InputPower,), {"name": "limit"})()], "another meaning"),
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
