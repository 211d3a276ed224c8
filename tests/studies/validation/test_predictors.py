"""Predictors are what the package's own functions give when they are called by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lagreach import GatedRNN, fidelity, measure_window
from lagreach.adapters import as_view
from lagreach.advice.retention import retention
from lagreach.cells import all_cells
from lagreach.data.batch import Batch
from lagreach.diagnosis.assemble import window_of
from lagreach.diagnosis.measure import MeasureSettings, plan_measurement
from lagreach.errors import InputError
from lagreach.gradients.blocks import block_means
from lagreach.gradients.noise import noise_values, unit_directions
from lagreach.papers.livi.printed_window import paper_window
from lagreach.tasks import Adding, MultiLag, Recall
from lagreach.transport.rollout import run
from studies.validation.design import PredictorPlan
from studies.validation.last_step import growth_per_step, walk_back
from studies.validation.predictors import (
    ABLATIONS,
    STRENGTHS,
    longest_time_scale,
    measure_settings,
    predict,
    task_bands,
)
from studies.validation.tables import PREDICTORS

PLAN = PredictorPlan(sequences=64, blocks=8, probes=2, flips=99)
RECALL = Recall(lag=5, length=9, noise=0.5)
SPARSE = MultiLag(lags=(1, 3), coefficients=(0.6, 0.6), noise=0.5, input_size=2, length=10)
CELLS = ["const_gate", "shared_gate", "diag_gate", "gru", "lstm", "elman", "min_gru"]


def case(task, cell="gru", dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    gate = {} if cell == "elman" else {"gate_init": 0.2}
    model = GatedRNN(cell, task.input_size, 6, 1, generator=generator, dtype=dtype, **gate)
    batch = task.batch(PLAN.sequences, generator)
    mask = None if batch.mask is None else batch.mask.to(dtype)
    return model, Batch(batch.x.to(dtype), batch.y.to(dtype), mask)


def by_name(predictions, name):
    return [one for one in predictions if one.predictor == name]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("task", [RECALL, Adding(length=12, bins=3)], ids=["recall", "adding"])
def test_the_walk_back_equals_transport_from_every_step(task, cell):
    model, batch = case(task, cell)
    made = plan_measurement(model, batch, "mse", list(task.lags), settings=MeasureSettings(blocks=8, probes=2))
    made = replace(made, bands=task_bands(task))
    walked = walk_back(made, task.lags[-1])
    for signal in ("dependence", "gradient"):
        expected = block_means(replace(made, signal=signal))
        got = walked.directions(signal)
        assert got.block.tolist() == expected.block.tolist()
        assert got.size.tolist() == expected.size.tolist()
        for name in ("data", "probe", "spread"):
            np.testing.assert_allclose(getattr(got, name), getattr(expected, name), rtol=1e-9, atol=1e-14)
    along = unit_directions(expected, made.probe.group, "matched", np.random.default_rng(0))
    got, expected = walked.lag_noise(along), noise_values(made, along, noise="lag")
    assert got.number.tolist() == expected.number.tolist()
    np.testing.assert_allclose(got.data, expected.data, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(got.probe, expected.probe, rtol=1e-9, atol=1e-14)
    lags = sorted({1, *task.lags})
    gains = fidelity(model, batch.x, batch.y, lags, mask=batch.mask).log10_exact
    assert walked.log10_gain(lags) == pytest.approx(gains.tolist(), abs=1e-9)


def swap_window(model, data, lags, settings):
    """The window of the swap contrast alone, which the study was made with, from the package's own passes."""
    plan = plan_measurement(model, data, "mse", lags, settings=settings)
    means = block_means(plan)
    along = unit_directions(means, plan.probe.group, settings.direction, np.random.default_rng(settings.seed))
    return window_of(plan, means, noise_values(plan, along, noise=settings.noise), settings)


@pytest.mark.thorough
@pytest.mark.parametrize("task", [RECALL, SPARSE], ids=["recall", "sparse"])
def test_windows_are_those_of_the_swap_contrast(task):
    model, batch = case(task)
    predictions = predict(model, task, batch, 6, PLAN, seed=0)
    assert {one.predictor for one in predictions} == set(PREDICTORS)
    data = (batch.x, batch.y) if batch.mask is None else (batch.x, batch.y, batch.mask)
    for name, changes in {
        "n_data": {},
        "n_gradient": {"signal": "gradient"},
        "n_lag_noise": {"noise": "lag"},
        "n_probe": {},
    }.items():
        settings = measure_settings(PLAN, 0)
        window = swap_window(model, data, list(task.lags), replace(settings, **changes))
        expected = window.required_if_present() if name == "n_probe" else window.required
        mine = by_name(predictions, name)
        assert [one.lag for one in mine] == list(task.lags)
        for part, numbers in (("value", expected.sequences), ("low", expected.low), ("high", expected.high)):
            np.testing.assert_allclose([getattr(one, part) for one in mine], numbers, rtol=1e-8)


