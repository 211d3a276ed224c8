"""The symmetric stable law against closed forms, 30-digit integrals of another kind, and Monte Carlo."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from lagreach.errors import InputError
from lagreach.tails import stable

METHODS = ("table", "quadrature")
# relative error against 30-digit references; the table is asked for 1e-7 (1e-6 above alpha = 1.99), it does better
RTOL = {"table": 1e-12, "quadrature": 1e-13}
ALPHAS = st.one_of(st.floats(1.0, 2.0), st.floats(1e-12, 0.1).map(lambda d: 2.0 - d))

# Reference constants, computed once with 30-digit arithmetic and other code: quantiles of level 0.75, 0.95, 0.999,
# location information, scale information, alpha information, scale-alpha information, density at 0.
CONSTANTS = {
    1.01: (0.998647223403, 6.17718509244, 298.943937151, 0.495332191615, 0.50752329927, 0.841878992173,
           -0.136992350359, 0.316990272252),
    1.05: (0.993809579855, 5.68327470766, 235.176646258, 0.479007280017, 0.538094108626, 0.77938496393,
           -0.143994338649, 0.312196064986),
    1.1: (0.988852331566, 5.16464608437, 178.227243816, 0.463029300622, 0.577439572549, 0.713154936207,
           -0.152295701866, 0.307141184554),
    1.2: (0.981537200396, 4.36867543084, 108.940730852, 0.441940946486, 0.660336955345, 0.611938383406,
           -0.167940780364, 0.29942005918),
    1.3: (0.976378940326, 3.79466740803, 71.043138376, 0.430970006253, 0.749817847284, 0.542394548269,
           -0.183215013614, 0.29398360112),
    1.5: (0.968933181714, 3.05194097324, 34.3208254473, 0.428096979615, 0.955559738274, 0.473657481364,
           -0.217369480547, 0.287352751452),
    1.7: (0.962737857524, 2.63730698101, 17.8531443216, 0.442404199765, 1.21892007399, 0.502813372188,
           -0.269234999292, 0.284010246039),
    1.8: (0.959756431402, 2.50488148079, 12.5880059845, 0.45520161856, 1.38976934816, 0.59369211344,
           -0.313810209773, 0.283068758592),
    1.9: (0.956803057547, 2.40427221861, 8.08394506911, 0.472722885996, 1.61265684753, 0.884646974885,
           -0.396250474901, 0.282456516085),
    1.95: (0.955334802695, 2.36286993313, 5.83465426877, 0.484198635929, 1.76305615794, 1.41081183265,
           -0.482045708685, 0.282248393376),
    1.99: (0.95416448825, 2.33317362397, 4.54761980245, 0.496023121385, 1.93214182425, 4.61968275664,
           -0.668231680041, 0.28212148819),
    1.995: (0.954018486924, 2.32965377315, 4.45409872623, 0.497870683278, 1.96172892827, 7.92403767711,
           -0.737000184014, 0.282107898341),
    1.999: (0.953901733924, 2.3268670016, 4.38632087496, 0.499520629809, 1.99038537682, 29.4610583024,
           -0.868789908852, 0.282097374729),
    1.9999: (0.953875470439, 2.32624350519, 4.37184083367, 0.499946306402, 1.99876981361, 217.190732817,
           -1.00684113834, 0.28209504921),
}  # fmt: skip


def zolotarev(alpha: float, x: float, digits: int = 30) -> tuple[mp.mpf, mp.mpf]:
    """(pdf, sf) at x > 0, alpha != 1, from Zolotarev's integral over an angle: no oscillation, no contour.

    SF = (1/pi) int exp(-E) for alpha > 1, 1/2 minus it below; f = alpha / (pi x |alpha - 1|) int E exp(-E), with
    E = x^k (cos t / sin(alpha t))^k cos((alpha - 1) t) / cos t and k = alpha / (alpha - 1), over 0 < t < pi/2.
    """
    with mp.workdps(digits):
        a, x = mp.mpf(alpha), mp.mpf(x)
        k = a / (a - 1)

        def exponent(psi: mp.mpf) -> mp.mpf:  # t = pi/2 - psi
            t = mp.pi / 2 - psi
            return x**k * (mp.sin(psi) / mp.sin(a * t)) ** k * mp.cos((a - 1) * t) / mp.sin(psi)

        # E is monotone: cut the interval where log E passes a few levels, so that each piece is tame
        edge = mp.mpf(10) ** -25
        first, last = edge, mp.pi / 2 - edge
        rising = exponent(last) > exponent(first)
        cuts = []
        for level in (-50, -8, -3, -1, 0, 1, 2, 3, mp.mpf("4.3")):
            bound = mp.exp(level)
            if (exponent(first) < bound) == (exponent(last) < bound):
                continue
            low, high = mp.log(first / last), mp.log(last / first)
            for _ in range(60):
                middle = (low + high) / 2
                psi = mp.pi / 2 / (1 + mp.exp(-middle))
                low, high = (middle, high) if (exponent(psi) < bound) == rising else (low, middle)
            cuts.append(psi)
        pieces = [mp.mpf(0), *sorted(cuts), mp.pi / 2]

        def inside(g: object) -> mp.mpf:
            return mp.quad(lambda p: g(exponent(p)) if 0 < p < mp.pi / 2 else mp.mpf(0), pieces)

        tail = inside(lambda e: mp.exp(-e)) / mp.pi
        density = inside(lambda e: e * mp.exp(-e)) * a / (mp.pi * x * abs(a - 1))
        return density, tail if a > 1 else mp.mpf(1) / 2 - tail


def check_point(alpha: float, x: float) -> None:
    density, tail = zolotarev(alpha, x)
    for method in METHODS:
        np.testing.assert_allclose(stable.pdf(x, alpha, method=method), float(density), rtol=RTOL[method])
        np.testing.assert_allclose(stable.sf(x, alpha, method=method), float(tail), rtol=RTOL[method])
        np.testing.assert_allclose(stable.cdf(-x, alpha, method=method), float(tail), rtol=RTOL[method])
        np.testing.assert_allclose(stable.cdf(x, alpha, method=method), float(1 - tail), rtol=RTOL[method])
        # the condition number of the quantile is sf / (x f)
        widen = max(1.0, float(tail / (x * density)))
        np.testing.assert_allclose(stable.isf(float(tail), alpha, method=method), x, rtol=2.0 * widen * RTOL[method])


# x from the centre over the change of power law and Gaussian (3..30) to tail probabilities below 1e-12
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("alpha", "x"),
    [
        (1.01, 0.3), (1.01, 19.0), (1.1, 1e12), (1.3, 2.0), (1.5, 0.01), (1.5, 8.0), (1.5, 1e9), (1.7, 4.0),
        (1.9, 6.0), (1.95, 3.0), (1.95, 25.0), (1.97, 9.0), (1.99, 5.0), (1.99, 1e6), (1.999, 7.0), (1.9999, 8.0),
        (2.0 - 1e-6, 9.5), (2.0 - 1e-10, 12.0),
    ],
)  # fmt: skip
def test_mpmath(alpha: float, x: float) -> None:
    check_point(alpha, x)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.5, 0.7, 0.95, 1.02, 1.2, 1.6, 1.93, 1.96, 1.98, 1.995, 2.0 - 1e-5])
def test_mpmath_many(alpha: float) -> None:
    for x in (0.05, 1.0, 3.0, 4.5, 6.0, 7.5, 10.0, 14.0, 19.9, 20.1, 30.0, 1e4):
        check_point(alpha, x)


@pytest.mark.thorough
@pytest.mark.parametrize(("alpha", "x"), [(0.5, 0.02), (0.8, 15.0), (0.99, 1.0)])
def test_mpmath_below_one(alpha: float, x: float) -> None:
    check_point(alpha, x)


@pytest.mark.parametrize("method", METHODS)
def test_cauchy_and_gauss_closed_forms(method: str) -> None:
    x = np.concatenate([np.linspace(0.0, 25.0, 400), np.geomspace(25.0, 1e12, 100)])
    rtol = RTOL[method]
    np.testing.assert_allclose(stable.pdf(x, 1.0, method=method), 1.0 / (math.pi * (1.0 + x**2)), rtol=rtol)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(stable.sf(x, 1.0, method=method), np.arctan(1.0 / x) / math.pi, rtol=rtol)
    np.testing.assert_allclose(stable.score(x, 1.0, method=method), 2.0 * x / (1.0 + x**2), rtol=1e-10)
    p = np.geomspace(1e-12, 0.25, 50)
    np.testing.assert_allclose(stable.isf(p, 1.0, method=method), 1.0 / np.tan(math.pi * p), rtol=1e-12)
    p = 0.5 - np.geomspace(1e-12, 0.25, 50)
    np.testing.assert_allclose(stable.isf(p, 1.0, method=method), np.tan(math.pi * (0.5 - p)), rtol=1e-12)
    # alpha = 2: normal with standard deviation sqrt(2), far beyond the first underflow of the density
    y = np.linspace(0.0, 70.0, 300)
    np.testing.assert_allclose(stable.sf(y, 2.0, method=method), special.ndtr(-y / math.sqrt(2.0)), rtol=1e-12)
    np.testing.assert_allclose(
        stable.logpdf(y, 2.0, method=method), -0.25 * y**2 - 0.5 * math.log(4.0 * math.pi), rtol=1e-13
    )
    np.testing.assert_allclose(stable.score(y, 2.0, method=method), y / 2.0, rtol=1e-15)
    np.testing.assert_allclose(stable.ppf(1e-12, 2.0, method=method), math.sqrt(2.0) * special.ndtri(1e-12))


def test_density_at_zero() -> None:
    alpha = np.linspace(0.5, 2.0, 61)
    np.testing.assert_allclose(stable.pdf(0.0, alpha), special.gamma(1.0 + 1.0 / alpha) / math.pi, rtol=1e-13)


@pytest.mark.parametrize("alpha", sorted(CONSTANTS))
def test_reference_constants(alpha: float) -> None:
    q75, q95, q999, location, scale, exponent, cross, centre = CONSTANTS[alpha]
    np.testing.assert_allclose(stable.ppf([0.75, 0.95, 0.999], alpha), [q75, q95, q999], rtol=1e-11)
    np.testing.assert_allclose(stable.pdf(0.0, alpha), centre, rtol=1e-11)
    np.testing.assert_allclose(stable.fisher_information(alpha), location, rtol=1e-11)
    information = stable.scale_alpha_information(alpha)
    np.testing.assert_allclose(information, [[scale, cross], [cross, exponent]], rtol=1e-10)


@pytest.mark.thorough
def test_table_equals_quadrature_densely() -> None:
    rng = np.random.default_rng(11)
    near_two = 2.0 - 10.0 ** rng.uniform(-12.0, -1.3, 30)
    for alpha in (1.0, *rng.uniform(1.0, 2.0, 30), *near_two, 2.0):
        x = np.concatenate(
            [
                [0.0, 20.0, np.nextafter(20.0, 21.0)],
                rng.uniform(0.0, 3.0, 100),
                rng.uniform(3.0, 30.0, 200),
                10.0 ** rng.uniform(-8.0, 100.0, 100),
            ]
        )
        for name, rtol in (("pdf", 1e-12), ("sf", 1e-12), ("cdf", 1e-12), ("score", 1e-10), ("logpdf", 1e-12)):
            function = getattr(stable, name)
            fast, slow = function(x, alpha), function(x, alpha, method="quadrature")
            np.testing.assert_allclose(fast, slow, rtol=rtol, atol=1e-300, err_msg=f"{name} alpha={alpha}")
        inner = x[x < 40.0]  # at alpha = 2 it overflows beyond
        fast, slow = (stable.alpha_score(inner, alpha, method=method) for method in METHODS)
        np.testing.assert_allclose(fast, slow, rtol=1e-9, atol=1e-9)
        p = np.concatenate([rng.uniform(0.0, 1.0, 20), 10.0 ** rng.uniform(-12.0, -1.0, 20)])
        np.testing.assert_allclose(stable.ppf(p, alpha), stable.ppf(p, alpha, method="quadrature"), rtol=1e-11)


@pytest.mark.parametrize("alpha", [0.5, 0.8, 1.0, 1.2, 1.5, 1.8, 1.99, 1.999999, 2.0])
def test_normalisation(alpha: float) -> None:
    # in u = log x the integral over the half line is one for which the trapezoid rule is exponentially good
    step = 0.02
    x = np.exp(np.arange(-40.0, 90.0, step))
    np.testing.assert_allclose(2.0 * step * np.sum(stable.pdf(x, alpha) * x), 1.0, rtol=1e-12)


@settings(deadline=None, max_examples=60)
@given(alpha=ALPHAS, x=st.floats(0.0, 1e15), scale=st.floats(1e-6, 1e6))
def test_symmetry_and_scale(alpha: float, x: float, scale: float) -> None:
    assert stable.pdf(-x, alpha, scale) == stable.pdf(x, alpha, scale)
    assert stable.cdf(-x, alpha, scale) == stable.sf(x, alpha, scale)
    assert stable.cdf(x, alpha, scale) == stable.sf(-x, alpha, scale)
    assert stable.score(-x, alpha, scale) == -stable.score(x, alpha, scale)
    np.testing.assert_allclose(stable.cdf(x, alpha) + stable.sf(x, alpha), 1.0, rtol=1e-15)
    np.testing.assert_allclose(stable.pdf(x * scale, alpha, scale) * scale, stable.pdf(x, alpha), rtol=1e-12)
    np.testing.assert_allclose(stable.sf(x * scale, alpha, scale), stable.sf(x, alpha), rtol=1e-12)


@settings(deadline=None, max_examples=60)
@given(alpha=ALPHAS, log_p=st.floats(-700.0, -0.7))
def test_quantile_inverts(alpha: float, log_p: float) -> None:
    p = math.exp(log_p)
    x = stable.isf(p, alpha)
    # near p = 1/2 the quantile is as uncertain as p - 1/2
    np.testing.assert_allclose(stable.sf(x, alpha), p, rtol=1e-12)
    assert stable.ppf(p, alpha) == -x
    np.testing.assert_allclose(stable.isf(stable.sf(x, alpha), alpha), x, rtol=1e-12, atol=1e-15)


@settings(deadline=None, max_examples=60)
@given(alpha=ALPHAS, data=st.lists(st.floats(0.0, 1e6), min_size=2, max_size=30))
def test_monotone(alpha: float, data: list[float]) -> None:
    x = np.sort(data)
    for values in (stable.sf(x, alpha), stable.pdf(x, alpha)):
        assert np.all(values[1:] <= values[:-1] * (1.0 + 2e-13))  # unimodal density, up to rounding
    p = np.sort(stable.sf(x, alpha))
    p = p[p > 0]  # where sf is below the float range, quantiles are infinite
    assert np.all(np.diff(stable.ppf(p, alpha)) >= -1e-12 * np.abs(stable.ppf(p[1:], alpha)))


def test_median_and_quartiles_around_the_centre() -> None:
    assert stable.cdf(0.0, 1.3) == stable.sf(0.0, 1.3) == 0.5
    assert stable.ppf(0.5, 1.3) == 0.0
    # linear near the centre, without loss of digits
    offset = 2.0**-40
    expected = offset / stable.pdf(0.0, 1.3)
    np.testing.assert_allclose(stable.ppf(0.5 + offset, 1.3), expected, rtol=1e-12)
    np.testing.assert_allclose(stable.ppf(0.5 - offset, 1.3), -expected, rtol=1e-12)


def test_tail_beyond_scipy() -> None:
    # leading terms of the tail series, written out: a_1 / alpha x^-alpha + a_2 / (2 alpha) x^(-2 alpha)
    for alpha in (1.1, 1.5, 1.9, 1.999):
        for x in (1e6, 1e8, 1e50, 1e150):
            lead = special.gamma(alpha) * math.sin(math.pi * (2.0 - alpha) / 2.0) / math.pi * x**-alpha
            second = special.gamma(2.0 * alpha) * math.sin(math.pi * (2.0 - alpha)) / (2.0 * math.pi)
            expected = lead + second * x ** (-2.0 * alpha)
            np.testing.assert_allclose(stable.sf(x, alpha), expected, rtol=1e-12)
            np.testing.assert_allclose(stable.isf(expected, alpha), x, rtol=1e-12)
    # the logarithm survives where the density underflows
    assert stable.pdf(1e250, 1.5) == 0.0
    np.testing.assert_allclose(
        stable.logpdf(1e250, 1.5),
        math.log(special.gamma(2.5) * math.sin(math.pi / 4.0) / math.pi) - 2.5 * math.log(1e250),
        rtol=1e-13,
    )


@pytest.mark.parametrize("alpha", [1.05, 1.5, 1.9, 1.99])
def test_score_is_minus_the_slope_of_logpdf(alpha: float) -> None:
    x = np.concatenate([np.linspace(0.05, 25.0, 150), [50.0, 1e3]])
    h = 2e-3 * np.minimum(x, 1.0)
    lp = lambda shift: stable.logpdf(x + shift, alpha, method="quadrature")  # noqa: E731
    slope = (8.0 * (lp(h) - lp(-h)) - (lp(2 * h) - lp(-2 * h))) / (12.0 * h)
    np.testing.assert_allclose(stable.score(x, alpha), -slope, rtol=1e-7)


@pytest.mark.parametrize("alpha", [0.7, 1.05, 1.5, 1.9, 1.99])
def test_alpha_score_is_the_alpha_slope_of_logpdf(alpha: float) -> None:
    x = np.concatenate([np.linspace(0.0, 25.0, 150), [50.0, 1e3, 1e9]])
    h = 1e-4 if alpha > 1.9 else 1e-3
    lp = lambda shift: stable.logpdf(x, alpha + shift, method="quadrature")  # noqa: E731
    slope = (8.0 * (lp(h) - lp(-h)) - (lp(2 * h) - lp(-2 * h))) / (12.0 * h)
    np.testing.assert_allclose(stable.alpha_score(x, alpha), slope, rtol=1e-6, atol=1e-7)


def test_alpha_score_at_two() -> None:
    # d f / d alpha = -(1/pi) int_0^inf cos(x t) t^2 log(t) exp(-t^2) dt, a plain integral with enough digits
    for x in (1.0, 6.0, 19.0, 21.0):
        with mp.workdps(50):
            pieces = [mp.mpf(k) / 2 for k in range(23)]
            rate = mp.quad(lambda t, x=x: mp.cos(x * t) * t**2 * mp.log(t) * mp.exp(-t * t) if t else 0, pieces)
        np.testing.assert_allclose(stable.alpha_score(x, 2.0) * stable.pdf(x, 2.0), -float(rate / mp.pi), rtol=1e-10)
    centre = -special.digamma(1.5) * math.gamma(1.5) / (4.0 * math.pi)  # from f(0) = Gamma(1 + 1/alpha) / pi
    np.testing.assert_allclose(stable.alpha_score(0.0, 2.0) * stable.pdf(0.0, 2.0), centre, rtol=1e-10)
    assert stable.alpha_score(1e3, 2.0) == -math.inf


@pytest.mark.parametrize("alpha", [1.1, 1.5, 1.9])
def test_information_against_monte_carlo(alpha: float) -> None:
    x = stable.rvs(alpha, 400_000, 17)
    location = stable.score(x, alpha)
    spread, exponent = x * location - 1.0, stable.alpha_score(x, alpha)
    information = stable.scale_alpha_information(alpha)
    pairs = [
        (location**2, stable.fisher_information(alpha)),
        (spread**2, information[0, 0]),
        (spread * exponent, information[0, 1]),
        (exponent**2, information[1, 1]),
        (spread, 0.0),
        (exponent, 0.0),
    ]
    for sample, expected in pairs:  # 5 standard errors: false alarm below 6e-7 each
        assert abs(sample.mean() - expected) < 5.0 * sample.std() / math.sqrt(x.size)


def test_information_at_the_ends() -> None:
    np.testing.assert_allclose(stable.fisher_information([1.0, 2.0], 3.0), [0.5 / 9.0, 0.5 / 9.0], rtol=1e-11)
    np.testing.assert_array_equal(stable.scale_alpha_information(2.0), [[2.0, -math.inf], [-math.inf, math.inf]])
    np.testing.assert_allclose(stable.scale_alpha_information(1.0)[0, 0], 0.5, rtol=1e-11)
    both = [stable.scale_alpha_information([1.2, 1.8], method=method) for method in METHODS]
    np.testing.assert_allclose(both[0], both[1], rtol=1e-10)


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.05, 1.5, 1.9, 1.99, 2.0])
def test_samples_follow_the_law(alpha: float) -> None:
    # Dvoretzky-Kiefer-Wolfowitz: P(sup |F_n - F| > e) <= 2 exp(-2 n e^2) = 1e-6 for each of the seven exponents
    n = 50_000
    u = np.sort(stable.cdf(stable.rvs(alpha, n, np.random.default_rng(3), 2.5), alpha, 2.5))
    gap = max(np.max(np.arange(1, n + 1) / n - u), np.max(u - np.arange(n) / n))
    assert gap < math.sqrt(math.log(2.0 / 1e-6) / (2.0 * n))


def test_samples_know_their_tail() -> None:
    # share beyond the 1e-4 quantile among 1e6: binomial, 5 standard deviations
    x = stable.rvs(1.5, 1_000_000, 5)
    assert abs(np.sum(x > stable.isf(1e-4, 1.5)) - 100) < 50


@pytest.mark.parametrize(
    "source", [lambda: 7, lambda: np.random.default_rng(7), lambda: torch.Generator().manual_seed(7)]
)
def test_no_size_and_plain_numbers_give_one_number(source: Callable[[], Any]) -> None:
    one = stable.rvs(1.5, None, source(), 2.0)
    assert isinstance(one, np.float64)
    np.testing.assert_array_equal(one, stable.rvs(1.5, (), source(), 2.0))
    # numpy may round the last digit of a power in another way for arrays
    np.testing.assert_allclose([one], stable.rvs(1.5, 1, source(), 2.0), rtol=1e-15)


def test_generators() -> None:
    np.testing.assert_array_equal(stable.rvs(1.5, 5, 7), stable.rvs(1.5, 5, np.random.default_rng(7)))
    first = stable.rvs(1.5, (2, 3), torch.Generator().manual_seed(1))
    np.testing.assert_array_equal(first, stable.rvs(1.5, (2, 3), torch.Generator().manual_seed(1)))
    assert first.shape == (2, 3)
    assert first.dtype == np.float64
    assert stable.rvs([1.2, 1.5, 2.0], None, 0).shape == (3,)
    x = stable.rvs([1.0, 2.0], (50_000, 2), torch.Generator().manual_seed(2), [1.0, 3.0])
    assert abs(np.median(np.abs(x[:, 0])) - 1.0) < 0.05
    assert abs(x[:, 1].std() - 3.0 * math.sqrt(2.0)) < 0.1
    for wrong in (None, 1.5, np.random, True):
        with pytest.raises(InputError, match="generator"):
            stable.rvs(1.5, 3, wrong)
    with pytest.raises(InputError, match="broadcast"):
        stable.rvs([1.2, 1.5], 3, 0)


@pytest.mark.parametrize("name", ["pdf", "cdf", "sf", "logpdf", "score", "alpha_score", "ppf", "isf"])
def test_answers_do_not_depend_on_company(name: str) -> None:
    rng = np.random.default_rng(0)
    function = getattr(stable, name)
    first = rng.uniform(0.0, 1.0, 20_000) if name in ("ppf", "isf") else 30.0 * rng.standard_cauchy(20_000)
    alpha = rng.choice([0.9, 1.2, 1.5, 1.93, 2.0], 20_000, p=[0.01, 0.24, 0.25, 0.25, 0.25])
    together = function(first, alpha)
    for value in np.unique(alpha):
        np.testing.assert_array_equal(together[alpha == value], function(first[alpha == value], value))
    np.testing.assert_array_equal(together[:5], [function(a, b) for a, b in zip(first[:5], alpha[:5], strict=True)])


def test_shapes() -> None:
    assert np.ndim(stable.pdf(0.3, 1.5)) == 0
    assert stable.pdf(np.ones((3, 1)), [1.2, 1.5]).shape == (3, 2)
    assert stable.ppf(np.full((2, 1, 1), 0.3), [[1.2], [1.5]], [1.0, 2.0, 3.0]).shape == (2, 2, 3)
    assert stable.sf([], 1.5).shape == (0,)
    assert stable.isf([], 1.5).shape == (0,)
    assert stable.fisher_information([[1.2, 1.5]]).shape == (1, 2)
    assert stable.scale_alpha_information([1.2, 1.5, 1.7]).shape == (3, 2, 2)
    assert stable.pdf(1, 2).dtype == np.float64


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("alpha", [0.8, 1.5, 2.0])
def test_infinite_and_missing_arguments(method: str, alpha: float) -> None:
    x = [-math.inf, math.nan, math.inf]
    np.testing.assert_array_equal(stable.pdf(x, alpha, method=method), [0.0, math.nan, 0.0])
    np.testing.assert_array_equal(stable.logpdf(x, alpha, method=method), [-math.inf, math.nan, -math.inf])
    np.testing.assert_array_equal(stable.sf(x, alpha, method=method), [1.0, math.nan, 0.0])
    np.testing.assert_array_equal(stable.cdf(x, alpha, method=method), [0.0, math.nan, 1.0])
    end = math.inf if alpha == 2.0 else 0.0
    np.testing.assert_array_equal(stable.score(x, alpha, method=method), [-end, math.nan, end])
    p = [0.0, math.nan, 1.0]
    np.testing.assert_array_equal(stable.ppf(p, alpha, method=method), [-math.inf, math.nan, math.inf])
    np.testing.assert_array_equal(stable.isf(p, alpha, method=method), [math.inf, math.nan, -math.inf])


def test_largest_and_smallest_numbers() -> None:
    big, tiny = np.finfo(float).max, np.finfo(float).tiny
    for alpha in (0.5, 1.0, 1.5, 2.0 - 2.0**-52, 2.0):
        for method in METHODS:
            assert stable.pdf(tiny, alpha, method=method) == stable.pdf(0.0, alpha, method=method)
            assert stable.pdf(big, alpha, method=method) == 0.0
            assert stable.score(tiny, alpha, method=method) >= 0.0
            assert stable.sf(big, alpha, method=method) < 1e-150
            assert stable.pdf(big, alpha, 1e-5, method=method) == 0.0  # x / scale overflows
            assert stable.isf(tiny, alpha, method=method) > 50.0
    assert stable.isf(tiny, 0.5) == math.inf  # about 1e615
    np.testing.assert_allclose(stable.isf(tiny, 1.0), 1.0 / (math.pi * tiny), rtol=1e-12)


def test_bad_input_is_named() -> None:
    for alpha in (0.49, 2.0000001, math.nan, math.inf, [1.5, 3.0]):
        with pytest.raises(InputError, match="alpha"):
            stable.pdf(0.0, alpha)
        with pytest.raises(InputError, match="alpha"):
            stable.fisher_information(alpha)
    for scale in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="scale"):
            stable.cdf(0.0, 1.5, scale)
    for p in (-1e-9, 1.1, math.inf):
        with pytest.raises(InputError, match="probability"):
            stable.ppf(p, 1.5)
    with pytest.raises(InputError, match="method"):
        stable.pdf(0.0, 1.5, method="fast")


def test_import_builds_nothing() -> None:
    code = (
        "import sys, lagreach.tails.stable as s\n"
        "assert s.table._tables.cache_info().currsize == 0\n"
        "assert 'scipy.stats' not in sys.modules\n"
        "s.pdf(1.0, 1.5)\n"
        "assert s.table._tables.cache_info().currsize == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
