"""How the window grows with the number of sequences, law by law."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lagreach import regimes
from lagreach.errors import InputError
from lagreach.papers.livi.lemmas import check_growth
from lagreach.types import Status


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
        reached = growth.at(1e6)
        if lag < 1e300:
            np.testing.assert_allclose(float(reached), float(lag), rtol=1e-11)
            np.testing.assert_allclose(growth.required(reached), 1e6, rtol=1e-8)
        else:
            assert np.isinf(reached)
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
    check = check_growth(growth, sequences, windows, max_lag=400)
    assert check.holds
    assert check.status is Status.OK
    assert check.censored.any()
    assert not check.censored.all()
    # noise that grows with the lag breaks the premise of equal noise
    louder = needed * lags**0.8
    windows = [int(lags[louder <= n].max()) if np.any(louder <= n) else None for n in sequences]
    broken = check_growth(growth, sequences, windows, max_lag=400)
    assert broken.status is Status.GROWTH_DIFFERS
    assert not broken.holds
    assert broken.agrees[0]  # no window on either side
    assert "differs" in str(broken)
    with pytest.raises(InputError):
        check_growth(growth, sequences, windows[:-1])
