"""One law of N: diagnoses, strengths, what-ifs, chunks, plans and measured concentration all follow it."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

import lagreach
from lagreach.advice.plan import plan
from lagreach.advice.suggest import suggest
from lagreach.advice.what_if import log_quantile, what_if
from lagreach.detection import detectable_signal, required_sequences
from lagreach.detection.law import (
    block_size,
    log_n,
    log_ratio,
    log_sequences,
    mean_range,
    reach,
    turned,
)
from lagreach.diagnosis.assemble import window_of
from lagreach.diagnosis.measure import plan_measurement
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.gradients.blocks import block_means
from lagreach.gradients.noise import NoiseValues
from lagreach.gradients.significance import gram, off_diagonal_mean
from lagreach.regimes import window_growth
from lagreach.tails.concentration import Concentration
from lagreach.types import Status
from tests.report.cases import gated, heavy
from tests.tails.laws import symmetric_stable

sizes = st.floats(1e-3, 1e3)
kappas = st.floats(2.0, 10.0)
errors = st.floats(0.001, 0.4)
shares = st.floats(0.01, 1.0)
FEW = settings(max_examples=25, deadline=None)


def by_hand(spread, signal, kappa, start=1.0):
    """The law as it is printed, without logarithms."""
    return start * np.power(spread / signal, kappa)


@given(sizes, sizes, kappas, st.integers(1, 64))
def test_the_law_is_its_own_inverse_and_turning_back_and_forth_changes_nothing(spread, signal, kappa, start):
    log = log_sequences(math.log(spread / signal), kappa, math.log(start))
    np.testing.assert_allclose(np.exp(log), by_hand(spread, signal, kappa, start), rtol=1e-10)
    np.testing.assert_allclose(log_ratio(log, kappa, math.log(start)), math.log(spread / signal), atol=1e-10)
    there = turned(log, kappa, 3.0, math.log(start))
    np.testing.assert_allclose(turned(there, 3.0, kappa, math.log(start)), log, rtol=1e-9, atol=1e-9)


# --- measured concentration ---------------------------------------------------------------------------------------


def measured_rate(sd, relative_range, fall, kappa, pessimistic):
    """Concentration as if measured: R of single sequences in units of their sd, and at sizes up to 8, falling as a power."""
    dyadic = (1, 2, 4, 8)
    return Concentration(
        kappa=kappa, interval=(kappa, pessimistic), kappa_pessimistic=pessimistic, inverse_kappa=1 / kappa,
        inverse_interval=(1 / pessimistic, 1 / kappa), status=Status.KAPPA_TWO if kappa == 2 else Status.OK, blocks=(1, 8),
        sizes=dyadic, spreads=tuple(sd * relative_range * m**-fall for m in dyadic), n=1000, error=0.05, level=0.95, sd=sd,
    )  # fmt: skip


falls = st.floats(0.1, 0.5)
relative_ranges = st.floats(0.3, 5.0)


@given(
    sizes, relative_ranges, falls, st.floats(2.0, 10.0, exclude_min=True), st.floats(1.0, 3.0), st.floats(1e-6, 0.999)
)
def test_measured_concentration_extrapolates_by_the_law(sd, relative_range, fall, kappa, slower, part):
    rate = measured_rate(sd, relative_range, fall, kappa, kappa * slower)
    signal = part * rate.spreads[-1]  # beyond what was measured
    answer, start = rate.required(signal), block_size(rate)
    expected = by_hand(rate.spread(start), signal, kappa, start)
    np.testing.assert_allclose(answer.sequences, expected, rtol=1e-12)
    np.testing.assert_allclose(
        answer.pessimistic, by_hand(rate.spread(start), signal, kappa * slower, start), rtol=1e-12
    )


@given(sizes, relative_ranges, falls, st.floats(1e-9, 1e-7))
def test_with_finite_variance_it_needs_what_the_standard_deviation_says(sd, relative_range, fall, part):
    rate = measured_rate(sd, relative_range, fall, 2.0, 2.0)
    signal = part * sd  # so small that N is far beyond the sizes measured, which then no longer count
    assert block_size(rate) == 1
    np.testing.assert_allclose(rate.required(signal).sequences, required_sequences(signal, sd), rtol=1e-10)


# --- diagnoses ----------------------------------------------------------------------------------------------------


@given(sizes, sizes, errors)
def test_the_number_for_a_lag_is_the_documented_one(sd, delta, error):
    ranges = 2 * ndtri(1 - error) * np.array([sd])
    computed = np.exp(log_n(np.array([delta**2]), ranges, 1, 2.0))[0]
    np.testing.assert_allclose(computed, required_sequences(delta, sd, error=error, kappa=2.0), rtol=1e-9)
    np.testing.assert_allclose(detectable_signal(computed, sd, error=error, kappa=2.0), delta, rtol=1e-9)
    assert lagreach.required_sequences is required_sequences


DRAWS = 4096  # of noise: enough to measure an exponent above 2
ALPHA = 1.6  # of the heavy tails


@cache
def first_pass():
    """Block means of a small network whose target is the input two steps before."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 8, 2, generator=generator)
    y = torch.nn.functional.pad(x[:, :-2, :1], (0, 0, 2, 0))
    model = lagreach.GatedRNN("diag_gate", 2, 4, 1, gate_init=0.5, generator=generator)
    chosen = MeasureSettings(blocks=16, probes=1, flips=199)
    planned = plan_measurement(model, (x, y), "mse", range(4), settings=chosen)
    return planned, block_means(planned), chosen


