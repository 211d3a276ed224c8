"""From the merged results of both passes to a `Window`: tests, noise, concentration, and N for every lag."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np

from lagreach.data.bands import Bands
from lagreach.data.course import MISLED
from lagreach.data.shared_inputs import shared_columns, shared_lags
from lagreach.detection.law import exp, log_n, mean_range, measured_range, robust
from lagreach.diagnosis.passes import BetweenPasses, Collected, FirstPass, SecondPass, Statistics, between_passes
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.diagnosis.window import Requirement, Window
from lagreach.gradients.blocks import BlockMeans
from lagreach.gradients.measurement_plan import MeasurementPlan
from lagreach.gradients.noise import NoiseValues
from lagreach.gradients.overflow import vanished
from lagreach.gradients.significance import (
    LOOKS,
    Significance,
    gram,
    jackknife_spread,
    leave_one_out,
    null_spread,
    off_diagonal_mean,
)
from lagreach.statistics import Measured, draw_curves
from lagreach.statistics.memory import Memory
from lagreach.statistics.reliance import NO_RELIANCE, Reliance
from lagreach.tails.concentration import Concentration, concentration
from lagreach.types import Status

INTERRUPTED = (
    "interrupted before the noise was measured: what the data depend on is told, how many sequences it takes is not"
)


class MeasuredWindow(NamedTuple):
    """A window, a sample of the noise, whether it was cut short, what statistics collected, and of how many sequences."""

    window: Window
    noise_sample: np.ndarray
    cut_short: bool
    collected: Collected
    sequences: int


def assemble(
    plan: MeasurementPlan,
    first: FirstPass,
    between: BetweenPasses,
    second: SecondPass,
    settings: MeasureSettings,
    statistics: Statistics,
) -> Window:
    """Turn the merged results of both passes into a window. Nothing is run here: it is small and on the processor."""
    memory = first.collected["memory"].result() if "memory" in first.collected else Memory.unknown(plan.bands.lags)
    reliance = second.collected["reliance"].result(settings.flips) if "reliance" in second.collected else NO_RELIANCE
    window = window_from(
        plan.bands, plan.probe.group, plan.block_plan.sequences, between.signal, first.means, between.test,
        second.noise, settings=settings, reliance=reliance, memory=memory,
        more={"params": list(plan.names), "lags": [list(edge) for edge in plan.bands.edges]},
    )  # fmt: skip
    why = Status.LIMIT_CANNOT_BE_TOLD if plan.block_plan.untold else Status.LIMIT_SHARED_INPUT
    warnings = window.warnings
    if window.concentration.status is Status.NO_SPREAD:
        warnings += (vanished(plan),)
    if plan.block_plan.untold:
        warnings += (plan.block_plan.untold,)
    if len(plan.probe.group) < settings.probes:
        warnings += (
            f"N is averaged over {len(plan.probe.group)} planted dependencies instead of {settings.probes}: the gradients of "
            f"{plan.width:,} weights take much memory; ask for fewer lags, or for fewer weights by params=",
        )
    warnings += _dependence_notes(plan.bands, first, between, settings)
    window = replace(
        window,
        required=untold(window.required, ~np.isnan(between.test.adjusted), why),
        probe=untold(window.probe, between.told, why),
        warnings=warnings,
        marginal_p=between.marginal,
        named=between.dependences,
        left=between.left,
        planned=plan.planned,
    )
    return replace(window, curves=draw_curves(statistics, Measured(window), first.collected | second.collected))


def window_from(
    bands: Bands,
    group: tuple[int, ...],
    sequences: int,
    signal: np.ndarray,
    means: BlockMeans,
    test: Significance,
    values: NoiseValues,
    *,
    settings: MeasureSettings,
    reliance: Reliance,
    memory: Memory,
    more: Mapping[str, Any],
) -> Window:
    """Put a window together from block means, the test of every lag and noise values, whatever they are gradients of.

    `signal` (block, band, ...) is that of the data, along the directions asked for; `more` are further settings to keep.
    """
    noise = _noise_scale(values, settings.unit)
    rate = _concentration(values, settings)
    if not values.measured:
        rate = replace(rate, status=Status.INTERRUPTED, n=0)
    shared: dict[str, Any] = {"value_block": values.block, "blocks": means.block, "rate": rate, "settings": settings}
    data = _requirement(bands, signal, gram(signal), values.data, noise=noise[0], test=test, **shared)
    planted = [
        (products, times * scale)
        for p, times in enumerate(means.planted_scale(group))
        for products, scale in [gram(means.probe[:, p])]
    ]
    per_probe = [
        _requirement(bands, means.probe[:, p], of_probe, values.probe[:, p], noise=noise[1 + p], test=None, **shared)
        for p, of_probe in enumerate(planted)
    ]
    required, probe = data, _geometric_mean(per_probe)
    if not values.measured:
        required, probe = (untold(one, np.zeros(len(bands), bool), Status.INTERRUPTED) for one in (required, probe))
    return Window(
        required=required,
        probe=probe,
        adjusted_p=test.adjusted,
        noticeable=test.noticeable(planted, settings.error / LOOKS),
        delta=test.delta,
        noise=noise[0],
        concentration=rate,
        design_effect=_design_effect(values),
        reliance=reliance,
        memory=memory,
        sequences=sequences,
        strength=settings.strength,
        error=settings.error,
        settings=asdict(settings) | dict(more),
        warnings=_warnings(values, rate, settings) + (() if memory.note is None else (memory.note,)),
    )


def window_of(plan: MeasurementPlan, means: BlockMeans, noise: NoiseValues, settings: MeasureSettings) -> Window:
    """Return the window of block means and noise alone: without memory, reliance and other statistics."""
    between = between_passes(plan, means, settings)
    return assemble(plan, FirstPass(means), between, SecondPass(noise), settings, {})


def _noise_scale(values: NoiseValues, unit: str) -> np.ndarray:
    """Standard deviation per signal and lag, (1 + probe, band), of sequences or of steps."""
    if unit == "step":
        return values.step_spread()
    return np.concatenate((values.data.std(0, ddof=1)[None], values.probe.std(0, ddof=1)))


def _design_effect(values: NoiseValues) -> float:
    """How much more a sequence's mean varies than if its steps were independent; the median over measured lags."""
    steps = values.step_spread()[0]
    lengths = values.step_sums[:, 0, :, 0].sum(0) / len(values.data)
    with np.errstate(invalid="ignore", divide="ignore"):
        effect = lengths * np.square(values.data.std(0) / steps)
    usable = effect[np.isfinite(effect)]
    return float(np.median(usable)) if len(usable) else math.nan


