"""What is measured of a whole model, against plain loops over sequences, outputs and lags."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from lagreach.data.batch import Batch
from lagreach.data.sequences import as_sequences
from lagreach.errors import InputError
from lagreach.whole_model import factors, noise
from lagreach.whole_model.exchange import measure_exchange
from lagreach.whole_model.lag_gradients import model_lag_gradients
from lagreach.whole_model.measure import directions_of, measure_gain, measure_model
from lagreach.whole_model.measurement_plan import plan_model_measurement
from lagreach.whole_model.noise import LagDirections, held_directions, measure_noise
from lagreach.whole_model.running import at_rest
from lagreach.whole_model.signals import measure_signals
from tests.whole_model import cases
from tests.whole_model.cases import INPUT, TOKENS, made

COUNT, TIME = 16, 5
CLOSE = {"rtol": 1e-9, "atol": 1e-14}


def numeric_data(seed=0, count=COUNT, time=TIME):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, time, INPUT, generator=generator, dtype=torch.float64)
    y = torch.randn(count, time, 1, generator=generator, dtype=torch.float64)
    y[:, 2:] += x[:, :-2, :1]
    return x, y


def token_data(seed=0, count=COUNT, time=TIME):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, TOKENS, (count, time), generator=generator)
    y = torch.randint(0, TOKENS, (count, time), generator=generator)
    y[:, 2:] = torch.where(torch.rand(count, time - 2, generator=generator) < 0.5, x[:, :-2], y[:, 2:])
    return x, y


CASES = {
    "numbers": (lambda: made(cases.CausalTransformer), numeric_data, "mse"),
    "tokens": (
        lambda: made(cases.CausalTransformer, tokens=TOKENS, outputs=TOKENS),
        token_data,
        "cross_entropy",
    ),
    "convolution": (lambda: made(cases.PaddedConvolutions), numeric_data, "mse"),
    "two outputs": (
        lambda: made(cases.CausalTransformer, outputs=2),
        lambda: (numeric_data()[0], numeric_data()[1].expand(-1, -1, 2).clone() + numeric_data()[0][..., :2]),
        "mse",
    ),
}


def plan_of(case, anchors=TIME, lags=range(TIME), **more):
    build, data, loss = CASES[case]
    options = {"blocks": 8, "probes": 3, "seed": 0} | more
    return plan_model_measurement(build(), as_sequences(data()), loss, lags, anchors=anchors, **options)


@cache
def lag_tables(case, row, target):
    """Lag gradients (lag, ...) of one sequence's input weights, with the targets of another."""
    build, data, loss = CASES[case]
    x, y = data()
    gradients = model_lag_gradients(build(), x[[row]], y[[target]], loss)
    return torch.cat([g.flatten(1) for g in gradients.grads.values()], dim=1).numpy()


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_block_means_are_those_of_a_plain_loop(case):
    plan = plan_of(case)
    with at_rest(plan.model.module):
        signals = measure_signals(plan)
    data = signals.means()[0].mean(1)
    expected = np.zeros((plan.block_plan.count, TIME, lag_tables(case, 0, 0).shape[1]))
    for (first, second), block in zip(plan.block_plan.pairs.tolist(), plan.block_plan.blocks.tolist(), strict=True):
        for row, other in ((first, second), (second, first)):
            swap = lag_tables(case, row, row) - lag_tables(case, row, other)
            expected[block] += swap / signals.size[block]
    for lag in range(TIME):
        np.testing.assert_allclose(data[:, lag] @ data[:, lag].T, expected[:, lag] @ expected[:, lag].T, **CLOSE)
    assert np.linalg.norm(expected[:, 2].mean(0)) > np.linalg.norm(expected[:, 3].mean(0))  # the planted lag


def reached(plan, row):
    """For one sequence: gradient of every output at what the input modules return, by autograd alone."""
    model = plan.model.module
    batch = plan.sequences.read([row])
    kept = []
    path = plan.source.ports[0].path
    handle = model.get_submodule(path).register_forward_hook(lambda *call: kept.append(call[2]))
    output = model(batch.x)
    handle.remove()
    return batch, output[0], kept[0]


