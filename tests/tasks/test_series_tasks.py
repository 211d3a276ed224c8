"""Mackey-Glass against a plain integration, and the real data: what is drawn is what is in the files."""

import math

import numpy as np
import pytest
import torch

from lagreach.errors import InputError
from lagreach.tasks.digits import Digits
from lagreach.tasks.mackey_glass import MackeyGlass
from lagreach.tasks.series import Series

# --- Mackey-Glass -----------------------------------------------------------------------------------------


def slow_mackey_glass(start, time, delay, substeps):
    """Heun's method, one step at a time, from a constant history."""
    h, back = 1.0 / substeps, delay * substeps

    def slope(v, past):
        return 0.2 * past / (1.0 + past**10) - 0.1 * v

    values = [start] * (back + 1)
    for _ in range((time - 1) * substeps):
        v, past, next_past = values[-1], values[-1 - back], values[-back]
        first = slope(v, past)
        second = slope(v + h * first, next_past)
        values.append(v + 0.5 * h * (first + second))
    return values[back::substeps]


@pytest.mark.parametrize("delay", [3, 17])
def test_stretches_agree_with_steps(delay):
    """Both are of second order, so that they differ by O(h^2): four times less at half the step."""
    starts = torch.tensor([[0.5], [1.3]], dtype=torch.float64)
    errors = []
    for substeps in (20, 40):
        task = MackeyGlass(delay=delay, horizon=1, substeps=substeps)
        fast = task.solve(starts, 60)
        slow = torch.tensor([slow_mackey_glass(s, 60, delay, substeps) for s in (0.5, 1.3)], dtype=torch.float64)
        errors.append((fast - slow).abs().max().item())
    assert errors[1] < 2e-4
    assert 3.0 < errors[0] / errors[1] < 5.0


def test_the_decay_is_exact_where_nothing_comes_in():
    """From a history far above 1 nothing comes in for one delay: f(v) is below 1e-8."""
    task = MackeyGlass(delay=17, substeps=2)
    solution = task.solve(torch.tensor([[8.0]], dtype=torch.float64), 17)[0]
    torch.testing.assert_close(
        solution, 8.0 * torch.exp(-0.1 * torch.arange(17.0, dtype=torch.float64)), rtol=1e-7, atol=0
    )


def test_a_short_delay_settles_at_the_fixed_point(generator):
    """0.2 / (1 + v^10) = 0.1 at v = 1, stable for a short delay: input and target are 0 there."""
    x, y = MackeyGlass(delay=2, horizon=1, length=400).sample(3, generator)
    assert x[:, 200:].abs().max() < 1e-5
    assert y[:, 200:].abs().max() < 1e-5


def test_targets_are_later_inputs(generator):
    x, y = MackeyGlass(horizon=3, length=50).sample(6, generator)
    assert torch.equal(y[:, :-3], x[:, 3:])


def test_series_are_bounded_alive_and_out_of_step(generator):
    x, _ = MackeyGlass().sample(300, generator)
    assert x.min() > -0.9
    assert x.max() < 0.5
    assert x.std(1).min() > 0.15
    between = x[:, 100, 0].std()
    assert 0.7 < between / x.std() < 1.3


