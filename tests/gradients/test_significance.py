"""Block means: an unbiased square norm, exact sign flips, and intervals that cover."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from lagreach.gradients.significance import (
    flip_test,
    gram,
    jackknife_spread,
    leave_one_out,
    null_spread,
    off_diagonal_mean,
    step_down,
)


def blocks_around(mean, count, rng, spread=1.0):
    """Block means (block, lag, param) with Gaussian noise around `mean` (lag, param)."""
    return mean + spread * rng.normal(size=(count, *mean.shape))


def test_the_off_diagonal_mean_is_unbiased_and_the_plain_square_is_not():
    rng = np.random.default_rng(0)
    mean = np.array([[0.0, 0.0, 0.0], [0.3, -0.2, 0.1], [1.0, 1.0, 0.0]])
    truth = np.square(mean).sum(1)
    estimates, plain = [], []
    for _ in range(4000):
        means = blocks_around(mean, 6, rng)
        products, scale = gram(means)
        estimates.append(off_diagonal_mean(products) * scale**2)
        plain.append(np.square(means.mean(0)).sum(1))
    error = np.std(estimates, axis=0) / np.sqrt(len(estimates))
    assert (np.abs(np.mean(estimates, axis=0) - truth) < 4 * error).all()
    # the square of the mean of 6 blocks carries a sixth of the noise of each of 3 weights
    np.testing.assert_allclose(np.mean(plain, axis=0) - truth, 0.5, atol=0.05)


def test_leave_one_out_is_the_loop_over_blocks():
    rng = np.random.default_rng(1)
    means = rng.normal(size=(7, 4, 5))
    products, scale = gram(means)
    slow = [off_diagonal_mean(gram(np.delete(means, k, axis=0))[0]) for k in range(7)]
    rescale = [gram(np.delete(means, k, axis=0))[1] ** 2 for k in range(7)]
    np.testing.assert_allclose(leave_one_out(products) * scale**2, np.array(slow) * np.array(rescale), rtol=1e-10)


def test_the_jackknife_of_a_mean_is_its_standard_error():
    rng = np.random.default_rng(2)
    values = rng.normal(size=(20, 3))
    without = (values.sum(0) - values) / 19
    np.testing.assert_allclose(jackknife_spread(without), values.std(0, ddof=1) / np.sqrt(20), rtol=1e-12)
    without[3, 1] = np.inf
    assert np.isnan(jackknife_spread(without)).tolist() == [False, True, False]


def test_the_null_spread_is_the_spread_over_all_patterns_of_signs():
    rng = np.random.default_rng(3)
    products, _ = gram(rng.normal(size=(8, 2, 3)))
    off = products * (1 - np.eye(8))
    patterns = 1 - 2.0 * ((np.arange(256)[:, None] >> np.arange(8)) & 1)
    values = np.einsum("fi,lij,fj->fl", patterns, off, patterns) / (8 * 7)
    np.testing.assert_allclose(null_spread(products), values.std(0), rtol=1e-10)
    np.testing.assert_allclose(values.mean(0), 0.0, atol=1e-12)


def heavy_and_correlated(rng, count, lags=12, width=3):
    """Symmetric block means with infinite variance, sizes of their own, and neighbouring lags that nearly agree."""
    noise = rng.standard_t(1.2, size=(count, lags, width))
    for lag in range(1, lags):
        noise[:, lag] = 0.9 * noise[:, lag - 1] + 0.3 * noise[:, lag]
    sizes = rng.pareto(1.5, size=(count, 1, 1)) + 0.1
    return sizes * noise * 10.0 ** np.linspace(0, -200, lags)[:, None]


@pytest.mark.thorough
def test_sign_flips_are_exact_for_heavy_tails_and_related_lags():
    rng = np.random.default_rng(4)
    runs, levels = 1500, np.array([0.05, 0.2, 0.5])
    any_lag, each_lag = np.zeros(3), np.zeros((3, 12))
    for _ in range(runs):
        test = flip_test(heavy_and_correlated(rng, 10), flips=99, generator=rng)
        any_lag += test.adjusted.min() <= levels
        each_lag += test.p_value <= levels[:, None]
    low, high = (binom.ppf(q, runs, levels) for q in (0.0005, 0.9995))
    assert (any_lag <= high).all()
    assert (any_lag >= low).all()
    assert (each_lag <= high[:, None]).all()
    # heavy blocks leave few patterns that differ, and ties count against a finding
    assert (each_lag >= 0.8 * low[:, None]).all()


def test_sign_flips_find_a_mean():
    rng = np.random.default_rng(5)
    mean = np.zeros((12, 3))
    mean[4] = [1.2, 0.0, 0.9]
    significant = [
        flip_test(blocks_around(mean, 16, rng), flips=199, generator=rng).adjusted <= 0.05 for _ in range(200)
    ]
    clear = flip_test(blocks_around(10 * mean, 16, rng), flips=199, generator=rng)
    assert clear.adjusted.min() == clear.p_value.min() == 1 / 200  # the data are one of 200 patterns
    rate = np.mean(significant, axis=0)
    assert rate[4] > 0.95
    assert np.delete(np.array(significant), 4, axis=1).any(1).mean() <= binom.ppf(0.9995, 200, 0.05) / 200


def slow_step_down(z):
    """Westfall and Young, one lag at a time."""
    order, adjusted, running = np.argsort(-z[0]), np.empty(z.shape[1]), 0.0
    for rank, lag in enumerate(order):
        largest_left = z[:, order[rank:]].max(1)
        running = max(running, np.mean(largest_left >= z[0, lag]))
        adjusted[lag] = running
    return adjusted


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 60))
def test_step_down_p_values_are_monotone_and_lie_between_raw_and_single_step_ones(seed, lags, flips):
    z = np.random.default_rng(seed).normal(size=(flips + 1, lags))
    adjusted = step_down(z)
    raw = (z >= z[0]).mean(0)
    single_step = (z.max(1)[:, None] >= z[0]).mean(0)
    np.testing.assert_allclose(adjusted, slow_step_down(z))
    assert (adjusted >= raw).all()
    assert (adjusted <= single_step).all()
    assert (np.diff(adjusted[np.argsort(-z[0])]) >= 0).all()


def test_the_test_does_not_depend_on_units():
    """Gradients of 1e-200 have squares of 1e-400."""
    rng = np.random.default_rng(6)
    means = blocks_around(np.array([[0.5, 0.5], [0.0, 0.0]]), 12, rng)
    plain = flip_test(means, flips=199, generator=np.random.default_rng(0))
    tiny = flip_test(means * np.array([1e-150, 1e150])[:, None], flips=199, generator=np.random.default_rng(0))
    np.testing.assert_array_equal(plain.p_value, tiny.p_value)
    np.testing.assert_array_equal(plain.adjusted, tiny.adjusted)
    np.testing.assert_allclose(tiny.delta, plain.delta * [1e-150, 1e150], rtol=1e-12)
    nothing = flip_test(np.zeros((12, 2, 3)), flips=19, generator=rng)
    assert nothing.adjusted.tolist() == [1.0, 1.0]
    assert nothing.delta.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("count", [8, 32])
def test_the_jackknife_interval_of_the_logarithm_covers(count):
    """As windows use it: log of the squared norm, Student's quantile for as many blocks as there are."""
    from scipy.special import stdtrit

    rng = np.random.default_rng(7)
    runs, covered = 600, 0
    mean = np.array([[3.0, 0.0, 0.0, 0.0]])
    for _ in range(runs):
        products, scale = gram(blocks_around(mean, count, rng))
        centre = np.log(off_diagonal_mean(products) * scale**2)
        spread = jackknife_spread(np.log(leave_one_out(products) * scale**2))
        covered += abs(centre - np.log(9.0)) <= stdtrit(count - 1, 0.975) * spread
    assert covered >= binom.ppf(0.0005, runs, 0.94)


