"""Why the signal is a contrast and the noise that of the whole gradient, and what every option does."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from lagreach import Cell, GatedRNN, stable
from lagreach._util.threads import one_thread
from lagreach.diagnosis.measure import MeasureSettings, measure_window, plan_measurement
from lagreach.errors import InputError
from lagreach.gradients.blocks import block_means
from lagreach.gradients.noise import noise_values, unit_directions
from lagreach.tasks.multi_lag import MultiLag
from lagreach.types import Status

SETTINGS = MeasureSettings(blocks=16, probes=1, flips=399)
TASK = MultiLag(lags=(2,), coefficients=(1.0,), noise=0.5, input_size=2)


@pytest.fixture(autouse=True)
def _single_thread(_as_users_run_it):
    with one_thread():
        yield


def train(model, steps, generator):
    """Fit the task with fresh sequences, down to a vanishing learning rate."""
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        x, y = dataclasses.replace(TASK, length=20).sample(64, generator)
        loss = (model(x) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()


@pytest.mark.thorough
@pytest.mark.parametrize("cell", ["diag_gate", "lstm"])
def test_a_learned_lag_stays_visible_to_the_contrast_and_vanishes_from_the_raw_gradient(cell, generator):
    model = GatedRNN(cell, 2, 8, 1, gate_init=0.5, generator=generator)
    x, y = dataclasses.replace(TASK, length=20).sample(160, generator)
    raw = dataclasses.replace(SETTINGS, signal="gradient")
    lags = range(9)
    before, raw_before = (measure_window(model, (x, y), lags=lags, settings=s) for s in (SETTINGS, raw))
    train(model, 400, generator)
    after, raw_after = (measure_window(model, (x, y), lags=lags, settings=s) for s in (SETTINGS, raw))
    with torch.no_grad():
        explained = 1 - (model(x) - y)[:, 2:].square().mean() / y[:, 2:].var()
    assert explained > 0.7  # of at most 0.8: the rest is noise

    assert 2 in before.dependences
    assert 2 in raw_before.dependences
    assert 2 in after.dependences
    assert 2 not in raw_after.dependences
    # the contrast sees the lag better than ever, and says that it is learned
    assert after.required.at(2)["sequences"] < before.required.at(2)["sequences"]
    assert before.limit(2) is not Status.LIMIT_LEARNED
    assert after.limit(2) is Status.LIMIT_LEARNED
    assert after.reliance.rise[after.reliance.lags.index(2)] > 0.5
    assert any("zero once one is learned" in warning for warning in raw_after.warnings)


@dataclass(frozen=True)
class NearAndFar(Cell):
    """Two linear units driven by one weight: the first forgets at once, the second keeps 0.8 per step."""

    name: ClassVar[str] = "near_and_far"

    def shapes(self, input_size, hidden_size):
        return {"W_x": (1, input_size)}

    def step(self, x, s, params):
        return s * torch.tensor([0.0, 0.8], dtype=s.dtype) + linear(x, params["W_x"])


def near_and_far(far):
    """A readout ``(1, far)``: the gradient at lag l >= 1 carries ``far * 0.8**l``, at lag 0 it carries ``1 + far``."""
    model = GatedRNN(NearAndFar(), 2, 2, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    with torch.no_grad():
        model.readout.weight.copy_(torch.tensor([[1.0, far]]))
    return model


def planted_with_tails(tails, sequences, seed):
    """A strong dependence at lag 3 in noise with light or heavy (alpha = 1.5) tails."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(sequences, 10, 2))
    y = rng.normal(size=x.shape[:2]) if tails == "gaussian" else stable.rvs(1.5, x.shape[:2], rng)
    y[:, 3:] += 3.0 * x[:, :-3, 0]
    return torch.from_numpy(x), torch.from_numpy(y)[..., None]


