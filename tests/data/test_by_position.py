"""Regressions of every position's own: the inverse covariance of a sequence up to each step, and when they are called for."""

import numpy as np
import pytest
import torch

from lagreach.data.autoregression import autoregression
from lagreach.data.by_position import SURE, ByPosition, better_by_position, misfit

TIME, INPUTS = 6, 2
SIZE = TIME * INPUTS


def series(rows):
    """Rows (row, n) as sequences of one group."""
    return torch.from_numpy(rows).view(len(rows), TIME, 1, INPUTS)


@pytest.fixture
def covariance():
    draws = np.random.default_rng(0).normal(size=(SIZE, 3 * SIZE))
    return draws @ draws.T / 30


def test_up_to_every_step_it_is_the_inverse_covariance(covariance):
    model, z = ByPosition.of(covariance, INPUTS, 0.0), np.random.default_rng(1).normal(size=(3, SIZE))
    for ahead in (0, 2, TIME):
        single = model.singled(model.whitened(series(z)), ahead).view(3, TIME, INPUTS).numpy()
        left = model.unpredicted(series(z), ahead).view(3, TIME, INPUTS).numpy()
        for step in range(TIME - min(ahead, TIME - 1)):
            known, own = slice(0, (step + ahead + 1) * INPUTS), slice(step * INPUTS, (step + 1) * INPUTS)
            inverse = np.linalg.inv(covariance[known, known])
            expected = z[:, known] @ inverse[own].T
            np.testing.assert_allclose(single[:, step], expected, atol=1e-10)
            np.testing.assert_allclose(left[:, step], expected @ np.linalg.inv(inverse[own, own]), atol=1e-10)


def test_farther_steps_are_added_to_nearer_ones(covariance):
    model = ByPosition.of(covariance, INPUTS, 0.0)
    whitened = model.whitened(series(np.random.default_rng(1).normal(size=(3, SIZE))))
    near = model.singled(whitened, 1)
    torch.testing.assert_close(model.singled(whitened, 4, near, 2), model.singled(whitened, 4))


def test_what_is_left_is_uncorrelated_with_all_other_inputs_of_the_same_sequences():
    rows = np.random.default_rng(0).normal(size=(100, SIZE)).cumsum(1)
    model = ByPosition.of(rows.T @ rows / 100, INPUTS, 0.0)
    left = model.unpredicted(series(rows), TIME).view(100, SIZE).numpy()
    products = left.T @ rows / 100
    step = np.arange(SIZE) // INPUTS
    np.testing.assert_allclose(products[step[:, None] != step], 0, atol=1e-9)


def sequences(kind, generator, count=200, time=30):
    noise = generator.normal(size=(count, time + 50))
    if kind == "autoregression":
        for t in range(1, time + 50):
            noise[:, t] += 0.9 * noise[:, t - 1]
        return noise[:, 50:]
    x = noise[:, 50:]
    if kind == "walk":
        return x.cumsum(1)
    if kind == "trend":
        return x + 3 * noise[:, :1] * np.arange(time) / time
    return np.where(np.arange(time) < 3, 0.0, x)  # "zeros at first"


def fitted(x):
    time = x.shape[1]
    lagged = np.array([(x[:, k:] * x[:, : time - k]).mean() for k in range(time // 2)])
    return autoregression(lagged[:, None, None, None], np.full(time // 2, float(len(x) * time)), 1e-9)


def test_autoregressions_are_left_alone():
    generator = np.random.default_rng(0)
    found = [sequences("autoregression", generator) for _ in range(60)]
    far = [misfit(fitted(x), x.T @ x / len(x), len(x), 0.0) for x in found]
    assert max(far) < SURE
    assert abs(np.mean(far)) < 1.5
    assert 0.5 < np.std(far) < 2


@pytest.mark.parametrize("kind", ["walk", "trend", "zeros at first"])
def test_what_changes_in_the_course_of_sequences_is_not_one(kind):
    generator = np.random.default_rng(1)
    for _ in range(10):
        x = sequences(kind, generator)
        assert misfit(fitted(x), x.T @ x / len(x), len(x), 1e-9) > SURE


def test_where_little_is_left_positions_tell_in_any_case():
    x = sequences("autoregression", np.random.default_rng(0))
    given = fitted(x), x.T @ x / len(x), len(x), 1e-9
    assert [better_by_position(given[0], left, *given[1:]) for left in (0.5, 0.01)] == [False, True]
