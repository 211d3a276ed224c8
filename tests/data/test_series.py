"""Windows of one series: stretches that are independent enough for an honest test, or no test at all."""

import numpy as np
import pytest
import torch
from scipy.signal import lfilter
from scipy.stats import beta, binom
from torch import nn

import lagreach
from lagreach import GatedRNN, Status, cut_series
from lagreach.data.correlation import autocorrelation, neighbours, settled, without_shared_lines
from lagreach.data.pairs import plan_blocks
from lagreach.errors import InputError
from tests.data.cases import autoregressive, false_dependences, noise, smallest_p

LENGTH = 24


@pytest.fixture(autouse=True)
def _without_type_checks(_as_users_run_it):
    """As users run it: many small diagnoses."""


def unrelated(memory, windows, stride=LENGTH):
    """Windows of two series that have nothing to do with each other."""

    def make(rng):
        steps = (windows - 1) * stride + LENGTH
        return cut_series(autoregressive(rng, steps, memory), autoregressive(rng, steps, memory), LENGTH, stride)

    return make


SERIES = {
    "AR .9": (0.9, 96),
    "AR .95": (0.95, 96),
    "AR .97": (0.97, 96),
    "AR .99": (0.99, 96),
    "AR .9, longer": (0.9, 384),
    "AR .99, longer": (0.99, 384),
    "white, stride 6": (0.0, 380, 6),
    "AR .9, stride 6": (0.9, 380, 6),
    "AR .95, stride 6": (0.95, 380, 6),
    "white, stride 1": (0.0, 1000, 1),
    "AR .9, stride 1": (0.9, 1000, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SERIES.values(), ids=SERIES)
def test_unrelated_series_are_found_related_as_rarely_as_promised(case):
    false, _ = false_dependences(unrelated(*case), 400)
    assert false <= binom.ppf(0.9995, 400, 0.05)
    assert beta.ppf(0.025, max(false, 1), 401 - max(false, 1)) <= 0.05


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["AR .95", "AR .99", "white, stride 1"])
def test_a_few_unrelated_series(name):
    """Before, 14 %, 42 % and 11 % were found related."""
    false, refused = false_dependences(unrelated(*SERIES[name]), 24)
    assert false <= binom.ppf(0.999, 24, 0.05)
    assert (refused > 20) == (name == "AR .99")


def test_random_walks_are_refused_in_a_sentence(generator):
    x, y = (torch.randn(2400, 1, generator=generator).cumsum(0) for _ in range(2))
    model = GatedRNN("gru", 1, 6, 1, generator=generator)
    diagnosis = lagreach.diagnose(model, cut_series(x, y, LENGTH), lags=[0, 1, 3])
    window = diagnosis.layers[0].window
    assert np.isnan(window.adjusted_p).all()
    assert window.dependences == ()
    assert set(window.required.status) == {window.limit(3)} == {Status.LIMIT_CANNOT_BE_TOLD}
    assert np.isnan(window.required.sequences).all()
    assert np.isfinite(window.required_if_present().sequences).all()  # the model's reach is another question
    assert "cannot be told from this series" in str(diagnosis)
    assert any("differences (torch.diff)" in warning for warning in window.warnings)
    assert "no dependence" not in str(diagnosis).lower()


def test_differences_of_random_walks_are_tested(generator):
    x, y = (torch.randn(2401, 1, generator=generator).cumsum(0).diff(dim=0) for _ in range(2))
    plan = plan_blocks(cut_series(x, y, LENGTH), 32, 0, members=8)
    assert not plan.untold
    assert plan.sequences >= 90


def seasonal(steps, generator, memory=0.6):
    """Weekly changes that resemble those of a year before."""
    series = torch.randn(steps + 53, generator=generator)
    for week in range(52, len(series)):
        series[week] += memory * series[week - 52]
    return series[53 - 1 :, None]


def test_the_year_before_is_found_in_a_long_seasonal_series(generator):
    series = seasonal(9000, generator)
    model = GatedRNN("diag_gate", 1, 12, 1, gate_init=0.05, generator=generator)
    diagnosis = lagreach.diagnose(model, cut_series(series[:-1], series[1:], 104), lags=[0, 20, 45, 51, 60])
    assert diagnosis.layers[0].window.dependences == (51,)
    assert any("stretches of" in warning for warning in diagnosis.warnings)