@pytest.mark.thorough
@pytest.mark.parametrize("tails", ["gaussian", "stable"])
def test_the_envelope_counts_against_the_noise_of_the_whole_gradient_only(tails):
    """Scale the envelope beyond lag 0 by 2^-6, from a level where it adds nothing to the noise."""
    data = planted_with_tails(tails, 1000, seed=3)
    windows = {
        noise: [
            measure_window(
                near_and_far(far), data, lags=[3, 5], settings=dataclasses.replace(SETTINGS, noise=noise, blocks=32)
            )
            for far in (2.0**-40, 2.0**-46)
        ]
        for noise in ("lag", "gradient")
    }
    kappa = windows["gradient"][0].concentration.exponent
    assert kappa == 2.0 or tails == "stable"  # a thousand sequences need not tell that tails are heavy
    for noise, power in (("lag", 0.0), ("gradient", kappa)):
        large, small = windows[noise]
        assert large.dependences == small.dependences
        assert 3 in large.dependences
        ratio = small.required.at(3)["sequences"] / large.required.at(3)["sequences"]
        np.testing.assert_allclose(ratio, 2.0 ** (6 * power), rtol=1e-8)
        np.testing.assert_allclose(small.probe.sequences / large.probe.sequences, 2.0 ** (6 * power), rtol=1e-8)
    # the numbers themselves: with the noise of the lag a handful of sequences, with the real noise no number is enough
    assert windows["lag"][1].required.at(3)["sequences"] < 1000
    assert windows["gradient"][1].required.at(3)["sequences"] > 1e20
    assert any("do not depend on the envelope" in warning for warning in windows["lag"][0].warnings)


def test_numbers_are_refused_where_means_may_not_concentrate():
    """Heavy tails and few sequences: significance needs no tails, N does, and says so instead of guessing."""
    data, settings = planted_with_tails("stable", 600, seed=1), dataclasses.replace(SETTINGS, blocks=32)
    window = measure_window(near_and_far(2.0**-40), data, lags=[3, 5], settings=settings)
    assert window.concentration.status is Status.KAPPA_REFUSED
    assert window.dependences == (3,)
    refused, missing = window.required.at(3), window.required.at(5)
    assert refused["status"] is Status.KAPPA_REFUSED
    assert np.isnan([refused[name] for name in ("sequences", "low", "high", "pessimistic")]).all()
    assert np.isfinite(refused["robust"])  # clipped aggregation has exponent 2 whatever the tails
    assert missing["status"] is Status.NOT_SIGNIFICANT
    assert missing["sequences"] == np.inf
    assert np.isfinite(missing["low"])
    here = window.at(600)
    assert (here.lag, here.status) == (None, Status.KAPPA_REFUSED)
    assert window.limit(5) is Status.LIMIT_OUT_OF_REACH
    assert str(Status.KAPPA_REFUSED) in str(window)


def small(generator):
    model = GatedRNN("lstm", 2, 4, 1, generator=generator, dtype=torch.float64)
    x, y = dataclasses.replace(TASK, length=12).sample(64, generator)
    return model, (x.double(), y.double())


@pytest.mark.parametrize("signal", ["dependence", "gradient"])
@pytest.mark.parametrize("direction", ["matched", "random"])
@pytest.mark.parametrize("noise", ["gradient", "lag"])
@pytest.mark.parametrize("unit", ["sequence", "step"])
def test_every_combination_of_options_gives_a_window(generator, signal, direction, noise, unit):
    model, data = small(generator)
    settings = MeasureSettings(
        signal=signal, direction=direction, noise=noise, unit=unit, blocks=8, probes=3, flips=99, strength=0.2
    )
    window = measure_window(model, data, lags=[0, 2, 4], settings=settings)
    planted = window.required_if_present()
    assert np.isfinite(planted.sequences).all()
    assert (planted.low <= planted.sequences).all()
    assert (planted.sequences <= planted.high).all()
    assert (planted.pessimistic >= planted.sequences).all()
    assert window.settings["direction"] == direction
    assert isinstance(str(window), str)


