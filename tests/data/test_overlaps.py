"""Windows that were changed after they were cut are seen as well, and sequences that are only alike are not."""

import numpy as np
import pytest
import torch
from scipy.signal import lfilter
from scipy.stats import binom

from lagreach import GatedRNN, forecast
from lagreach.data.pairs import plan_blocks
from lagreach.data.sequences import as_sequences
from lagreach.data.survey import survey
from tests.data.cases import autoregressive, false_dependences, noise, sliding

LENGTH = 32


@pytest.fixture(autouse=True)
def _without_type_checks(_as_users_run_it):
    """As users run it: many small diagnoses."""


def cut(rng, stride=2, steps=1500, memory=0.0):
    return tuple(sliding(autoregressive(rng, steps, memory), LENGTH, stride) for _ in range(2))


def cropped(rng, count=400, steps=1500):
    starts = rng.integers(0, steps - LENGTH, count)
    return tuple(
        torch.stack([series[s : s + LENGTH] for s in starts]) for series in (noise(rng, steps, 1), noise(rng, steps, 1))
    )


def jittered(rng, data, size):
    return tuple(part + size * noise(rng, *part.shape) for part in data)


def of_their_last(rng, data):
    return data[0] - data[0][:, -1:], data[1]


def of_their_first(rng, data):
    return data[0] / data[0][:, :1], data[1]


def scaled(rng, data):
    return data[0] * torch.from_numpy(rng.uniform(0.8, 1.2, (len(data[0]), 1, 1))).float(), data[1]


def standardised(rng, data):
    return tuple((part - part.mean(1, keepdim=True)) / part.std(1, keepdim=True) for part in data)


def shuffled(rng, data):
    order = rng.permutation(len(data[0]))
    return tuple(part[order] for part in data)


PLACED = {
    "jitter": lambda rng: jittered(rng, cut(rng), 0.01),
    "much jitter": lambda rng: jittered(rng, cut(rng), 0.5),
    "slow, jitter": lambda rng: jittered(rng, cut(rng, memory=0.9), 0.05),
    "less the last value": lambda rng: of_their_last(rng, cut(rng)),
    "over the first value": lambda rng: of_their_first(rng, cut(rng)),
    "scaled": lambda rng: scaled(rng, cut(rng)),
    "standardised": lambda rng: standardised(rng, cut(rng)),
    "less the last value, shuffled": lambda rng: shuffled(rng, of_their_last(rng, cut(rng))),
    "scaled, shuffled": lambda rng: shuffled(rng, scaled(rng, cut(rng))),
}
UNPLACED = {
    "jittered crops": lambda rng: jittered(rng, cropped(rng), 0.01),
    "jitter, shuffled": lambda rng: shuffled(rng, jittered(rng, cut(rng), 0.05)),
}


@pytest.mark.parametrize("case", PLACED.values(), ids=PLACED)
def test_altered_windows_are_found_where_they_lie(case):
    """Before, only steps that repeat exactly were seen."""
    windows = survey(as_sequences(case(np.random.default_rng(0)))).windows
    assert windows is not None
    assert windows.placed
    assert windows.stride == 2
    assert len(windows.chains()) == 1


@pytest.mark.parametrize("case", UNPLACED.values(), ids=UNPLACED)
def test_nothing_is_told_from_windows_that_lie_nobody_knows_where(case):
    plan = plan_blocks(as_sequences(case(np.random.default_rng(1))), 16, 0, members=8)
    assert "cannot be told from windows that overlap" in plan.untold
    assert "pass the whole series as lagreach.cut_series(x, y, length)" in plan.notes[0]


def test_windows_that_run_backwards_are_in_order_too():
    rng = np.random.default_rng(2)
    windows = survey(as_sequences(tuple(part.flip(0) for part in jittered(rng, cut(rng, 4), 0.05)))).windows
    (chain,) = windows.chains()
    np.testing.assert_array_equal(windows.number[chain], np.arange(len(chain))[::-1])
    assert windows.stride == 4


def test_altered_windows_of_several_series_are_kept_apart():
    rng = np.random.default_rng(3)
    parts = [jittered(rng, cut(rng, 2, 200), 0.05) for _ in range(5)]
    x, y = (torch.cat([part[side] for part in parts]) for side in (0, 1))
    windows = survey(as_sequences((x, y))).windows
    np.testing.assert_array_equal(windows.series, np.repeat(np.arange(5), len(parts[0][0])))


def test_one_target_for_every_altered_window_is_enough():
    rng = np.random.default_rng(4)
    x, y = jittered(rng, cut(rng), 0.05)
    assert survey(as_sequences((x, y[:, -1]))).windows.stride == 2
    order = rng.permutation(len(x))
    assert not survey(as_sequences((x[order], y[order, -1]))).windows.placed


def test_a_few_random_crops_of_a_long_series_are_noticed():
    rng = np.random.default_rng(8)
    windows = survey(as_sequences(jittered(rng, cropped(rng, 1500, 15_000), 0.01))).windows
    assert windows is not None
    assert not windows.placed


def test_columns_that_neighbours_share_do_not_make_windows_of_inputs_of_their_own():
    rng = np.random.default_rng(9)
    x = torch.cat((sliding(noise(rng, 630, 2), LENGTH, 2)[:300], noise(rng, 300, LENGTH, 1)), 2)
    for y in (later(x[..., -1:]), x[:, -3, -1:]):
        assert survey(as_sequences((x, y))).windows is None


