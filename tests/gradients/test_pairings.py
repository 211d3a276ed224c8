"""Sequences exchange targets in groups: every pairing at once, with an exact test, and far less chance in the answer."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import binom

from lagreach import GatedRNN
from lagreach._util.threads import one_thread
from lagreach.data.pairs import plan_blocks
from lagreach.data.sequences import as_sequences
from lagreach.diagnosis.measure import MeasureSettings, measure_window, plan_measurement
from lagreach.gradients.blocks import block_means
from lagreach.gradients.significance import flip_test, turns_of

SETTINGS = MeasureSettings(probes=1, flips=399)
LAGS = [0, 1, 3, 8]


@pytest.fixture(autouse=True)
def _single_thread(_as_users_run_it):
    with one_thread():
        yield


def network(seed, outputs=1, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return GatedRNN("lstm", 2, 8, outputs, generator=generator, dtype=dtype)


def planted(seed, strength, sequences=96, outputs=1, dtype=torch.float32):
    """Noise with a weak dependence on the input three steps before."""
    generator = torch.Generator().manual_seed(1000 + seed)
    x = torch.randn(sequences, 24, 2, generator=generator).to(dtype)
    y = torch.randn(sequences, 24, outputs, generator=generator).to(dtype)
    y[:, 3:] += strength * x[:, :-3, :1]
    return x, y


@pytest.mark.parametrize(
    ("transport", "outputs", "members"),
    [
        ("exact", 3, 4),
        ("first-order", 1, 8),
        pytest.param("exact", 1, 8, marks=pytest.mark.thorough),
        pytest.param("first-order", 3, 4, marks=pytest.mark.thorough),
    ],
)
def test_each_pairing_is_that_of_pairs_alone(outputs, members, transport):
    settings = dataclasses.replace(SETTINGS, transport=transport)
    members = 4 if transport == "first-order" else members
    model, data = network(0, outputs, torch.float64), planted(0, 0.5, outputs=outputs, dtype=torch.float64)
    plan = plan_measurement(model, data, "mse", LAGS, settings=settings)
    assert plan.block_plan.members == members
    together = block_means(plan)
    assert together.pairings.shape[1] == members - 1
    for shift in range(1, members):
        block_plan = dataclasses.replace(plan.block_plan.paired(shift), members=2)
        alone = block_means(dataclasses.replace(plan, block_plan=block_plan))
        np.testing.assert_allclose(together.pairings[:, shift - 1], alone.data, rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(together.probe, alone.probe, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(together.data, together.pairings.mean(1))


@pytest.mark.thorough
@pytest.mark.parametrize("lengths", [False, True])
def test_groups_that_do_not_fit_into_memory_give_the_same(lengths):
    x, y = planted(0, 0.5, dtype=torch.float64)
    data = {"x": x, "y": y} | ({"lengths": torch.arange(96) % 9 + 12} if lengths else {})
    plan = plan_measurement(network(0, dtype=torch.float64), data, "mse", LAGS, settings=SETTINGS)
    whole = block_means(plan)
    for pairs in (1, 3, 5):
        limited = dataclasses.replace(plan, memory=pairs * plan.pair_bytes)
        np.testing.assert_allclose(block_means(limited).pairings, whole.pairings, rtol=1e-9, atol=1e-13)


def test_every_member_meets_every_other_once():
    plan = plan_blocks(as_sequences(planted(0, 0.0)), 32, 0, members=8)
    met = [frozenset(pair) for shift in range(1, 8) for pair in plan.paired(shift).pairs.tolist()]
    expected = {frozenset((a, b)) for group in plan.groups.tolist() for a in group for b in group if a != b}
    assert len(met) == len(set(met)) == len(expected)
    assert set(met) == expected
    for shift in range(1, 8):
        home = dict(zip(plan.pairs.ravel().tolist(), np.repeat(plan.blocks, 2).tolist(), strict=True))
        other = plan.paired(shift)
        assert all(home[n] == b for n, b in zip(other.pairs.ravel(), np.repeat(other.blocks, 2), strict=True))


@pytest.mark.parametrize("members", [2, 4, 8])
def test_turning_is_exchanging_the_targets(members):
    """For a contrast that is a product: permute the targets within the groups and form all pairings anew."""
    rng = np.random.default_rng(0)
    source, target = rng.normal(size=(5, 6, members, 3)), rng.normal(size=(5, 6, members, 1))  # block, group, member
    place = np.arange(members)

    def contrasts(values):
        return np.stack([(source * (values - values[:, :, place ^ g])).mean((1, 2)) for g in range(1, members)], axis=1)

    unturned = contrasts(target)
    every = np.einsum("tp,bp...->bt...", turns_of(unturned.shape[1]), unturned)
    np.testing.assert_allclose(every.sum(1), 0.0, atol=1e-12)
    for shift in range(members):
        exchanged = contrasts(target[:, :, place ^ shift]).mean(1)
        np.testing.assert_allclose(every[:, shift], exchanged, rtol=1e-10, atol=1e-12)


def lopsided(rng, shape):
    """Rarely different from zero, and then large: signs of sums over a group would not be symmetric."""
    return (rng.random(shape) < 0.1) * np.exp(1.5 * rng.normal(size=shape))


@pytest.mark.thorough
@pytest.mark.parametrize("members", [2, 4, 8])
def test_the_test_is_exact_for_lopsided_inputs_and_targets(members):
    rng = np.random.default_rng(1)
    place, runs, false = np.arange(members), 800, 0
    for _ in range(runs):
        source, target = lopsided(rng, (12, 1, members, 4, 2)), lopsided(rng, (12, 1, members, 1, 1))
        pairings = [(source * (target - target[:, :, place ^ g])).mean((1, 2)) for g in range(1, members)]
        false += flip_test(np.stack(pairings, axis=1), flips=99, generator=rng).adjusted.min() <= 0.05
    assert false <= binom.ppf(0.9995, runs, 0.05)


def p_values(strength, seeds, sets=12):
    """Of lag 3, (set, seed)."""
    adjusted = np.empty((sets, len(seeds)))
    for one in range(sets):
        for column, seed in enumerate(seeds):
            settings = dataclasses.replace(SETTINGS, seed=seed)
            plan = plan_measurement(network(one), planted(one, strength), "mse", LAGS, settings=settings)
            test = flip_test(block_means(plan).pairings, flips=999, generator=np.random.default_rng(seed))
            adjusted[one, column] = test.adjusted[2]
    return adjusted


@pytest.mark.thorough
def test_a_seed_does_not_decide_what_is_found():
    """With one pairing, 6 of these 12 data sets changed sides between two seeds, and half of them were found."""
    significant = p_values(0.1, seeds=(0, 1)) <= 0.05
    assert (significant[:, 0] != significant[:, 1]).sum() <= 1
    assert significant.mean() > 0.9


def test_the_type_of_the_numbers_decides_nothing():
    x, y = planted(0, 0.1)
    one, other, third = (
        plan_blocks(as_sequences(data), 32, 0, members=8)
        for data in ((x, y), (x.double(), y.double()), (x.numpy(), y.numpy()))
    )
    np.testing.assert_array_equal(one.pairs, other.pairs)
    np.testing.assert_array_equal(one.pairs, third.pairs)
    windows = [measure_window(network(0), data, lags=LAGS, settings=SETTINGS) for data in ((x, y), (x.double(), y))]
    np.testing.assert_allclose(windows[0].adjusted_p, windows[1].adjusted_p)


def test_sequences_of_similar_length_are_grouped(generator):
    """Only steps that all members have can be compared; a group of a short and seven long ones would waste them."""
    x, y = planted(0, 0.0)
    lengths = torch.randint(5, 25, (96,), generator=generator)
    plan = plan_blocks(as_sequences({"x": x, "y": y, "lengths": lengths}), 32, 0, members=8)
    grouped = lengths.numpy()[plan.groups]
    assert plan.members == 8
    assert np.ptp(grouped, axis=1).max() <= 4
    assert abs(np.corrcoef(grouped[:, 0], np.arange(len(grouped)))[0, 1]) < 0.7  # but blocks are a mixture


def test_masks_that_differ_leave_pairs():
    x, y = planted(0, 0.0)
    mask = (torch.rand(96, 24) > 0.3).float()
    assert plan_blocks(as_sequences((x, y, mask)), 32, 0, members=8).members == 2
    assert plan_blocks(as_sequences((x, y, torch.ones(96, 24))), 32, 0, members=8).members == 8
    classes = torch.randint(0, 5, (96, 24))
    assert plan_blocks(as_sequences((x, classes)), 32, 0, members=8).members == 8
    assert plan_blocks(as_sequences((x, torch.where(mask > 0, classes, -100))), 32, 0, members=8).members == 2