def _concentration(values: NoiseValues, settings: MeasureSettings) -> Concentration:
    """Kappa at the lag whose noise has the median ratio of tails to bulk: one exponent for all lags."""
    spread = values.probe[:, 0].std(0)
    ranges = np.quantile(values.probe[:, 0], 1 - settings.error, axis=0) - np.quantile(
        values.probe[:, 0], settings.error, axis=0
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        heaviness = np.where(spread > 0, ranges / spread, np.nan)
    if not np.isfinite(heaviness).any():
        return concentration(np.zeros(len(values.data)), error=settings.error, generator=settings.seed)
    typical = int(np.argsort(np.where(np.isfinite(heaviness), heaviness, np.inf))[np.isfinite(heaviness).sum() // 2])
    return concentration(values.probe[:, 0, typical], error=settings.error, generator=settings.seed)


def _requirement(
    bands: Bands,
    means: np.ndarray,
    inner: tuple[np.ndarray, np.ndarray],
    values: np.ndarray,
    *,
    value_block: np.ndarray,
    blocks: np.ndarray,
    noise: np.ndarray,
    rate: Concentration,
    settings: MeasureSettings,
    test: Significance | None,
) -> Requirement:
    """N(l) with a block-jackknife interval, for one signal.

    `means` (block, band, param) carry the signal, `inner` their products and what these are in units of, `values` (seq, band)
    the noise. With `test`, lags that are not significant get inf and a lower bound from the upper limit of the signal.
    """
    from scipy.special import stdtrit

    products, scale = inner
    squares = leave_one_out(products) * scale**2
    whole = off_diagonal_mean(products) * scale**2
    spread_of_values = values.std(0, ddof=1)
    factor = noise / np.where(spread_of_values > 0, spread_of_values, 1.0)  # differs from one for unit="step"
    start, ranges = mean_range(values, rate, settings.error)
    without = np.stack([mean_range(values[value_block != block], rate, settings.error)[1] for block in blocks])
    kappa = math.nan if rate.status is Status.KAPPA_REFUSED else rate.exponent
    log_needed = log_n(whole, ranges * factor, start, kappa)
    spread = jackknife_spread(log_n(squares, without * factor, start, kappa))
    half = stdtrit(len(blocks) - 1, 0.975) * np.where(np.isfinite(spread), spread, np.inf)
    # where there is nothing to see, N has a lower bound only: from the largest signal that may have been missed
    upper = np.maximum(whole, 0) + 1.645 * np.maximum(jackknife_spread(squares), null_spread(products) * scale**2)
    bound = exp(log_n(upper, ranges * factor, start, 2.0 if math.isnan(kappa) else kappa))
    # pessimistic: beyond the largest block that was measured, means settle as slowly as the interval of kappa allows
    pessimistic = log_needed
    if math.isfinite(rate.kappa_pessimistic):
        largest, measured = measured_range(values, rate, settings.error)
        slow = log_n(whole, measured * factor, largest, rate.kappa_pessimistic)
        pessimistic = np.maximum(log_needed, slow)
    # The interval of N spans that of kappa where kappa was measured, and the pessimistic N where it may still rise above 2.
    spanned = [log_needed, *([pessimistic] if rate.left_open else [])]
    if rate.status is Status.OK:
        spanned += [log_n(whole, ranges * factor, start, k) for k in rate.interval]
    ends = np.where(np.isinf(log_needed), 0.0, np.stack(spanned))
    low, high = (np.where(np.isinf(log_needed), log_needed, end) for end in (ends.min(0) - half, ends.max(0) + half))
    numbers = {
        "sequences": exp(log_needed),
        "low": np.where(np.isposinf(log_needed), bound, exp(low)),
        "high": exp(high),
        "pessimistic": exp(pessimistic),
        "robust": robust(whole, values, settings.error),
    }
    # a lag that no gradient speaks about (an input that never varies, say) has no noise to stand out of
    status = [Status.OK if spread > 0 else Status.NO_SPREAD for spread in spread_of_values.tolist()]
    for band in np.flatnonzero(_never_arrives(means, spread_of_values)):
        status[band] = Status.NEVER_ARRIVES
        for numbers_of in numbers.values():
            numbers_of[band] = np.inf
    if rate.status in (Status.KAPPA_REFUSED, Status.NO_SPREAD):  # the mean may not concentrate: only clipping helps
        status = [rate.status] * len(bands)
        numbers = {name: n if name == "robust" else np.full(len(bands), np.nan) for name, n in numbers.items()}
    if test is not None:
        significant = test.adjusted <= settings.error
        numbers = {name: np.where(significant, n, bound if name == "low" else np.inf) for name, n in numbers.items()}
        status = [s if yes else Status.NOT_SIGNIFICANT for s, yes in zip(status, significant, strict=True)]
    first = np.array([edge[0] for edge in bands.edges])
    return Requirement(np.array(bands.lags), first, **numbers, status=tuple(status))


def _never_arrives(means: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Bands whose gradient is zero in every sequence, while that of another band is not."""
    silent = (spread == 0) & ~means.any(axis=tuple(axis for axis in range(means.ndim) if axis != 1))
    return silent & ~silent.all()


def untold(needed: Requirement, told: np.ndarray, why: Status) -> Requirement:
    """The same with numbers that are not known where nothing can be told, and why."""
    names = ("sequences", "low", "high", "pessimistic", "robust")
    numbers = {name: np.where(told, getattr(needed, name), np.nan) for name in names}
    status = [s if known else why for s, known in zip(needed.status, told, strict=True)]
    return replace(needed, **numbers, status=tuple(status))


def _geometric_mean(parts: list[Requirement]) -> Requirement:
    """One requirement from several probes: a typical direction, not the best or the worst one."""

    def mean(name: str) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return exp(np.log(np.stack([getattr(part, name) for part in parts])).mean(0))

    names = ("sequences", "low", "high", "pessimistic", "robust")
    head = parts[0]
    return Requirement(head.lags, head.first, **{name: mean(name) for name in names}, status=head.status)


def _dependence_notes(
    bands: Bands, first: FirstPass, between: BetweenPasses, settings: MeasureSettings
) -> tuple[str, ...]:
    """What the lags that are named mean, where that is not plain, and what cannot be told."""
    notes = list(between.notes)
    if between.left < 1 and settings.signal == "dependence" and all(MISLED in note for note in notes):
        notes.append(
            f"inputs are correlated in time: dependences are partial, on what its neighbours leave of an input "
            f"({100 * between.left:.2g} % of its variance)"
        )
    if not between.told.all():
        lags = ", ".join(
            str(Bands((edge,))) for edge, known in zip(bands.edges, between.told, strict=True) if not known
        )
        notes.append(shared_lags(lags))
    elif first.inputs is not None and first.inputs.shared.all(0).any():
        notes.append(shared_columns(np.flatnonzero(first.inputs.shared.all(0)).tolist()))
    return tuple(notes)


def _warnings(values: NoiseValues, rate: Concentration, settings: MeasureSettings) -> tuple[str, ...]:
    if not values.measured:
        return (INTERRUPTED,)
    notes = []
    if len(values.data) < 500:
        notes.append(f"only {len(values.data)} sequences: tails and intervals are rough; 500 or more are better")
    if settings.signal == "gradient":
        notes.append("signal='gradient' is not zero without a dependency, and is zero once one is learned")
    if settings.noise == "lag":
        notes.append("noise='lag' shrinks with the transport as the signal does: these N do not depend on the envelope")
    if settings.unit == "step":
        notes.append("unit='step' counts steps as if they were independent; the design effect says how far they are")
    if rate.status in (Status.KAPPA_REFUSED, Status.NO_SPREAD):
        notes.append(str(rate.status))
    if rate.status is Status.KAPPA_TWO and rate.left_open:
        notes.append(
            f"averages of up to {rate.blocks[1]} gradients settle more slowly (kappa {1 / rate.inverse_kappa:.1f}) than by the "
            "square root of their number, as with some sequences far louder than others; larger ones may not: N follows the "
            "standard deviation, and its upper end the slow average"
        )
    return tuple(notes)
