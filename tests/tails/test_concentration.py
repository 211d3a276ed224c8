"""The measured exponent: exact cases, simulation, coverage, and its four verdicts."""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from lagreach.diagnosis.record_json import decode, encode
from lagreach.errors import InputError
from lagreach.tails import concentration, fit_tail, stable
from lagreach.tails.block_means import measure_spreads, three_sizes
from lagreach.tails.concentration import _from_sd
from lagreach.types import Status
from tests.tails.laws import NOT_STABLE, matched_steps, symmetric_stable

VERDICTS = {Status.OK, Status.KAPPA_TWO, Status.KAPPA_NOT_ESTIMABLE, Status.KAPPA_REFUSED}


def many(draw, n, seeds, resamples=80, **options):
    rngs = [np.random.default_rng((seed, n)) for seed in range(seeds)]
    return [concentration(draw(rng, n), generator=rng, resamples=resamples, **options) for rng in rngs]


# --- R_m itself ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_spreads_match_the_closed_form(alpha):
    """Means of m stable values are stable with scale m^(1/alpha - 1)."""
    samples = symmetric_stable(alpha)(np.random.default_rng(0), 200_000)
    sizes = (1, 2, 8, 32)
    spreads = measure_spreads(samples, sizes, 0.05, 4, np.random.default_rng(1))
    exact = [2.0 * float(stable.ppf(0.95, alpha)) * m ** (1.0 / alpha - 1.0) for m in sizes]
    np.testing.assert_allclose(spreads, exact, rtol=0.06 if alpha < 1.5 else 0.03)


def test_spreads_match_plain_partitions():
    """The circular arrangement against its slow twin: random partitions into disjoint blocks."""
    rng = np.random.default_rng(3)
    samples = rng.laplace(size=3000)
    twin = []
    for _ in range(200):
        means = rng.permutation(samples)[:2976].reshape(-1, 32).mean(axis=1)
        twin.append(means)
    low, high = np.quantile(np.concatenate(twin), (0.05, 0.95))
    (spread,) = measure_spreads(rng.permutation(samples), (32,), 0.05, 100, rng)
    assert spread == pytest.approx((high - low) / math.sqrt(1.0 - 32 / 3000), rel=0.02)


def test_no_value_enters_a_mean_twice():
    """One single non-zero value: it sits in exactly m of the n means, each time once, for every m."""
    n, m = 64, 32
    rng = np.random.default_rng(0)
    for _ in range(200):
        spike = np.zeros(n)
        spike[int(rng.integers(n))] = 1.0
        # with error = 1/4 the quantiles of the means are 0 and 1/m: half of the means hold the spike
        (spread,) = measure_spreads(spike, (m,), 0.25, 1, rng)
        assert spread * math.sqrt(1.0 - m / n) == pytest.approx(1.0 / m)


def test_finite_population_correction_removes_the_bias():
    """With one block of every 8 sequences used, uncorrected spreads would be 6 % short."""
    ratios = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        samples = rng.standard_normal(64)
        (spread,) = measure_spreads(samples, (8,), 0.25, 8, rng)
        ratios.append(spread / (2.0 * special.ndtri(0.75) / math.sqrt(8.0)))
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.035)


# --- the exponent -------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("alpha", [1.3, 1.5, 1.9, 2.0])
def test_exponent_of_stable_laws(alpha):
    exponents = np.array([c.inverse_kappa for c in many(symmetric_stable(alpha), 4000, 7)])
    # sd at n = 4000 from larger simulations: .036, .024, .010, .007
    sd = {1.3: 0.036, 1.5: 0.024, 1.9: 0.012, 2.0: 0.009}[alpha]
    assert exponents.mean() == pytest.approx(1.0 - 1.0 / alpha, abs=0.005 + 3.3 * sd / math.sqrt(7))
    assert exponents.std() < 2.0 * sd


# 1/kappa with means of 1 and 8, n = 10^6: the shape of single values still shows
LOCAL = {"t1.5": 0.272, "t3": 0.446, "contaminated": 0.440, "modulated": 0.429, "laplace": 0.497, "product": 0.488}


