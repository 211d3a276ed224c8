"""Decay laws: planted laws are recovered, intervals cover, and the lemmas are reported where they fail."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from lagreach import regimes
from lagreach.errors import InputError
from lagreach.types import Status

LAGS = np.unique(np.round(np.geomspace(1, 128, 24)))
LN3 = np.log(3.0)
PLANTED = {
    "exponential": ({"tau": 20.0}, LN3 - LAGS / 20.0),
    "power": ({"beta": 0.9}, LN3 - 0.9 * np.log(LAGS)),
    "logarithmic": ({}, LN3 - np.log(np.log1p(LAGS))),
    "stretched": ({"tau": 5.0, "b": 0.5}, LN3 - np.sqrt(LAGS / 5.0)),
}


def noisy_fits(law, runs, noise=0.1):
    _, log_f = PLANTED[law]
    for seed in range(runs):
        generator = np.random.default_rng(seed)
        yield regimes.fit_regimes(LAGS, np.exp(log_f + noise * generator.standard_normal(LAGS.size)))


# ---------------------------------------------------------------- fits


@pytest.mark.parametrize("law", PLANTED)
def test_noise_free_laws_are_recovered_exactly(law):
    params, log_f = PLANTED[law]
    found = regimes.fit_regimes(LAGS, np.exp(log_f))
    assert found.best.law == law
    assert found.best.status is Status.OK
    np.testing.assert_allclose(found.best.c, 3.0, rtol=1e-9)
    for name, value in params.items():
        np.testing.assert_allclose(found.best.params[name], value, rtol=1e-9)
    np.testing.assert_allclose(found.best.r2, 1.0, atol=1e-12)
    np.testing.assert_allclose(np.log(found.best.predict(LAGS)), log_f, atol=1e-9)
    np.testing.assert_allclose(sum(found.weights.values()), 1.0, rtol=1e-12)


@pytest.mark.parametrize("law", PLANTED)
def test_curves_far_below_float_range(law):
    params, log_f = PLANTED[law]
    found = regimes.fit_regimes(LAGS, log10_values=log_f / np.log(10) - 400.0)
    assert found.best.law == law
    np.testing.assert_allclose(found.best.params["log10_c"], np.log10(3.0) - 400.0, rtol=1e-12)
    for name, value in params.items():
        np.testing.assert_allclose(found.best.params[name], value, rtol=1e-7)
    np.testing.assert_allclose(found.best.log10_predict(LAGS), log_f / np.log(10) - 400.0, rtol=1e-12)


@pytest.mark.parametrize("law", PLANTED)
def test_intervals_cover_and_aicc_picks_the_law(law):
    params, _ = PLANTED[law]
    runs = 150
    covered = dict.fromkeys(["log10_c", *params], 0)
    picked = 0
    for found in noisy_fits(law, runs):
        picked += found.best.law == law
        for name, value in {"log10_c": np.log10(3.0), **params}.items():
            low, high = found[law].intervals[name]
            covered[name] += low <= value <= high
    low, high = stats.binom.ppf([0.0005, 0.9995], runs, 0.95)
    for name, count in covered.items():
        assert low <= count <= high, (name, count)
    assert picked >= 0.8 * runs  # a nested, richer law may win by chance


def test_linear_fit_agrees_with_linregress():
    values = np.exp(PLANTED["power"][1] + 0.3 * np.random.default_rng(5).standard_normal(LAGS.size))
    found = regimes.fit_regimes(LAGS, values)["power"]
    line = stats.linregress(np.log(LAGS), np.log(values))
    half = stats.t.ppf(0.975, LAGS.size - 2) * line.stderr
    np.testing.assert_allclose(found.params["beta"], -line.slope, rtol=1e-12)
    np.testing.assert_allclose(found.intervals["beta"], [-line.slope - half, -line.slope + half], rtol=1e-10)
    np.testing.assert_allclose(found.r2, line.rvalue**2, rtol=1e-10)


def test_weights_are_akaike_weights():
    found = next(noisy_fits("stretched", 1))
    residuals = {fit.law: np.log(found[fit.law].predict(LAGS)) for fit in found.fits}
    data = np.log(np.exp(PLANTED["stretched"][1] + 0.1 * np.random.default_rng(0).standard_normal(LAGS.size)))
    n = LAGS.size
    aicc = {}
    for law, n_estimated in (("exponential", 3), ("power", 3), ("logarithmic", 2), ("stretched", 4)):
        misfit = np.sum((data - residuals[law]) ** 2)
        aicc[law] = (
            n * np.log(misfit / n) + 2 * n_estimated + 2 * n_estimated * (n_estimated + 1) / (n - n_estimated - 1)
        )
    best = min(aicc.values())
    total = sum(np.exp(-0.5 * (value - best)) for value in aicc.values())
    for law, value in aicc.items():
        np.testing.assert_allclose(found.weights[law], np.exp(-0.5 * (value - best)) / total, rtol=1e-8)


def test_errors_weigh_the_points():
    generator = np.random.default_rng(11)
    spread = np.where(LAGS > 30, 0.4, 0.02)
    truth = np.exp(PLANTED["exponential"][1])
    plain, weighted = [], []
    for _ in range(60):
        values = truth * np.exp(spread * generator.standard_normal(LAGS.size))
        plain.append(regimes.fit_regimes(LAGS, values, laws=["exponential"]).best.params["tau"])
        found = regimes.fit_regimes(LAGS, values, errors=spread * values, laws=["exponential"])
        weighted.append(found.best.params["tau"])
    assert np.std(weighted) < 0.5 * np.std(plain)
    np.testing.assert_allclose(np.mean(weighted), 20.0, rtol=0.03)


def test_floor_nonfinite_and_lag_zero_are_left_out_and_counted():
    lags = np.arange(0, 60)
    values = 2.0 * np.exp(-lags / 4.0)
    noisy = values + 1e-3  # a noise floor bends the curve
    noisy[[7, 9]] = np.nan, np.inf
    bent = regimes.fit_regimes(lags[1:], values[1:] + 1e-3)
    found = regimes.fit_regimes(lags, noisy, floor=0.1)
    assert (found.n_lag_zero, found.n_nonfinite) == (1, 2)
    assert found.n_floor == np.sum(noisy[1:] <= 0.1)
    assert found.n_points + found.n_floor + found.n_nonfinite + 1 == lags.size
    assert abs(found["exponential"].params["tau"] / 4 - 1) < 0.02
    assert abs(bent["exponential"].params["tau"] / 4 - 1) > 0.5
    assert "left out: 1 at lag 0, 2 not finite" in str(found)


def test_exact_zeros_and_noisy_points_are_under_the_floor():
    values = np.exp(-LAGS / 10.0)
    values[-3:] = 0.0, -1e-9, 0.0
    found = regimes.fit_regimes(LAGS, values)
    assert found.n_floor == 3
    assert found.best.law == "exponential"
    errors = np.full(LAGS.size, 0.01)
    assert regimes.fit_regimes(LAGS, values, errors=errors).n_floor == np.sum(values <= 0.02)
    log10 = np.where(values > 0, np.log10(np.abs(values) + (values == 0)), -np.inf)
    assert regimes.fit_regimes(LAGS, log10_values=log10).n_floor == 3
    with_errors = regimes.fit_regimes(LAGS, log10_values=log10, errors=0.01)
    assert with_errors.n_floor == 3
    assert regimes.fit_regimes(LAGS, log10_values=log10, errors=0.3).status is Status.TOO_FEW_POINTS


def test_log_values_and_values_give_the_same_fit():
    values = np.exp(PLANTED["stretched"][1] + 0.1 * np.random.default_rng(3).standard_normal(LAGS.size))
    plain = regimes.fit_regimes(LAGS, values, errors=0.05 * values, floor=0.2)
    logged = regimes.fit_regimes(LAGS, log10_values=np.log10(values), errors=0.05 / np.log(10), floor=np.log10(0.2))
    assert plain.n_floor == logged.n_floor > 0
    for fit in plain.fits:
        np.testing.assert_allclose(list(logged[fit.law].params.values()), list(fit.params.values()), rtol=1e-6)
        np.testing.assert_allclose(logged[fit.law].weight, fit.weight, atol=1e-8)


def test_mixture_of_time_scales_is_not_one_exponential():
    tau = np.geomspace(1, 2000, 60)
    broad = np.exp(-LAGS[:, None] / tau).sum(axis=1)
    found = regimes.fit_regimes(LAGS, broad)
    assert found["exponential"].weight < 1e-6
    assert found.best.law == "stretched"
    # weights falling as tau^-1 per octave make l^-1: the sum of exp(-l/tau)/tau over log tau is 1/l
    power = regimes.fit_regimes(
        LAGS,
        (np.exp(-LAGS[:, None] / np.geomspace(1e-3, 1e5, 400)) / np.geomspace(1e-3, 1e5, 400)).sum(axis=1),
    )
    assert power.best.law == "power"
    np.testing.assert_allclose(power.best.params["beta"], 1.0, rtol=2e-3)


def test_two_phase_curve_prefers_neither_pure_law():
    two_phase = np.exp(-LAGS / 2.0) + 1e-3 * np.exp(-LAGS / 60.0)
    found = regimes.fit_regimes(LAGS, two_phase)
    assert found["exponential"].weight < 1e-3
    assert found["exponential"].r2 < 0.9


@pytest.mark.parametrize("values", [LAGS, np.ones_like(LAGS), np.sqrt(LAGS)])
def test_curves_that_do_not_decay(values):
    found = regimes.fit_regimes(LAGS, values)
    assert found.best is None
    assert found.status is Status.NO_DECAY
    assert not found.status.usable
    assert set(found.weights.values()) == {0.0}
    assert np.isnan(found["exponential"].params["tau"])
    assert "does not decay" in str(found)
    with pytest.raises(InputError, match="not fitted"):
        found["power"].growth()


@pytest.mark.parametrize(("law", "needed"), [("logarithmic", 4), ("power", 5), ("exponential", 5), ("stretched", 6)])
def test_too_few_points(law, needed):
    lags = np.arange(1, 20)
    values = 1 / np.log1p(lags)
    short = regimes.fit_regimes(lags[: needed - 1], values[: needed - 1], laws=[law])
    assert short.status is Status.TOO_FEW_POINTS
    assert short.best is None
    assert regimes.fit_regimes(lags[:needed], values[:needed], laws=[law]).status is Status.OK
    repeated = regimes.fit_regimes(np.repeat(lags[:2], 10), np.repeat(values[:2], 10), laws=[law])
    assert repeated.status is Status.TOO_FEW_POINTS


def test_power_curve_sends_the_stretched_exponent_to_its_edge():
    fit = regimes.fit_regimes(LAGS, 1 / LAGS)["stretched"]
    assert fit.status is Status.SHAPE_AT_EDGE
    assert np.isnan(fit.intervals["b"]).all()


@pytest.mark.parametrize(
    "arguments",
    [
        {"lags": [1, 2], "values": [1.0]},
        {"lags": [1, 2], "values": None},
        {"lags": [1, 2], "values": [1.0, 2.0], "log10_values": [0.0, 1.0]},
        {"lags": [], "values": []},
        {"lags": [1, np.nan], "values": [1.0, 1.0]},
        {"lags": [-1, 2], "values": [1.0, 1.0]},
        {"lags": [1, 2], "values": [1.0, 1.0], "laws": ["cubic"]},
        {"lags": [1, 2], "values": [1.0, 1.0], "laws": []},
        {"lags": [1, 2], "values": [1.0, 1.0], "confidence": 1.0},
        {"lags": [1, 2], "values": [1.0, 1.0], "errors": [0.0, 1.0]},
        {"lags": [1, 2], "values": [1.0, 1.0], "floor": [0.1, np.nan]},
        {"lags": [1, 2], "values": [1.0, 1.0], "floor": [0.1, 0.1, 0.1]},
        {"lags": [1, 2], "values": [[1.0, 1.0]]},
    ],
)
def test_bad_curves_are_refused(arguments):
    with pytest.raises(InputError):
        regimes.fit_regimes(**arguments)


def test_unknown_law_of_a_fit():
    with pytest.raises(InputError, match="was not fitted"):
        regimes.fit_regimes(LAGS, 1 / LAGS, laws=["power"])["exponential"]


# ---------------------------------------------------------------- time scales


def test_time_scales_per_unit():
    lags = np.arange(0, 40)
    tau = np.array([0.8, 3.0, 60.0, 1e4])
    found = regimes.timescales(lags, np.exp(-lags[:, None] / tau) * [1.0, 5.0, 1e-8, 2.0])
    np.testing.assert_allclose(found.tau, tau, rtol=1e-9)
    np.testing.assert_allclose(found.r2, 1.0, rtol=1e-9)
    deep = regimes.timescales(lags, log10_rates=-lags[:, None] * 30.0 - 100.0)  # down to 1e-1270
    np.testing.assert_allclose(deep.tau, 1 / (30 * np.log(10)), rtol=1e-12)


def test_time_scales_agree_with_the_exponential_law():
    lags = np.arange(1, 30)
    rates = np.exp(-lags / 6.0 + 0.2 * np.random.default_rng(2).standard_normal(lags.size))
    one = regimes.timescales(lags, rates[:, None])
    whole = regimes.fit_regimes(lags, rates)["exponential"]
    np.testing.assert_allclose(one.tau[0], whole.params["tau"], rtol=1e-10)
    np.testing.assert_allclose(one.r2[0], whole.r2, rtol=1e-10)


def test_units_without_a_time_scale_say_why():
    lags = np.arange(8)
    rates = np.stack(
        [
            np.exp(-lags / 2.0),
            np.ones(8),
            np.exp(lags / 2.0),
            np.where(lags < 3, 1.0 / (1 + lags), 0.0),
            np.zeros(8),
        ],
        axis=1,
    )
    rates[5, 0] = np.nan
    found = regimes.timescales(lags, rates)
    np.testing.assert_allclose(found.tau[0], 2.0, rtol=1e-12)
    assert found.n_points.tolist() == [7, 8, 8, 3, 0]
    assert np.isnan(found.tau[1:]).all()
    assert found.status == (
        Status.OK,
        Status.NO_DECAY,
        Status.NO_DECAY,
        Status.TOO_FEW_POINTS,
        Status.TOO_FEW_POINTS,
    )
    assert "2 units without one: the curve does not decay" in str(found)
    above = regimes.timescales(lags, rates, floor=0.5)
    assert above.status[0] is Status.TOO_FEW_POINTS


@pytest.mark.parametrize("rates", [np.ones(4), np.ones((4, 0)), np.ones((3, 2))])
def test_bad_rates_are_refused(rates):
    with pytest.raises(InputError):
        regimes.timescales(np.arange(4), rates)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5))
def test_effective_number_counts_distinct_scales(octaves, copies):
    tau = np.repeat(1.5 * 2.0 ** np.arange(octaves), copies)
    spectrum = regimes.spectrum_summary(tau)
    np.testing.assert_allclose(spectrum.effective_number, octaves, rtol=1e-12)
    np.testing.assert_allclose(spectrum.entropy, np.log(octaves), atol=1e-12)
    assert spectrum.quantiles[0.0] == tau[0]
    assert spectrum.quantiles[1.0] == tau[-1]


def test_spectrum_weights_and_missing_units():
    spectrum = regimes.spectrum_summary([2.5, 40.0, np.nan], weights=[3.0, 1.0, 7.0])
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    np.testing.assert_allclose(spectrum.entropy, entropy, rtol=1e-12)
    assert (spectrum.n_units, spectrum.n_missing) == (2, 1)
    assert "2 time scales" in str(spectrum)
    tau = np.random.default_rng(0).lognormal(2, 1, 501)
    np.testing.assert_allclose(regimes.spectrum_summary(tau).quantiles[0.5], np.median(tau), rtol=1e-12)
    for bad in ([np.nan], [0.0], [np.inf], [[1.0]]):
        with pytest.raises(InputError):
            regimes.spectrum_summary(bad)
    with pytest.raises(InputError):
        regimes.spectrum_summary([1.0, 2.0], weights=[1.0, -1.0])


# ---------------------------------------------------------------- growth of the window


@pytest.mark.parametrize("kappa", [2.0, 2.5, 3.0])
def test_growth_laws_in_closed_form(kappa):
    n, constant, c = mpmath.mpf(10) ** 6, mpmath.mpf(40), mpmath.mpf("0.7")
    ratio = (n / constant) ** (1 / mpmath.mpf(kappa))
    lam = mpmath.exp(-1 / mpmath.mpf(12))
    closed = {
        ("exponential", (("tau", 12.0),)): mpmath.log(n / constant * c**kappa) / (kappa * mpmath.log(1 / lam)),
        ("power", (("beta", 0.8),)): (c * ratio) ** (1 / mpmath.mpf("0.8")),
        ("logarithmic", ()): mpmath.expm1(c * ratio),
        ("stretched", (("tau", 3.0), ("b", 0.4))): 3
        * (mpmath.log(n / constant * c**kappa) / kappa) ** (1 / mpmath.mpf("0.4")),
    }
    for (law, shape), lag in closed.items():
        growth = regimes.window_growth(law, {"c": 0.7, **dict(shape)}, kappa, 40.0)
        found = growth.at(1e6)
        if lag < 1e300:
            np.testing.assert_allclose(float(found), float(lag), rtol=1e-11)
            np.testing.assert_allclose(growth.required(found), 1e6, rtol=1e-8)
        else:
            assert np.isinf(found)
        assert growth.formula in str(growth)


@settings(max_examples=150, deadline=None)
@example(law="exponential", beta=1.0, tau=1.0, b=1.0, log10_c=0.625, kappa=4.0, lag=1.0)
@given(
    law=st.sampled_from(["exponential", "power", "stretched"]),
    beta=st.floats(0.2, 3.0),
    tau=st.floats(0.5, 500.0),
    b=st.floats(0.2, 2.0),
    log10_c=st.floats(-2, 2),
    kappa=st.floats(2.0, 6.0),
    lag=st.floats(1.0, 500.0),
)
def test_growth_inverts_the_requirement(*, law, beta, tau, b, log10_c, kappa, lag):
    shape = {"exponential": {"tau": tau}, "power": {"beta": beta}, "stretched": {"tau": tau, "b": b}}[law]
    growth = regimes.window_growth(law, {"log10_c": log10_c, **shape}, kappa, 7.0)
    log_n = float(growth.log_required(lag))
    if abs(log_n) < 650:  # inside float range
        np.testing.assert_allclose(growth.at(np.exp(log_n)), lag, rtol=1e-6)


def test_growth_asymptotics_of_the_paper():
    """Section 5.4 with kappa for alpha: slope of log H, of H in log N, of log log H."""
    n = np.array([1e8, 1e10])
    power = regimes.window_growth("power", {"c": 2.0, "beta": 0.5}, 3.0, 10.0).at(n)
    np.testing.assert_allclose(np.diff(np.log(power)) / np.diff(np.log(n)), 1 / (3.0 * 0.5), rtol=1e-12)
    exponential = regimes.window_growth("exponential", {"c": 2.0, "tau": 9.0}, 3.0, 10.0).at(n)
    np.testing.assert_allclose(np.diff(exponential) / np.diff(np.log(n)), 9.0 / 3.0, rtol=1e-12)
    logarithmic = regimes.window_growth("logarithmic", {"c": 0.5}, 3.0, 10.0).at(n)
    np.testing.assert_allclose(np.log1p(logarithmic), 0.5 * (n / 10.0) ** (1 / 3.0), rtol=1e-12)


def test_window_below_lag_one_is_nan():
    growth = regimes.window_growth("exponential", {"c": 1.0, "tau": 4.0}, 2.0, 100.0)
    first = float(growth.required(1.0))
    at = [0.5 * first, first * (1 - 1e-12), np.nextafter(first, 0), first]
    np.testing.assert_array_equal(np.isnan(growth.at(at)), [True, True, False, False])
    assert np.isnan(regimes.window_growth("stretched", {"c": 0.1, "tau": 1.0, "b": 0.5}).at(1.0))


@pytest.mark.parametrize(
    ("law", "params", "kappa", "constant"),
    [
        ("cubic", {"c": 1.0}, 2.0, 1.0),
        ("power", {"c": 1.0}, 2.0, 1.0),
        ("power", {"c": 1.0, "beta": 1.0, "tau": 2.0}, 2.0, 1.0),
        ("power", {"c": 1.0, "log10_c": 0.0, "beta": 1.0}, 2.0, 1.0),
        ("power", {"c": -1.0, "beta": 1.0}, 2.0, 1.0),
        ("power", {"log10_c": np.nan, "beta": 1.0}, 2.0, 1.0),
        ("power", {"c": 1.0, "beta": 1.0}, 0.0, 1.0),
        ("power", {"c": 1.0, "beta": 1.0}, 2.0, np.inf),
    ],
)
def test_bad_growth_laws_are_refused(law, params, kappa, constant):
    with pytest.raises(InputError):
        regimes.window_growth(law, params, kappa, constant)


def test_growth_at_no_sequences_is_refused():
    with pytest.raises(InputError):
        regimes.window_growth("power", {"c": 1.0, "beta": 1.0}).at(0)


def test_check_growth_against_a_computed_window():
    lags = np.arange(1, 401)
    fit = regimes.fit_regimes(lags, 1.3 * lags**-0.7).best
    growth = fit.growth(kappa=2.4, constant=30.0)
    sequences = np.geomspace(1, 1e6, 25)
    needed = 30.0 * (1.3 * lags**-0.7) ** -2.4
    windows = [int(lags[needed <= n].max()) if np.any(needed <= n) else None for n in sequences]
    check = regimes.check_growth(growth, sequences, windows, max_lag=400)
    assert check.holds
    assert check.status is Status.OK
    assert check.censored.any()
    assert not check.censored.all()
    # noise that grows with the lag breaks the premise of equal noise
    louder = needed * lags**0.8
    windows = [int(lags[louder <= n].max()) if np.any(louder <= n) else None for n in sequences]
    broken = regimes.check_growth(growth, sequences, windows, max_lag=400)
    assert broken.status is Status.GROWTH_DIFFERS
    assert not broken.holds
    assert broken.agrees[0]  # no window on either side
    assert "differs" in str(broken)
    with pytest.raises(InputError):
        regimes.check_growth(growth, sequences, windows[:-1])


# ---------------------------------------------------------------- lemmas


def test_monotone_envelope():
    check = regimes.check_monotone(LAGS[::-1], 1 / LAGS[::-1])
    assert check.holds
    assert check.largest_rise < 1
    assert "holds" in str(check)


def test_rising_envelope_is_reported_with_its_lags():
    # gamma0 + gamma1 with negative corrections: |a^l (1 - l r)| vanishes at l = 1/r and rises again
    lags = np.arange(1, 40)
    log10 = np.log10(np.abs(0.9**lags * (1 - lags / 10.5))) - 350
    check = regimes.check_monotone(lags, log10_envelope=log10)
    assert not check.holds
    assert check.status is Status.NOT_MONOTONE
    rising = np.flatnonzero(np.diff(log10) > 0)
    np.testing.assert_array_equal(check.rise_from, lags[rising])
    np.testing.assert_array_equal(check.rise_to, lags[rising + 1])
    np.testing.assert_allclose(check.rise_factor, 10 ** np.diff(log10)[rising], rtol=1e-9)
    peak = 10 ** (log10[10:].max() - log10[:12].min())
    np.testing.assert_allclose(check.largest_rise, peak, rtol=1e-9)
    assert "Lemma 5.1 fails after lags 11" in str(check)


def test_small_rises_within_the_tolerance_and_their_sum():
    values = [1.0, 0.5, 0.504, 0.2]
    assert not regimes.check_monotone([1, 2, 3, 4], values).holds
    assert regimes.check_monotone([1, 2, 3, 4], values, tolerance=0.01).holds
    creeping = 1.005 ** np.arange(30)
    check = regimes.check_monotone(np.arange(1, 31), creeping, tolerance=0.01)
    assert not check.holds
    np.testing.assert_allclose(check.largest_rise, 1.005**29, rtol=1e-12)


def test_sandwich_holds_for_bounded_noise_and_alignment():
    generator = np.random.default_rng(1)
    f = LAGS**-1.2
    sigma, alignment = generator.uniform(1, 2, LAGS.size), generator.uniform(0.5, 0.8, LAGS.size)
    needed = 21.6 * (sigma / (alignment * f)) ** 2.5
    check = regimes.check_sandwich(
        LAGS, f, sigma=sigma, alignment=alignment, required=needed, exponent=2.5, constant=21.6
    )
    assert check.holds
    np.testing.assert_allclose(check.lower_constant, 21.6 * (sigma.min() / alignment.max()) ** 2.5, rtol=1e-12)
    np.testing.assert_allclose(check.upper_constant, 21.6 * (sigma.max() / alignment.min()) ** 2.5, rtol=1e-12)
    assert abs(check.noise_slope) < 0.3
    for n in np.geomspace(50, 1e7, 15):
        low, high = check.window_bounds(n)
        inside = LAGS[needed <= n]
        window = inside.max() if inside.size else np.nan
        assert np.isnan(low) or low <= window
        assert np.isnan(window) or window <= high
    # (39) as printed drops the constant kappa_{alpha,eps}: its lower bound then overshoots the window
    n = 2000.0
    printed = LAGS[f >= sigma.max() / alignment.min() * n ** (-1 / 2.5)].max()
    assert printed > LAGS[needed <= n].max() >= check.window_bounds(n)[0]


def test_sandwich_says_where_premise_and_bounds_fail():
    f = 1 / LAGS
    sigma = np.where(LAGS > 60, 0.1, 1.0)
    needed = (sigma / f) ** 2
    common = {"alignment": 1.0, "required": needed, "exponent": 2.0, "constant": 1.0}
    premise = regimes.check_sandwich(LAGS, f, sigma=sigma, sigma_bounds=(0.5, 2.0), **common)
    assert premise.status is Status.SANDWICH_PREMISE_FAILS
    np.testing.assert_array_equal(premise.premise_fails_at, LAGS[LAGS > 60])
    np.testing.assert_array_equal(premise.bounds_fail_at, LAGS[LAGS > 60])
    assert "premise fails at lags" in str(premise)
    # N computed with another exponent (kappa = 3) is not bounded by f^-2
    other = regimes.check_sandwich(LAGS, f, sigma=1.0, alignment=1.0, required=f**-3.0, exponent=2.0, constant=1.0)
    assert other.status is Status.SANDWICH_FAILS
    np.testing.assert_array_equal(other.bounds_fail_at, LAGS[LAGS > 1])
    missing = regimes.check_sandwich(
        LAGS,
        f,
        sigma=1.0,
        alignment=1.0,
        required=np.where(LAGS > 100, np.inf, f**-2.0),
        exponent=2.0,
        constant=1.0,
    )
    np.testing.assert_array_equal(missing.bounds_fail_at, LAGS[LAGS > 100])


def test_noise_of_the_lag_alone_makes_the_sandwich_empty():
    """Noise that shrinks with the envelope satisfies (38) formally, yet N(lag) does not depend on f."""
    log10_f = -LAGS * 28 / 128  # 1e-28 at lag 128
    sigma = 10**log10_f
    check = regimes.check_sandwich(
        LAGS, log10_envelope=log10_f, sigma=sigma, alignment=1.0, required=5.0, exponent=2.0, constant=5.0
    )
    assert check.bounds_fail_at.size == 0
    assert check.status is Status.SANDWICH_EMPTY
    np.testing.assert_allclose(check.noise_slope, 1.0, rtol=1e-9)


@pytest.mark.parametrize(
    "change",
    [
        {"sigma": 0.0},
        {"sigma": np.ones(3)},
        {"alignment": np.nan},
        {"required": -1.0},
        {"exponent": 0.0},
        {"constant": np.inf},
        {"sigma_bounds": (2.0, 1.0)},
    ],
)
def test_bad_sandwich_input_is_refused(change):
    arguments = {"sigma": 1.0, "alignment": 1.0, "required": 1.0, "exponent": 2.0, "constant": 1.0, **change}
    with pytest.raises(InputError):
        regimes.check_sandwich(LAGS, 1 / LAGS, **arguments)


@pytest.mark.parametrize("envelope", [[1.0], [1.0, 0.0], [1.0, np.nan]])
def test_bad_envelopes_are_refused(envelope):
    with pytest.raises(InputError):
        regimes.check_monotone(np.arange(1, len(envelope) + 1), envelope)
    with pytest.raises(InputError):
        regimes.check_monotone([1, 2], [1.0, 0.5], tolerance=-1.0)