@pytest.mark.parametrize("order", [None, shuffled])
def test_where_inputs_or_targets_are_new_sequences_are(order):
    rng = np.random.default_rng(5)
    x, _ = jittered(rng, cut(rng), 0.05)
    new = noise(rng, *x.shape)
    for data in ((x, new), (new, x)):
        assert survey(as_sequences(order(rng, data) if order else data)).windows is None


def later(x, steps=2):
    return torch.nn.functional.pad(x[:, :-steps], (0, 0, steps, 0))


def waves(rng, period, jitter=0.0):
    phase = torch.from_numpy(rng.uniform(0, 2 * np.pi, (300, 1, 1))).float()
    wave = torch.sin(2 * np.pi * torch.arange(LENGTH)[:, None] / period + phase)
    return wave + jitter * noise(rng, *wave.shape)


def held(rng, steps):
    values = noise(rng, 300, LENGTH // steps + 2, 1).repeat_interleave(steps, 1)
    return torch.stack([row[s : s + LENGTH] for row, s in zip(values, rng.integers(0, steps, 300), strict=True)])


def calendar(rng):
    hour = torch.from_numpy(rng.integers(0, 168, (300, 1))) + torch.arange(LENGTH)
    days = [wave(2 * np.pi * hour / period) for period in (24, 168) for wave in (torch.sin, torch.cos)]
    return torch.cat((torch.stack(days, 2).float(), noise(rng, 300, LENGTH, 1)), 2)


def filtered(rng, memory):
    start = rng.normal(size=(300, 1, 1)) / np.sqrt(1.0001 - memory**2)
    return torch.from_numpy(
        lfilter([1], [1, -memory], np.concatenate((start, rng.normal(size=(300, LENGTH - 1, 1))), 1), axis=1)
    ).float()


def by_class(rng):
    kind = np.sort(rng.integers(0, 10, 300))
    return filtered(rng, 0.9)[kind] + 0.3 * noise(rng, 300, LENGTH, 1)


INDEPENDENT = {
    "white": lambda rng: noise(rng, 300, LENGTH, 1),
    "AR .99": lambda rng: filtered(rng, 0.99),
    "random walks": lambda rng: noise(rng, 300, LENGTH, 1).cumsum(1),
    "smooth walks": lambda rng: noise(rng, 300, LENGTH, 1).cumsum(1).cumsum(1),
    "waves": lambda rng: waves(rng, 20),
    "slow waves": lambda rng: waves(rng, 150),
    "noisy waves": lambda rng: waves(rng, 24, 0.1),
    "one-hot tokens": lambda rng: torch.eye(20)[torch.from_numpy(rng.integers(0, 20, (300, LENGTH)))],
    "jittered bits": lambda rng: torch.from_numpy(rng.integers(0, 2, (300, LENGTH, 1))) + 0.01 * noise(rng, 300, LENGTH, 1),
    "rare events": lambda rng: torch.from_numpy(rng.random((300, LENGTH, 1)) < 0.01).float(),
    "jittered rare events": lambda rng: (noise(rng, 300, LENGTH, 1) > 2.3) + 0.01 * noise(rng, 300, LENGTH, 1),
    "held for 5 steps": lambda rng: held(rng, 5),
    "held for 12 steps": lambda rng: held(rng, 12) + 0.01 * noise(rng, 300, LENGTH, 1),
    "constant": lambda rng: noise(rng, 300, 1, 1).expand(-1, LENGTH, -1),
    "calendar": calendar,
    "shared columns": lambda rng: torch.cat((noise(rng, 1, LENGTH, 2).expand(300, -1, -1), noise(rng, 300, LENGTH, 1)), 2),
    "sorted by class": by_class,
    "sorted by level": lambda rng: torch.linspace(-3, 3, 300)[:, None, None] + noise(rng, 300, LENGTH, 1),
    "near copies": lambda rng: filtered(rng, 0.95)[:100].repeat_interleave(3, 0) + 0.02 * noise(rng, 300, LENGTH, 1),
}  # fmt: skip


@pytest.mark.parametrize("inputs", INDEPENDENT.values(), ids=INDEPENDENT)
def test_sequences_that_are_only_alike_are_not_taken_for_windows(inputs):
    """Targets follow from the inputs of their own sequence."""
    for seed in range(3):
        x = inputs(np.random.default_rng([6, seed]))
        assert survey(as_sequences((x, later(x[..., -1:])))).windows is None


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["jitter", "less the last value", "scaled", "scaled, shuffled"])
def test_no_dependence_is_found_in_altered_windows_of_noise(case):
    """Before, 7 to 11 of 12 showed one."""
    assert false_dependences(PLACED[case], 12)[0] <= binom.ppf(0.999, 12, 0.05)


@pytest.mark.thorough
def test_a_forecast_says_nothing_about_lags_of_jittered_crops(generator):
    data = UNPLACED["jittered crops"](np.random.default_rng(7))
    result = forecast(GatedRNN("gru", 1, 4, 1, generator=generator), data, lags=[0, 3])
    assert np.isnan(result.adjusted_p).all()
    assert any("cut_series" in warning for warning in result.warnings)
