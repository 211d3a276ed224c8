"""The conformance kit for estimators accepts the package's own and notices each kind of mistake."""

import dataclasses

import numpy as np
import pytest

import lagreach
from lagreach.errors import ConformanceError
from lagreach.tails import Estimate, mcculloch
from lagreach.tails.fit import ESTIMATORS
from lagreach.testing import check_estimator

# Hill's is a tail index: of use for small alpha only.
OPTIONS = {"hill": {"alphas": (1.1, 1.2), "tolerance": 0.2}}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_package_s_own_estimators_pass(name):
    report = check_estimator(ESTIMATORS[name], **OPTIONS.get(name, {}))
    assert len(report.passed) == 6


def of_another_kind(centred, level):
    return mcculloch.estimate(centred, level).alpha


def of_one_side(centred, level):
    return mcculloch.estimate(np.concatenate([centred[centred > 0], -centred[centred > 0]]), level)


def in_other_units(centred, level):
    fit = mcculloch.estimate(centred, level)
    return dataclasses.replace(fit, scale=fit.scale + 1.0)


def deaf_to_levels(centred, level):
    return mcculloch.estimate(centred, 0.95)


def off_centre(centred, level):
    fit = mcculloch.estimate(centred, level)
    return Estimate(fit.alpha, fit.scale, (fit.alpha + 0.01, fit.alpha + 0.1))


def biased(centred, level):
    fit = mcculloch.estimate(centred, level)
    low, high = fit.interval
    return Estimate(fit.alpha - 0.15, fit.scale, (low - 0.15, high))


def overconfident(centred, level):
    fit = mcculloch.estimate(centred, level)
    low, high = (fit.alpha + 0.3 * (end - fit.alpha) for end in fit.interval)
    return Estimate(fit.alpha, fit.scale, (low, high))


@pytest.mark.parametrize(
    ("estimate", "problem"),
    [
        (of_another_kind, "wrong kind"),
        (off_centre, "does not hold"),
        (of_one_side, "order or the sign"),
        (in_other_units, "other units"),
        (deaf_to_levels, "widen"),
        (biased, "not recovered"),
        (overconfident, "too narrow"),
    ],
)
@pytest.mark.usefixtures("_as_users_run_it")
def test_mistakes_are_noticed(estimate, problem):
    with pytest.raises(ConformanceError, match=problem):
        check_estimator(estimate)


def test_an_estimator_of_one_s_own_fits_like_the_others():
    samples = lagreach.stable.rvs(1.6, 800, 0)
    custom, known = (
        lagreach.fit_tail(samples, method=mcculloch.estimate),
        lagreach.fit_tail(samples, method="mcculloch"),
    )
    assert custom.method == "estimate"
    assert dataclasses.replace(custom, method="mcculloch") == known
    assert lagreach.fit_tail(samples[:10], method=mcculloch.estimate).method == "estimate"
