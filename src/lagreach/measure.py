"""Measure the learnability window of a model on data: two passes, then small statistics.

1. *Directions*: block means of the signal gradients of every lag (swap contrast and probe).
2. *Noise*: the gradient of every sequence along every lag's direction.

Both passes work block by block, keep memory flat in the number of sequences, and merge from shards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from lagreach.adapters import Recurrence, View, as_view
from lagreach.adapters.view import check_finite
from lagreach.errors import InputError
from lagreach.gradients.bands import Bands, make_bands
from lagreach.gradients.blocks import Directions, directions
from lagreach.gradients.contrast import SIGNALS, make_probe
from lagreach.gradients.lag_gradients import TRANSPORTS
from lagreach.gradients.memory import memory
from lagreach.gradients.noise import DIRECTIONS, NOISES, UNITS, NoiseValues, statistics, unit_directions
from lagreach.gradients.reliance import reliance
from lagreach.gradients.selection import Selection, select_params
from lagreach.gradients.sequences import Sequences, as_sequences, plan_blocks
from lagreach.gradients.significance import (
    Significance,
    flip_test,
    gram,
    jackknife_spread,
    leave_one_out,
    null_spread,
    off_diagonal_mean,
)
from lagreach.gradients.task import Task
from lagreach.sequences_needed import exp, log_n, mean_range, robust
from lagreach.tails.concentration import Concentration, concentration
from lagreach.transport.objective import Loss
from lagreach.transport.rollout import run
from lagreach.types import Status
from lagreach.window import Requirement, Window

GROUP = 8  # blocks that are measured together; an interrupt keeps whole groups


@dataclass(frozen=True)
class MeasureSettings:
    """How a window is measured; the names are those of the theory (2b-2d)."""

    signal: str = "dependence"
    direction: str = "matched"
    noise: str = "gradient"
    unit: str = "sequence"
    transport: str = "exact"
    strength: float = 0.05
    error: float = 0.05
    blocks: int = 32
    probes: int = 4
    flips: int = 1999
    seed: int = 0


def measure_window(
    model: nn.Module | Recurrence | View,
    data: Any,
    loss: Loss = "mse",
    lags: str | Iterable[int] = "auto",
    *,
    params: Selection = "input",
    require: Sequence[int] = (),
    steps: Any = None,
    settings: MeasureSettings | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Window:
    """Measure how many sequences each lag needs, on the data and for a planted dependency.

    Parameters
    ----------
    data
        ``(x, y)``, ``(x, y, mask)`` or ``(x, y, mask, lengths)`` tensors, or any iterable of such batches (spooled to a
        temporary file once).
    lags
        "auto": contiguous bands over all lags; or the lags to look at. `require` lags are always the edge of a band.
    params
        Weights whose gradient is looked at: "input" (locates lags), "all", "recurrent", "gates", or a function of a name.
    progress
        Called with the name of the stage, how many sequences are done, and how many there are.
    """
    settings = settings or MeasureSettings()
    task = make_task(model, data, loss, lags, params=params, require=require, steps=steps, settings=settings)
    found = directions(task, progress=_stage(progress, "directions", task.plan.sequences))
    return _finish(task, found, settings, progress)[0]


def interruptible_window(
    task: Task, settings: MeasureSettings, progress: Callable[[str, int, int], None] | None = None
) -> tuple[Window, np.ndarray, bool]:
    """Measure a window block by block; an interrupt keeps the blocks that are finished.

    Returns the window, the noise values at a typical lag, and whether it was cut short. A second interrupt, or one before
    eight blocks are done, goes through.
    """
    tick = _stage(progress, "directions", task.plan.sequences)
    parts: list[Directions] = []
    cut_short = False
    try:
        for start in range(0, task.plan.count, GROUP):
            parts.append(directions(task, range(start, min(start + GROUP, task.plan.count)), progress=tick))
    except KeyboardInterrupt:
        if not parts:
            raise
        cut_short = True
        task = replace(task, plan=task.plan.only(range(GROUP * len(parts))))
    window, values = _finish(task, Directions.merge(parts), settings, progress)
    return window, values.probe[:, 0, len(task.bands) // 2], cut_short


def _finish(
    task: Task, found: Directions, settings: MeasureSettings, progress: Callable[[str, int, int], None] | None
) -> tuple[Window, NoiseValues]:
    along = unit_directions(found, task.probe.group, settings.direction, np.random.default_rng(settings.seed))
    tick = _stage(progress, "noise", task.plan.sequences)
    values = statistics(task, along, noise=settings.noise, unit=settings.unit, progress=tick)
    return assemble(task, found, values, settings), values


def make_task(
    model: nn.Module | Recurrence | View,
    data: Any,
    loss: Loss,
    lags: str | Iterable[int],
    *,
    params: Selection = "input",
    require: Sequence[int] = (),
    steps: Any = None,
    settings: MeasureSettings,
) -> Task:
    """Read the data once, pair the sequences, and fix bands and probes: all that both passes must share."""
    check_settings(settings)
    sequences = as_sequences(data)
    view = as_view(model, sequences.read(range(min(2, len(sequences)))))
    plan = plan_blocks(sequences, settings.blocks, settings.seed)
    mean, covariance, time = _input_moments(view, sequences)
    out = run(view.bind(sequences.read([0]))).output.shape[-1]
    generator = torch.Generator().manual_seed(settings.seed)
    return Task(
        view=view,
        sequences=sequences,
        plan=plan,
        loss=loss,
        names=select_params(view.template, params),
        bands=make_bands(lags, time, require),
        probe=make_probe(mean, covariance, out, settings.probes, generator),
        time=time,
        signal=settings.signal,
        transport=settings.transport,
        steps=steps,
    )


def check_settings(settings: MeasureSettings) -> None:
    """Refuse what cannot work before anything is computed."""
    choices = {"signal": SIGNALS, "direction": DIRECTIONS, "noise": NOISES, "unit": UNITS, "transport": TRANSPORTS}
    for name, allowed in choices.items():
        if getattr(settings, name) not in allowed:
            raise InputError(f"unknown {name}", got=repr(getattr(settings, name)), expected=" or ".join(allowed))
    if not 0 < settings.error < 0.5:
        raise InputError("error is a probability below one half", got=settings.error)
    if not 0 < settings.strength <= 1:
        raise InputError("strength is a share of the target's variance", got=settings.strength, expected="0 < s <= 1")
    rare = 1 / settings.error  # flips, and blocks' patterns of signs, must allow a p-value as small as the error
    least = {"flips": math.ceil(rare) - 1, "blocks": max(4, math.ceil(1 + math.log2(rare))), "probes": 1, "seed": 0}
    for name, bound in least.items():
        if getattr(settings, name) < bound:
            raise InputError(f"{name} is too small", got=getattr(settings, name), expected=f"at least {bound}")


def _input_moments(view: View, sequences: Sequences, read: int = 64) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Mean and covariance of the recurrent layer's inputs over valid steps, and the longest sequence."""
    total, squares, count, time = None, None, 0, 0
    for start in range(0, len(sequences), read):
        batch = sequences.read(range(start, min(start + read, len(sequences))))
        if batch.lengths is None:
            check_finite("the input x", batch.x)
        bound = view.bind(batch)
        time = max(time, bound.x.shape[1])
        x = bound.x.double().cpu()
        if bound.lengths is not None:
            x = torch.cat([one[:n] for one, n in zip(x, bound.lengths.tolist(), strict=True)])
        else:
            x = x.flatten(0, 1)
        count += len(x)
        total = x.sum(0) if total is None else total + x.sum(0)
        squares = x.T @ x if squares is None else squares + x.T @ x
    assert total is not None
    assert squares is not None
    mean = total / count
    return mean, squares / count - torch.outer(mean, mean), time