@pytest.mark.parametrize("params", ["input", "all", "recurrent", "gates", lambda name: name.endswith("W_g")])
def test_the_statistics_look_at_the_selected_weights(generator, params):
    model, data = small(generator)
    window = measure_window(model, data, lags=[0, 2, 4], params=params, settings=SETTINGS)
    names = window.settings["params"]
    expected = {"input": 4, "all": 12, "recurrent": 4, "gates": 9}.get(params, 1)
    assert len(names) == expected
    if params == "input" or callable(params):
        assert 2 in window.dependences
        assert 4 not in window.dependences


@pytest.mark.parametrize(
    ("option", "value", "choices"),
    [
        ("signal", "raw", "dependence or gradient"),
        ("direction", "best", "matched or random"),
        ("noise", "own", "gradient or lag"),
        ("unit", "token", "sequence or step"),
        ("transport", "second-order", "exact or first-order"),
        ("error", 0.5, "one half"),
        ("error", 0.0, "one half"),
        ("strength", 0.0, "share"),
        ("strength", 1.5, "share"),
        ("flips", 10, "at least 19"),
        ("blocks", 5, "at least 6"),
        ("probes", 0, "at least 1"),
        ("seed", -1, "0 to 2"),
    ],
)
def test_bad_options_name_the_choices(generator, option, value, choices):
    model, data = small(generator)
    with pytest.raises(InputError, match=choices):
        measure_window(model, data, lags=[1], settings=dataclasses.replace(SETTINGS, **{option: value}))


def test_stages_check_their_own_options_too(generator):
    model, data = small(generator)
    plan = plan_measurement(model, data, "mse", [1, 2], settings=SETTINGS)
    with pytest.raises(InputError, match="input, recurrent, gates, all"):
        plan_measurement(model, data, "mse", [1], params="readout", settings=SETTINGS)
    along = np.ones((16, 2, 2, plan.width))
    with pytest.raises(InputError, match="gradient or lag"):
        noise_values(plan, along, noise="none")
    with pytest.raises(InputError, match="sequence or step"):
        noise_values(plan, along, unit="none")
    with pytest.raises(InputError, match="matched or random"):
        unit_directions(None, (0,), "none", np.random.default_rng(0))


def test_the_direction_for_a_sequence_owes_nothing_to_its_block(generator):
    model, data = small(generator)
    plan = plan_measurement(model, data, "mse", [1, 2], settings=SETTINGS)
    means = block_means(plan)
    data_of_3, probe_of_3 = means.pairings.copy(), means.probe.copy()
    data_of_3[3], probe_of_3[3] = 1e3, -1e3
    other = dataclasses.replace(means, pairings=data_of_3, probe=probe_of_3)
    before, after = (unit_directions(f, plan.probe.group, "matched", np.random.default_rng(0)) for f in (means, other))
    np.testing.assert_allclose(after[3], before[3], atol=1e-9)
    assert (np.abs(after[4] - before[4]).max(-1) > 0.01).all()
    np.testing.assert_allclose(np.linalg.norm(before, axis=-1), 1.0, rtol=1e-12)
    plain = unit_directions(means, plan.probe.group, "random", np.random.default_rng(0))
    np.testing.assert_array_equal(plain[0], plain[5])


@pytest.mark.parametrize("seed", [0, 20_240_101, 2**62])
def test_any_seed_will_do(generator, seed):
    model, data = small(generator)
    window = measure_window(model, data, lags=[1, 2], settings=dataclasses.replace(SETTINGS, seed=seed))
    assert 2 in window.dependences


def autoregressive(rng, shape, memory):
    """Stationary AR(1) with unit variance along the second axis."""
    noise = rng.normal(size=shape)
    series = np.empty(shape)
    series[:, 0] = noise[:, 0]
    for t in range(1, shape[1]):
        series[:, t] = memory * series[:, t - 1] + np.sqrt(1 - memory**2) * noise[:, t]
    return torch.from_numpy(series)


