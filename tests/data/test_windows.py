"""Sliding windows that nobody called a series are seen, and treated as one."""

import numpy as np
import pytest
import torch
from scipy.stats import binom

import lagreach
from lagreach import GatedRNN, cut_series
from lagreach.data.pairs import plan_blocks
from lagreach.data.sequences import SpooledSequences, as_sequences
from lagreach.data.survey import survey
from lagreach.data.windows import find_windows
from tests.data.cases import autoregressive, false_dependences, noise, sliding


@pytest.fixture(autouse=True)
def _without_type_checks(_as_users_run_it):
    """As users run it: many small diagnoses."""


def windows_of(*data):
    sequences = as_sequences(data)
    return find_windows(sequences, np.arange(len(sequences)))


@pytest.mark.parametrize("stride", [1, 4, 25])
@pytest.mark.parametrize("shuffled", [False, True])
def test_the_place_of_every_window_is_found(stride, shuffled):
    rng = np.random.default_rng(0)
    x, y = (sliding(noise(rng, 700, 2), 32, stride) for _ in range(2))
    order = rng.permutation(len(x)) if shuffled else np.arange(len(x))
    windows = windows_of(x[order], y[order])
    assert windows is not None
    assert windows.stride == stride
    (chain,) = windows.chains()
    np.testing.assert_array_equal(order[chain], np.arange(len(x)))
    np.testing.assert_array_equal(windows.start[chain], stride * np.arange(len(x)))


def test_it_does_not_matter_how_they_are_given():
    """Tensors of either precision, shuffled, or batches of a loader: the same plan as that of `cut_series`."""
    rng = np.random.default_rng(1)
    series = noise(rng, 900, 1), noise(rng, 900, 1)
    x, y = (sliding(part, 24, 3) for part in series)
    order = torch.from_numpy(rng.permutation(len(x)))
    expected = plan_blocks(cut_series(*series, 24, 3), 32, 0, members=8)
    batches = list(zip(x.split(50), y.split(50), strict=True))
    for data in ((x, y), (x.double(), y.double()), SpooledSequences(batches)):
        plan = plan_blocks(as_sequences(data), 32, 0, members=8)
        np.testing.assert_array_equal(plan.pairs, expected.pairs)
        np.testing.assert_array_equal(plan.blocks, expected.blocks)
    plan = plan_blocks(as_sequences((x[order], y[order])), 32, 0, members=8)
    np.testing.assert_array_equal(order.numpy()[plan.pairs], expected.pairs)


def test_targets_that_begin_anew_in_every_window_do_not_hide_them():
    rng = np.random.default_rng(2)
    x = sliding(noise(rng, 400, 1), 20, 2)
    y = torch.nn.functional.pad(x[:, :-3], (0, 0, 3, 0))
    assert windows_of(x, y).stride == 2


def test_one_target_for_every_window_is_enough():
    rng = np.random.default_rng(3)
    x = sliding(noise(rng, 400, 1), 20, 2)
    assert windows_of(x, noise(rng, len(x), 1)).stride == 2


def test_tokens_are_seen_too():
    rng = np.random.default_rng(4)
    text = torch.from_numpy(rng.integers(0, 50, 3000))
    assert windows_of(sliding(text, 40, 8)[:, :-1], sliding(text, 40, 8)[:, 1:]).stride == 8


def test_some_of_the_windows_are_enough():
    rng = np.random.default_rng(5)
    x, y = (sliding(noise(rng, 2000, 1), 32, 1) for _ in range(2))
    some = rng.permutation(len(x))[:400]
    windows = windows_of(x[some], y[some])
    start = some[windows.number]
    for chain in windows.chains()[:10]:
        np.testing.assert_array_equal(np.diff(start[chain]), np.diff(windows.start[chain]))


def pulses(rng, count, length):
    """One pulse somewhere: shifts of each other, but independent."""
    x = torch.zeros(count, length, 1)
    x[torch.arange(count), torch.from_numpy(rng.integers(0, length, count))] = 1.0
    return x