def test_the_other_predictors_are_those_of_their_functions():
    model, batch = case(SPARSE)
    predictions = predict(model, SPARSE, batch, 6, PLAN, seed=0)
    lags = np.array(SPARSE.lags)
    printed = paper_window(model, batch, lags.tolist(), "mse", PLAN.error, 0)
    assert [one.value for one in by_name(predictions, "paper_window")] == printed.sequences.tolist()
    gains = 10.0 ** fidelity(model, batch.x[:32], batch.y[:32], [1, 3]).log10_exact.numpy()
    ratios = [one.value for one in by_name(predictions, "gradient_ratio")]
    np.testing.assert_allclose(ratios, np.log10(gains / gains[0]), atol=1e-12)
    half_life = retention(model, batch.x[:32]).layers[0].half_lives.max().item()
    np.testing.assert_allclose([one.value for one in by_name(predictions, "half_life")], half_life / lags)
    assert [one.value for one in by_name(predictions, "capacity")] == [6 / 2, 6 / 4]
    rates = [one.value for one in by_name(predictions, "lyapunov")]
    assert rates[1] == pytest.approx(3 * rates[0])


def test_growth_of_a_constant_decay_is_its_logarithm():
    """minGRU with a constant gate: whatever travels back shrinks by ``1 - z`` a step."""
    model = GatedRNN("min_gru", 1, 4, 1, gate_init=0.3, dtype=torch.float64)
    with torch.no_grad():
        model.layers[0]["W_z"].zero_()
    x = torch.randn(5, 11, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shown = Batch(x, x)
    part = run(as_view(model, shown).bind(shown))
    assert growth_per_step(part, torch.Generator().manual_seed(0)) == pytest.approx(np.log(0.7), rel=1e-12)
    assert longest_time_scale(model, shown, 8) == pytest.approx(-1 / np.log(0.7), rel=1e-9)


def test_a_network_that_retains_nothing_has_no_time_scale():
    model, batch = case(SPARSE, "elman")
    assert longest_time_scale(model, batch, 8) == 0.0


def test_variants_are_measured_with_what_they_name():
    model, batch = case(SPARSE)
    predictions = predict(model, SPARSE, batch, 6, PLAN, seed=0, ablate=True)
    names = {one.predictor for one in predictions if "|" in one.predictor}
    assert names == {f"{n}|{v}" for n in ("n_probe", "n_data") for v in ABLATIONS} | {
        f"n_probe|strength={share:g}" for share in STRENGTHS
    }
    settings = replace(measure_settings(PLAN, 0), direction="random")
    window = swap_window(model, (batch.x, batch.y), [1, 3], settings)
    np.testing.assert_allclose(
        [one.value for one in by_name(predictions, "n_data|direction=random")], window.required.sequences, rtol=1e-8
    )
    window = measure_window(model, (batch.x, batch.y), "mse", [1, 3], params="all", settings=measure_settings(PLAN, 0))
    got = [one.value for one in by_name(predictions, "n_probe|params=all")]
    np.testing.assert_allclose(got, window.required_if_present().sequences, rtol=1e-8)


def test_weights_that_are_not_there_give_no_number():
    model, batch = case(SPARSE, "min_gru")
    predictions = predict(model, SPARSE, batch, 6, PLAN, seed=0, ablate=True)
    assert np.isnan([one.value for one in by_name(predictions, "n_data|params=recurrent")]).all()
    assert np.isfinite([one.value for one in by_name(predictions, "n_probe|params=all")]).all()


def test_bins_of_the_adding_problem_are_bands():
    assert task_bands(Adding(length=40, bins=4)).edges == ((0, 9), (10, 19), (20, 29), (30, 39))
    assert task_bands(SPARSE).edges == ((1, 1), (3, 3))


def test_too_few_blocks_are_refused():
    model, batch = case(SPARSE)
    with pytest.raises(InputError, match="blocks"):
        predict(model, SPARSE, batch, 6, PredictorPlan(blocks=6, error=0.001, flips=1999))


def test_every_cell_of_the_study_exists():
    assert set(CELLS) <= set(all_cells())
