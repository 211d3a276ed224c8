"""Forecasts of many checkpoints at once against the library's, autodiff and closed forms."""

import numpy as np
import pytest
import torch

import lagreach
from lagreach.models.gated_rnn import GatedRNN
from lagreach.statistics.reachable import Directions
from lagreach.study.data import generator_for
from lagreach.study.optimisers import OptimiserSettings
from lagreach.study.replicas import READOUT
from studies.validation2.clean_pilot import clean_pilot
from studies.validation2.forecasts import (
    ForecastSize,
    Looked,
    forecast_sums,
    run_side_by_side,
    share_now,
    shares_of,
    tangents_side_by_side,
    unflatten,
)
from studies.validation2.growth import newton
from studies.validation2.marked_tasks import SelectiveCopy
from studies.validation2.tasks import Lagged, RealInputs

CPU = torch.device("cpu")
ADAMW = OptimiserSettings(optimiser="adamw", lr=0.003)
SIZE = ForecastSize(sequences=128, sequences_several_targets=128, directions=12, blocks=8)


def network(task, cell="diag_gate", hidden=6, seed=0):
    # the plain loop: nothing has to be compiled
    return GatedRNN(cell, task.input_size, hidden, 1, kernel="reference", generator=generator_for(seed))


def flat(model):
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("cell", ["const_gate", "shared_gate", "diag_gate", "gru", "lstm", "elman", "min_gru"])
def test_networks_side_by_side_are_each_network_and_its_derivatives(cell):
    task = SelectiveCopy(length=16, bins=3)
    models = [network(task, cell, 4, seed) for seed in (0, 1)]
    params = unflatten(models[0], torch.stack([flat(model) for model in models]).double())
    looked = Looked.draw(task, "test", 0, SIZE, CPU)
    outputs, states = run_side_by_side(models[0], params, looked.x, task.targets, states=True)
    steps = list(task.targets)
    for r, model in enumerate(models):
        with torch.no_grad():
            torch.testing.assert_close(outputs[r], model.double()(looked.x)[:, steps, 0])
        weight, bias = (params[name][r] for name in READOUT)
        torch.testing.assert_close(outputs[r], states[r] @ weight[0] + bias)
    moving = [{name: p[r] for name, p in params.items() if name not in READOUT} for r in (0, 1)]
    directions = [Directions(weights, 3, 7) for weights in moving]
    along = list(tangents_side_by_side(models[0], params, outputs, directions, looked, task.targets))

    def output(weights, r):
        full = {name: p[r] for name, p in params.items()} | weights
        return run_side_by_side(models[0], {n: p[None] for n, p in full.items()}, looked.x, task.targets, states=False)[
            0
        ]

    for r in (0, 1):
        chunk = directions[r].chunk(0, 3)
        for k in range(3):
            sides = []
            for sign in (1, -1):
                moved = {name: w + sign * 1e-4 * chunk[name][k] for name, w in moving[r].items()}
                sides.append(output(moved, r)[0])
            exact = (sides[0] - sides[1]) / 2e-4
            assert float((along[r][k] - exact).norm()) < 1e-3 * float(exact.norm())


def test_shares_are_those_of_the_public_function():
    """A linear dependency on one input is what `lagreach.forecast` plants too; its directions of the weights are others."""
    task = Lagged(lags=(1, 4), strength=0.2, asked=8, input_size=1, length=16)
    model = network(task, hidden=4)
    size = ForecastSize(sequences_several_targets=512, directions=1000, blocks=16)  # all weights: nothing is random
    looked = Looked.draw(task, "public", 0, size, CPU)
    sums = forecast_sums(task, model, flat(model)[None], looked, OptimiserSettings(optimiser="sgd", lr=1.0), size, 0)[0]
    shares = shares_of(sums, 0.2, (100, 1000), 1e9)
    x, y = task.sample(512, generator_for("public", 0, "forecast"))
    data = lagreach.data.batch.Batch(x, y[:, list(task.targets)])
    public = lagreach.forecast(
        model, data, sequences=(100, 1000), lags=[1, 4], strength=0.2, directions=1000, target_steps=list(task.targets)
    )
    np.testing.assert_allclose(shares["readable"], public.readable.values, atol=0.04)
    np.testing.assert_allclose(shares["reachable"], public.reachable.values, atol=0.06)