@pytest.mark.thorough
def test_the_year_is_found_in_the_carbon_dioxide_of_mauna_loa():
    datasets = pytest.importorskip("statsmodels.api").datasets
    weekly = datasets.co2.load_pandas().data["co2"].interpolate().to_numpy()
    changes = np.diff(weekly)
    changes = torch.from_numpy((changes - changes.mean()) / changes.std()).float()[:, None]

    class Forecaster(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.read = nn.LSTM(1, 16, batch_first=True), nn.Linear(16, 1)

        def forward(self, x):
            return self.read(self.rnn(x)[0])

    torch.manual_seed(0)
    data = cut_series(changes[:-1], changes[1:], 104, stride=13)
    diagnosis = lagreach.diagnose(Forecaster(), data, lags=[0, 1, 2, 26, 52])
    assert 52 in diagnosis.layers[0].window.dependences
    assert any("repeat every 52.2 steps" in warning for warning in diagnosis.warnings)


def test_carbon_dioxide_and_el_nino_are_not_found_related():
    """Months of one and weeks of the other: nothing but their slowness in common."""
    datasets = pytest.importorskip("statsmodels.api").datasets
    weekly = datasets.co2.load_pandas().data["co2"].interpolate().to_numpy()
    warmth = datasets.elnino.load_pandas().data.iloc[:, 1:].to_numpy().ravel()
    steps = len(warmth)
    series = [torch.from_numpy((v - v.mean()) / v.std()).float()[:, None] for v in (warmth, weekly[:steps])]
    for x, y in (series, series[::-1]):
        assert np.isnan(smallest_p(cut_series(x, y, 24, stride=4), 0))


def test_stretches_do_not_touch(generator):
    """No step of one block is seen in another one, whatever the stride."""
    x, y = torch.randn(3000, 1, generator=generator), torch.randn(3000, 1, generator=generator)
    for stride in (1, 6, 24):
        plan = plan_blocks(cut_series(x, y, LENGTH, stride), 32, 0, members=8)
        assert not plan.untold
        home = np.full(3000, -1)
        for pair, block in zip(plan.pairs, plan.blocks, strict=True):
            for number in pair:
                steps = home[number * stride : number * stride + LENGTH]
                assert np.isin(steps, [-1, block]).all()
                steps[:] = block


def test_slow_series_get_longer_and_fewer_stretches():
    rng = np.random.default_rng(0)
    plans = [plan_blocks(unrelated(memory, 384)(rng), 32, 0, members=8) for memory in (0.0, 0.9, 0.97)]
    units = [plan.count * plan.members for plan in plans]
    assert units == sorted(units, reverse=True)
    assert units[0] > 2 * units[-1]


def test_correlations_are_recovered_where_the_mean_hides_them():
    """An AR(1) process of a hundred steps' memory, of which twenty are seen."""
    rng = np.random.default_rng(0)
    hidden, recovered = [], []
    for _ in range(100):
        values = autoregressive(rng, 2000, 0.99).double().numpy()
        centred = values - values.mean()
        hidden.append((centred[:-100] * centred[100:]).mean() / centred.var())
        recovered.append(settled(autocorrelation([values], 500), 2000)[100, 0])
    truth = 0.99**100
    assert abs(np.mean(recovered) - truth) < 0.7 * abs(np.mean(hidden) - truth)


def test_noise_has_no_correlations():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(3000, 20))
    correlations = settled(autocorrelation([values], 700), 3000)
    assert (correlations[0] == 1).all()
    assert np.abs(correlations[1:]).sum(0).mean() < 0.2


@pytest.mark.parametrize(("length", "gap"), [(10, 0), (40, 12), (120, 24)])
def test_neighbouring_stretches_share_what_the_sum_over_their_steps_says(length, gap):
    correlation = 0.9 ** np.arange(400)
    together = 0.9 ** np.abs(np.subtract.outer(np.arange(2 * length + gap), np.arange(2 * length + gap)))
    one, other = slice(0, length), slice(length + gap, 2 * length + gap)
    expected = together[one, other].sum() / together[one, one].sum()
    np.testing.assert_allclose(neighbours(correlation, length, gap), expected, rtol=1e-10)


