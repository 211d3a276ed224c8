"""Exponents under heavy tails: found where they were put in, told from others, and refused where there is nothing to see."""

import numpy as np
import pytest

from lagreach.tails import stable
from studies.validation.bootstrap import NOT_MEASURABLE, Estimate
from studies.validation.matching import match
from studies.validation.tails import TailEffect, kappa, median_error, predicted_n, tail_effects
from tests.studies.validation.synthetic import heavy_tails, tables

pytestmark = pytest.mark.thorough

STUDIES = 24
OFTEN = 0.79  # 19 of 24; fewer in less than 1 % of cases if intervals cover in 95 %


def effects(outcomes):
    listed = tail_effects(match(*tables(outcomes, [])), 150, 0)
    assert len(listed) == 6
    return {(e.clipped, e.alpha): e for e in listed}


@pytest.fixture(scope="module")
def as_predicted():
    return [effects(heavy_tails(np.random.default_rng(seed))) for seed in range(STUDIES)]


@pytest.mark.parametrize("alpha", [1.3, 1.6, 2.0])
@pytest.mark.parametrize("clipped", [False, True])
def test_exponents_are_found_and_their_intervals_cover(as_predicted, clipped, alpha):
    truth = 2.0 if clipped else kappa(alpha)
    effects_of_law = [one[clipped, alpha] for one in as_predicted]
    assert {e.predicted_exponent for e in effects_of_law} == {truth}
    assert np.median([e.exponent.value for e in effects_of_law]) == pytest.approx(truth, rel=0.08)
    assert np.mean([e.exponent.covers(truth) for e in effects_of_law]) >= OFTEN
    assert np.mean([e.shift_verdict != "as predicted" for e in effects_of_law if e.shift.measured]) <= 1 - OFTEN
    assert np.mean([e.far.covers(e.predicted_far) for e in effects_of_law]) >= OFTEN
    if alpha != 1.6:  # whose exponents lie close together
        assert np.mean([e.verdict == "as predicted" for e in effects_of_law]) >= OFTEN


def test_the_other_law_is_found_out():
    """Plain training that behaves as if it were clipped, and the other way round."""
    wrong = {(False, 1.3): 2.0, (True, 1.3): kappa(1.3)}
    repeats = [effects(heavy_tails(np.random.default_rng(seed), wrong)) for seed in range(8)]
    for key in wrong:
        verdicts = [one[key].verdict for one in repeats]
        assert verdicts.count("not as predicted") >= 6
        assert "as predicted" not in verdicts


def test_nothing_is_measured_where_nothing_falls():
    """Under the null, shares that do not depend on N, an exponent is refused."""
    generator = np.random.default_rng(0)
    rows = [row | {"score": 1 + row["ratio"] * generator.normal()} for row in heavy_tails(generator)]
    assert [e.verdict for e in effects(rows).values() if e.verdict != "not measurable"] == []
    assert all(not e.shift.measured for e in effects(rows).values() if e.alpha != 2)


def test_a_part_that_samples_do_not_help_against_enters_as_a_bound():
    repeats = [effects(heavy_tails(np.random.default_rng(seed), bias=0.05))[False, 2.0] for seed in range(8)]
    assert np.median([e.exponent.value for e in repeats]) == pytest.approx(2.0, rel=0.15)


def test_too_few_trainings_tell_nothing():
    rows = heavy_tails(np.random.default_rng(0), seeds=1, ratios=(108,))
    for e in effects(rows).values():
        assert e.exponent is NOT_MEASURABLE
        assert e.verdict == "not measurable"
    assert all(e.learned == 1.0 for e in effects(heavy_tails(np.random.default_rng(0), ratios=(1e-3, 2e-3))).values())


def test_the_median_error_is_that_of_least_squares():
    generator = np.random.default_rng(0)
    for alpha in (1.3, 2.0):
        x = generator.normal(size=(4000, 400))
        noise = stable.rvs(alpha, x.shape, generator, 0.5**0.5)
        error = np.abs((x * noise).sum(1) / np.square(x).sum(1))
        assert np.median(error) == pytest.approx(median_error(alpha, 400), rel=0.05)


def test_predictions_move_by_their_laws():
    for alpha in (1.3, 1.6):
        plain = predicted_n(20, alpha, 12) / predicted_n(10, alpha, 12)
        assert np.log2(plain) == pytest.approx(kappa(alpha))
        assert np.log2(predicted_n(20, alpha, 12, 64) / predicted_n(10, alpha, 12, 64)) == pytest.approx(2.0)
        # a clipped batch of all there is would be the plain mean
        n = predicted_n(10, alpha, 12)
        assert predicted_n(10, alpha, 12, n) == pytest.approx(n)


def effect(clipped, alpha, exponent, shift=NOT_MEASURABLE):
    law = 2.0 if clipped else kappa(alpha)
    return TailEffect(clipped, alpha, 80, 0.5, exponent, law, shift, 1.0, NOT_MEASURABLE, 0.1)


@pytest.mark.parametrize(
    ("clipped", "alpha", "low", "high", "verdict"),
    [
        (False, 1.6, 2.1, 3.3, "as predicted"),
        (False, 1.6, 1.9, 3.3, "not measurable"),
        (False, 1.6, 1.5, 2.5, "not as predicted"),
        (True, 1.6, 1.5, 2.5, "as predicted"),
        (True, 1.6, 1.5, 2.7, "not measurable"),
        (True, 1.3, 2.1, 4.5, "not as predicted"),
        (False, 2.0, 1.6, 2.4, "as predicted"),
        (False, 2.0, 1.4, 2.6, "not measurable"),
    ],
)
def test_verdicts_follow_from_the_interval(clipped, alpha, low, high, verdict):
    assert effect(clipped, alpha, Estimate((low + high) / 2, low, high)).verdict == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.9, 1.2, "as predicted"),
        (1.4, 1.7, "as predicted"),
        (1.6, 1.9, "larger than predicted"),
        (0.0, 0.4, "smaller than predicted"),
        (0.0, 2.5, "not measurable"),
    ],
)
def test_verdicts_on_shifts_allow_for_half_a_decade(low, high, verdict):
    assert effect(False, 1.6, NOT_MEASURABLE, Estimate((low + high) / 2, low, high)).shift_verdict == verdict