@pytest.mark.parametrize("case", ["numbers", "tokens", "two outputs"])
def test_planted_signals_are_those_of_a_plain_loop(case):
    plan = plan_of(case)
    with at_rest(plan.model.module):
        signals = measure_signals(plan)
    _, planted = signals.means()
    plant = signals.moments.probe(len(plan.group), plan.seed)
    rows = TOKENS if plan.source.reads_tokens else INPUT
    expected = np.zeros((plan.block_plan.count, len(plan.group), TIME, rows, 8))
    for row, block in zip(
        plan.block_plan.pairs.ravel().tolist(), np.repeat(plan.block_plan.blocks, 2).tolist(), strict=True
    ):
        batch, output, kept = reached(plan, row)
        values = plant(batch.x[0]).numpy()  # (probe, time)
        inputs = torch.nn.functional.one_hot(batch.x[0], TOKENS).double() if rows == TOKENS else batch.x[0]
        for probe, group in enumerate(plan.group):
            for t in range(TIME):
                (gradient,) = torch.autograd.grad(output[t] @ plan.output[group], kept, retain_graph=True)
                for lag in range(t + 1):
                    s = t - lag
                    part = torch.outer(inputs[s], gradient[0, s]).numpy() * values[probe, s] / TIME
                    expected[block, probe, lag] += part / signals.size[block]
    for probe in range(len(plan.group)):
        for lag in range(TIME):
            of_lag, flat = planted[:, probe, lag], expected[:, probe, lag].reshape(plan.block_plan.count, -1)
            np.testing.assert_allclose(of_lag @ of_lag.T, flat @ flat.T, **CLOSE)


def test_planted_values_have_mean_zero_and_variance_one():
    for case in ("numbers", "tokens"):
        plan = plan_of(case)
        with at_rest(plan.model.module):
            signals = measure_signals(plan)
        x = plan.sequences.read(plan.block_plan.pairs.ravel().tolist()).x
        values = signals.moments.probe(3, 0)(x.flatten(0, 1))
        np.testing.assert_allclose(values.mean(1).numpy(), 0, atol=1e-12)
        np.testing.assert_allclose(values.square().mean(1).numpy(), 1, rtol=1e-12)


