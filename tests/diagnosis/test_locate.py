"""A dependence at lag l means lag l: trained networks, bands, correlated and shared inputs, and where it cannot be told."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import lagreach
from lagreach import GatedRNN
from lagreach._util.threads import one_thread
from lagreach.diagnosis import measure
from lagreach.diagnosis.locate import INTERRUPTED, NOT_ALONE, NOT_APART, LookHere
from lagreach.diagnosis.measure import MeasureSettings, measure_window, plan_measurement
from lagreach.diagnosis.passes import between_passes, first_pass
from lagreach.report.words import depends
from lagreach.types import Status

SETTINGS = MeasureSettings(probes=1, flips=199, blocks=16)
TIME, LAG = 24, 8


@pytest.fixture(autouse=True)
def _single_thread(_as_users_run_it):
    with one_thread():
        yield


class Net(nn.Module):
    def __init__(self, hidden=12):
        super().__init__()
        self.rnn, self.out = nn.LSTM(1, hidden, batch_first=True), nn.Linear(hidden, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


def delayed(sequences, seed, lags=(LAG,), time=TIME, smooth=0.0):
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(sequences, time, 1, generator=generator) for _ in range(2))
    for t in range(1, time):
        x[:, t] = smooth * x[:, t - 1] + (1 - smooth**2) ** 0.5 * x[:, t]
    for lag in lags:
        y[:, lag:] += x[:, :-lag]
    return x, y


@functools.cache
def trained():
    torch.manual_seed(0)
    model = Net()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(250):
        x, y = delayed(64, 10**6 + step)
        loss = (model(x) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model


@pytest.mark.thorough
def test_a_trained_network_does_not_name_the_lags_that_it_mixes_in():
    window = measure_window(trained(), delayed(300, 1), lags=[0, 4, 7, 8, 9, 10, 12, 16], settings=SETTINGS)
    assert window.dependences == (LAG,)
    assert set(window.marginal_dependences) > {LAG}  # what exchanging targets alone would say
    assert (window.adjusted_p >= window.marginal_p).all()
    assert window.limit(10) is Status.LIMIT_NO_DEPENDENCY
    assert window.limit(LAG) is Status.LIMIT_LEARNED
    assert window.reliance.lags == (LAG,)


def test_lags_are_named_inside_bands(monkeypatch):
    monkeypatch.setattr("lagreach.diagnosis.measure.LITTLE", 0)  # as where there are too many weights for every lag
    x, y = delayed(300, 2, lags=(17,), time=26)
    window = measure_window(GatedRNN("diag_gate", 1, 8, 1, gate_init=0.1), (x, y), settings=SETTINGS)
    assert [16, 17] in np.stack((window.required.first, window.lags), axis=1).tolist()
    assert window.dependences == window.named == window.reliance.lags == (17,)
    assert window.at(1e9).detectable == (17,)
    assert window.limit(16) is window.limit(17) is not Status.LIMIT_NO_DEPENDENCY
    assert replace(window, named=()).dependences == (17,)  # a file that names no lag: the far edge of the band


def test_correlated_inputs_are_told_apart():
    """Every input goes with every other one, but the target depends on two; chance names one more in a twentieth of all runs."""
    made = []
    for seed in range(3, 7):
        x, y = delayed(500, seed, lags=(2, 9), smooth=0.85)
        made.append(
            lagreach.diagnose(GatedRNN("lstm", 1, 8, 1), (x, y), lags=range(14), settings=replace(SETTINGS, probes=2))
        )
    named = [diagnosis.layers[0].window.dependences for diagnosis in made]
    assert all({2, 9} <= set(lags) for lags in named)
    assert named.count((2, 9)) >= 2
    diagnosis = made[named.index((2, 9))]
    window = diagnosis.layers[0].window
    assert set(window.marginal_dependences) >= set(range(12))
    assert window.limit(5) is Status.LIMIT_EXPLAINED
    assert 0.1 < window.left < 0.3
    assert "The data depend on lags 2 and 9" in str(diagnosis)
    assert any("dependences are partial" in note for note in window.warnings)


def test_a_forecast_depends_on_the_past_and_not_on_the_future():
    """The target is the next input: neighbours behind the anchor would explain it away."""
    x, _ = delayed(400, 4, smooth=0.8, time=TIME + 1)
    window = measure_window(GatedRNN("lstm", 1, 8, 1), (x[:, :-1], x[:, 1:]), lags=range(6), settings=SETTINGS)
    assert window.dependences == (0,)
    assert set(window.marginal_dependences) >= {0, 1, 2, 3}


def test_inputs_that_follow_from_each_other_are_not_told_apart():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(200, 1, 1, generator=generator).expand(-1, TIME, -1)
    y = x + torch.randn(200, TIME, 1, generator=generator)
    window = measure_window(GatedRNN("lstm", 1, 8, 1), (x, y), lags=[0, 2, 5], settings=SETTINGS)
    assert window.dependences == window.marginal_dependences == (0, 2, 5)
    assert NOT_APART in window.warnings


@pytest.mark.thorough
def test_steps_that_share_inputs_in_another_way_are_not_told_apart(monkeypatch):
    monkeypatch.setattr("lagreach.diagnosis.locate.step_input", lambda part: None)
    window = measure_window(trained(), delayed(300, 1), lags=[0, 4, 8, 10], settings=SETTINGS)
    assert window.dependences == window.marginal_dependences == (8, 10)
    assert NOT_ALONE in window.warnings


@pytest.mark.thorough
def test_a_smooth_series_without_a_named_lag_is_no_real_no():
    window = measure_window(trained(), delayed(200, 6, smooth=0.8), lags=[0, 7, 8, 9], settings=SETTINGS)
    diagnosis = lagreach.diagnose(trained(), delayed(200, 6, smooth=0.8), lags=[0, 7, 8, 9], settings=SETTINGS)
    hidden = replace(window, adjusted_p=np.ones(4), named=())
    said = depends(replace(diagnosis, layers=(replace(diagnosis.layers[0], window=hidden),)))
    assert "which of them it depends on cannot be told" in said
    assert hidden.limit(7) is Status.LIMIT_EXPLAINED


@pytest.mark.parametrize("lags", [[0, 1, 3, 8], "auto"])
def test_inputs_that_all_sequences_share_cannot_be_told(lags):
    """Not "no dependency": exchanging what is the same changes nothing."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(1, TIME, 2, generator=generator).repeat(256, 1, 1)
    y = torch.roll(x[..., :1], 3, 1) + 0.3 * torch.randn(256, TIME, 1, generator=generator)
    diagnosis = lagreach.diagnose(GatedRNN("lstm", 2, 8, 1), (x, y), lags=lags, settings=SETTINGS)
    window = diagnosis.layers[0].window
    assert set(diagnosis.limits.values()) == {Status.LIMIT_SHARED_INPUT}
    assert np.isnan(window.adjusted_p).all()
    assert np.isnan(window.required.sequences).all()
    assert np.isnan(window.required_if_present().sequences).all()
    assert window.dependences == window.marginal_dependences == ()
    assert "cannot be told: they are the same in every sequence" in str(diagnosis).replace("\n", " ")
    assert "No dependence" not in str(diagnosis)


