"""Lengths for training: what chunks do to a lag's signal, and what follows for truncation and sequences."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import lagreach
from lagreach import GatedRNN
from lagreach.advice.suggest import _Chunks, suggest
from lagreach.cli.main import app
from lagreach.diagnosis.measure import MeasureSettings, plan_measurement
from lagreach.errors import InputError
from lagreach.gradients.blocks import block_means
from lagreach.types import Status

SETTINGS = MeasureSettings(blocks=16, probes=2, flips=199)
TIME = 40


def sample(generator, sequences=256, lag=3):
    x = torch.randn(sequences, TIME, 2, generator=generator)
    y = torch.zeros(sequences, TIME, 1)
    y[:, lag:] = x[:, :-lag, :1]
    return x, y


@pytest.fixture(scope="module")
def diagnosis():
    generator = torch.Generator().manual_seed(0)
    model = GatedRNN("diag_gate", 2, 8, 1, gate_init=0.2, generator=generator)
    return lagreach.diagnose(model, sample(generator), settings=SETTINGS)


def with_numbers(diagnosis, needed, dependences=(), kappa=2.0, **settings):
    """The same diagnosis with other numbers of sequences: `needed` for lags 0, 1, 2, ..."""
    layer = diagnosis.layers[0]
    lags = np.arange(len(needed))
    base = layer.window.probe
    numbers = {name: np.array(needed, dtype=float) for name in ("sequences", "low", "high", "pessimistic", "robust")}
    planted = dataclasses.replace(base, lags=lags, first=lags, status=(Status.OK,) * len(lags), **numbers)
    rate = dataclasses.replace(layer.window.concentration, kappa=kappa, interval=(kappa, kappa), status=Status.OK)
    window = dataclasses.replace(
        layer.window, probe=planted, required=planted, concentration=rate, strength=1.0,
        adjusted_p=np.where(np.isin(lags, dependences), 0.0, 1.0), delta=np.ones(len(lags)), noise=np.ones(len(lags)),
        marginal_p=None, named=(),
    )  # fmt: skip
    falling = -0.1 * torch.arange(len(lags), dtype=torch.float64)
    gains = dataclasses.replace(
        layer.fidelity, lags=torch.arange(len(lags)), log10_exact=falling, log10_first_order=falling
    )
    changed = dataclasses.replace(layer, window=window, fidelity=gains)
    return dataclasses.replace(
        diagnosis, layers=(changed,), settings=dict(diagnosis.settings) | {"time": len(lags), **settings}
    )


@pytest.mark.thorough
def test_the_signal_of_a_lag_falls_with_the_share_of_steps_that_have_it_inside():
    """Measured: planted gradients on sequences of T steps, and on the chunks that they are cut into."""
    generator = torch.Generator().manual_seed(1)
    model = GatedRNN("const_gate", 2, 6, 1, gate_init=0.5, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        model.readout.weight.normal_(generator=generator)
        for weight in model.layers.parameters():
            weight.mul_(0.02)  # so small that the network is linear, and in its stationary state at once
    x = torch.randn(3000, TIME, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(3000, TIME, 1, generator=generator, dtype=torch.float64)
    lags, size = [0, 1, 3, 6], {}
    for length in (TIME, 10):
        data = (x.unflatten(1, (-1, length)).flatten(0, 1), y.unflatten(1, (-1, length)).flatten(0, 1))
        plan = plan_measurement(model, data, "mse", lags, settings=SETTINGS)
        size[length] = np.linalg.norm(np.average(block_means(plan).probe[:, 0], axis=0), axis=-1)
    expected = [((10 - lag) / 10) / ((TIME - lag) / TIME) for lag in lags]
    np.testing.assert_allclose(size[10] / size[TIME], expected, rtol=0.02)


def test_the_truncation_is_the_shortest_that_is_enough(diagnosis):
    """In closed form: N (s_T / s_k)^kappa <= available, and k of at least twice the lag."""
    needed = [1.0, 2.0, 4.0, 8.0, 90.0] + [1e9] * 35
    made = with_numbers(diagnosis, needed, dependences=[4], kappa=2.0)
    result = suggest(made, sequences=100)
    shortest = next(k for k in range(8, 41) if 90 * ((36 / 40) / ((k - 4) / k)) ** 2 <= 100)
    assert shortest > 8
    assert (result.lag, result.truncation) == (4, shortest)
    assert result.needed_truncated == pytest.approx(90 * ((36 / 40) / ((shortest - 4) / shortest)) ** 2)
    assert result.needed_truncated <= 100
    assert result.gain == pytest.approx(10**-0.4)
    assert result.status is Status.OK
    plenty = suggest(made, sequences=10**5)
    assert plenty.truncation == 8  # half of the signal is left
    slow = suggest(with_numbers(diagnosis, needed, dependences=[4], kappa=4.0), sequences=100)
    assert slow.truncation > shortest


def test_sequences_hold_every_lag_within_reach_and_not_only_those_found(diagnosis):
    needed = [1.0] * 10 + [1e9] * 30
    result = suggest(with_numbers(diagnosis, needed, dependences=[2]), sequences=100)
    assert (result.truncation, result.sequence_length) == (4, 18)
    assert "hold every lag, up to 9, that 100 of them can tell" in str(result)
    assert "Beyond lag 9, 100 sequences could not tell" in str(result)


@pytest.mark.thorough
def test_a_loss_at_the_end_needs_one_step_more_than_the_lag(diagnosis, generator):
    needed = [1.0] * 10 + [1e9] * 30
    result = suggest(with_numbers(diagnosis, needed, dependences=[7], anchors=1.0), sequences=100)
    assert (result.truncation, result.sequence_length) == (8, 10)
    assert result.needed_truncated == result.needed
    # a diagnosis knows where its loss looks
    x = torch.randn(64, TIME, 2, generator=generator)
    model = GatedRNN("diag_gate", 2, 6, 1, generator=generator)
    at_end = lagreach.diagnose(model, (x, x[:, -4, :1]), lags=[0, 3], settings=SETTINGS)
    everywhere = lagreach.diagnose(model, (x, x[..., :1]), lags=[0, 3], settings=SETTINGS)
    assert (at_end.settings["anchors"], everywhere.settings["anchors"]) == (1.0, TIME)
    assert (at_end.settings["time"], _Chunks(at_end).at_end, _Chunks(everywhere).at_end) == (TIME, True, False)


def test_lags_that_are_asked_for(diagnosis):
    needed = [1.0] * 10 + [1e9] * 30
    made = with_numbers(diagnosis, needed, dependences=[2])
    assert suggest(made, [5], sequences=100).truncation == 10
    far = suggest(made, [5, 15], sequences=100)
    assert (far.lag, far.truncation, far.status) == (15, 30, Status.LIMIT_SAMPLE_SIZE)
    assert "lag 15 about 1e9" in str(far)
    assert suggest(made, [30], sequences=100).truncation == 40  # all there is


def test_without_a_dependence_everything_within_reach_counts(diagnosis):
    result = suggest(with_numbers(diagnosis, [1.0] * 10 + [1e9] * 30), sequences=100)
    assert (result.lag, result.truncation, result.sequence_length) == (9, 18, 18)
    assert "No dependence within reach" in result.reasons[0]


def test_dependences_out_of_reach_are_named_and_held_by_the_length(diagnosis):
    """Gates can open the reach; nothing brings back what a chunk cuts off."""
    made = with_numbers(diagnosis, [1.0] * 10 + [500.0] * 30, dependences=[2, 20])
    result = suggest(made, sequences=100)
    assert (result.lag, result.status) == (20, Status.LIMIT_SAMPLE_SIZE)
    assert result.truncation > 20
    assert any("lag 20 about 500" in reason for reason in result.reasons)
    assert any("gates can open the reach" in reason for reason in result.reasons)
    unknown = suggest(with_numbers(diagnosis, [1.0] * 10 + [math.nan] * 30, dependences=[30]), sequences=100)
    assert unknown.truncation > 30


def test_nothing_within_reach(diagnosis):
    result = suggest(with_numbers(diagnosis, [1e4] * 40), sequences=100)
    assert result.truncation is None
    assert result.status is Status.WINDOW_EMPTY
    assert math.isnan(result.needed)
    assert str(result).startswith("No length can be suggested.")
    assert result.to_dict()["needed"] is None


def test_a_window_that_reaches_the_end_asks_for_longer_sequences(diagnosis):
    result = suggest(with_numbers(diagnosis, [1.0] * 40), sequences=10**6)
    assert result.status is Status.WINDOW_CENSORED
    assert "diagnose longer sequences" in str(result)


def test_files_without_a_length_still_give_an_answer(diagnosis):
    made = with_numbers(diagnosis, [1.0] * 10 + [1e9] * 30, dependences=[2])
    older = dataclasses.replace(made, settings={k: v for k, v in made.settings.items() if k not in ("time", "anchors")})
    assert suggest(older, sequences=100).truncation == 4


@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize(
    ("options", "message"),
    [({"lags": []}, "no lags"), ({"lags": [99]}, "not examined"), ({"sequences": 0}, "positive")],
)
def test_bad_arguments(options, message, diagnosis):
    with pytest.raises(InputError, match=message):
        suggest(diagnosis, **options)


@pytest.mark.usefixtures("_as_users_run_it")
def test_the_command(diagnosis, tmp_path):
    diagnosis.save(tmp_path / "d.nc")
    printed = CliRunner().invoke(app, ["suggest", str(tmp_path / "d.nc")])
    assert printed.exit_code == 0, printed.output
    assert printed.output.strip() == str(suggest(diagnosis))
    printed = CliRunner().invoke(
        app, ["suggest", str(tmp_path / "d.nc"), "--lag", "2", "--lag", "4", "--sequences", "5000", "--json"]
    )
    assert json.loads(printed.output) == suggest(diagnosis, [2, 4], sequences=5000).to_dict()