def test_the_spread_of_the_targets_is_their_variance():
    """For mean squares of one output, the target part of the gradient is -2 y: its variance is four times that of y."""
    plan = plan_of("numbers", anchors=1, lags=[0])
    with at_rest(plan.model.module):
        spread = measure_signals(plan).spread.sum(0)
    first, second = (plan.sequences.read(plan.block_plan.pairs[:, side].tolist()).y for side in (0, 1))
    variance = (first - second).square().mean().item() / 2
    assert spread[0, 0] / spread[0, 1] == pytest.approx(4 * variance, rel=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_noise_is_the_whole_gradient_along_directions_of_other_blocks(case):
    plan = plan_of(case)
    with at_rest(plan.model.module):
        signals = measure_signals(plan)
        noise = measure_noise(plan, directions_of(signals, {}))
    order = plan.block_plan.pairs.ravel()
    block_of = dict(zip(order.tolist(), np.repeat(plan.block_plan.blocks, 2).tolist(), strict=True))
    partner = {a: b for first, second in plan.block_plan.pairs.tolist() for a, b in ((first, second), (second, first))}
    swaps = {row: lag_tables(case, row, row) - lag_tables(case, row, partner[row]) for row in block_of}
    for row in sorted(block_of):
        whole = lag_tables(case, row, row).sum(0)
        for lag in range(TIME):
            direction = sum(swaps[other][lag] for other in swaps if block_of[other] != block_of[row])
            norm = np.linalg.norm(direction)  # zero beyond what a convolution sees
            expected = whole @ direction / norm if norm > 0 else 0.0
            assert noise.data[noise.number == row, lag] == pytest.approx(expected, rel=1e-8, abs=1e-14)
    assert (noise.number == np.sort(order)).all()
    assert noise.probe.shape == (len(order), 3, TIME)
    counts = noise.step_sums[:, 0, 0, 0].sum()
    assert counts == len(order) * TIME  # one value for each step, their sum over steps the sequence's
    np.testing.assert_allclose(noise.step_sums[:, 0, 0, 1].sum() / TIME, noise.data[:, 0].sum(), rtol=1e-9)


def test_exchanging_the_inputs_of_a_lag_alone():
    """What swapped targets change in the gradient of the lag, less the same with the lag's inputs exchanged, both halved."""
    time, lag = 4, 2
    plan = plan_model_measurement(
        made(cases.CausalTransformer),
        as_sequences(numeric_data(time=time)),
        "mse",
        range(time),
        blocks=8,
        probes=1,
        seed=0,
    )
    assert plan.anchors == time
    with at_rest(plan.model.module):
        exchanged = measure_exchange(plan, [lag])
    model = plan.model.module
    expected = np.zeros((plan.block_plan.count, INPUT * 8))
    for pair, (numbers, block) in enumerate(
        zip(plan.block_plan.pairs.tolist(), plan.block_plan.blocks.tolist(), strict=True)
    ):
        batch = plan.sequences.read(numbers)
        rises, bends = [], []
        for t in range(lag, time):
            changed = batch.x.clone()
            changed[:, t - lag] = batch.x.flip(0)[:, t - lag]
            bends.append((model(batch.x) - model(changed))[:, t].detach().square().mean().item() / 2)
            for x, sign in ((batch.x, 1), (changed, -1)):
                kept = []
                handle = model.read.register_forward_hook(lambda *call, kept=kept: kept.append(call[2]))
                output = model(x)[:, t]
                handle.remove()
                loss, swapped = ((output - y[:, t]).square().mean(-1) / time for y in (batch.y, batch.y.flip(0)))
                (gradient,) = torch.autograd.grad((loss - swapped).sum() / 2, kept[0])
                outer = torch.einsum("ni,nd->nid", x[:, t - lag], gradient[:, t - lag])
                expected[block] += sign * outer.sum(0).flatten().numpy() / exchanged.size[block]
                rises.append(-sign * time * loss.detach().mean().item())
        whole = (model(batch.x) - batch.y).square().mean((1, 2)).detach().mean().item()
        rise, loss, bend = exchanged.rises[:, pair, 0]
        assert rise == pytest.approx(sum(rises) / (time - lag), rel=1e-9)
        assert loss == pytest.approx(whole, rel=1e-9)
        assert bend == pytest.approx(sum(bends) / (time - lag), rel=1e-9)
    means = exchanged.means()[:, 0]
    np.testing.assert_allclose(means @ means.T, expected @ expected.T, **CLOSE)


def test_exchanged_inputs_are_counted_back_from_the_ends_of_both():
    """One output for a whole sequence, of other lengths: the l-th step from the end of each is exchanged."""
    x, y = numeric_data()
    lengths = torch.arange(COUNT) % 3 + 3
    seen = []

    class Watched(cases.Pooled):
        def forward(self, x):
            seen.append(x.detach().clone())
            return super().forward(x)

    batch = Batch(x, torch.cat((y, y), -1)[:, 0], None, lengths)
    plan = plan_model_measurement(
        made(Watched), as_sequences(batch), "mse", [0, 1, 2], blocks=8, probes=1, seed=0, call=lambda m, b: m(b.x)
    )
    plan = replace(plan, source=replace(plan.source, ports=(replace(plan.source.ports[0]),)))
    seen.clear()
    reads = []
    handle = plan.model.module.read.register_forward_hook(lambda _, args, __: reads.append(args[0].clone()))
    with at_rest(plan.model.module):
        measure_exchange(plan, [1])
    handle.remove()
    whole, changed = reads[0], reads[1]
    numbers = plan.block_plan.pairs.ravel()[: len(whole)]
    for row in range(0, len(whole), 2):
        steps = lengths[numbers[[row, row + 1]]] - 2
        for mine, other in ((0, 1), (1, 0)):
            there = changed[row + mine, steps[mine]]
            torch.testing.assert_close(there, whole[row + other, steps[other]])
            rest = torch.arange(TIME) != steps[mine]
            torch.testing.assert_close(changed[row + mine, rest], whole[row + mine, rest])


def test_gain_by_lag():
    plan = plan_of("numbers", lags=[0, 1, 3, 4])
    with at_rest(plan.model.module):
        gains = measure_gain(plan)
    there, here = np.zeros(TIME), np.zeros(TIME)
    for row in plan.block_plan.pairs.ravel().tolist():
        batch, output, kept = reached(plan, row)
        losses = (output - batch.y[0]).square().mean(-1)
        for t in range(TIME):
            (gradient,) = torch.autograd.grad(losses[t], kept, retain_graph=True)
            for lag in range(t + 1):
                there[lag] += gradient[0, t - lag].square().sum()
                here[lag] += gradient[0, t].square().sum()
    np.testing.assert_allclose(gains, 0.5 * np.log10(there / here)[[0, 1, 3, 4]], rtol=1e-9, atol=1e-12)


def measured(plan):
    return measure_model(plan, flips=199, error=0.05)


def agree(one, other, tolerance=1e-8):
    np.testing.assert_allclose(one.test.square, other.test.square, rtol=tolerance, atol=1e-14)
    np.testing.assert_allclose(one.test.adjusted, other.test.adjusted, atol=1e-12)
    np.testing.assert_allclose(one.log10_gain, other.log10_gain, rtol=tolerance, atol=1e-10)
    np.testing.assert_allclose(np.sort(one.noise.data, 0), np.sort(other.noise.data, 0), rtol=1e-6, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["numbers", "tokens"])
def test_batches_order_disk_and_types_of_the_data_do_not_change_the_answer(case, monkeypatch):
    plan = plan_of(case, anchors=2)
    whole = measured(plan)
    agree(measured(replace(plan, memory=1)), whole)  # a pair at a time
    build, data, loss = CASES[case]
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(5))
    x, y = (part[order] for part in data())
    mixed = plan_model_measurement(
        build(), as_sequences((x, y)), loss, range(TIME), blocks=8, probes=3, seed=0, anchors=2
    )
    agree(measured(mixed), whole)
    monkeypatch.setattr(factors, "IN_MEMORY", 0)
    agree(measured(plan), whole)
    monkeypatch.setattr(factors, "GRAM_BYTES", 1)
    agree(measured(plan), whole)


