"""Decay laws: planted laws are recovered, intervals cover, and AICc picks the law."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lagreach import regimes
from lagreach.errors import InputError
from lagreach.types import Status
from tests.regimes.cases import LAGS

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


@pytest.mark.parametrize("law", PLANTED)
def test_noise_free_laws_are_recovered_exactly(law):
    params, log_f = PLANTED[law]
    fits = regimes.fit_regimes(LAGS, np.exp(log_f))
    assert fits.best.law == law
    assert fits.best.status is Status.OK
    np.testing.assert_allclose(fits.best.c, 3.0, rtol=1e-9)
    for name, value in params.items():
        np.testing.assert_allclose(fits.best.params[name], value, rtol=1e-9)
    np.testing.assert_allclose(fits.best.r2, 1.0, atol=1e-12)
    np.testing.assert_allclose(np.log(fits.best.predict(LAGS)), log_f, atol=1e-9)
    np.testing.assert_allclose(sum(fits.weights.values()), 1.0, rtol=1e-12)


@pytest.mark.parametrize("law", PLANTED)
def test_curves_far_below_float_range(law):
    params, log_f = PLANTED[law]
    fits = regimes.fit_regimes(LAGS, log10_values=log_f / np.log(10) - 400.0)
    assert fits.best.law == law
    np.testing.assert_allclose(fits.best.params["log10_c"], np.log10(3.0) - 400.0, rtol=1e-12)
    for name, value in params.items():
        np.testing.assert_allclose(fits.best.params[name], value, rtol=1e-7)
    np.testing.assert_allclose(fits.best.log10_predict(LAGS), log_f / np.log(10) - 400.0, rtol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("law", PLANTED)
def test_intervals_cover_and_aicc_picks_the_law(law):
    params, _ = PLANTED[law]
    runs = 150
    covered = dict.fromkeys(["log10_c", *params], 0)
    picked = 0
    for fits in noisy_fits(law, runs):
        picked += fits.best.law == law
        for name, value in {"log10_c": np.log10(3.0), **params}.items():
            low, high = fits[law].intervals[name]
            covered[name] += low <= value <= high
    low, high = stats.binom.ppf([0.0005, 0.9995], runs, 0.95)
    for name, count in covered.items():
        assert low <= count <= high, (name, count)
    assert picked >= 0.8 * runs  # a nested, richer law may win by chance


def test_linear_fit_agrees_with_linregress():
    values = np.exp(PLANTED["power"][1] + 0.3 * np.random.default_rng(5).standard_normal(LAGS.size))
    fit = regimes.fit_regimes(LAGS, values)["power"]
    line = stats.linregress(np.log(LAGS), np.log(values))
    half = stats.t.ppf(0.975, LAGS.size - 2) * line.stderr
    np.testing.assert_allclose(fit.params["beta"], -line.slope, rtol=1e-12)
    np.testing.assert_allclose(fit.intervals["beta"], [-line.slope - half, -line.slope + half], rtol=1e-10)
    np.testing.assert_allclose(fit.r2, line.rvalue**2, rtol=1e-10)


def test_weights_are_akaike_weights():
    fits = next(noisy_fits("stretched", 1))
    residuals = {fit.law: np.log(fits[fit.law].predict(LAGS)) for fit in fits.fits}
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
        np.testing.assert_allclose(fits.weights[law], np.exp(-0.5 * (value - best)) / total, rtol=1e-8)


def test_errors_weigh_the_points():
    generator = np.random.default_rng(11)
    spread = np.where(LAGS > 30, 0.4, 0.02)
    truth = np.exp(PLANTED["exponential"][1])
    plain, weighted = [], []
    for _ in range(60):
        values = truth * np.exp(spread * generator.standard_normal(LAGS.size))
        plain.append(regimes.fit_regimes(LAGS, values, laws=["exponential"]).best.params["tau"])
        fits = regimes.fit_regimes(LAGS, values, errors=spread * values, laws=["exponential"])
        weighted.append(fits.best.params["tau"])
    assert np.std(weighted) < 0.5 * np.std(plain)
    np.testing.assert_allclose(np.mean(weighted), 20.0, rtol=0.03)


def test_floor_nonfinite_and_lag_zero_are_left_out_and_counted():
    lags = np.arange(0, 60)
    values = 2.0 * np.exp(-lags / 4.0)
    noisy = values + 1e-3  # a noise floor bends the curve
    noisy[[7, 9]] = np.nan, np.inf
    bent = regimes.fit_regimes(lags[1:], values[1:] + 1e-3)
    fits = regimes.fit_regimes(lags, noisy, floor=0.1)
    assert (fits.n_lag_zero, fits.n_nonfinite) == (1, 2)
    assert fits.n_floor == np.sum(noisy[1:] <= 0.1)
    assert fits.n_points + fits.n_floor + fits.n_nonfinite + 1 == lags.size
    assert abs(fits["exponential"].params["tau"] / 4 - 1) < 0.02
    assert abs(bent["exponential"].params["tau"] / 4 - 1) > 0.5
    assert "left out: 1 at lag 0, 2 not finite" in str(fits)


def test_exact_zeros_and_noisy_points_are_under_the_floor():
    values = np.exp(-LAGS / 10.0)
    values[-3:] = 0.0, -1e-9, 0.0
    fits = regimes.fit_regimes(LAGS, values)
    assert fits.n_floor == 3
    assert fits.best.law == "exponential"
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
    fits = regimes.fit_regimes(LAGS, broad)
    assert fits["exponential"].weight < 1e-6
    assert fits.best.law == "stretched"
    # weights falling as tau^-1 per octave make l^-1: the sum of exp(-l/tau)/tau over log tau is 1/l
    power = regimes.fit_regimes(
        LAGS,
        (np.exp(-LAGS[:, None] / np.geomspace(1e-3, 1e5, 400)) / np.geomspace(1e-3, 1e5, 400)).sum(axis=1),
    )
    assert power.best.law == "power"
    np.testing.assert_allclose(power.best.params["beta"], 1.0, rtol=2e-3)


def test_two_phase_curve_prefers_neither_pure_law():
    two_phase = np.exp(-LAGS / 2.0) + 1e-3 * np.exp(-LAGS / 60.0)
    fits = regimes.fit_regimes(LAGS, two_phase)
    assert fits["exponential"].weight < 1e-3
    assert fits["exponential"].r2 < 0.9


@pytest.mark.parametrize("values", [LAGS, np.ones_like(LAGS), np.sqrt(LAGS)])
def test_curves_that_do_not_decay(values):
    fits = regimes.fit_regimes(LAGS, values)
    assert fits.best is None
    assert fits.status is Status.NO_DECAY
    assert not fits.status.usable
    assert set(fits.weights.values()) == {0.0}
    assert np.isnan(fits["exponential"].params["tau"])
    assert "does not decay" in str(fits)
    with pytest.raises(InputError, match="not fitted"):
        fits["power"].growth()


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


@pytest.mark.parametrize("seed", [55, 687])
def test_flat_noisy_curves_leave_a_time_scale_without_bounds(seed):
    """Warnings are errors here: an interval's end, or a step of the fit, beyond all numbers is none."""
    rng, lags = np.random.default_rng(seed), np.arange(8) * 5
    flat = -(10 ** rng.uniform(-4, -2)) * np.log1p(lags) + 0.02 * rng.normal(size=8)
    low, high = regimes.fit_regimes(lags, log10_values=flat)["stretched"].intervals["tau"]
    assert not low > high


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