@pytest.mark.parametrize("name", LOCAL)
def test_local_exponent_of_other_laws(name):
    exponents = np.array([c.inverse_kappa for c in many(NOT_STABLE[name][0], 4000, 5, blocks=(1, 8))])
    assert exponents.mean() == pytest.approx(LOCAL[name], abs=0.05 if name == "t1.5" else 0.02)


@pytest.mark.thorough
def test_matched_statistic_of_gaussian_parts_has_kappa_two():
    """Gaussian ingredients, yet every stable fit reads alpha = 1.2: the exponent and the checks are not fooled."""
    verdicts = []
    for seed in range(5):
        steps = matched_steps(np.random.default_rng(seed), 8000)
        rate, fit = concentration(steps, resamples=100), fit_tail(steps)
        verdicts.append(rate.kappa == 2.0 and rate.status is Status.KAPPA_TWO)
        assert fit.alpha == pytest.approx(1.23, abs=0.1)
        assert fit.stable_supported is False
        assert fit.status is Status.STABLE_NOT_SUPPORTED
        assert not rate.agrees_with(fit.alpha)
    # the interval covers 1/2 in more than 95 % of runs; 4 of 5 is its 98 % bound
    assert sum(verdicts) >= 4


def test_sequence_means_of_the_matched_statistic_look_gaussian():
    rng = np.random.default_rng(0)
    sequences = matched_steps(rng, 2000 * 64).reshape(2000, 64).mean(axis=1)
    rate = concentration(sequences, resamples=100)
    assert rate.kappa == 2.0
    assert fit_tail(sequences, check=False).alpha > 1.9


# --- coverage -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1.5, pytest.param(2.0, marks=pytest.mark.thorough)])
def test_bootstrap_interval_covers(alpha):
    """99.9 % binomial bound of 40 runs around 95 %."""
    repeats = many(symmetric_stable(alpha), 1000, 40)
    inside = sum(c.inverse_interval[0] <= 1.0 - 1.0 / alpha <= c.inverse_interval[1] for c in repeats)
    assert inside >= 32


@pytest.mark.slow
@pytest.mark.parametrize(("n", "runs"), [(500, 200), (2000, 200), (8000, 60)])
@pytest.mark.parametrize("alpha", [1.3, 1.5, 1.9, 2.0])
def test_bootstrap_interval_covers_many(alpha, n, runs):
    """At most two points below nominal, beyond the 99.9 % binomial bound."""
    repeats = many(symmetric_stable(alpha), n, runs, resamples=400)
    inside = sum(c.inverse_interval[0] <= 1.0 - 1.0 / alpha <= c.inverse_interval[1] for c in repeats)
    assert inside >= stats.binom.ppf(0.0005, runs, 0.93)


def test_gaussian_sequences_are_not_given_another_exponent():
    assert sum(c.status is Status.KAPPA_TWO for c in many(symmetric_stable(2.0), 600, 30)) >= 24


# --- verdicts -----------------------------------------------------------------------------------------------------


def test_verdicts():
    gaussian = np.random.default_rng(0).normal(size=2000)
    assert concentration(gaussian).status is Status.KAPPA_TWO
    heavy = concentration(symmetric_stable(1.5)(np.random.default_rng(0), 32_000), resamples=100)
    assert heavy.status is Status.OK
    assert 2.5 < heavy.kappa < 3.8
    assert heavy.interval[0] < 3.0 < heavy.interval[1] == heavy.kappa_pessimistic
    few = concentration(gaussian[:499])
    assert few.status is Status.KAPPA_NOT_ESTIMABLE
    assert math.isnan(few.kappa)
    assert few.exponent == 2.0
    refused = concentration(symmetric_stable(1.05)(np.random.default_rng(0), 2000))
    assert refused.status is Status.KAPPA_REFUSED
    assert refused.inverse_interval[0] <= 1 / 11
    assert refused.kappa_pessimistic >= 11


def test_kappa_is_never_below_two():
    """Three atoms with 6 % at each end: single values spread more than a Gaussian of the same variance would."""
    samples = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], size=4000, p=[0.06, 0.88, 0.06])
    rate = concentration(samples, blocks=(1, 8))
    assert rate.inverse_interval[0] > 0.5
    assert (rate.kappa, rate.interval, rate.kappa_pessimistic) == (2.0, (2.0, 2.0), 2.0)
    assert rate.status is Status.KAPPA_TWO