@pytest.mark.thorough
@pytest.mark.parametrize("noise", ["gradient", "lag"])
def test_the_design_effect_is_one_for_independent_steps_and_large_for_dependent_ones(generator, noise):
    model = GatedRNN("diag_gate", 2, 4, 1, gate_init=0.5, generator=generator, dtype=torch.float64)
    rng = np.random.default_rng(2)
    settings = dataclasses.replace(SETTINGS, noise=noise)
    effect = {}
    for memory in (0.0, 0.95):
        x, y = (autoregressive(rng, (300, 60, width), memory) for width in (2, 1))
        effect[memory] = measure_window(model, (x, y), lags=[0, 1, 20], settings=settings).design_effect
    # independent steps: the variance of a mean of 60 against a sixtieth of the variance, each from 300 sequences
    assert 0.75 < effect[0.0] < 1.3
    # the product of two such series keeps memory^2 per step: (1 + .95^2) / (1 - .95^2) = 19.5, less for 60 steps only
    assert 8 < effect[0.95] < 25


def test_counting_steps_divides_by_the_length_over_the_design_effect(generator):
    model = GatedRNN("diag_gate", 2, 4, 1, gate_init=0.5, generator=generator, dtype=torch.float64)
    rng = np.random.default_rng(3)
    x, y = (autoregressive(rng, (200, 30, width), 0.8) for width in (2, 1))
    y[:, 1:] += x[:, :-1, :1]
    by_sequence, by_step = (
        measure_window(model, (x, y), lags=[1], settings=dataclasses.replace(SETTINGS, unit=unit))
        for unit in ("sequence", "step")
    )
    assert by_sequence.dependences == by_step.dependences == (1,)
    np.testing.assert_allclose(by_step.design_effect, by_sequence.design_effect, rtol=1e-12)
    ratio = by_step.required.sequences / by_sequence.required.sequences
    # N counts steps: as many as the sequences hold if steps were independent, fewer by the (wrongly ignored) effect
    np.testing.assert_allclose(ratio, 30 / by_sequence.design_effect, rtol=0.01)
    assert any("as if they were independent" in warning for warning in by_step.warnings)


def test_probes_of_several_outputs_use_two_output_directions(generator):
    model = GatedRNN("diag_gate", 2, 4, 3, gate_init=0.3, generator=generator, dtype=torch.float64)
    x, _ = dataclasses.replace(TASK, length=12).sample(64, generator)
    classes = torch.randint(0, 3, (64, 12), generator=generator)
    settings = dataclasses.replace(SETTINGS, probes=4)
    plan = plan_measurement(model, (x, classes), "cross_entropy", [0, 2], settings=settings)
    assert plan.probe.group == (0, 1, 0, 1)
    for vectors in (plan.probe.output, plan.probe.direction):
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(vectors), dtype=torch.float64))
    window = measure_window(model, (x, classes), "cross_entropy", [0, 2], settings=settings)
    assert np.isfinite(window.probe.sequences).all()


def test_inputs_that_say_the_same_twice_are_planted_once(generator):
    model = GatedRNN("diag_gate", 3, 4, 1, gate_init=0.3, generator=generator, dtype=torch.float64)
    x, y = dataclasses.replace(TASK, length=12).sample(64, generator)
    doubled = torch.cat((x, x[..., :1]), dim=-1)
    plan = plan_measurement(model, (doubled, y), "mse", [2], settings=dataclasses.replace(SETTINGS, probes=3))
    assert plan.probe.whitening.shape == (3, 2)
    planted = plan.probe.planted(doubled.double())
    torch.testing.assert_close(planted.square().mean((1, 2)), torch.ones(3, dtype=torch.float64))


def test_progress_counts_up_to_everything(generator):
    model, data = small(generator)
    seen = []
    measure_window(model, data, lags=[1], settings=SETTINGS, progress=lambda *now: seen.append(now))
    assert {stage for stage, *_ in seen} == {"directions", "noise"}
    for stage in ("directions", "noise"):
        done, of = [now[1:] for now in seen if now[0] == stage][-1]
        assert done == of
