"""Claims: tests that can fail, on rows made to pass and rows made not to; intervals; verdicts that are withheld."""

import numpy as np
import pytest
from scipy import stats

from lagreach.errors import InputError
from lagreach.study.claims import TESTS, Evidence, check_claims, interval, shown
from lagreach.study.config import ClaimTest

BUDGETS = (100, 8000)


def row(role, seed, recipe="exact", **values):
    base = {
        "retention_tau": 1.2, "retention_tau_r2": 0.99, "retention_beta": 1.0, "retention_beta_r2": 0.98,
        "retention_exponential_weight": 0.99, "exact_tau": 5.0, "exact_tau_r2": 0.9, "exact_beta": 1.0,
        "exact_beta_r2": 0.9, "exact_exponential_weight": 0.9, "windows": [4.0, 8.0], "slope": 2.0, "slope_r2": 0.99,
        "kappa": 2.0, "alpha": 1.5, "alpha_high": 1.7, "hill": 1.5, "stable_supported": True, "time_scales": [1.2, 1.2, 1.2],
    }  # fmt: skip
    return {"role": role, "group": "", "recipe": recipe, "seed": seed} | base | values


def rows(role, **values):
    """Five seeds in both recipes; lists of values run over seeds."""
    all_rows = []
    for seed in range(5):
        of_seed = {k: v[seed] if isinstance(v, tuple) else v for k, v in values.items()}
        all_rows += [row(role, seed, "exact", **of_seed), row(role, seed, "paper", **of_seed)]
    return all_rows


def verdicts(test, tables, **options):
    claim = ClaimTest(test=test, claim="it is so", printed="as printed", options=options)
    return {c.definition: c for c in check_claims([claim], tables, BUDGETS, seeds=5, scale="small")}


@pytest.mark.parametrize(
    ("test", "good", "bad", "options"),
    [
        ("exponential_envelope", {}, {"retention_exponential_weight": 0.1}, {"role": "a"}),
        ("exponential_envelope", {}, {"retention_tau": 3.0}, {"role": "a", "tau": 1.2}),
        ("power_envelope", {"retention_exponential_weight": 0.1}, {}, {"role": "a", "beta": 1.0}),
        (
            "power_envelope",
            {"retention_exponential_weight": 0.1},
            {"retention_exponential_weight": 0.1, "retention_beta": 2.0},
            {"role": "a", "beta": 1.0},
        ),
        ("window_growth", {"windows": [4.0, 8.0]}, {"windows": [4.0, 6.0]}, {"role": "a", "grows": True}),
        ("window_growth", {"windows": [4.0, 6.0]}, {"windows": [4.0, 8.0]}, {"role": "a", "grows": False}),
        ("scaling_slope", {"slope": 1.5}, {"slope": 0.2}, {"role": "a"}),
        ("scaling_slope", {"slope": 1.5}, {"slope": 1.5, "slope_r2": 0.5}, {"role": "a"}),
        ("spectrum", {}, {"time_scales": [1.0, 30.0]}, {"role": "a", "broad": False}),
        ("spectrum", {"time_scales": [1.0, 2.0, 30.0]}, {}, {"role": "a", "broad": True}),
        (
            "spectrum",
            {"time_scales": [1.0, 2.0, 30.0]},
            {"time_scales": [1.0, 20.0, 30.0]},
            {"role": "a", "broad": True, "median": 3},
        ),
        ("heavy_tails", {}, {"hill": 4.0}, {"role": "a"}),
    ],
)
def test_each_test_can_pass_and_fail(test, good, bad, options):
    assert verdicts(test, rows("a", **good), **options)["paper"].verdict == "yes"
    failed = verdicts(test, rows("a", **bad), **options)["paper"]
    assert failed.verdict == "no"
    assert failed.why


def test_both_definitions_are_read_from_their_own_numbers():
    claims = verdicts("exponential_envelope", rows("a", exact_exponential_weight=0.1), role="a")
    assert (claims["paper"].verdict, claims["lagreach"].verdict) == ("yes", "no")
    claims = verdicts("heavy_tails", rows("a", stable_supported=False), role="a")
    assert (claims["paper"].verdict, claims["lagreach"].verdict) == ("yes", "no")
    light = verdicts("heavy_tails", rows("a", alpha=1.98, alpha_high=2.0), role="a")["lagreach"]
    assert light.verdict == "no"
    assert "alpha below 2 in 0%" in light.why
    assert set(verdicts("spectrum", rows("a"), role="a", broad=False)) == {"paper"}  # there are no exact time scales


