"""Anchors and lags that are drawn: unbiased, by content alone, the same for both partners."""

import numpy as np
import pytest
import torch

from lagreach.data.bands import FEW, make_bands
from lagreach.data.sequences import as_sequences
from lagreach.whole_model.anchors import MOST_SLOTS, draw_anchors, draw_lags, make_slots, pair_streams
from lagreach.whole_model.measurement_plan import plan_model_measurement
from lagreach.whole_model.running import at_rest
from lagreach.whole_model.signals import measure_signals
from tests.whole_model import cases
from tests.whole_model.cases import INPUT, made

DRAWS = 4000


def streams(count=DRAWS, seed=0):
    return [np.random.default_rng((seed, i)) for i in range(count)]


@pytest.mark.parametrize("most", [1, 3, 7, 20])
def test_every_output_that_counts_is_counted_once_on_average(most):
    usable = torch.tensor([1, 0, 1, 1, 0, 1, 1, 1, 1, 0], dtype=torch.bool)
    anchors = draw_anchors(usable.expand(DRAWS, -1), most, streams())
    weight = np.zeros((DRAWS, len(usable)))
    np.add.at(weight, (np.arange(DRAWS)[:, None], anchors.position), anchors.weight)
    assert weight[:, ~usable.numpy()].sum() == 0
    error = weight.std(0) / np.sqrt(DRAWS)
    assert (np.abs(weight.mean(0) - usable.numpy()) <= 4 * error + 1e-12).all()
    assert (anchors.weight.sum(1) == usable.sum().item()).all()
    if most >= 7:
        assert (weight == usable.numpy()).all()  # all of them, once


def test_where_nothing_counts_there_is_no_anchor():
    anchors = draw_anchors(torch.zeros(2, 5, dtype=torch.bool), 3, streams(2))
    assert anchors.weight.sum() == 0


def test_lags_of_a_slot_are_equally_likely_and_stand_for_its_width():
    slots = make_slots(make_bands("auto", 60, every=FEW).edges)
    lags = draw_lags(slots, 1, streams())[:, 0].numpy()
    assert (lags >= slots.first).all()
    assert (lags <= slots.last).all()
    for slot in range(len(slots)):
        counts = np.bincount(lags[:, slot] - slots.first[slot], minlength=slots.width[slot]) / DRAWS
        np.testing.assert_allclose(counts, 1 / slots.width[slot], atol=4 * np.sqrt(0.25 / DRAWS))
    for band, (first, last) in enumerate(make_bands("auto", 60, every=FEW).edges):
        in_band = slots.band == band
        assert slots.width[in_band].sum() == last - first + 1
        assert in_band.sum() <= MOST_SLOTS
        assert slots.first[slots.edge[band]] == slots.last[slots.edge[band]] == last


def test_draws_follow_the_contents_of_the_inputs():
    x = torch.randn(6, 9, 2, generator=torch.Generator().manual_seed(0))
    first = [stream.random() for stream in pair_streams(x, None, 0)]
    assert len(set(first)) == 3
    assert [s.random() for s in pair_streams(x.double(), None, 0)] == first  # whatever their type
    assert [s.random() for s in pair_streams(x[2:4], None, 0)] == first[1:2]  # and beside whatever others
    assert pair_streams(x, None, 1)[0].random() != first[0]
    assert pair_streams(x, None, 0, purpose=[1] * (len(x) // 2))[0].random() != first[0]
    lengths = torch.tensor([9, 9, 4, 4, 9, 9])
    other = x.clone()
    other[2:4, 4:] = 7.0  # padding may hold anything
    draws = [[s.random() for s in pair_streams(values, lengths, 0)] for values in (x, other)]
    assert draws[0] == draws[1]


@pytest.mark.thorough
def test_one_output_of_each_sequence_estimates_what_all_of_them_give():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 6, INPUT, generator=generator, dtype=torch.float64)
    y = torch.randn(64, 6, 1, generator=generator, dtype=torch.float64)
    model = made(cases.CausalTransformer)

    def mean_table(anchors, seed):
        plan = plan_model_measurement(
            model, as_sequences((x, y)), "mse", [0, 2], blocks=8, probes=1, seed=seed, anchors=anchors
        )
        with at_rest(model):
            signals = measure_signals(plan)
        part = signals.data(1)
        return (part.read.T @ part.arrived).numpy() / 64

    # the pairs are those of the seed; so the same seed with all outputs is what one of each estimates
    errors = np.stack([mean_table(1, seed) - mean_table(6, seed) for seed in range(8)])
    t = errors.mean(0) / (errors.std(0, ddof=1) / np.sqrt(len(errors)))
    assert np.abs(t).max() < 8  # of 24 values, with seven degrees of freedom
    assert np.abs(errors).max() > 0
