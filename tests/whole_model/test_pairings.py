"""Sequences of a whole model exchange targets in groups, as those of layers do: every pairing at once."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from lagreach.data.batch import Batch
from lagreach.data.sequences import as_sequences
from lagreach.gradients.significance import LOOKS
from lagreach.whole_model.exchange import measure_exchange
from lagreach.whole_model.factors import Products, block_gram
from lagreach.whole_model.measure import measure_model
from lagreach.whole_model.measurement_plan import plan_model_measurement
from lagreach.whole_model.running import at_rest
from lagreach.whole_model.signals import measure_signals
from tests.whole_model import cases
from tests.whole_model.cases import INPUT, TOKENS, made

TIME, LAG = 5, 2
CLOSE = {"rtol": 1e-9, "atol": 1e-14}


def numbers(count, seed=0, outputs=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, TIME, INPUT, generator=generator, dtype=torch.float64)
    y = torch.randn(count, TIME, outputs, generator=generator, dtype=torch.float64)
    y[:, LAG:] += x[:, :-LAG, :1]
    return x, y


def tokens(count):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(0, TOKENS, (count, TIME), generator=generator) for _ in range(2))
    return x, y


CASES = {
    "one output": (lambda: made(cases.CausalTransformer), lambda: numbers(96), "mse", 8),
    "two outputs": (lambda: made(cases.CausalTransformer, outputs=2), lambda: numbers(48, outputs=2), "mse", 4),
    "tokens": (
        lambda: made(cases.CausalTransformer, tokens=TOKENS, outputs=TOKENS),
        lambda: tokens(96),
        "cross_entropy",
        4,
    ),
}


def plan_of(case, lags=(0, LAG), **more):
    build, data, loss, _ = CASES[case]
    options = {"blocks": 8, "probes": 1, "seed": 0, "anchors": TIME} | more
    return plan_model_measurement(build(), as_sequences(data()), loss, list(lags), **options)


def products_of(plan, lags):
    """Inner products of the block means of all pairings, by lag, and those of the sketch."""
    with at_rest(plan.model.module):
        signals = measure_signals(plan)
    means = signals.means()[0]
    return signals, [np.einsum("apw,bqw->apbq", means[:, :, lag], means[:, :, lag]) for lag in range(lags)]


@pytest.mark.parametrize("case", CASES)
def test_each_pairing_is_that_of_pairs_alone(case):
    plan = plan_of(case)
    members = plan.block_plan.members
    assert members == CASES[case][3]
    together, products = products_of(plan, 2)
    mean = [block_gram(together.data(lag), together.size) for lag in range(2)]
    for shift in range(1, members):
        alone = replace(plan, block_plan=replace(plan.block_plan.paired(shift), members=2))
        _, expected = products_of(alone, 2)
        for lag in range(2):
            np.testing.assert_allclose(products[lag][:, shift - 1, :, shift - 1], expected[lag][:, 0, :, 0], **CLOSE)
    for lag in range(2):
        np.testing.assert_allclose(products[lag].mean((1, 3)), mean[lag], **CLOSE)


@pytest.mark.parametrize(
    ("case", "pairs"),
    [("two outputs", 3), *(pytest.param("one output", n, marks=pytest.mark.thorough) for n in (1, 3))],
)
def test_groups_that_do_not_fit_into_memory_give_the_same(case, pairs):
    x, y = CASES[case][1]()
    for lengths in (None, torch.arange(len(x)) % 2 + 4):
        batch = as_sequences(Batch(x, y, None, lengths))
        options = {"blocks": 8, "probes": 1, "seed": 0}
        plan = plan_model_measurement(
            CASES[case][0](), batch, "mse", [0, LAG], **options, call=lambda m, b: m(b.x), outputs="per step"
        )
        assert plan.block_plan.members == CASES[case][3]
        _, whole = products_of(plan, 2)
        _, limited = products_of(replace(plan, memory=pairs * plan.pair_bytes), 2)
        for one, other in zip(limited, whole, strict=True):
            np.testing.assert_allclose(one, other, **CLOSE)


def test_lags_inside_bands_have_every_pairing(generator):
    """The coordinates of a lag inside a band, for each pairing, are those of pairs alone."""
    x = torch.randn(96, 80, INPUT, generator=generator, dtype=torch.float64)
    y = torch.randn(96, 80, 1, generator=generator, dtype=torch.float64)
    options = {"blocks": 8, "probes": 1, "seed": 0, "anchors": 80}
    model = made(cases.PaddedConvolutions)
    plan = plan_model_measurement(model, as_sequences((x, y)), "mse", "auto", **options)
    plan = replace(plan, block_plan=replace(plan.block_plan.only([0, 1]), members=plan.block_plan.members))
    with at_rest(model):
        sketch = measure_signals(plan).sketch
        alone = replace(plan, block_plan=replace(plan.block_plan.paired(3), members=2))
        expected = measure_signals(alone).sketch
    assert sketch.shape[1] == 7
    size = min(sketch.shape[-1], expected.shape[-1])
    np.testing.assert_allclose(sketch[:, 2, :, :size], expected[:, 0, :, :size], **CLOSE)


def test_the_control_of_an_exchange_is_what_swapped_targets_say_too_much():
    """From all outputs: the contrast with the partner, less the mean over all partners; it is taken off as far as it tells."""
    plan = plan_of("one output")
    with at_rest(plan.model.module):
        signals = measure_signals(plan)
        exchanged = measure_exchange(plan, [LAG])
    _, products = products_of(plan, 2)
    control = Products.of(exchanged.controls[0], [0], 0)
    pairings, count = plan.pairings, plan.block_plan.count
    turn = -np.full(pairings, 1 / pairings)
    turn[0] += 1
    expected = np.einsum("p,apbq,q->ab", turn, products[1], turn)
    np.testing.assert_allclose(block_gram(control, signals.size), expected, **CLOSE)
    means, (signal,) = exchanged.controlled()
    np.testing.assert_allclose(means[:, 0] @ means[:, 0].T, block_gram(signal, signals.size), **CLOSE)
    both = block_gram(Products.joined([signal, control], apart=True), np.repeat(signals.size, 2))
    both = both.reshape(count, 2, count, 2)
    assert np.trace(both[:, 0, :, 1]) == pytest.approx(0, abs=1e-9 * np.trace(both[:, 1, :, 1]))
    before = exchanged.means()[:, 0]
    assert np.square(means[:, 0]).sum() < np.square(before).sum()


class Recurrent(nn.Module):
    """An LSTM with a readout of every step."""

    def __init__(self):
        super().__init__()
        self.layer, self.read = nn.LSTM(1, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x):
        return self.read(self.layer(x)[0])


def delayed(one):
    generator = torch.Generator().manual_seed(1000 + one)
    x = torch.randn(96, 24, 1, generator=generator)
    y = 4 * torch.randn(96, 24, 1, generator=generator)
    y[:, 3:] += x[:, :-3]
    return x, y


@pytest.mark.thorough
def test_a_seed_does_not_decide_what_is_found():
    """With one pairing and a few outputs, 4 of these 10 data sets changed sides between seeds, and 14 of 30 were found."""
    found = np.zeros((10, 3), dtype=bool)
    for one in range(10):
        torch.manual_seed(one)
        model = Recurrent()
        for seed in range(3):
            plan = plan_model_measurement(
                model, as_sequences(delayed(one)), "mse", "auto", blocks=32, probes=1, seed=seed
            )
            # an exchange's p-value counts twice: asked about is what the pairs say, not where the border is drawn
            found[one, seed] = measure_model(plan, flips=999, error=0.05).test.adjusted[3] <= LOOKS * 0.05
    assert (found.any(1) & ~found.all(1)).sum() <= 2
    assert found.sum() >= 21