@pytest.mark.parametrize("lags", [[0, 1, 8, 23, 40], [1, 2, 4, 9, 20]])
@pytest.mark.parametrize("law", PLANTED)
def test_no_law_is_named_from_points_that_are_too_few_for_some_of_them(law, lags):
    """An exact exponential at four lags was once called logarithmic, the only law left with points enough."""
    lags = np.array(lags)
    log_f = np.interp(lags, LAGS, PLANTED[law][1])
    fits = regimes.fit_regimes(lags, log10_values=log_f / np.log(10))
    assert fits.best is None
    assert fits.status is Status.TOO_FEW_POINTS
    assert set(fits.weights.values()) == {0.0}
    assert "too few points" in str(fits)


def test_six_points_name_a_law_and_one_law_alone_takes_fewer():
    lags = np.array([0, 1, 4, 8, 15, 23, 40])
    fits = regimes.fit_regimes(lags, log10_values=-0.4 * lags)
    assert fits.best.law == "exponential"
    np.testing.assert_allclose(fits.best.params["tau"], 1 / (0.4 * np.log(10)), rtol=1e-9)
    alone = regimes.fit_regimes(lags[:6], log10_values=-0.4 * lags[:6], laws=["exponential"])
    np.testing.assert_allclose(alone.best.params["tau"], 1 / (0.4 * np.log(10)), rtol=1e-9)
