"""`fit_tail` as its callers see it: input, equivariance, statuses, printing."""

import math

import numpy as np
import pytest
import torch

from lagreach.errors import InputError
from lagreach.tails import fit_tail, stable
from lagreach.tails.fit import ESTIMATORS
from lagreach.types import Status
from tests.tails.laws import symmetric_stable

SAMPLES = symmetric_stable(1.6)(np.random.default_rng(8), 1001)


@pytest.mark.parametrize("method", ESTIMATORS)
def test_shift_scale_sign_and_order(method):
    plain = fit_tail(SAMPLES, method, check=False)
    moved = fit_tail(3.0 - 1000.0 * SAMPLES, method, check=False)
    assert moved.alpha == pytest.approx(plain.alpha, rel=1e-6)
    assert moved.scale == pytest.approx(1000.0 * plain.scale, rel=1e-6)
    assert moved.location == pytest.approx(3.0 - 1000.0 * plain.location, rel=1e-9)
    shuffled = fit_tail(np.random.default_rng(0).permutation(SAMPLES), method, check=False)
    assert shuffled.alpha == pytest.approx(plain.alpha, rel=1e-9)


@pytest.mark.parametrize("factor", [1e-200, 1e150])
@pytest.mark.parametrize("method", ESTIMATORS)
def test_units_may_be_extreme(method, factor):
    plain, fit = fit_tail(SAMPLES, method, check=False), fit_tail(factor * SAMPLES, method, check=False)
    assert fit.alpha == pytest.approx(plain.alpha, rel=1e-6)
    assert fit.scale == pytest.approx(factor * plain.scale, rel=1e-6)


@pytest.mark.parametrize("method", ["mle", "mcculloch", "ecf"])
def test_one_outlier_does_not_move_a_fit(method):
    fit = fit_tail(np.append(SAMPLES, 1e5), method, check=False)
    assert fit.alpha == pytest.approx(fit_tail(SAMPLES, method, check=False).alpha, abs=0.05)


@pytest.mark.parametrize("method", ESTIMATORS)
def test_one_absurd_outlier_does_not_break_a_fit(method):
    fit = fit_tail(np.append(SAMPLES, 1e200), method, check=False)
    assert 0.0 < fit.alpha < 2.0
    assert 0.0 < fit.scale < 10.0


def test_tensors_lists_and_arrays_agree():
    plain = fit_tail(SAMPLES, check=False)
    assert fit_tail(torch.tensor(SAMPLES, requires_grad=True), check=False) == plain
    assert fit_tail(SAMPLES.tolist(), check=False) == plain
    assert fit_tail(SAMPLES.astype(np.float32), check=False).alpha == pytest.approx(plain.alpha, rel=1e-4)
    assert fit_tail(torch.tensor(SAMPLES, dtype=torch.bfloat16), check=False).alpha == pytest.approx(
        plain.alpha, rel=0.05
    )


@pytest.mark.parametrize("method", ESTIMATORS)
def test_too_few_and_constant_samples_are_statuses(method):
    few = fit_tail(SAMPLES[:49], method)
    assert few.status is Status.TOO_FEW_SAMPLES
    constant = fit_tail(np.full(100, 2.5), method)
    assert constant.status is Status.NO_SPREAD
    mostly = fit_tail(np.append(np.zeros(400), SAMPLES[:100]), method)
    assert mostly.status is Status.NO_SPREAD
    for fit in (few, constant, mostly):
        assert math.isnan(fit.alpha)
        assert math.isnan(fit.scale)
        assert math.isnan(fit.kappa)
        assert fit.stable_supported is None
        assert not fit.status.usable
        assert "nan" in str(fit)


@pytest.mark.parametrize(
    ("samples", "options", "part"),
    [
        ([1.0, math.nan], {}, "1 of 2 values"),
        (np.ones((3, 4)), {}, "one-dimensional"),
        (np.array([1j, 2.0]), {}, "real numbers"),
        ([[1.0], [1.0, 2.0]], {}, "real numbers"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), {}, "real numbers"),
        (SAMPLES, {"method": "guess"}, "unknown tail estimator"),
        (SAMPLES, {"level": 95}, "level"),
        (SAMPLES, {"generator": -1}, "randomness"),
    ],
)
def test_bad_input_is_named(samples, options, part):
    with pytest.raises(InputError, match=part):
        fit_tail(samples, **options)


def test_ends_of_the_range_are_statuses():
    flat = fit_tail(np.linspace(-1.0, 1.0, 2000), check=False)
    assert flat.alpha == 2.0
    assert flat.status is Status.ALPHA_AT_TWO
    assert flat.interval[1] == 2.0
    wild = fit_tail(np.tan(np.linspace(-1.55, 1.55, 500)) ** 5, "ecf", check=False)
    assert wild.alpha == 0.5
    assert wild.status is Status.ALPHA_AT_FLOOR
    assert fit_tail(SAMPLES, "hill", check=False).status is Status.TAIL_INDEX_ONLY
    assert fit_tail(SAMPLES, check=False).status is Status.OK


@pytest.mark.parametrize("largest", [1.0, 1e31, 1e200])
def test_many_equal_samples_have_a_fit_that_ends(largest):
    """Their likelihood grows without end as the scale shrinks around them; once an overflow of the exponential."""
    rng = np.random.default_rng(0)
    spread = np.exp(np.log(largest) * rng.random(64))
    fit = fit_tail(np.where(rng.random(64) < 0.45, 0.0, rng.normal(size=64) * spread))
    assert fit.status is Status.ALPHA_AT_FLOOR
    assert fit.scale > 0


@pytest.mark.parametrize("alpha", [0.6, 0.8])
def test_alpha_below_one_is_fitted(alpha):
    fit = fit_tail(stable.rvs(alpha, 3000, 3), check=False)
    assert fit.interval[0] - 0.02 < alpha < fit.interval[1] + 0.02
    assert fit.kappa == math.inf


def test_interval_narrows_with_samples_and_widens_with_level():
    few, many = fit_tail(SAMPLES[:250], check=False), fit_tail(SAMPLES, check=False)
    assert many.interval[1] - many.interval[0] < 0.7 * (few.interval[1] - few.interval[0])
    sure = fit_tail(SAMPLES, level=0.99, check=False)
    assert sure.interval[0] < many.interval[0] < many.alpha < many.interval[1] < sure.interval[1]


def test_kappa_of_the_fit():
    fit = fit_tail(SAMPLES, check=False)
    assert fit.kappa == pytest.approx(fit.alpha / (fit.alpha - 1.0))


def test_printing():
    text = str(fit_tail(SAMPLES, generator=3))
    for part in ("alpha = 1.", "(mle, n = 1001)", "supported", "G1", "G2", "G3"):
        assert part in text