def test_constant_samples_have_no_spread():
    rate = concentration(np.full(1000, 3.0))
    assert rate.status is Status.NO_SPREAD
    assert math.isnan(rate.kappa)
    assert math.isnan(rate.required(1.0).sequences)


def test_rare_values_have_no_spread_in_single_sequences():
    samples = np.zeros(1000)
    samples[:20] = 1.0
    assert concentration(samples).status is Status.NO_SPREAD


def test_sizes_grow_as_the_root_of_the_sample():
    sizes = {n: three_sizes(n, 0.05) for n in (500, 1599, 1600, 4095, 4096, 16_383, 16_384, 10**6)}
    assert list(sizes.values()) == [
        (1, 4, 16), (1, 4, 16), (2, 8, 32), (2, 8, 32), (1, 8, 64), (1, 8, 64), (2, 16, 128), (8, 64, 512),
    ]  # fmt: skip
    assert three_sizes(2500, 0.01) == (1, 4, 16)  # smaller quantiles take more means of each size


# --- N ------------------------------------------------------------------------------------------------------------


def test_required_matches_the_exact_formula_for_gaussian_sequences():
    """R_N = 2 z sd / sqrt(N) <= delta means N = (2 z sd / delta)^2, inside and beyond the reach of the samples."""
    samples = np.random.default_rng(1).normal(size=20_000)
    rate = concentration(samples, resamples=50)
    for delta, status in ((1.0, Status.N_MEASURED), (0.3, Status.N_MEASURED), (0.03, Status.N_EXTRAPOLATED)):
        answer = rate.required(delta)
        assert answer.status is status
        assert answer.measured == (status is Status.N_MEASURED)
        assert answer.sequences == pytest.approx((2.0 * special.ndtri(0.95) / delta) ** 2, rel=0.08)
        assert answer.pessimistic >= answer.sequences


def test_required_matches_the_exact_formula_for_stable_sequences():
    samples = symmetric_stable(1.5)(np.random.default_rng(2), 20_000)
    rate = concentration(samples, resamples=50)
    exact = (2.0 * float(stable.ppf(0.95, 1.5))) ** 3.0
    assert rate.required(1.0).sequences == pytest.approx(exact, rel=0.3)
    beyond = rate.required(0.1)
    assert beyond.status is Status.N_EXTRAPOLATED
    assert beyond.sequences < exact * 1e3 * 1.5
    assert beyond.pessimistic > exact * 1e3


def test_required_is_monotone_and_continuous_at_the_end_of_the_reach():
    rate = concentration(np.random.default_rng(1).laplace(size=5000), resamples=50)
    deltas = np.geomspace(2 * rate.spreads[0], 1e-3, 400)
    numbers = np.array([rate.required(d).sequences for d in deltas])
    assert numbers[0] == 1.0
    assert np.all(np.diff(numbers) >= 0.0)
    assert np.max(numbers[1:] / numbers[:-1]) < 1.1


@pytest.mark.parametrize("limit", [1.2, 1.0, 0.7])
def test_n_from_the_standard_deviation_joins_what_was_measured(limit):
    """m R_m^2 = limit (1 - c / m), its first correction: exact at every N, and N = m0 at the last size m0."""
    start, c = 32.0, 32.0 * (1 - 1 / limit)
    spread = lambda m: math.sqrt(limit * (1 - c / m) / m)  # noqa: E731
    assert spread(start) ** 2 * start == pytest.approx(1.0)
    for needed in (start, 100.0, 1e4, 1e9):
        delta = spread(needed)
        assert _from_sd(delta, math.sqrt(limit), start, 1 / delta**2) == pytest.approx(needed)
    assert _from_sd(1e-200, 1.0, start, math.inf) == math.inf


def test_files_of_older_versions_have_no_standard_deviation():
    """Then kappa = 2 extrapolates from the last measured size, as it did."""
    now = concentration(np.random.default_rng(0).normal(size=1000), resamples=50)
    record = encode(now)
    del record["fields"]["sd"]
    old = decode(record)
    assert math.isnan(old.sd)
    assert old.required(0.01).sequences == pytest.approx(16 * (now.spread(16) / 0.01) ** 2)
    assert old.required(1.0) == now.required(1.0)