def _stage(progress: Callable[[str, int, int], None] | None, name: str, of: int) -> Callable[[int], None] | None:
    """Turn counts of newly finished sequences into calls of `progress` with how many are done."""
    if progress is None:
        return None
    done = 0

    def tick(new: int) -> None:
        nonlocal done
        done += new
        progress(name, done, of)

    return tick


def assemble(task: Task, found: Directions, values: NoiseValues, settings: MeasureSettings) -> Window:
    """Turn the merged results of both passes into a window."""
    generator = np.random.default_rng(settings.seed)
    means = found.data if settings.direction == "matched" else _along_random(found, task, settings)
    test = flip_test(means, flips=settings.flips, generator=generator)
    noise = _noise_scale(values, settings.unit)
    speed = _concentration(values, settings)
    shared: dict[str, Any] = {"value_block": values.block, "blocks": found.block, "speed": speed, "settings": settings}
    data = _requirement(task.bands, means, values.data, noise=noise[0], test=test, **shared)
    planted = found.planted(task.probe.group)
    per_probe = [
        _requirement(task.bands, planted[:, p], values.probe[:, p], noise=noise[1 + p], test=None, **shared)
        for p in range(planted.shape[1])
    ]
    significant = test.adjusted <= settings.error
    asked = [lag for lag, use in zip(task.bands.lags, significant, strict=True) if use]
    edges = task.bands.edges
    held = memory(task, task.bands.lags, [last - first + 1 for first, last in edges])
    warnings = _warnings(values, speed, settings)
    if not held.independent_inputs:
        warnings += (
            "inputs are correlated in time: the dependences found are marginal, lags may stand in for each other",
        )
    return Window(
        required=data,
        probe=_geometric_mean(per_probe),
        adjusted_p=test.adjusted,
        delta=test.delta,
        noise=noise[0],
        concentration=speed,
        design_effect=_design_effect(values),
        reliance=reliance(task, asked, flips=settings.flips, seed=settings.seed),
        memory=held,
        sequences=task.plan.sequences,
        strength=settings.strength,
        error=settings.error,
        settings=asdict(settings) | {"params": list(task.names), "lags": [list(edge) for edge in edges]},
        warnings=warnings,
    )