@pytest.mark.parametrize(
    ("tails", "error"), [("normal", 0.05), ("normal", 0.2), ("uniform", 0.01), ("heavy", 0.1), ("heavy", 0.2)]
)
def test_a_diagnosis_follows_it_whatever_the_noise(tails, error):
    planned, means, chosen = first_pass()
    random, bands = np.random.default_rng(0), len(planned.bands)
    shape = (DRAWS, 2, bands)  # of the data's signal and of the planted one
    drawn = {
        "normal": random.normal(size=shape),
        "uniform": random.uniform(-1.0, 1.0, size=shape),
        "heavy": symmetric_stable(ALPHA)(random, DRAWS * 2 * bands).reshape(shape),
    }[tails] * np.exp(random.normal(size=(2, bands)))
    number, blocks = np.arange(DRAWS), np.arange(16)
    values = NoiseValues(number, number % 16, drawn[:, 0], drawn[:, 1:], blocks, np.ones((16, 2, bands, 3)))
    window = window_of(planned, means, values, replace(chosen, error=error))
    rate = window.concentration
    assert (rate.kappa > 2) == (tails == "heavy")
    start, ranges = mean_range(drawn, rate, error)
    assert start == block_size(rate)

    dependent = window.adjusted_p <= error
    assert dependent.any()
    expected = by_hand(ranges[0][dependent], window.delta[dependent], rate.exponent, start)
    np.testing.assert_allclose(window.required.sequences[dependent], expected, rtol=1e-9)
    assert np.isinf(window.required.sequences[~dependent]).all()
    products, scale = gram(means.probe[:, 0])
    signal = np.sqrt(off_diagonal_mean(products)) * scale * means.planted_scale(planned.probe.group)[0]
    np.testing.assert_allclose(window.probe.sequences, by_hand(ranges[1], signal, rate.exponent, start), rtol=1e-9)
    if tails != "heavy":
        documented = required_sequences(window.delta[dependent], window.noise[dependent], error=error)
        np.testing.assert_allclose(window.required.sequences[dependent], documented, rtol=1e-9)


# --- what follows from a diagnosis --------------------------------------------------------------------------------


def windows():
    """A window with the exponent 2 and one with a larger one."""
    return [gated().layers[0].window, heavy().layers[0].window]


@FEW
@given(shares)
def test_strength_and_what_if_agree(strength):
    for window in windows():
        direct, asked = window.required_if_present(strength), what_if(window, strength=strength).planted
        for name in ("sequences", "pessimistic", "robust"):
            np.testing.assert_allclose(getattr(direct, name), getattr(asked, name), rtol=1e-9, err_msg=name)
        expected = by_hand(1.0, math.sqrt(strength), window.concentration.exponent, window.probe.sequences)
        np.testing.assert_allclose(direct.sequences, expected, rtol=1e-9)