def test_required_without_an_exponent():
    refused = concentration(symmetric_stable(1.05)(np.random.default_rng(0), 2000), resamples=50)
    assert refused.required(2.0 * refused.spread(1)).status is Status.N_MEASURED
    assert math.isnan(refused.required(1e-3).sequences)
    assert refused.required(1e-3).status is Status.KAPPA_REFUSED
    few = concentration(np.random.default_rng(0).normal(size=100))
    assumed = few.required(0.1)
    assert assumed.status is Status.KAPPA_NOT_ESTIMABLE
    assert assumed.sequences == pytest.approx((2.0 * special.ndtri(0.95) / 0.1) ** 2, rel=0.4)
    assert math.isnan(assumed.pessimistic)


# --- behaviour ----------------------------------------------------------------------------------------------------


def test_order_type_sign_and_units_do_not_matter():
    samples = symmetric_stable(1.7)(np.random.default_rng(4), 1500)
    plain = concentration(samples, generator=3, resamples=50)
    assert concentration(np.random.default_rng(0).permutation(samples), generator=3, resamples=50) == plain
    assert concentration(torch.tensor(samples), generator=3, resamples=50) == plain
    scaled = concentration(1024.0 * samples, generator=3, resamples=50)
    assert scaled.inverse_interval == pytest.approx(plain.inverse_interval, rel=1e-13)
    np.testing.assert_array_equal(scaled.spreads, 1024.0 * np.array(plain.spreads))
    for unit in (2.0**700, 2.0**-700):  # squares of these leave the range of floats
        far = concentration(unit * samples, generator=3, resamples=50)
        assert (far.inverse_interval, far.status) == (plain.inverse_interval, plain.status)
        assert (far.sd, far.spreads[0]) == (unit * plain.sd, unit * plain.spreads[0])
        assert far.required(0.01 * unit).sequences == plain.required(0.01).sequences
    shifted = concentration(samples + 100.0, generator=3, resamples=50)
    assert shifted.inverse_kappa == pytest.approx(plain.inverse_kappa, abs=1e-9)


def test_randomness_is_an_argument():
    samples = np.random.default_rng(4).normal(size=1000)
    assert concentration(samples, generator=1, resamples=50) == concentration(samples, generator=1, resamples=50)
    assert concentration(samples, generator=1, resamples=50) != concentration(samples, generator=2, resamples=50)
    first = concentration(samples, generator=torch.Generator().manual_seed(5), resamples=50)
    again = concentration(samples, generator=torch.Generator().manual_seed(5), resamples=50)
    assert first == again


@pytest.mark.parametrize(
    ("samples", "options", "part"),
    [
        ([1.0, math.nan, 2.0], {}, "finite"),
        ([[1.0, 2.0]], {}, "one-dimensional"),
        ([1.0], {}, "several"),
        (["a", "b"], {}, "real numbers"),
        ([1.0] * 100, {"error": 0.7}, "error"),
        ([1.0] * 100, {"level": 1.0}, "level"),
        ([1.0] * 100, {"resamples": 3}, "resampling"),
        ([1.0] * 100, {"blocks": (1, 6)}, "power of two"),
        ([1.0] * 100, {"blocks": (8, 64)}, "power of two"),
        ([1.0] * 100, {"generator": None}, "randomness"),
    ],
)
def test_bad_input_is_named(samples, options, part):
    with pytest.raises(InputError, match=part):
        concentration(samples, **options)


def test_bad_questions_are_named():
    rate = concentration(np.random.default_rng(0).normal(size=100))
    with pytest.raises(InputError, match="delta"):
        rate.required(0.0)
    with pytest.raises(InputError, match="block size"):
        rate.spread(3)


def test_printing():
    text = str(concentration(np.random.default_rng(0).normal(size=1000), resamples=50))
    assert "kappa = 2 in [2, " in text
    assert "not distinguishable from 2" in text
    assert "sequences" in text
    assert "read off" in str(concentration(np.random.default_rng(0).normal(size=1000), resamples=50).required(2.0))