@pytest.mark.parametrize(
    "inputs",
    [
        lambda rng: noise(rng, 300, 24, 2),
        lambda rng: torch.from_numpy(rng.integers(0, 2, (300, 24, 1))).float(),
        lambda rng: torch.from_numpy(rng.integers(0, 5, (300, 24))),
        lambda rng: pulses(rng, 300, 24),
        lambda rng: noise(rng, 1, 24, 2).repeat(300, 1, 1),
        lambda rng: noise(rng, 300, 24, 2).round(),
        lambda rng: torch.from_numpy(rng.integers(0, 12, (300, 4))).repeat(1, 6),
    ],
    ids=["noise", "bits", "tokens", "pulses", "the same input", "few values", "each repeats itself"],
)
def test_independent_sequences_are_not_taken_for_windows(inputs):
    rng = np.random.default_rng(6)
    assert windows_of(inputs(rng), noise(rng, 300, 24, 1)) is None
    assert windows_of(inputs(rng), noise(rng, 300, 1)) is None


def test_windows_whose_targets_do_not_overlap_are_no_series():
    """Targets of their own for every window are independent, whatever the inputs are."""
    rng = np.random.default_rng(7)
    x = sliding(noise(rng, 700, 1), 32, 4)
    assert windows_of(x, noise(rng, len(x), 32, 1)) is None


def test_many_short_recordings_are_units_of_their_own():
    rng = np.random.default_rng(8)
    parts = [[sliding(noise(rng, 60, 1), 20, 2) for _ in range(2)] for _ in range(40)]
    x, y = (torch.cat([part[side] for part in parts]) for side in (0, 1))
    plan = plan_blocks(as_sequences((x, y)), 32, 0, members=8)
    recording = np.arange(len(x)) // len(parts[0][0])
    homes = {}
    for pair, block in zip(plan.pairs, plan.blocks, strict=True):
        assert recording[pair[0]] != recording[pair[1]]
        for number in pair:
            homes.setdefault(recording[number], set()).add(block)
    assert len(homes) == 40
    assert all(len(blocks) == 1 for blocks in homes.values())
    order = rng.permutation(len(x))
    again = plan_blocks(as_sequences((x[order], y[order])), 32, 0, members=8)
    np.testing.assert_array_equal(order[again.pairs], plan.pairs)


@pytest.mark.thorough
@pytest.mark.parametrize("stride", [1, 4])
def test_no_dependence_is_found_in_windows_of_noise(stride):
    """Before, 8 of 8 and 6 of 8."""

    def make(rng):
        return tuple(sliding(noise(rng, 2000, 1), 32, stride) for _ in range(2))

    assert false_dependences(make, 12)[0] <= binom.ppf(0.999, 12, 0.05)


def test_a_diagnosis_says_what_was_seen(generator):
    x = torch.randn(1200, 1, generator=generator)
    y = torch.nn.functional.pad(x[:-3], (0, 0, 3, 0)) + 0.3 * torch.randn(1200, 1, generator=generator)
    model = GatedRNN("gru", 1, 8, 1, generator=generator)
    diagnosis = lagreach.diagnose(model, (sliding(x, 24, 4), sliding(y, 24, 4)), lags=[0, 1, 3, 8])
    assert any("overlap" in note and "4 steps earlier" in note for note in diagnosis.warnings)
    assert diagnosis.layers[0].window.dependences == (3,)


def test_pieces_that_go_on_where_others_ended_are_a_series():
    rng = np.random.default_rng(9)
    x, y = (autoregressive(rng, 2400, 0.95).reshape(100, 24, 1) for _ in range(2))
    seen = survey(as_sequences((x, y)))
    assert "treated as windows of a series" in seen.notes[0]
    np.testing.assert_array_equal(seen.windows.start, 24 * np.arange(100))
    ragged = survey(as_sequences({"x": x, "y": y, "lengths": torch.tensor([23] + [24] * 99)}))
    assert ragged.windows is None
    assert "cut_series(x, y, length) instead" in ragged.notes[0]
    order = rng.permutation(100)
    assert survey(as_sequences((x[order], y[order]))).notes == ()
    assert survey(as_sequences((x, noise(rng, 100, 24, 1)))).notes == ()
    level = torch.linspace(-2, 2, 100)[:, None, None]  # sorted, but not cut from one recording
    assert survey(as_sequences((level + noise(rng, 100, 24, 1), level + noise(rng, 100, 24, 1)))).notes == ()


def test_one_long_sequence_is_told_what_to_do(generator):
    model = GatedRNN("gru", 1, 4, 1, generator=generator)
    with pytest.raises(lagreach.LagreachError, match=r"lagreach\.cut_series"):
        lagreach.diagnose(model, (torch.zeros(1, 500, 1), torch.zeros(1, 500, 1)))