def test_scores_tell_the_retained_part_from_the_delayed_one(generator):
    task = MackeyGlass(horizon=5)
    x, y = task.sample(20, generator)
    retained = math.exp(-0.5) * (x + 1.0)
    for output, expected in ((retained, (1.0, 0.0)), (0.5 * (y + 1.0 - retained), (0.0, 0.5))):
        scores = task.recovered(x, y, output)
        np.testing.assert_allclose(scores.numpy(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("options", [{"horizon": 17}, {"length": 17}, {"delay": 1}, {"substeps": 0}])
def test_bad_mackey_glass_options(options):
    with pytest.raises(InputError, match=r"shorter than|whole number"):
        MackeyGlass(**options)


# --- digits -----------------------------------------------------------------------------------------------


def known_pictures():
    from sklearn.datasets import load_digits

    data = load_digits()
    return {tuple(row): label for row, label in zip(data.data.tolist(), data.target.tolist(), strict=True)}


@pytest.mark.parametrize("rows", [True, False])
def test_sequences_are_pictures_read_in_order_with_their_labels(rows, generator):
    task = Digits(rows=rows)
    assert (task.length, task.input_size) == ((8, 8) if rows else (64, 1))
    known = known_pictures()
    x, y = task.sample(50, generator)
    for picture, label in zip((16 * x).flatten(1).tolist(), y[:, -1].tolist(), strict=True):
        assert known[tuple(picture)] == label
    assert (y[:, :-1] == 0).all()


def test_parts_share_no_picture_and_leave_none_out():
    train, test = (Digits(split=split).members() for split in ("train", "test"))
    assert len(test) == round(0.25 * 1797)
    assert sorted(train.tolist() + test.tolist()) == list(range(1797))
    other = Digits(split="test", split_seed=1).members()
    assert set(other.tolist()) != set(test.tolist())


def test_the_named_lag_leads_to_the_middle_of_the_picture(generator):
    for rows in (True, False):
        task = Digits(rows=rows)
        x, _ = task.sample(500, generator)
        assert x[:, task.length - 1 - task.lags[0]].std(0).max() > 0.2


@pytest.mark.parametrize("options", [{"split": "validation"}, {"test_share": 0.0}, {"test_share": 1.0}])
def test_bad_digits_options(options):
    with pytest.raises(InputError, match=r"unknown split|both parts need pictures"):
        Digits(**options)


# --- electricity demand -----------------------------------------------------------------------------------


def demand():
    from pmdarima.datasets import load_taylor

    return load_taylor()


@pytest.mark.thorough
@pytest.mark.parametrize("split", ["train", "test"])
def test_windows_are_pieces_of_their_part_of_the_series(split, generator):
    task = Series(split=split, length=320)
    values = demand()
    train = values[:3024]
    part = (train if split == "train" else values[3024:]) - train.mean()
    part = part / train.std(ddof=1)
    x, y = task.sample(30, generator)
    starts = []
    for window, target in zip(x[..., 0].numpy(), y[..., 0].numpy(), strict=True):
        fits = [s for s in range(len(part) - 343) if np.allclose(part[s : s + 320], window, atol=1e-5)]
        assert len(fits) == 1
        np.testing.assert_allclose(part[fits[0] + 24 : fits[0] + 344], target, atol=1e-5)
        starts.append(fits[0])
    assert len(set(starts)) > 20


def test_the_series_repeats_itself_after_a_day_and_better_after_a_week():
    values = Series().values().numpy()
    day, half_week, week = (np.corrcoef(values[:-lag], values[lag:])[0, 1] for lag in (48, 168, 336))
    assert half_week < 0.0
    assert 0.7 < day < 0.95
    assert week > 0.95


def test_scores_are_what_a_lag_adds_to_nearer_ones(generator):
    task = Series()
    x, y = task.sample(300, generator)
    day_before = torch.nn.functional.pad(x[:, :-24], (0, 0, 24, 0))
    week_before = torch.nn.functional.pad(x[:, :-312], (0, 0, 312, 0))
    now, day, week = (task.recovered(x, y, output) for output in (x, day_before, week_before))
    np.testing.assert_allclose(now.numpy(), 0.0, atol=1e-6)
    assert day[0] > 1.0  # all of the daily dependence and more: the target is less sure than a copy
    assert abs(day[1]) < 1e-6
    assert 0.9 < week[1] < 1.1
    torch.testing.assert_close(task.recovered(x, y, 0.5 * y), torch.full((2,), 0.5, dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 48}, "shorter than every period"),
        ({"length": 300}, "does not fit"),
        ({"periods": (336, 48)}, "lags must ascend"),
        ({"split": "all"}, "unknown split"),
        ({"test_share": 0.0}, "out of range"),
    ],
)
def test_bad_series_options(options, message):
    with pytest.raises(InputError, match=message):
        Series(**options)


def test_a_window_longer_than_its_part_is_refused(generator):
    with pytest.raises(InputError, match="shorter than one sequence"):
        Series(split="test", length=1000).sample(1, generator)