def test_a_calendar_beside_inputs_that_differ():
    """The probe is planted in what differs, and what is shared is named."""
    generator = torch.Generator().manual_seed(8)
    calendar = 5 * torch.randn(1, TIME, 1, generator=generator).expand(256, -1, -1)
    noise = torch.randn(256, TIME, 1, generator=generator)
    y = torch.roll(noise, 3, 1) + torch.roll(calendar, 1, 1) + 0.3 * torch.randn(256, TIME, 1, generator=generator)
    model = GatedRNN("lstm", 2, 8, 1, generator=generator)
    plan = plan_measurement(model, (torch.cat((calendar, noise), -1), y), "mse", [0, 1, 3, 8], settings=SETTINGS)
    assert plan.probe.whitening.shape == (2, 1)
    planted = plan.probe.planted(torch.cat((calendar, noise), -1).double())[0, ..., None]
    size = (noise - noise.mean(0)).std().item()
    np.testing.assert_allclose(planted.abs(), (noise - noise.mean(0)).abs() / size, rtol=0.01, atol=1e-5)
    window = measure_window(model, (torch.cat((calendar, noise), -1), y), lags=[0, 1, 3, 8], settings=SETTINGS)
    assert 3 in window.dependences
    assert any("column 0 of the input is the same in every sequence" in note for note in window.warnings)


def test_no_dependence_is_denied_of_columns_that_all_sequences_share():
    """The target may depend on them: exchanging what is the same changes nothing."""
    generator = torch.Generator().manual_seed(10)
    x = torch.randn(512, 12, 2, generator=generator)
    x[..., 1] = x[0, :, 1]
    y = 0.3 * torch.roll(x[..., 1:], 3, 1) + torch.randn(512, 12, 1, generator=generator)
    diagnosis = lagreach.diagnose(
        GatedRNN("diag_gate", 2, 8, 1, gate_init=0.2, generator=generator), (x, y), lags=[0, 1, 3], settings=SETTINGS
    )
    assert "found in the data on the columns of the input that vary between sequences" in depends(diagnosis)
    assert Status.LIMIT_NO_DEPENDENCY not in diagnosis.limits.values()
    assert diagnosis.limits[0] is Status.LIMIT_NONE_WHERE_INPUTS_VARY


def test_an_interrupt_while_looking_closer_keeps_the_first_pass(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(LookHere, "exchange", interrupted)
    plan = plan_measurement(trained(), delayed(200, 1), "mse", [0, 8, 10], settings=SETTINGS)
    measured = measure.interruptible_window(plan, SETTINGS)
    assert measured.cut_short
    window = measured.window
    assert window.dependences == window.marginal_dependences
    assert INTERRUPTED in window.warnings


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"direction": "random"}, {"transport": "first-order"}, {"noise": "lag"}])
def test_other_settings_name_lags_too(options):
    settings = replace(SETTINGS, **options)
    model = trained() if "transport" not in options else GatedRNN("diag_gate", 1, 8, 1, gate_init=0.2)
    window = measure_window(model, delayed(300, 1), lags=[0, 4, 8, 10, 12], settings=settings)
    assert window.dependences == (LAG,)


def test_the_raw_gradient_is_left_as_it_is():
    settings = replace(SETTINGS, signal="gradient")
    window = measure_window(trained(), delayed(300, 1), lags=[0, 4, 8, 10], settings=settings)
    assert window.dependences == window.marginal_dependences


def test_without_a_closer_look_bands_are_named():
    """As the first pass alone has it, for those who have no sequences at hand."""
    plan = plan_measurement(trained(), delayed(300, 1), "mse", [0, 4, 8, 10], settings=SETTINGS)
    first = first_pass(plan, {})
    without = between_passes(plan, first.means, SETTINGS)
    closer = between_passes(plan, first.means, SETTINGS, first.inputs, LookHere(plan))
    assert without.dependences == (8, 10)
    assert closer.dependences == (8,)
    np.testing.assert_array_equal(closer.marginal, without.test.adjusted)
    assert closer.test.delta[3] < 0.3 * without.test.delta[3]  # the signal of N is the lag's own
    np.testing.assert_allclose(closer.test.delta[2], without.test.delta[2], rtol=0.1)
