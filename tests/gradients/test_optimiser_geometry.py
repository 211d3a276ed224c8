"""Windows in the geometry of an optimiser: what it divides by, what follows from it, and what must not matter."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import nn
from torch.nn.functional import linear

import lagreach
from lagreach import Cell, GatedRNN
from lagreach.diagnosis.measure import MeasureSettings, plan_measurement
from lagreach.errors import InputError, UnsupportedError
from lagreach.gradients.blocks import block_means
from lagreach.gradients.noise import noise_values, unit_directions
from lagreach.gradients.optimiser_geometry import optimiser_name, update_scale
from lagreach.gradients.significance import flip_test
from lagreach.study.executors import LocalExecutor
from lagreach.study.shards import diagnose_sharded

LAGS = [0, 1, 3, 6]
SETTINGS = MeasureSettings(blocks=8, probes=2, flips=199)


def sample(generator, sequences=32, time=12):
    x = torch.randn(sequences, time, 2, generator=generator, dtype=torch.float64)
    y = torch.zeros(sequences, time, 1, dtype=torch.float64)
    y[:, 3:] = x[:, :-3, :1]
    return x, y + 0.3 * torch.randn(y.shape, generator=generator, dtype=torch.float64)


def network(generator, cell="diag_gate"):
    return GatedRNN(cell, 2, 4, 1, gate_init=0.3, generator=generator, dtype=torch.float64)


def stepped(make, model, data, steps=1, named=False):
    """Let an optimiser take full-batch steps."""
    optimiser = make(model.named_parameters() if named else model.parameters())
    x, y = data
    for _ in range(steps):
        optimiser.zero_grad()
        (model(x) - y).square().mean().backward()
        optimiser.step()
    return optimiser


def numbers(diagnosis):
    window = diagnosis.layers[0].window
    return np.concatenate([window.required_if_present().sequences, window.delta, window.noise, window.adjusted_p])


OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.0, 0.9), eps=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.0, 0.9), weight_decay=0.0),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.0, 0.5), amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, eps=1e-3),
    "centred": lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, centered=True, eps=1e-2),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_scale_is_what_a_step_of_torch_makes_of_the_gradient(name, generator):
    """Without momentum a step is the gradient times the learning rate times the scale, nothing else."""
    model, data = network(generator), sample(generator)
    optimiser = stepped(OPTIMISERS[name], model, data, steps=4)
    names = [n for n, _ in model.named_parameters()]
    before = torch.cat([p.detach().clone().ravel() for p in model.parameters()])
    optimiser.zero_grad()
    (model(data[0]) - data[1]).square().mean().backward()
    optimiser.step()
    moved = torch.cat([p.detach().ravel() for p in model.parameters()]) - before
    gradient = torch.cat([p.grad.ravel() for p in model.parameters()])
    scale = update_scale(optimiser, model, names)
    expected = -optimiser.param_groups[0]["lr"] * gradient.numpy() * (1.0 if scale is None else scale)
    np.testing.assert_allclose(moved.numpy(), expected, rtol=1e-9, atol=1e-14)
    assert (scale is None) == (name == "sgd")
    from_file = update_scale(optimiser.state_dict(), model, names)
    np.testing.assert_array_equal(1.0 if from_file is None else from_file, 1.0 if scale is None else scale)


def test_signal_and_noise_are_those_of_the_rescaled_gradient_of_every_sequence(generator):
    """Against autodiff, one sequence at a time."""
    model, (x, y) = network(generator, "lstm"), sample(generator)
    optimiser = stepped(lambda p: torch.optim.Adam(p, lr=0.05), model, (x, y), steps=3)
    plain = plan_measurement(model, (x, y), "mse", LAGS, settings=SETTINGS)
    plan = replace(plain, scale=update_scale(optimiser, model, plain.names))
    means = block_means(plan)
    np.testing.assert_allclose(means.data, block_means(plain).data * plan.scale, rtol=1e-12)
    np.testing.assert_allclose(means.probe, block_means(plain).probe * plan.scale, rtol=1e-12)

    along = unit_directions(means, plan.probe.group, "matched", np.random.default_rng(0))
    values = noise_values(plan, along)
    weights = dict(model.named_parameters())
    for row, number in enumerate(values.number.tolist()):
        loss = (model(x[number : number + 1]) - y[number]).square().mean()
        grads = torch.autograd.grad(loss, [weights[name] for name in plan.names])
        gradient = torch.cat([g.ravel() for g in grads]).numpy() * plan.scale
        expected = along[values.block[row]] @ gradient
        np.testing.assert_allclose(values.data[row], expected[0], rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(values.probe[row], expected[1:], rtol=1e-8, atol=1e-12)
    # a sequence's value is the mean of its steps' values, along the first block's direction
    first = noise_values(plan, np.broadcast_to(along[:1], along.shape), unit="step")
    count, total, _ = np.moveaxis(first.step_sums.sum(0), -1, 0)
    np.testing.assert_allclose(
        total / count, np.concatenate((first.data.mean(0)[None], first.probe.mean(0))), rtol=1e-8
    )


@pytest.mark.parametrize("noise", ["gradient", "lag"])
def test_after_one_full_batch_step_of_adam_all_weights_pull_equally(noise, generator):
    """In closed form: v is then the squared gradient, so the mean gradient becomes its signs."""
    model, data = network(generator), sample(generator)
    optimiser = stepped(lambda p: torch.optim.Adam(p, lr=0.0, eps=0.0), model, data)
    settings = replace(SETTINGS, signal="gradient", noise=noise)
    plain = plan_measurement(model, data, "mse", range(12), settings=settings)
    plan = replace(plain, scale=update_scale(optimiser, model, plain.names))
    means = block_means(plan)
    mean = np.average(means.data.sum(1), axis=0, weights=means.size)
    signs = np.concatenate([dict(model.named_parameters())[name].grad.sign().ravel() for name in plan.names])
    np.testing.assert_allclose(mean, signs, rtol=1e-6)
    # along that direction the mean over sequences is the length of a vector of ones
    along = np.broadcast_to(signs / np.sqrt(len(signs)), (plan.block_plan.count, 3, 12, len(signs)))
    values = noise_values(plan, along, noise=noise)
    whole = values.data.mean(0)[0] if noise == "gradient" else values.data.mean(0).sum()
    np.testing.assert_allclose(whole, np.sqrt(len(signs)), rtol=1e-6)


@pytest.mark.thorough
def test_plain_descent_gives_exactly_the_plain_window(generator):
    model, data = network(generator), sample(generator)
    plain = lagreach.diagnose(model, data, lags=LAGS, settings=SETTINGS)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, weight_decay=0.1)
    for form in (optimiser, optimiser.state_dict()):
        diagnosis = lagreach.diagnose(model, data, lags=LAGS, settings=SETTINGS, optimizer=form)
        np.testing.assert_array_equal(numbers(diagnosis), numbers(plain))
        assert diagnosis.warnings == plain.warnings
        assert diagnosis.settings["optimizer"] == "SGD"
    assert plain.settings["optimizer"] is None


def test_equal_second_moments_leave_the_window_alone(generator):
    """A common factor cancels from N; signal and noise grow alike."""
    model, data = network(generator), sample(generator)
    adam = stepped(lambda p: torch.optim.Adam(p, lr=0.0), model, data)
    for state in adam.state.values():
        state["exp_avg_sq"].fill_(4.0)
        state["step"].fill_(1e6)
    plain = lagreach.diagnose(model, data, lags=LAGS, settings=SETTINGS).layers[0].window
    diagnosis = lagreach.diagnose(model, data, lags=LAGS, settings=SETTINGS, optimizer=adam).layers[0].window
    np.testing.assert_allclose(diagnosis.required.sequences, plain.required.sequences, rtol=1e-9)
    np.testing.assert_allclose(diagnosis.probe.sequences, plain.probe.sequences, rtol=1e-9)
    np.testing.assert_allclose(diagnosis.delta, plain.delta / 2, rtol=1e-6)


@dataclass(frozen=True)
class InOtherUnits(Cell):
    """A leaky tanh unit whose input weights are written in units of their own."""

    name: ClassVar[str] = "in_other_units"
    units: tuple[tuple[float, ...], ...] = ()

    def shapes(self, input_size, hidden_size):
        return {"W_x": (hidden_size, input_size)}

    def step(self, x, s, params):
        return 0.8 * s + 0.2 * torch.tanh(linear(x, params["W_x"] * torch.tensor(self.units, dtype=s.dtype)) + 0.3 * s)


@pytest.mark.thorough
def test_the_units_of_a_weight_do_not_matter_to_adam_and_do_to_plain_descent(generator):
    """The same function of the input, its weights in other units: gradients and their squares follow."""
    data = sample(generator)
    weight = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    read = torch.randn(1, 3, generator=generator, dtype=torch.float64)
    under_adam, plain = [], []
    for units in (((1.0, 1.0),) * 3, ((1.0, 30.0), (0.2, 1.0), (5.0, 0.01))):
        model = GatedRNN(InOtherUnits(units), 2, 3, 1, dtype=torch.float64)
        with torch.no_grad():
            model.layers[0]["W_x"].copy_(weight / torch.tensor(units, dtype=torch.float64))
            model.readout.weight.copy_(read)
            model.readout.bias.zero_()
        adam = stepped(lambda p: torch.optim.Adam(p, lr=0.0, eps=0.0), model, data, steps=2)
        options = {"lags": LAGS, "settings": SETTINGS, "params": "all"}
        under_adam.append(numbers(lagreach.diagnose(model, data, optimizer=adam, **options)))
        plain.append(numbers(lagreach.diagnose(model, data, **options)))
    np.testing.assert_allclose(under_adam[1], under_adam[0], rtol=1e-8)
    assert np.abs(np.log(plain[1][: len(LAGS)] / plain[0][: len(LAGS)])).max() > 0.1


def test_learning_rates_of_groups_count_relative_to_each_other(generator):
    model, data = network(generator), sample(generator)
    gate, candidate = "layers.0.W_s", "layers.0.W_h"
    weights = dict(model.named_parameters())
    groups = [{"params": [weights[gate]], "lr": 0.02}, {"params": [weights[candidate]], "lr": 0.1}]
    sgd = torch.optim.SGD(groups)
    np.testing.assert_allclose(update_scale(sgd, model, [gate, candidate]), [0.2] * 8 + [1.0] * 8)
    assert update_scale(sgd, model, [gate]) is None
    for group in sgd.param_groups:
        group["lr"] = 0.0  # the end of a schedule
    assert update_scale(sgd, model, [gate, candidate]) is None
    named = stepped(lambda p: torch.optim.Adam([{"params": list(p)[::-1]}]), model, data, named=True)
    np.testing.assert_array_equal(
        update_scale(named.state_dict(), model, [gate, candidate]), update_scale(named, model, [gate, candidate])
    )


class Wrapper:
    """What trainers hand to callbacks."""

    def __init__(self, optimizer):
        self.optimizer = optimizer


def test_optimisers_of_trainers_are_unwrapped(generator):
    model, data = network(generator), sample(generator)
    adam = stepped(torch.optim.Adam, model, data)
    names = ["layers.0.W_s"]
    np.testing.assert_array_equal(update_scale(Wrapper(Wrapper(adam)), model, names), update_scale(adam, model, names))
    assert optimiser_name(Wrapper(adam)) == "Adam"


@pytest.mark.usefixtures("_as_users_run_it")
def test_what_cannot_be_told_is_refused(generator):
    model, other, data = network(generator), network(generator), sample(generator)

    def diagnosed(optimizer, of=model):
        return lagreach.diagnose(of, data, lags=LAGS, settings=SETTINGS, optimizer=optimizer)

    with pytest.raises(InputError, match=r"no state for the weight layers\.0\.W_s"):
        diagnosed(torch.optim.Adam(model.parameters()))
    with pytest.raises(InputError, match="does not hold all weights"):
        diagnosed(torch.optim.SGD(other.parameters()))
    for unknown in (
        torch.optim.Adagrad(model.parameters()),
        torch.optim.NAdam(model.parameters()).state_dict(),
        "adam",
    ):
        with pytest.raises(UnsupportedError, match=r"Adam, AdamW, RMSprop or SGD"):
            diagnosed(unknown)
    with pytest.raises(InputError, match="which weights it belongs to"):
        diagnosed(torch.optim.SGD(list(model.parameters())[:2]).state_dict())
    adam = stepped(lambda p: torch.optim.Adam(p, lr=0.0, eps=0.0), model, data)
    adam.state[dict(model.named_parameters())["layers.0.W_s"]]["exp_avg_sq"][0] = 0.0
    with pytest.raises(InputError, match=r"does not fit the weight layers\.0\.W_s"):
        diagnosed(adam)
    view = lagreach.adapters.as_view(model, lagreach.data.batch.Batch(*data))
    with pytest.raises(InputError, match="needs the torch module"):
        diagnosed(torch.optim.SGD(model.parameters()), of=view)
    with pytest.raises(InputError, match="optimizer"):
        diagnose_sharded(lambda: (model, data), LocalExecutor(1), optimizer=adam)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.read = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x):
        return self.read(self.lstm(x)[0])


def test_a_torch_model_under_adam_says_so_in_its_result(generator, tmp_path):
    torch.manual_seed(0)
    model, (x, y) = Tagger(), sample(generator)
    data = (x.float(), y.float())
    adam = stepped(torch.optim.AdamW, model, data, steps=2)
    diagnosis = lagreach.diagnose(model, data, lags=LAGS, settings=SETTINGS, optimizer=adam)
    assert diagnosis.settings["optimizer"] == "Adam"
    assert any("optimiser's steps" in warning for warning in diagnosis.warnings)
    diagnosis.save(tmp_path / "d.nc")
    assert lagreach.load(tmp_path / "d.nc").settings["optimizer"] == "Adam"


@pytest.mark.thorough
def test_no_dependence_is_found_where_there_is_none():
    """The sign flips stay exact: a fixed rescaling of weights turns no independent target into a dependent one."""
    seeds, error = 60, 0.1
    wrong = 0
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        model, (x, y) = network(generator), sample(generator, sequences=24, time=8)
        adam = stepped(torch.optim.Adam, model, (x, y), steps=3)
        independent = torch.randn(y.shape, generator=generator, dtype=torch.float64)
        fresh = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        plan = plan_measurement(model, (fresh, independent), "mse", LAGS, settings=SETTINGS)
        means = block_means(replace(plan, scale=update_scale(adam, model, plan.names)))
        test = flip_test(means.data, flips=199, generator=np.random.default_rng(seed))
        wrong += bool(test.adjusted.min() <= error)
    assert binom.cdf(wrong, seeds, error) > 1e-3
    assert binom.sf(wrong - 1, seeds, error) > 1e-3
