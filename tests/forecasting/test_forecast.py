"""Forecasts of whole models: where the answer is known, for every kind of model, and invariant to how the data come."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import lagreach
from lagreach.adapters import gated_view
from lagreach.data.sequences import as_sequences
from lagreach.diagnosis.files import load_diagnosis
from lagreach.errors import InputError, UnsupportedError
from lagreach.forecasting import linearise, target_batches
from lagreach.forecasting.limits import LIMITS
from lagreach.forecasting.linearise import choose_linearisation
from lagreach.forecasting.network import ModuleNetwork
from lagreach.forecasting.plan import BLOCKS, make_plan
from lagreach.forecasting.run import ForecastRun
from lagreach.statistics import reachable, readable
from lagreach.statistics.linear_share import AMPLE, share_curves
from lagreach.statistics.linear_share.moments import SUMS
from lagreach.statistics.reachable import Directions
from lagreach.statistics.readable import read_features
from tests.forecasting.models import (
    Attention,
    CellLoop,
    Delays,
    Packed,
    Recurrent,
    Reservoir,
    Tokens,
    Unfinished,
    data,
    lagged,
)

LAGS = [0, 2, 9]


def test_delays_are_reachable_up_to_their_number_and_unseen_beyond():
    x, y = data(128, 24, inputs=1, lag=3, seed=1)  # of seed 0 lag 5 is named, as in one of twenty
    forecast = lagreach.forecast(Delays(6), (x, y), lags=[0, 3, 5, 6, 12])
    ample = forecast.at(int(AMPLE)).reachable.values[:, 0]
    np.testing.assert_allclose(ample[:3], 1.0, atol=1e-3)
    assert (ample[3:] < 0.05).all()
    assert forecast.limits_if_present.values.tolist() == ["reachable"] * 3 + ["unseen"] * 2
    assert forecast.limits.values.tolist() == ["none found", "reachable", "none found", "none found", "none found"]
    assert forecast.in_data.sel(lag=3, sequences=10000) > 0.95
    assert (forecast.sketch == 0).all()  # every weight was a direction


def test_a_leaky_unit_is_blended():
    model = lagreach.GatedRNN("const_gate", 1, 1, 1, gate_init=0.1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(0.05 if name.endswith("W_h") else 0.0)  # so small that tanh is a straight line
    x, y = data(256, 48, inputs=1)
    forecast = lagreach.forecast(model, (x, y), lags=[0, 1, 4, 8], weights="readout")
    known = [(1 - 0.81) * 0.81**lag for lag in (0, 1, 4, 8)]
    np.testing.assert_allclose(forecast.at(int(AMPLE)).readable.values[:, 0], known, rtol=0.25)
    assert forecast.limits_if_present.values.tolist() == ["blended"] * 4
    assert np.isinf(forecast.needed.values).all()


def test_reachable_is_readable_where_only_the_readout_is_trained():
    x, y = data(128, 20, inputs=1)
    forecast = lagreach.forecast(Reservoir(), (x, y), lags=[0, 2, 5])
    assert forecast.settings["directions"] == 0
    np.testing.assert_allclose(forecast.reachable.values, forecast.readable.values, atol=1e-5)


@pytest.mark.thorough
def test_all_weights_reach_more_than_the_readout():
    x, y = data(192, 24, lag=2)
    forecast = lagreach.forecast(Recurrent(), (x, y), lags=LAGS, directions=400)
    ample = forecast.at(int(AMPLE))
    assert (ample.reachable.values >= ample.readable.values - 0.02).all()
    assert ample.reachable.sel(lag=2).item() > ample.readable.sel(lag=2).item() + 0.03


def fit_readout(model: Reservoir, x, y, held_x, held_y, steps: int = 400) -> nn.Module:
    """Train the readout by gradient descent, and keep the weights with the lowest loss on held-out data."""
    phi, held = model.states(x).flatten(0, 1), model.states(held_x).flatten(0, 1)
    phi, held = (torch.cat((s, torch.ones(len(s), 1)), dim=1).double() for s in (phi, held))
    y, held_y = y.flatten(0, 1).double(), held_y.flatten(0, 1).double()
    rate = 0.9 / float(torch.linalg.eigvalsh(phi.T @ phi / len(phi))[-1])
    beta = torch.zeros(phi.shape[1], 1, dtype=torch.float64)
    best, lowest = beta, float("inf")
    for _ in range(steps):
        beta = beta - rate * phi.T @ (phi @ beta - y) / len(phi)
        loss = float((held @ beta - held_y).square().mean())
        if loss < lowest:
            best, lowest = beta, loss
    return best


@pytest.mark.parametrize(
    ("lag", "sequences"), [(1, 4), (6, 30), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((1, 30), (6, 4)))]
)
def test_training_recovers_what_the_forecast_said(lag, sequences):
    """A readout trained by gradient descent on N sequences, stopped by held-out loss, against the forecast share at N."""
    generator = torch.Generator().manual_seed(1)

    def draw(n):
        x = torch.randn(n, 24, 1, generator=generator)
        noise = torch.randn(n, 24, 1, generator=generator)
        return x, 0.5 * lagged(x, lag) + 0.75**0.5 * noise

    model = Reservoir()
    x, _ = draw(256)
    forecast = lagreach.forecast(
        model,
        (x, torch.randn(256, 24, 1, generator=generator)),
        sequences,
        lags=[lag],
        strength=0.25,
        weights="readout",
    )
    test_x, _ = draw(400)
    phi = model.states(test_x).flatten(0, 1).double().detach()
    z = lagged(test_x, lag).flatten(0, 1).double()
    held = draw(400)
    slopes = []
    with torch.no_grad():
        for _ in range(25):
            beta = fit_readout(model, *draw(sequences), *held)
            slopes.append(float((phi @ beta[:-1] * z).mean() / (0.5 * z.square().mean())))
    error = np.std(slopes) / len(slopes) ** 0.5
    assert abs(forecast.if_present.values[0, 0] - np.mean(slopes)) < 0.05 + 2 * error


@pytest.mark.thorough
def test_a_budget_of_steps_gives_the_share_that_descent_has_by_then():
    """Full-batch descent with many sequences, in which the linear network does what its differential equation says."""
    x, _ = data(256, 24, inputs=1)
    z = lagged(x, 3)
    generator = torch.Generator().manual_seed(3)
    y = 0.7 * z + 0.7 * torch.randn(z.shape, generator=generator)
    model = Reservoir()
    shares = []
    for steps in (3, 30, 1000):
        trained = copy.deepcopy(model)
        optimiser = torch.optim.SGD(trained.parameters(), lr=0.02)
        phi = trained.states(x).detach()
        for _ in range(steps):
            optimiser.zero_grad()
            (trained.read(phi) - y).square().mean().backward()
            optimiser.step()
        slope = float((trained.read(phi).detach() * z).mean() / (0.7 * z.square().mean()))
        sgd = torch.optim.SGD(model.parameters(), lr=0.02)
        forecast = lagreach.forecast(model, (x, y), 10**6, lags=[3], optimiser=sgd, steps=steps)
        np.testing.assert_allclose(forecast.budgeted.values[0, 0], slope, atol=0.04)
        np.testing.assert_allclose(forecast.at(10**6).in_data.values[0, 0], slope, atol=0.04)
        shares.append(forecast)
    assert shares[0].limits_if_present.item() == "few steps"
    assert shares[-1].limits_if_present.item() == "readable"


@pytest.mark.thorough
def test_momentum_is_worth_larger_steps_and_adam_divides_by_its_gradients():
    x, y = data(128, 16)
    model = Recurrent()
    weights = list(model.parameters())
    common = {"lags": [2], "directions": 32, "steps": 20}
    plain, heavy = (
        lagreach.forecast(model, (x, y), 1000, optimiser=torch.optim.SGD(weights, lr=lr, momentum=mu), **common)
        for lr, mu in ((0.1, 0.0), (0.01, 0.9))
    )
    np.testing.assert_allclose(plain.budgeted.values, heavy.budgeted.values, atol=1e-6)
    adam = torch.optim.Adam(weights, lr=0.01)
    fresh = lagreach.forecast(model, (x, y), 1000, optimiser=adam, **common)
    assert 0 <= fresh.budgeted.item() <= fresh.reachable.item() + 0.05
    assert fresh.settings["optimiser"] == "Adam"


MODELS = {
    "last step": (lambda: Recurrent("LSTM", last=True), lambda x, y: (x, y[:, -1]), {}),
    "two outputs": (lambda: Recurrent(outputs=2), lambda x, y: (x, y.repeat(1, 1, 2)), {}),
    "classes": (lambda: Recurrent(outputs=3), lambda x, y: (x, (y[..., 0] > 0).long()), {"loss": "cross_entropy"}),
    "mask": (Recurrent, lambda x, y: (x, y, torch.arange(16).expand(96, 16) % 3 > 0), {}),
    "bidirectional": (lambda: Recurrent(bidirectional=True), lambda x, y: (x, y), {}),
    "cell loop": (CellLoop, lambda x, y: (x, y), {}),
    "attention": (lambda: Attention(16), lambda x, y: (x, y), {}),
    "no readout": (Unfinished, lambda x, y: (x, y), {}),
    "double": (lambda: Recurrent().double(), lambda x, y: (x, y), {}),
    "half": (lambda: Recurrent("LSTM").bfloat16(), lambda x, y: (x, y), {}),
    "stack": (lambda: Recurrent("LSTM", num_layers=2), lambda x, y: (x, y), {}),
    "packed": (Packed, lambda x, y: {"x": x, "y": y, "lengths": torch.arange(96) % 6 + 11}, {}),
    "min_gru": (lambda: lagreach.GatedRNN("min_gru", 2, 8, 1, num_layers=2), lambda x, y: (x, y), {}),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model(name):
    make, arrange, options = MODELS[name]
    model = make()
    kept = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.train()
    random = torch.get_rng_state()
    forecast = lagreach.forecast(model, arrange(*data()), lags=LAGS, directions=24, **options)
    assert model.training
    assert all(torch.equal(kept[name], weight) for name, weight in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert all(weight.grad is None for weight in model.parameters())
    assert forecast.readable.sel(lag=0, sequences=10000) > 0.35
    assert forecast.if_present.sel(lag=0, sequences=10000) > forecast.if_present.sel(lag=9, sequences=10000)
    assert set(forecast.limits.values) <= set(LIMITS)
    values, low, high = forecast.if_present.values, forecast.if_present.low.values, forecast.if_present.high.values
    assert ((low >= 0) & (low <= values + 1e-12) & (values <= high + 1e-12) & (high <= 1)).all()


def test_tokens_in_and_out():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 6, (128, 16), generator=generator)
    y = x.roll(1, dims=1)
    y[:, 0] = -100
    forecast = lagreach.forecast(Tokens(), (x, y), lags=[0, 1, 8], loss="cross_entropy", directions=32)
    assert forecast.adjusted_p[1] <= 0.05 < min(forecast.adjusted_p[[0, 2]])
    assert forecast.limits.sel(lag=0).item() == "none found"
    assert forecast.readable.sel(lag=0, sequences=10000) > forecast.readable.sel(lag=8, sequences=10000)


@pytest.mark.thorough
def test_classes_at_even_odds_have_the_shares_of_a_square():
    """Where all classes are as likely, the curvature is the same at every step, and the loss is a square in all but name."""
    x, y = data(128, 20, inputs=1)
    square = Reservoir(6)
    classes = copy.deepcopy(square)
    classes.read = nn.Linear(6, 3)
    nn.init.zeros_(classes.read.weight)
    nn.init.zeros_(classes.read.bias)
    labels = torch.randint(0, 3, (128, 20), generator=torch.Generator().manual_seed(0))
    options = {"lags": [0, 2, 5], "weights": "readout"}
    one = lagreach.forecast(square, (x, torch.randn(y.shape, generator=torch.Generator().manual_seed(1))), **options)
    three = lagreach.forecast(classes, (x, labels), loss="cross_entropy", **options)
    np.testing.assert_allclose(three.at(int(AMPLE)).readable.values, one.at(int(AMPLE)).readable.values, atol=1e-4)
    np.testing.assert_allclose(three.readable.values, one.readable.values, atol=0.05)
    # all weights, of which only the readout is trained: the same in the coordinates of the curvature
    both = lagreach.forecast(classes, (x, labels), loss="cross_entropy", lags=[0, 2, 5])
    np.testing.assert_allclose(both.reachable.values, both.readable.values, atol=0.05)


@pytest.mark.thorough
def test_a_bare_recurrence_is_a_model_too():
    model = lagreach.GatedRNN("gru", 2, 6, 1, generator=torch.Generator().manual_seed(0))
    options = {"lags": LAGS, "directions": 10**4}
    bare, whole = (lagreach.forecast(one, data(192, 16), **options) for one in (gated_view(model), model))
    np.testing.assert_allclose(bare.readable.values, whole.readable.values, atol=1e-6)
    # all weights are directions in both, those of the readout under their names or as features
    np.testing.assert_allclose(bare.at(10**6).reachable.values, whole.at(10**6).reachable.values, atol=0.02)


@pytest.mark.thorough
def test_what_lies_beyond_a_length_does_not_matter():
    x, y = data(96, 16)
    lengths = torch.randint(8, 17, (96,), generator=torch.Generator().manual_seed(0))
    model = lagreach.GatedRNN("gru", 2, 6, 1, generator=torch.Generator().manual_seed(0))
    beyond = torch.arange(16) >= lengths[:, None]
    filled = torch.where(beyond[..., None], float("nan"), x), torch.where(beyond[..., None], float("nan"), y)
    options = {"lags": [0, 2, 6], "directions": 16}
    one = lagreach.forecast(model, (x, y, None, lengths), **options)
    two = lagreach.forecast(model, (*filled, None, lengths), **options)
    np.testing.assert_allclose(one.if_present.values, two.if_present.values, atol=1e-9)


def test_order_and_batches_do_not_matter(monkeypatch):
    x, y = data(80, 100)
    model = Recurrent()
    options = {"lags": [0, 2, 40], "directions": 16}
    whole = lagreach.forecast(model, (x, y), **options)
    order = torch.randperm(80, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(linearise, "MOST_SEQUENCES", 7)
    loader = [(x[part], y[part]) for part in order.split(9)]
    other = lagreach.forecast(model, loader, **options)
    assert whole.fingerprint == other.fingerprint
    for name in ("if_present", "readable", "reachable", "in_data"):
        np.testing.assert_allclose(getattr(whole, name).values, getattr(other, name).values, atol=1e-5)
    np.testing.assert_allclose(whole.adjusted_p, other.adjusted_p)


@pytest.mark.parametrize(("model", "loss"), [(Recurrent(), "mse"), (Tokens(), "cross_entropy")])
def test_sums_do_not_depend_on_what_runs_or_is_read_together(model, loss, monkeypatch):
    given = data(30, 70) if loss == "mse" else (torch.randint(0, 5, (30, 20)), torch.randint(0, 5, (30, 20)))
    plan = make_plan(as_sequences(given), [0, 2, 9], 0)
    run = ForecastRun(model, plan, loss, None, None, 0)
    monkeypatch.setattr(ModuleNetwork, "sums_as_it_runs", lambda self, batch: False)  # part after part

    def sums():
        moments = readable.start(BLOCKS, run.width, plan.lags, run.measurement.space.copies)
        ticks = []
        run.measurement.add_readable(moments, ticks.append)
        assert sum(ticks) == 30
        return moments, ticks

    whole, ticks = sums()
    assert ticks == [30]
    monkeypatch.setattr(target_batches, "sequences_in_cache", lambda network: 4)
    for read in (target_batches.READ, 8 * plan.sequences.read([0]).x.numel(), 0):
        monkeypatch.setattr(target_batches, "READ", read)
        other, ticks = sums()
        assert ticks == [4] * 7 + [2]
        for name in SUMS:
            torch.testing.assert_close(getattr(other, name), getattr(whole, name), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["of lagreach", "of torch"])
@pytest.mark.parametrize("layers", [1, 2])
def test_states_that_are_summed_as_they_come_leave_the_same_sums(layers, kind, masked, monkeypatch):
    x, y = data(70, 70)
    given = {"x": x, "y": y}
    if masked:
        mask = torch.rand(y.shape[:2], generator=torch.Generator().manual_seed(1)) < 0.7
        given = {**given, "y": torch.where(mask[..., None], y, torch.nan), "mask": mask.float()}
    plan = make_plan(as_sequences(given), [0, 2, 9], 0)
    generator = torch.Generator().manual_seed(0)
    of_torch = kind == "of torch"
    model = (
        Recurrent("LSTM", num_layers=layers)
        if of_torch
        else lagreach.GatedRNN("diag_gate", x.shape[2], 6, 1, layers, generator=generator)
    )
    run = ForecastRun(model, plan, "mse", None, None, 0)
    read = []  # parts of which all states were read
    monkeypatch.setattr(target_batches, "read_features", lambda *given: read.append(read_features(*given)) or read[-1])

    def summed(at_once):
        read.clear()
        monkeypatch.setattr(ModuleNetwork, "sums_as_it_runs", lambda self, batch: at_once)
        moments = readable.start(BLOCKS, run.width, plan.lags, run.measurement.space.copies)
        run.measurement.add_readable(moments)
        assert bool(read) is not at_once
        return moments

    ways = [summed(at_once) for at_once in (True, False)]
    for name in SUMS:
        torch.testing.assert_close(*(getattr(way, name) for way in ways), rtol=1e-4, atol=1e-5)


def test_shards_add_up():
    plan = make_plan(as_sequences(data(80, 20)), [0, 2], 0)
    run = ForecastRun(Recurrent(), plan, "mse", None, None, 0)
    space = run.measurement.space

    def sums(part):
        moments = readable.start(BLOCKS, run.width, plan.lags, space.copies)
        dataclasses.replace(run.measurement, plan=part).add_readable(moments)
        return moments

    together = share_curves(sums(plan))
    parts = [sums(plan.shard(number, 3)) for number in range(3)]
    apart = share_curves(parts[0].merge(parts[1]).merge(parts[2]))
    np.testing.assert_allclose(together.share, apart.share, atol=1e-6)


def test_shards_of_all_weights_add_up():
    plan = make_plan(as_sequences(data(80, 20)), [0, 2], 0)
    run = ForecastRun(Recurrent(), plan, "mse", None, None, 0)
    network, space = run.measurement.network, run.measurement.space
    how = choose_linearisation(network, run.sample, "backward")
    directions = Directions({n: w for n, w in network.weights.items() if n not in network.readout}, 12, 0)

    def sums(part):
        moments = reachable.start(BLOCKS, 12 + run.width, space, plan.lags)
        dataclasses.replace(run.measurement, plan=part).add_reachable(moments, directions, how)
        return moments

    parts = [sums(plan.shard(number, 3)) for number in range(3)]
    apart = share_curves(parts[0].merge(parts[1]).merge(parts[2]))
    np.testing.assert_allclose(share_curves(sums(plan)).share, apart.share, atol=1e-5)


@pytest.mark.thorough
def test_threads_do_not_matter(request):
    usual = torch.get_num_threads()
    request.addfinalizer(lambda: torch.set_num_threads(usual))
    x, y = data(96, 80, lag=2)
    made = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        made.append(lagreach.forecast(Recurrent(), (x, y), lags=[0, 2, 40], directions=16))
        assert torch.get_num_threads() == threads
    for name in ("readable", "reachable", "in_data"):
        np.testing.assert_array_equal(getattr(made[0], name).values, getattr(made[1], name).values)


@pytest.mark.slow
def test_nothing_is_found_in_the_data_where_nothing_is():
    false_alarms = 0
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        x, y = torch.randn(64, 12, 1, generator=generator), torch.randn(64, 12, 1, generator=generator)
        made = lagreach.forecast(Reservoir(4), (x, y), lags=range(8), weights="readout", seed=seed)
        false_alarms += int((made.limits.values != "none found").any())
        assert np.isnan(made.in_data.values[made.limits.values == "none found"]).all()
    assert false_alarms <= 4  # of 20 at 5 %: more than 4 in 0.3 % of all cases


def test_a_pilot_trains_a_copy():
    x, y = data(128, 16, inputs=2, lag=2)
    model = Recurrent()
    before = copy.deepcopy(model.state_dict())
    seen = []

    def train(copied, steps):
        seen.append((copied is model, steps))
        optimiser = torch.optim.Adam(copied.parameters(), lr=1e-2)
        for _ in range(steps):
            optimiser.zero_grad()
            (copied(x) - y).square().mean().backward()
            optimiser.step()

    options = {"lags": [0, 2], "weights": "readout"}
    fresh = lagreach.forecast(model, (x, y), **options)
    later = lagreach.forecast(model, (x, y), train=train, pilot=150, **options)
    assert seen == [(False, 150)]
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    assert later.in_data.sel(lag=2, sequences=10000) > fresh.in_data.sel(lag=2, sequences=10000) + 0.1
    with pytest.raises(InputError, match="your own training"):
        lagreach.forecast(model, (x, y), pilot=40)


def test_other_numbers_and_strengths_need_no_new_pass():
    x, y = data(96, 16)
    forecast = lagreach.forecast(Recurrent(), (x, y), lags=LAGS, directions=16)
    again = lagreach.forecast(Recurrent(), (x, y), [50, 500], lags=LAGS, directions=16, strength=0.2)
    other = forecast.at((50, 500), strength=0.2)
    np.testing.assert_allclose(other.if_present.values, again.if_present.values, atol=1e-9)
    np.testing.assert_allclose(other.needed.values, again.needed.values, rtol=1e-6)
    assert forecast.share(2)["value"] == forecast.if_present.sel(lag=2, sequences=10000).item()


def test_files_keep_everything(tmp_path):
    x, y = data(96, 16)
    model = Recurrent()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    forecast = lagreach.forecast(model, (x, y), lags=LAGS, directions=16, optimiser=sgd, steps=10)
    forecast.save(tmp_path / "forecast.nc")
    back = lagreach.load(tmp_path / "forecast.nc")
    assert type(back) is type(forecast)
    assert str(back) == str(forecast)
    np.testing.assert_array_equal(
        back.at(77, strength=0.3).if_present.values, forecast.at(77, strength=0.3).if_present.values
    )
    with xr.open_dataset(tmp_path / "forecast.nc") as stored:
        np.testing.assert_array_equal(stored["if_present"].values, forecast.if_present.values)
        assert stored["limits"].values.tolist() == forecast.limits.values.tolist()
        assert stored["budgeted_low"].dims == ("lag", "sequences")
    with pytest.raises(InputError, match="holds a forecast"):
        load_diagnosis(tmp_path / "forecast.nc")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "some"}, "unknown weights"),
        ({"steps": 10}, "optimiser and a number of steps"),
        ({"loss": lambda output, y, mask: output.sum((1, 2))}, r"two losses(.|\n)*two outputs(.|\n)*y.long"),
        ({"sequences": (0, 10)}, "positive"),
        ({"strength": 2.0}, "share of the target"),
        ({"lags": [99]}, "shorter than the sequences"),
        ({"derivatives": "guess"}, "unknown way"),
        ({"directions": 0}, "positive"),
        ({"seed": -1}, "whole number"),
    ],
)
@pytest.mark.usefixtures("_as_users_run_it")
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises((InputError, UnsupportedError), match=message):
        lagreach.forecast(Recurrent(), data(), **{"lags": LAGS, **options})


def test_outputs_that_belong_to_no_step_are_refused():
    class Halved(Recurrent):
        def forward(self, x):
            return super().forward(x)[:, ::2]

    x, y = data()
    with pytest.raises(UnsupportedError, match="which step"):
        lagreach.forecast(Halved(), (x, y[:, ::2]), lags=LAGS)


@pytest.mark.parametrize("sequences", [24, 36])
def test_targets_hardly_more_than_features_leave_no_rounding(sequences):
    generator, lags = torch.Generator().manual_seed(100), [0, 1, 3]
    x, y = torch.randn(sequences, 10, 2, generator=generator), torch.randn(sequences, 1, 1, generator=generator)
    model = lagreach.GatedRNN("lstm", 2, 32, 1, generator=generator)
    call = {"call": lambda model, batch: model(batch.x)[:, -1:], "weights": "readout", "progress": False}
    single = lagreach.forecast(model, (x, y), 100, lags, **call)
    double = lagreach.forecast(model.double(), (x.double(), y.double()), 100, lags, **call)
    np.testing.assert_allclose(single.if_present.values, double.if_present.values, atol=0.05)
