"""Whole models in the geometry of their optimiser, and with some of the weights that read the input."""

import numpy as np
import pytest
import torch

import lagreach
from lagreach.data.sequences import as_sequences
from lagreach.errors import InputError, UnsupportedError
from lagreach.gradients.optimiser_geometry import update_scale
from lagreach.whole_model.lag_gradients import as_table, as_weights
from lagreach.whole_model.measure import directions_of
from lagreach.whole_model.measurement_plan import plan_model_measurement
from lagreach.whole_model.noise import measure_noise
from lagreach.whole_model.running import at_rest
from lagreach.whole_model.signals import measure_signals
from tests.whole_model import cases
from tests.whole_model.cases import made
from tests.whole_model.test_measure import CASES, TIME, lag_tables


def stepped(model, x, y, loss, kind=torch.optim.Adam):
    """An optimiser that has taken one step, the weights put back."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = kind(model.parameters(), lr=0.1)
    output = model(x)
    error = (output - y).square().mean() if loss == "mse" else torch.nn.functional.cross_entropy(output.mT, y)
    error.backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    model.load_state_dict(before)
    return optimiser


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_signal_and_noise_are_those_of_a_plain_loop_times_what_the_optimiser_makes_of_them(case):
    build, data, loss = CASES[case]
    model, (x, y) = build(), data()
    optimiser = stepped(model, x, y, loss)
    plan = plan_model_measurement(
        model, as_sequences((x, y)), loss, range(TIME), anchors=TIME, blocks=8, probes=1, seed=0, optimizer=optimiser
    )
    names = [f"{port.path}.weight" for port in plan.source.ports]
    scale = update_scale(optimiser, model, names)
    with at_rest(model):
        signals = measure_signals(plan)
        noise = measure_noise(plan, directions_of(signals, {}))
    data_means = signals.means()[0].mean(1)
    block_of = dict(
        zip(plan.block_plan.pairs.ravel().tolist(), np.repeat(plan.block_plan.blocks, 2).tolist(), strict=True)
    )
    partner = {a: b for first, second in plan.block_plan.pairs.tolist() for a, b in ((first, second), (second, first))}
    swaps = {row: scale * (lag_tables(case, row, row) - lag_tables(case, row, partner[row])) for row in block_of}
    expected = np.zeros((plan.block_plan.count, TIME, len(scale)))
    for row, block in block_of.items():
        expected[block] += swaps[row] / signals.size[block]
    row = min(block_of)
    for lag in range(TIME):
        products = expected[:, lag] @ expected[:, lag].T
        size = np.abs(products).max()
        np.testing.assert_allclose(data_means[:, lag] @ data_means[:, lag].T, products, rtol=1e-8, atol=1e-10 * size)
        direction = sum(swaps[other][lag] for other in swaps if block_of[other] != block_of[row])
        norm = np.linalg.norm(direction)
        along = (scale * lag_tables(case, row, row).sum(0)) @ direction / norm if norm > 0 else 0.0
        assert noise.data[noise.number == row, lag] == pytest.approx(along, rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("cls", [cases.CausalTransformer, cases.TwoReaders, cases.PaddedConvolutions])
def test_tables_and_weights_are_each_others_inverse(cls):
    model = made(cls)
    x, y = cases.numbers((16, 6, 3))
    plan = plan_model_measurement(model, as_sequences((x, y)), "mse", [0], blocks=8, probes=1, seed=0)
    weights = {
        f"{port.path}.weight": torch.randn_like(model.get_submodule(port.path).weight) for port in plan.source.ports
    }
    again = as_weights(plan.model, plan.source, as_table(plan.model, plan.source, weights))
    for name, weight in weights.items():
        assert torch.equal(again[name], weight)


def lagged():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, 9, 3, generator=generator)
    return x, x.roll(2, 1)[..., :1] + torch.randn(48, 9, 1, generator=generator)


@pytest.mark.thorough
def test_a_diagnosis_says_whose_steps_they_are():
    model = made(cases.CausalTransformer).float()
    x, y = lagged()
    plain = lagreach.diagnose(model, (x, y), lags=[0, 2])
    descent = lagreach.diagnose(model, (x, y), lags=[0, 2], optimizer=torch.optim.SGD(model.parameters(), 0.1))
    np.testing.assert_array_equal(descent.layers[0].window.noise, plain.layers[0].window.noise)
    diagnosis = lagreach.diagnose(model, (x, y), lags=[0, 2], optimizer=stepped(model, x, y, "mse"))
    assert diagnosis.settings["optimizer"] == "Adam"
    assert any("those of the optimiser's steps" in note for note in diagnosis.warnings)
    assert not np.allclose(diagnosis.layers[0].window.noise, plain.layers[0].window.noise)


def test_weights_by_name():
    model = made(cases.TwoReaders).float()
    diagnosis = lagreach.diagnose(model, lagged(), lags=[0, 2], params=lambda name: name.startswith("keys"))
    assert diagnosis.settings["input_module"] == "keys"
    with pytest.raises(InputError, match=r"none of keys\.weight, values\.weight"):
        lagreach.diagnose(model, lagged(), lags=[0], params=lambda name: False)


def test_an_optimiser_needs_weights_that_read_the_input():
    model = made(cases.Skip).float()
    with pytest.raises(UnsupportedError, match="read by none of its own"):
        lagreach.diagnose(model, lagged(), lags=[0], optimizer=torch.optim.SGD(model.parameters(), 0.1))