@pytest.mark.parametrize("weights", [4, 60])
def test_what_is_noticeable_is_found_as_often_as_it_says(weights):
    generator, blocks, lags, error = np.random.default_rng(weights), 32, 6, 0.05
    direction = np.ones(weights) / weights**0.5

    def noise():
        return generator.standard_normal((blocks, lags, weights))

    def noticeable():
        planted = noise() + 20 * direction  # explains all of the target
        return flip_test(noise(), flips=400, generator=generator).noticeable([gram(planted)], error)

    share = np.median([noticeable() for _ in range(40)])

    def found(part):
        means = noise()
        means[:, 2] += (part * share) ** 0.5 * 20 * direction
        return flip_test(means, flips=400, generator=generator).adjusted[2] <= error

    often, seldom = (np.mean([found(part) for _ in range(200)]) for part in (1, 0.3))
    assert often >= 0.9  # 0.95 but for what a median of shares rounds
    assert seldom <= 0.6


def test_nothing_is_noticeable_without_a_trace_of_what_was_planted():
    generator = np.random.default_rng(0)
    means = generator.standard_normal((16, 2, 3))
    planted = np.zeros((16, 2, 3))
    planted[:, 0] += 1.0
    share = flip_test(means, flips=100, generator=generator).noticeable([gram(planted)], 0.05)
    assert np.isfinite(share[0])
    assert np.isinf(share[1])