def test_a_delay_line_reads_its_lags_and_nothing_beyond():
    """States that are the last inputs themselves: share one up to their number; N for half by least squares."""
    task = Lagged(lags=(1, 6), strength=0.2, asked=4, input_size=1, length=12)
    model = GatedRNN("elman", 1, 4, 1, generator=generator_for(0))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.zero_()
            if name.endswith("W_h"):
                p[0] = 1e-3  # so small that tanh is linear
            if name.endswith("U_h"):
                p[torch.arange(1, 4), torch.arange(3)] = 1.0
    looked = Looked.draw(task, "delay", 0, SIZE, CPU)
    sums = forecast_sums(task, model, flat(model)[None], looked, ADAMW, SIZE, 0)[0]
    shares = shares_of(sums, task.strength, (30_000,), 3000.0)
    assert shares["readable"][0, 0] == pytest.approx(1.0, abs=0.02)
    assert shares["readable"][1, 0] == pytest.approx(0.0, abs=0.1)
    assert np.isinf(shares["n_readable"][1])
    assert 1 < shares["n_readable"][0] < 40  # four features, four targets a sequence: (1 - R) / R = 4 by least squares


def test_nothing_is_forecast_for_a_dead_network():
    task = Lagged(lags=(1, 4), asked=4, input_size=2, length=10)
    model = network(task)
    looked = Looked.draw(task, "dead", 0, SIZE, CPU)
    sums = forecast_sums(task, model, torch.zeros(1, len(flat(model))), looked, ADAMW, SIZE, 0)[0]
    shares = shares_of(sums, 0.2, (100,), 3000.0)
    for name in ("readable", "budgeted", "forecast"):
        assert float(np.nan_to_num(shares[name]).max()) < 0.1


def test_a_clean_pilot_learns_a_short_lag():
    task = Lagged(lags=(1,), strength=0.1, asked=6, input_size=1, length=8)
    model = network(task, "gru", 8)
    settings = OptimiserSettings(optimiser="adamw", lr=0.01, clip=1.0, schedule="cosine")
    after = clean_pilot(task, "pilot", [model], (0,), settings, 150, 32, "cpu")
    looked = Looked.draw(task, "pilot", 0, SIZE, CPU)
    sums = forecast_sums(task, model, torch.cat((flat(model)[None], after)), looked, settings, SIZE, 0)
    scale = task.strength**0.5  # the pilot's target has variance one
    assert sums[1].now[0] * scale > 0.8
    assert sums[1].now[0] > sums[0].now[0]


def test_shares_of_inputs_that_follow_from_each_other_are_those_of_the_one_input():
    """An output that has one input and none of its neighbours has a share of one at its lag, and of none beside it."""
    task = RealInputs(lags=[2, 3], strength=0.2, asked=1, length=12)
    looked = Looked.draw(task, "test", 0, ForecastSize(sequences=4096, sequences_several_targets=4096), CPU)
    assert looked.singled
    alone = looked.x[:, [task.length - 1 - 2], 0]
    now = share_now(task, looked, task.amplitude * alone)
    np.testing.assert_allclose(now, [1.0, 0.0], atol=0.12)
    together = looked.planted[:, [task.length - 1 - 3], 0]
    slope = float((together * alone).sum() / together.square().sum())
    assert abs(slope) > 0.3  # of the contribution, for which the neighbour stands in


def test_newton_steps_lower_the_loss_on_the_planted_dependency():
    task = Lagged(lags=[1, 3], strength=0.5, asked=2, input_size=1, length=8)
    model = network(task, hidden=6)
    before = flat(model)
    after = newton(task, "test", model, before, 0, SIZE, CPU)
    x = task.inputs(512, generator_for(5))
    y = (task.clean(x)[:, list(task.targets)] / task.strength**0.5).double()

    def loss(weights):
        shown, _ = run_side_by_side(
            model, unflatten(model, weights[None].double()), x.double(), task.targets, states=False
        )
        return float((shown[0] - y).square().mean())

    assert loss(after) < 0.7 * loss(before)
    torch.testing.assert_close(flat(model), before)