def test_order_of_windows():
    tables = rows("small", windows=[1.0, 2.0]) + rows("none", windows=[None, None]) + rows("large", windows=[1.0, 9.0])
    options = {"roles": ["small", "none", "large"], "budget": 8000}
    assert verdicts("window_order", tables, **options)["lagreach"].verdict == "yes"
    options["roles"] = ["large", "none", "small"]
    assert verdicts("window_order", tables, **options)["lagreach"].verdict == "no"


def test_four_seeds_in_five_are_enough_and_three_are_not():
    most, some = ((0.9,) * k + (0.1,) * (5 - k) for k in (4, 3))
    assert (
        verdicts("exponential_envelope", rows("a", retention_exponential_weight=most), role="a")["paper"].verdict
        == "yes"
    )
    assert (
        verdicts("exponential_envelope", rows("a", retention_exponential_weight=some), role="a")["paper"].verdict
        == "no"
    )


@pytest.mark.parametrize(("seeds", "scale"), [(4, "small"), (5, "smoke")])
def test_too_little_is_not_tested(seeds, scale):
    claim = ClaimTest(test="spectrum", claim="c", printed="p", options={"role": "a", "broad": False})
    (claimed,) = check_claims([claim], rows("a"), BUDGETS, seeds=seeds, scale=scale)
    assert claimed.verdict == "not tested"
    assert claimed.obtained


def test_intervals_are_students():
    values = np.array([1.0, 2.0, 4.0, 4.5, 7.0])
    expected = stats.t.interval(0.95, 4, values.mean(), stats.sem(values))
    np.testing.assert_allclose(interval(values), expected, rtol=1e-12)
    assert np.isnan(interval(np.array([1.0]))).all()


def test_a_factor_has_its_geometric_mean_and_stays_positive():
    seeds = np.array([1.0, 100.0, 10.0, 1000.0, 0.1])
    words, ends = shown("longest/shortest", seeds, factor=True)
    low, high = (float(end) for end in ends.split("[")[1].rstrip("]").split(", "))
    assert words == "longest/shortest 10"
    np.testing.assert_allclose(np.log10([low, high]), interval(np.log10(seeds)), atol=0.005)
    assert shown("longest/shortest", seeds)[1].split("[")[1].startswith("-")
    assert shown("r2", np.array([0.9, 1.0, 1.0]), most=1.0)[1].endswith(", 1]")


def test_intervals_cover_the_mean_they_estimate():
    random = np.random.default_rng(0)
    covered = [low <= 3.0 <= high for low, high in (interval(random.normal(3.0, 1.0, 5)) for _ in range(2000))]
    assert stats.binomtest(sum(covered), 2000, 0.95).pvalue > 1e-3


def test_unknown_tests_are_refused():
    with pytest.raises(InputError, match="unknown test"):
        check_claims([ClaimTest(test="magic", claim="c", printed="p")], rows("a"), BUDGETS, seeds=5, scale="small")
    assert all(test.__doc__ for test in TESTS.values())


def test_evidence_reads_missing_windows_as_nothing_within_reach():
    tables = rows("a", windows=[float("nan"), None])
    np.testing.assert_array_equal(Evidence(tables, "lagreach", BUDGETS).window("a", 100), np.zeros(5))


def test_claims_are_read_under_every_definition_that_was_measured():
    """First-order transport and the noise of a lag's own term are read where such diagnoses were made."""
    both = rows("a", slope=2.0, kappa=2.0, alpha=2.0)
    assert set(verdicts("scaling_slope", both, role="a")) == {"paper", "lagreach"}
    more = [*both, *(row("a", seed, "exact_lag_noise", slope=0.1) for seed in range(5))]
    claims = verdicts("scaling_slope", more, role="a")
    assert {name: claim.verdict for name, claim in claims.items()} == {
        "paper": "yes",
        "lagreach": "yes",
        "lag noise": "no",
    }
    more += [row("a", seed, "first_order") for seed in range(5)]
    assert set(verdicts("window_growth", more, role="a", grows=True)) == {
        "paper",
        "first order",
        "lagreach",
        "lag noise",
    }
    assert set(verdicts("spectrum", more, role="a", broad=False)) == {"paper"}