@FEW
@given(shares, st.floats(0.1, 10.0), errors, kappas)
def test_a_what_if_moves_the_ratio_and_turns_the_exponent(strength, noise, error, kappa):
    for window in windows():
        start = block_size(window.concentration)
        ratio = np.power(window.probe.sequences / start, 1 / window.concentration.exponent)  # R_m / delta as measured
        spread = noise * math.exp(log_quantile(kappa, error) - log_quantile(kappa, window.error))
        asked = what_if(window, strength=strength, noise=noise, error=error, kappa=kappa)
        expected = by_hand(ratio * spread, math.sqrt(strength), kappa, start)
        np.testing.assert_allclose(asked.planted.sequences, expected, rtol=1e-9)
        unchanged = what_if(window, kappa=window.concentration.exponent).planted.sequences
        np.testing.assert_allclose(unchanged, window.required_if_present().sequences, rtol=1e-9)


@FEW
@given(st.floats(1.0, 1e9))
def test_windows_of_all_kinds_read_the_same_lag(sequences):
    diagnosis = gated()
    window = diagnosis.layers[0].window
    planted = window.required_if_present()
    expected = reach(planted.lags, planted.sequences, sequences)
    assert window.at(sequences).lag == expected == what_if(window, sequences=sequences).at.lag
    assert diagnosis.window(sequences).lag == expected
    within = [lag for lag in planted.lags.tolist() if planted.at(lag)["sequences"] <= sequences]
    assert expected == max(within, default=None)


@FEW
@given(st.floats(1.0, 1e9), st.sampled_from([1, 3, 6, 9, 16]))
def test_chunks_need_more_as_their_share_of_the_signal_is_smaller(sequences, lag):
    for diagnosis in (gated(), heavy()):
        window, time = diagnosis.layers[0].window, int(diagnosis.settings["time"])
        suggestion = suggest(diagnosis, [lag], sequences=sequences)
        needed, chunk = window.required_if_present().at(lag)["sequences"], suggestion.truncation
        np.testing.assert_allclose(suggestion.needed, needed, rtol=1e-12)
        share = (chunk - lag) / chunk  # of the steps of a chunk; all of them have a loss
        expected = by_hand((time - lag) / time, share, window.concentration.exponent, needed)
        np.testing.assert_allclose(suggestion.needed_truncated, expected, rtol=1e-9)
        assert suggestion.needed_truncated <= sequences or not needed <= sequences or chunk == time


def test_a_suggestion_names_the_lag_that_the_law_reaches():
    diagnosis = gated()
    for count in (50, 10**4, 10**8):
        farthest = diagnosis.window(count).lag
        words = " ".join(suggest(diagnosis, sequences=count).reasons)
        assert farthest is None or f"lag {farthest}" in words


def test_a_chunk_too_short_for_a_lag_needs_infinitely_many():
    from lagreach.advice.suggest import _Chunks

    chunks = _Chunks(gated())
    assert chunks.needed(10, 100.0, 10) == math.inf
    assert chunks.needed(10, math.inf, 15) == math.inf


# --- plans --------------------------------------------------------------------------------------------------------


@given(sizes, kappas, st.integers(1, 500), st.floats(0.1, 3.0))
def test_growth_follows_it(constant, kappa, lag, beta):
    growth = window_growth("power", {"c": 1.0, "beta": beta}, kappa, constant)
    needed = growth.required(float(lag))
    np.testing.assert_allclose(needed, by_hand(float(lag) ** beta, 1.0, kappa, constant), rtol=1e-9)
    if math.isfinite(needed):
        np.testing.assert_allclose(growth.at(needed), lag, rtol=1e-6)


@FEW
@given(st.floats(0.1, 2.0), st.floats(0.1, 10.0), st.floats(0.1, 10.0), kappas, errors, st.floats(1.0, 1e7))
def test_plans_follow_it(beta, signal, sigma, kappa, error, sequences):
    lags = np.arange(1, 200)
    chosen = plan(
        "power", beta=beta, signal=signal, sigma=sigma, kappa=kappa, error=error, sequences=sequences, lags=lags
    )
    expected = by_hand(2 * ndtri(1 - error) * sigma, signal * lags**-beta, kappa)
    np.testing.assert_allclose(chosen.mean.required, expected, rtol=1e-9)
    documented = required_sequences(chosen.separation, sigma, kappa=kappa, error=error)
    np.testing.assert_allclose(chosen.mean.required, documented, rtol=1e-9)
    if reach(lags, chosen.mean.required, sequences) != lags[-1]:  # else the window reaches farther than these lags
        assert chosen.mean.window == reach(lags, chosen.mean.required, sequences)
