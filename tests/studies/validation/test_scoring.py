"""Scores of predictors against brute force, other libraries, and made-up studies with a known answer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from lagreach.errors import InputError
from studies.validation.bootstrap import Estimate, cluster_weights, estimate
from studies.validation.scoring import auroc, brier, fit_link, midranks, out_of_task, spearman


def pairs_in_order(scores, learned, strata):
    right, pairs = 0.0, 0
    for i in np.flatnonzero(learned):
        for j in np.flatnonzero(~learned & (strata == strata[i])):
            pairs += 1
            right += 1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0
    return right / pairs if pairs else np.nan


@given(st.lists(st.tuples(st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0, np.inf]), st.booleans(), st.integers(0, 2))))
def test_auroc_counts_pairs(rows):
    scores = np.array([row[0] for row in rows], dtype=float)
    learned = np.array([row[1] for row in rows], dtype=bool)
    strata = np.array([row[2] for row in rows], dtype=int)
    np.testing.assert_allclose(auroc(scores, learned, strata=strata), pairs_in_order(scores, learned, strata))
    np.testing.assert_allclose(auroc(scores, learned), pairs_in_order(scores, learned, np.zeros(len(rows))))


def test_auroc_and_rank_correlation_agree_with_other_libraries():
    generator = np.random.default_rng(0)
    scores, learned = generator.integers(0, 8, 300).astype(float), generator.random(300) < 0.3
    weights, recovered = generator.random(300), generator.integers(0, 5, 300) / 4
    np.testing.assert_allclose(auroc(scores, learned, weights), roc_auc_score(learned, scores, sample_weight=weights))
    np.testing.assert_allclose(spearman(scores, recovered), spearmanr(scores, recovered).statistic)


def test_a_weight_is_a_repetition():
    generator = np.random.default_rng(1)
    scores, learned, recovered = generator.integers(0, 6, 40) / 2, generator.random(40) < 0.5, generator.random(40)
    times = generator.integers(0, 4, (3, 40))
    for k in range(3):
        again = np.repeat(np.arange(40), times[k])
        weights = times.astype(float)
        np.testing.assert_allclose(auroc(scores, learned, weights)[k], auroc(scores[again], learned[again]))
        np.testing.assert_allclose(spearman(scores, recovered, weights)[k], spearman(scores[again], recovered[again]))


def test_what_cannot_be_scored_is_missing_not_a_number():
    one, none = np.array([1.0, 2.0]), np.array([], dtype=float)
    assert np.isnan(auroc(one, np.array([True, True])))
    assert np.isnan(auroc(none, np.array([], dtype=bool)))
    assert np.isnan(spearman(np.array([1.0, 1.0]), one))
    assert np.isnan(spearman(none, none))
    with pytest.raises(InputError, match="missing"):
        auroc(np.array([np.nan, 1.0]), np.array([True, False]))


def test_midranks_of_equal_weights_are_ranks_less_a_half():
    np.testing.assert_allclose(midranks(np.array([3.0, 1.0, 3.0]), np.ones(3)), [2.0, 0.5, 2.0])


def test_the_link_finds_the_logistic_curve_it_was_drawn_from():
    generator = np.random.default_rng(2)
    x = generator.normal(0, 1.5, 20_000)
    learned = generator.random(len(x)) < 1 / (1 + np.exp(-(0.7 + 2.0 * x)))
    link = fit_link(x, learned, np.ones(len(x)))
    assert (link.intercept, link.slope) == pytest.approx((0.7, 2.0), abs=0.1)
    claimed = fit_link(x - 0.35, learned, np.ones(len(x)), as_claimed=True)
    assert claimed(np.array([0.0, -np.inf, np.inf])).tolist() == [0.5, 0.0, 1.0]


def test_never_and_always_get_the_share_learned_there():
    x = np.array([-np.inf] * 9 + [np.inf] * 3 + [-1.0, 1.0])
    learned = np.array([True] * 2 + [False] * 7 + [True] * 3 + [False, True])
    link = fit_link(x, learned, np.ones(len(x)))
    assert (link.never, link.always) == pytest.approx((2.5 / 10, 3.5 / 4))
    assert link(np.array([-np.inf]))[0] == link.never


def test_perfectly_separated_data_have_a_finite_slope():
    x = np.linspace(-1, 1, 20)
    link = fit_link(x, x > 0, np.ones(20))
    assert 1 < link.slope < 50


def test_no_task_sees_its_own_outcomes():
    generator = np.random.default_rng(3)
    x, tasks = generator.normal(size=300), np.repeat(["a", "b", "c"], 100)
    learned = x > 0
    before = out_of_task(x, learned, tasks, np.ones(300))
    turned = np.where(tasks == "b", ~learned, learned)
    after = out_of_task(x, turned, tasks, np.ones(300))
    np.testing.assert_array_equal(before[tasks == "b"], after[tasks == "b"])
    assert (np.abs(before - after)[tasks != "b"] > 0.01).any()
    assert np.isnan(out_of_task(x, learned, np.full(300, "a"), np.ones(300))).all()


def test_brier_of_a_coin_and_of_certainty():
    learned = np.array([True, False, True])
    assert brier(np.full(3, 0.5), learned) == pytest.approx(0.25)
    assert brier(learned.astype(float), learned) == 0.0
    assert brier(np.array([1.0, 1.0, 1.0]), learned, np.array([1.0, 3.0, 0.0])) == pytest.approx(0.75)


def draws(generator, conditions, seeds, rows, shared):
    """A useless score and outcomes, both with parts that rows of a condition, and of a seed, have in common."""
    condition = np.repeat(np.arange(conditions), seeds * rows)
    seed = np.tile(np.repeat(np.arange(seeds), rows), conditions)
    parts = []
    for _ in range(2):
        part = shared * (
            generator.normal(size=conditions)[condition] + generator.normal(size=(conditions, seeds))[condition, seed]
        )
        parts.append(part + generator.normal(size=len(condition)))
    return condition, seed, parts[0], parts[1] > 0


@pytest.mark.parametrize("shared", [0.0, 0.8])
def test_intervals_cover_what_a_useless_predictor_has(shared):
    generator = np.random.default_rng(4)
    covered = 0
    for _ in range(100):
        condition, seed, score, learned = draws(generator, 20, 4, 5, shared)
        weights = cluster_weights(condition, seed, 150, generator)
        covered += estimate(float(auroc(score, learned)), auroc(score, learned, weights)).covers(0.5)
    assert covered >= 89  # below it with probability 0.4 % if 95 % cover


def test_clusters_give_wider_intervals_than_rows_where_seeds_stand_together():
    generator = np.random.default_rng(5)
    condition, seed, score, learned = draws(generator, 20, 4, 5, 1.0)
    rows = np.arange(len(score))
    value = float(auroc(score, learned))
    clustered = estimate(value, auroc(score, learned, cluster_weights(condition, seed, 400, generator)))
    naive = estimate(value, auroc(score, learned, cluster_weights(rows, seed, 400, generator)))
    assert clustered.high - clustered.low > 1.5 * (naive.high - naive.low)


def test_rows_of_a_condition_and_seed_are_drawn_together_and_as_often_on_average():
    condition, seed = np.repeat(np.arange(6), 6), np.tile(np.repeat([0, 1, 2], 2), 6)
    weights = cluster_weights(condition, seed, 4000, np.random.default_rng(6))
    np.testing.assert_array_equal(weights[:, ::2], weights[:, 1::2])
    np.testing.assert_allclose(weights.mean(0), 1.0, atol=0.12)
    np.testing.assert_array_equal(weights.sum(1), 36)


def test_an_estimate_says_where_it_lies():
    interval = Estimate(0.8, 0.7, 0.9)
    assert (interval.above(0.6), interval.above(0.75), interval.below(0.95), interval.covers(0.8)) == (
        True,
        False,
        True,
        True,
    )
    assert str(interval) == "0.80 [0.70, 0.90]"
    missing = Estimate(np.nan)
    assert [missing.above(-1), missing.below(9), missing.covers(0), missing.measured] == [False] * 4
    assert str(missing) == "not measurable"
    assert not estimate(0.5, np.array([0.5] * 8 + [np.nan] * 2)).measured


def test_few_clusters_get_the_interval_of_student():
    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(300):
        values = generator.normal(size=5)
        weights = cluster_weights(np.zeros(5), np.arange(5), 200, generator)
        means = weights @ values / weights.sum(1)
        covered += estimate(float(values.mean()), means, clusters=5).covers(0.0)
    assert 0.91 * 300 <= covered <= 0.985 * 300
    assert not estimate(1.0, np.ones(10), clusters=1).measured
