"""Multi-lag regression and the linear teacher: moments and covariances in closed form, planted lags against others."""

import math

import numpy as np
import pytest
import torch

from lagreach import stable
from lagreach.errors import InputError
from lagreach.tasks._task import delayed, slopes
from lagreach.tasks.linear_teacher import LinearTeacher
from lagreach.tasks.multi_lag import MultiLag

SMALL = MultiLag(lags=(1, 4), coefficients=(0.6, 0.3), noise=0.35, input_size=3, length=12)


def lag_covariance(signal, y, lag):
    """Covariance of y_t with the signal at t - lag, over sequences and steps, and its standard error."""
    product = signal[:, : signal.shape[1] - lag] * y[:, lag:]
    return product.mean().item(), product.std().item() / math.sqrt(product.numel())


# --- multi-lag regression ---------------------------------------------------------------------------------


def test_the_defaults_are_the_papers_first_version():
    task = MultiLag()
    assert (task.length, task.input_size, task.output_size, task.loss) == (1024, 16, 1, "mse")
    assert task.lags == (32, 64, 128, 256, 512)
    assert task.coefficients == (0.6, 0.45, 0.35, 0.28, 0.22)
    assert task.noise_floor == pytest.approx(0.35**2)


def test_targets_are_the_stated_sum(generator):
    task = MultiLag(lags=(1, 4), coefficients=(0.6, 0.3), noise=0.0, input_size=3, length=12)
    x, y = task.sample(5, generator)
    expected = torch.zeros(5, 12)
    for t in range(12):
        for lag, c in ((1, 0.6), (4, 0.3)):
            if t >= lag:
                expected[:, t] += c * x[:, t - lag, 0]
    torch.testing.assert_close(y[..., 0], expected)


def test_targets_covary_with_planted_lags_and_with_no_others(generator):
    x, y = SMALL.sample(20_000, generator)
    for lag in range(12):
        for unit in range(3):
            covariance, error = lag_covariance(x[..., unit], y[..., 0], lag)
            planted = {1: 0.6, 4: 0.3}.get(lag, 0.0) if unit == 0 else 0.0
            assert abs(covariance - planted) < 4 * error, (lag, unit)


def test_the_variance_of_targets_grows_as_lags_come_into_reach(generator):
    y = SMALL.sample(40_000, generator)[1][..., 0]
    expected = torch.full((12,), 0.35**2)
    expected[1:] += 0.6**2
    expected[4:] += 0.3**2
    torch.testing.assert_close(y.var(0), expected, rtol=4 * math.sqrt(2 / 40_000), atol=0)


def test_scores_are_shares_of_the_planted_coefficients(generator):
    x, y = SMALL.sample(2000, generator)
    signal = x[..., 0]
    scores = SMALL.recovered(x, y, (0.3 * delayed(signal, [1])[..., 0] + 5.0 * delayed(signal, [2])[..., 0])[..., None])
    error = 4 * 5.0 / math.sqrt(2000 * 8) / np.array(SMALL.coefficients)  # lag 2 is not in the regression
    assert np.all(np.abs(scores.numpy() - [0.5, 0.0]) < error)
    exact = SMALL.recovered(x, y, 0.3 * delayed(signal, [1]))
    torch.testing.assert_close(exact, torch.tensor([0.5, 0.0], dtype=torch.float64), rtol=0, atol=1e-6)


def test_noisy_targets_are_unbiased(generator):
    x, y = SMALL.sample(4000, generator)
    error = 4 * 0.35 / math.sqrt(4000 * 8) / np.array(SMALL.coefficients)
    assert np.all(np.abs(SMALL.recovered(x, y, y).numpy() - 1.0) < error)


@pytest.mark.parametrize("alpha", [2.0, 1.7, 1.2])
def test_observation_noise_follows_its_law(alpha, generator):
    task = MultiLag(lags=(1,), coefficients=(1.0,), noise=0.5, noise_alpha=alpha, input_size=1, length=50)
    x, y = task.sample(2000, generator)
    noise = np.sort((y[..., 0] - delayed(x[..., 0], [1])[..., 0]).numpy().ravel())
    law = stable.cdf(noise, alpha, 0.5 / math.sqrt(2.0))
    ranks = (np.arange(noise.size) + 0.5) / noise.size
    assert np.abs(law - ranks).max() < 1.95 / math.sqrt(noise.size)  # Kolmogorov-Smirnov at 0.1 %
    assert task.noise_floor == (0.25 if alpha == 2.0 else math.inf)


def test_stable_noise_is_seeded():
    task = MultiLag(lags=(1,), coefficients=(1.0,), noise_alpha=1.5, length=5)
    first, again = (task.sample(3, torch.Generator().manual_seed(4))[1] for _ in range(2))
    assert torch.equal(first, again)


def test_the_direction_may_be_random(generator):
    task = MultiLag(lags=(2,), coefficients=(1.0,), noise=0.0, input_size=5, length=8, direction_seed=3)
    u = task.direction
    assert u.norm().item() == pytest.approx(1.0)
    assert (u != 0).all()
    x, y = task.sample(50, generator)
    torch.testing.assert_close(y[:, 2:, 0], (x @ u)[:, :-2])
    assert task.recovered(x, y, y).item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lags": (1, 2), "coefficients": (0.5,)}, "one coefficient for every lag"),
        ({"lags": (-1,), "coefficients": (0.5,)}, "a lag must be a whole number"),
        ({"lags": (4, 2), "coefficients": (0.5, 0.5)}, "lags must ascend"),
        ({"lags": (), "coefficients": ()}, "lags must ascend"),
        ({"lags": (8, 64), "coefficients": (0.5, 0.5), "length": 64}, "use length=128"),
        ({"lags": (1,), "coefficients": (0.0,)}, "not zero"),
        ({"noise": -1.0}, "noise is out of range"),
        ({"noise": math.nan}, "noise is out of range"),
        ({"noise_alpha": 2.5}, "noise_alpha is out of range"),
        ({"input_size": 0}, "input_size must be a whole number"),
        ({"length": 0}, "length must be a whole number"),
    ],
)
def test_bad_multi_lag_options(options, message):
    with pytest.raises(InputError, match=message):
        MultiLag(**options)