def _along_random(found: Directions, task: Task, settings: MeasureSettings) -> np.ndarray:
    """Signals along the random direction, as vectors of length one."""
    along = unit_directions(found, task.probe.group, "random", np.random.default_rng(settings.seed))[:, 0]
    return np.einsum("klp,klp->kl", found.data, along)[..., None]


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
    values: np.ndarray,
    value_block: np.ndarray,
    blocks: np.ndarray,
    noise: np.ndarray,
    speed: Concentration,
    settings: MeasureSettings,
    test: Significance | None,
) -> Requirement:
    """N(l) with a block-jackknife interval, for one signal.

    `means` (block, band, param) carry the signal, `values` (seq, band) the noise. With `test`, lags that are not
    significant get inf and a lower bound from the upper limit of the signal.
    """
    from scipy.special import stdtrit

    products, scale = gram(means)
    squares = leave_one_out(products) * scale**2
    whole = off_diagonal_mean(products) * scale**2
    spread_of_values = values.std(0, ddof=1)
    factor = noise / np.where(spread_of_values > 0, spread_of_values, 1.0)  # differs from one for unit="step"
    start, ranges = mean_range(values, speed, settings.error)
    without = np.stack([mean_range(values[value_block != block], speed, settings.error)[1] for block in blocks])
    kappa = math.nan if speed.status is Status.KAPPA_REFUSED else speed.exponent
    log_needed = log_n(whole, ranges * factor, start, kappa)
    spread = jackknife_spread(log_n(squares, without * factor, start, kappa))
    half = stdtrit(len(blocks) - 1, 0.975) * np.where(np.isfinite(spread), spread, np.inf)
    # where there is nothing to see, N has a lower bound only: from the largest signal that may have been missed
    upper = np.maximum(whole, 0) + 1.645 * np.maximum(jackknife_spread(squares), null_spread(products) * scale**2)
    bound = exp(log_n(upper, ranges * factor, start, 2.0 if math.isnan(kappa) else kappa))
    # a measured kappa brings its own interval; NaN where N is refused
    kappas = (kappa, *speed.interval) if speed.status is Status.OK else (kappa,)
    ends = np.stack([np.where(np.isinf(log_needed), 0.0, log_n(whole, ranges * factor, start, k)) for k in kappas])
    low, high = (np.where(np.isinf(log_needed), log_needed, end) for end in (ends.min(0) - half, ends.max(0) + half))
    slow = speed.kappa_pessimistic if math.isfinite(speed.kappa_pessimistic) else kappa
    pessimistic = np.maximum(log_needed, log_n(whole, ranges * factor, start, slow))
    numbers = {
        "sequences": exp(log_needed),
        "low": np.where(np.isposinf(log_needed), bound, exp(low)),
        "high": exp(high),
        "pessimistic": exp(pessimistic),
        "robust": robust(whole, values, settings.error),
    }
    # a lag that no gradient speaks about (an input that never varies, say) has no noise to stand out of
    status = [Status.OK if spread > 0 else Status.NO_SPREAD for spread in spread_of_values.tolist()]
    if speed.status in (Status.KAPPA_REFUSED, Status.NO_SPREAD):  # the mean may not concentrate: only clipping helps
        status = [speed.status] * len(bands)
        numbers = {name: n if name == "robust" else np.full(len(bands), np.nan) for name, n in numbers.items()}
    if test is not None:
        found = test.adjusted <= settings.error
        numbers = {name: np.where(found, n, bound if name == "low" else np.inf) for name, n in numbers.items()}
        status = [s if yes else Status.NOT_SIGNIFICANT for s, yes in zip(status, found, strict=True)]
    first = np.array([edge[0] for edge in bands.edges])
    return Requirement(np.array(bands.lags), first, **numbers, status=tuple(status))


def _geometric_mean(parts: list[Requirement]) -> Requirement:
    """One requirement from several probes: a typical direction, not the best or the worst one."""

    def mean(name: str) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return exp(np.log(np.stack([getattr(part, name) for part in parts])).mean(0))

    names = ("sequences", "low", "high", "pessimistic", "robust")
    head = parts[0]
    return Requirement(head.lags, head.first, **{name: mean(name) for name in names}, status=head.status)


def _warnings(values: NoiseValues, speed: Concentration, settings: MeasureSettings) -> tuple[str, ...]:
    notes = []
    if len(values.data) < 500:
        notes.append(f"only {len(values.data)} sequences: tails and intervals are rough; 500 or more are better")
    if settings.signal == "gradient":
        notes.append("signal='gradient' is not zero without a dependency, and is zero once one is learned")
    if settings.noise == "lag":
        notes.append("noise='lag' shrinks with the transport as the signal does: these N do not depend on the envelope")
    if settings.unit == "step":
        notes.append("unit='step' counts steps as if they were independent; the design effect says how far they are")
    if speed.status in (Status.KAPPA_REFUSED, Status.NO_SPREAD):
        notes.append(str(speed.status))
    return tuple(notes)