def test_directions_from_some_of_the_sequences_where_tables_would_be_too_large():
    plan = plan_of("tokens", anchors=2)
    with at_rest(plan.model.module):
        signals = measure_signals(plan)
        every, some = (
            LagDirections(
                [held_directions([signals.data(band)], limit, torch.float64) for band in range(TIME)],
                torch.device("cpu"),
                torch.float64,
            )
            for limit in (noise.TABLE_BYTES, 8 * 8 * 20)
        )
    batch = plan.sequences.read([0, 1])
    gradients = torch.randn(2, TIME, 8, dtype=torch.float64)
    one, other = (lag_directions.along(3, batch.x, gradients) for lag_directions in (every, some))
    assert one.shape == other.shape == (2, TIME, 1, TIME)
    assert not torch.allclose(one, other)
    kept = some._parts[0][0]
    assert len(kept.arrived) < len(signals.data(0).arrived)
    assert set(kept.block.tolist()) == set(range(8))  # of every block
    assert noise.TABLE_BYTES > 2**29


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_are_measured_in_their_own_type(dtype):
    x, y = numeric_data(count=64, time=8)
    reference = measured(
        plan_model_measurement(
            made(cases.CausalTransformer).float(), as_sequences((x, y)), "mse", range(8), blocks=8, probes=2, seed=0
        )
    )
    model = made(cases.CausalTransformer).to(dtype)
    measurement = measured(
        plan_model_measurement(model, as_sequences((x, y)), "mse", range(8), blocks=8, probes=2, seed=0)
    )
    assert all(p.dtype == dtype for p in model.parameters())
    rough = 0.1 if dtype == torch.bfloat16 else 0.02
    np.testing.assert_allclose(measurement.log10_gain, reference.log10_gain, atol=rough)
    np.testing.assert_allclose(measurement.noise.probe.std(0), reference.noise.probe.std(0), rtol=2 * rough)


def test_masked_and_ignored_steps_are_no_anchors():
    x, y = token_data(count=32)
    y[:, :3] = -100  # of five steps
    model = made(cases.CausalTransformer, tokens=TOKENS, outputs=TOKENS)
    plan = plan_model_measurement(
        model, as_sequences((x, y)), "cross_entropy", range(TIME), blocks=8, probes=2, seed=0, anchors=2
    )
    with at_rest(model):
        signals = measure_signals(plan)
    arrived = signals.factors.arrived[:, 1, : signals.factors.filled]  # of a planted target: never zero at an anchor
    assert (np.abs(arrived[3]).max(1) > 0).mean() == 1  # from step 3 on, three steps back are there
    assert (np.abs(arrived[4]).max(1) > 0).mean() < 1


def test_a_wrong_number_of_anchors_is_refused():
    with pytest.raises(InputError, match="anchors"):
        plan_of("numbers", anchors=0)