# --- the linear teacher -----------------------------------------------------------------------------------

TEACHER = LinearTeacher(retention=(0.5, 0.95), weights=(0.8, -0.2), lags=(0, 1, 8), noise=0.3, length=40)


def slow_teacher(task, signal):
    """Step by step, as the recurrence is written."""
    memories = torch.zeros(len(signal), len(task.retention), dtype=torch.float64)
    retention = torch.tensor(task.retention, dtype=torch.float64)
    weights = torch.tensor(task.weights, dtype=torch.float64)
    out = []
    for t in range(signal.shape[1]):
        memories = retention * memories + signal[:, t, None]
        out.append(memories @ weights)
    return torch.stack(out, 1)


def test_the_convolution_is_the_recurrence(generator):
    signal = torch.randn(3, 40, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(TEACHER.respond(signal), slow_teacher(TEACHER, signal), rtol=1e-12, atol=1e-12)


def test_the_dependence_is_the_response_to_an_impulse():
    impulse = torch.zeros(1, 40, dtype=torch.float64)
    impulse[0, 0] = 1.0
    torch.testing.assert_close(slow_teacher(TEACHER, impulse)[0], TEACHER.dependence(range(40)))


def test_covariances_and_variance_are_those_of_the_closed_form(generator):
    x, y = TEACHER.sample(20_000, generator)
    for lag, expected in enumerate(TEACHER.dependence(range(40)).tolist()):
        covariance, _ = lag_covariance(x[..., 0], y[..., 0], lag)
        # targets of one sequence overlap, so the error is taken from sequences
        per_sequence = (x[:, : 40 - lag, 0] * y[:, lag:, 0]).mean(1)
        assert abs(covariance - expected) < 4 * per_sequence.std().item() / math.sqrt(20_000), lag
    ratio = y[..., 0].double().var(0) / TEACHER.variance()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=4 * math.sqrt(2 / 20_000))


def test_the_variance_is_the_sum_of_squares_of_the_response():
    expected = TEACHER.dependence(range(40)).square().cumsum(0) + 0.3**2
    torch.testing.assert_close(TEACHER.variance(), expected, rtol=1e-12, atol=0)


def test_other_inputs_do_not_matter_to_the_teacher(generator):
    task = LinearTeacher(input_size=3, length=70)
    x, y = task.sample(2000, generator)
    for unit in (1, 2):
        per_sequence = (x[:, :-1, unit] * y[:, 1:, 0]).mean(1)
        assert abs(per_sequence.mean()) < 4 * per_sequence.std() / math.sqrt(2000)


def test_a_student_that_forgets_scores_by_lag(generator):
    """A student with the short memory alone has the share of it at each lag."""
    x, y = TEACHER.sample(4000, generator)
    short = LinearTeacher(retention=(0.5,), weights=(0.8,), lags=(0, 1, 8), noise=0.0, length=40)
    scores = TEACHER.recovered(x, y, short.respond(x[..., 0])[..., None])
    expected = short.dependence((0, 1, 8)) / TEACHER.dependence((0, 1, 8))
    error = 4 * 0.8 / math.sqrt(4000 * 32) / TEACHER.dependence((0, 1, 8)).abs()
    assert bool(((scores - expected).abs() < error).all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retention": (0.5,), "weights": (1.0, 2.0)}, "one weight for every retention"),
        ({"retention": (), "weights": ()}, "one weight for every retention"),
        ({"retention": (1.0,), "weights": (1.0,)}, "between -1 and 1"),
        ({"retention": (0.5, 0.5), "weights": (1.0, -1.0)}, "depend on every lag"),
        ({"retention": (0.5,), "weights": (math.nan,)}, "depend on every lag"),
        ({"lags": (0, 300)}, "does not fit"),
        ({"noise": math.inf}, "noise is out of range"),
    ],
)
def test_bad_teachers(options, message):
    with pytest.raises(InputError, match=message):
        LinearTeacher(**options)


# --- what scores are made of ------------------------------------------------------------------------------


def test_slopes_agree_with_numpy(generator):
    features = torch.randn(4, 30, 3, dtype=torch.float64, generator=generator) * torch.tensor([1.0, 1e-6, 1e6])
    output = torch.randn(4, 30, dtype=torch.float64, generator=generator)
    design = np.column_stack([np.ones(120), features.flatten(0, 1).numpy()])
    scale = np.abs(design).max(0)
    expected = np.linalg.lstsq(design / scale, output.flatten().numpy(), rcond=None)[0] / scale
    np.testing.assert_allclose(slopes(features, output).numpy(), expected[1:], rtol=1e-9)


def test_features_that_repeat_each_other_are_refused(generator):
    features = torch.randn(50, 1, dtype=torch.float64, generator=generator).expand(50, 2)
    with pytest.raises(InputError, match="cannot tell the lags apart"):
        slopes(features, features[:, 0])