def test_only_cycles_that_both_have_are_taken_off():
    rng = np.random.default_rng(2)
    time = np.arange(2000)
    year, other = np.cos(2 * np.pi * time / 52.18 + 1)[:, None], np.cos(2 * np.pi * time / 17.3)[:, None]
    x, y = year + rng.normal(size=(2000, 1)), 0.7 * year + other + rng.normal(size=(2000, 1))
    clean_x, clean_y, periods = without_shared_lines(x, y)
    assert periods == [pytest.approx(52.18, rel=2e-3)]
    np.testing.assert_allclose((clean_x * year).mean(), 0.0, atol=0.02)
    assert (clean_y * other).mean() > 0.4
    assert without_shared_lines(rng.normal(size=(2000, 3)), y)[2] == []


def test_slow_series_have_no_cycles():
    rng = np.random.default_rng(3)
    for memory in (0.0, 0.9, 0.99, 1.0):
        x, y = (autoregressive(rng, 2300, memory).double().numpy() for _ in range(2))
        assert without_shared_lines(x, y)[2] == []


def test_targets_of_whole_windows_are_a_series_too():
    """One target a window, as forecasters have them: slow ones are refused as well."""
    rng = np.random.default_rng(4)
    x, y = autoregressive(rng, 2400, 1.0), autoregressive(rng, 2400, 1.0)
    windows = torch.stack([x[s : s + LENGTH] for s in range(0, 2300, 6)])
    targets = torch.stack([y[s + LENGTH] for s in range(0, 2300, 6)])
    assert plan_blocks(lagreach.data.sequences.as_sequences((windows, targets)), 32, 0).untold
    white = noise(rng, 2400, 1)
    targets = torch.stack([white[s + LENGTH] for s in range(0, 2300, 6)])
    assert not plan_blocks(lagreach.data.sequences.as_sequences((windows, targets)), 32, 0).untold


REMEMBERS = {"white": [1.0], "AR .9": [1.0, -0.9], "the last and the twelfth before": [1.0, -0.5, *[0.0] * 10, -0.35]}


def and_its_next_value(rng, memory, steps, season=0.0):
    """A series that follows from itself, and the same one a step later: whatever one of them holds, both do."""
    series = lfilter([1.0], REMEMBERS[memory], rng.normal(size=steps + 1000))[1000:]
    series = series / series.std() + season
    return series[:-1, None], series[1:, None]


@pytest.mark.parametrize("memory", REMEMBERS)
def test_series_that_only_follow_from_themselves_have_no_season(memory):
    rng, runs = np.random.default_rng(3), 300
    found = sum(bool(without_shared_lines(*and_its_next_value(rng, memory, 6000))[2]) for _ in range(runs))
    assert found <= binom.ppf(0.999, runs, 0.01)


@pytest.mark.parametrize("memory", REMEMBERS)
def test_a_season_is_found_also_where_series_follow_from_themselves(memory):
    rng, time = np.random.default_rng(4), np.arange(6000)
    daily = 0.4 * np.sqrt(2) * np.sin(2 * np.pi * time / 24)
    weekly = 0.4 * np.resize([0.6, 0.6, 0.6, 0.6, 0.6, -1.5, -1.5], 6000)
    for period, season in ((24, daily), (7, weekly)):
        found = without_shared_lines(*and_its_next_value(rng, memory, 6000, season))[2]
        assert any(abs(one / period - 1) < 0.01 for one in found)


def test_series_may_be_frames_or_arrays_that_cannot_be_written_to():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.arange(48.0), "b": np.arange(48.0)})
    for x, y in ((frame[["a"]], frame[["b"]]), (frame[["a"]], frame["b"]), (frame[["a"]].values, frame[["b"]].values)):
        for part in (x, y):
            if isinstance(part, np.ndarray):
                part.flags.writeable = False
        windows = cut_series(x, y, 24)
        assert windows.read([1]).x.flatten().tolist() == list(range(24, 48))
    for wrong in (frame[["a"]].astype(object), frame[["a"]].astype(object).values):
        with pytest.raises(InputError, match="these are no numbers"):
            cut_series(wrong, frame[["b"]], 24)
