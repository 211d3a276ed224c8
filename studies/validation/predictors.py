"""Predictors of what will be learned, from one checkpoint and fresh sequences; see `tables.PREDICTORS` for their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from torch import nn

from lagreach._util.threads import one_thread
from lagreach.advice.retention import retention
from lagreach.data.bands import Bands
from lagreach.data.batch import Batch
from lagreach.diagnosis.assemble import window_of
from lagreach.diagnosis.measure import MeasureSettings, plan_measurement
from lagreach.diagnosis.window import Window
from lagreach.errors import InputError
from lagreach.gradients.blocks import BlockMeans, block_means
from lagreach.gradients.measurement_plan import MeasurementPlan
from lagreach.gradients.noise import NoiseValues, noise_values, unit_directions
from lagreach.papers.livi.printed_window import paper_window
from lagreach.regimes import timescales
from lagreach.study.data import generator_for
from lagreach.study.tables import Row
from lagreach.tasks import Task
from lagreach.tasks.adding import Adding
from lagreach.transport.fidelity import fidelity
from lagreach.transport.first_order import effective_rates
from lagreach.transport.rollout import run
from lagreach.types import Status
from studies.validation.design import Condition, PredictorPlan
from studies.validation.last_step import LastStep, growth_per_step, walk_back

SHOWN = 32  # sequences that gains, rates and decays are averaged over
RATE_LAGS = 16  # lags that time scales are fitted to
# Variants of the default predictors; "blocks" are the folds.
ABLATIONS: dict[str, dict[str, Any]] = {
    "direction=random": {"direction": "random"},
    "params=all": {"params": "all"},
    "params=recurrent": {"params": "recurrent"},
    "blocks=32": {"blocks": 32},
    "blocks=64": {"blocks": 64},
    "unit=step": {"unit": "step"},
}
STRENGTHS = (0.02, 0.1)


@dataclass(frozen=True)
class Prediction:
    """A predictor's value at one lag of the task, with its interval (NaN where it has none)."""

    predictor: str
    lag: int
    value: float
    low: float = float("nan")
    high: float = float("nan")

    def row(self) -> Row:
        """As a row of a table, without saying which training it belongs to."""
        return asdict(self)


def fresh_batch(condition: Condition, plan: PredictorPlan, seed: int) -> Batch:
    """Sequences that predictors are measured on: the same at every stage and for every number of training sequences."""
    return condition.task.batch(plan.sequences, generator_for(condition.plan.name, seed, "diagnosis"))


@one_thread()
def predict(
    model: nn.Module, task: Task, batch: Batch, hidden: int, plan: PredictorPlan, seed: int = 0, *, ablate: bool = False
) -> list[Prediction]:
    """Every predictor at every lag of the task; with `ablate` also the variants of the default ones."""
    settings = measure_settings(plan, seed)
    lags = list(task.lags)
    with np.errstate(divide="ignore", invalid="ignore"):  # lags without any signal are inf, and mean it
        windows = _Windows(model, task, batch, settings)
        predictions = [*windows.predictions(), *_printed(model, task, batch, settings)]
        predictions += _by_rank(model, task, batch, hidden, windows, seed)
        for name, changes in ABLATIONS.items() if ablate else ():
            predictions += [replace(one, predictor=f"{one.predictor}|{name}") for one in windows.variant(**changes)]
        if ablate:
            for share in STRENGTHS:
                planted = windows.default.required_if_present(share)
                predictions += _of_window(planted, f"n_probe|strength={share:g}", lags)
    return predictions


def measure_settings(plan: PredictorPlan, seed: int) -> MeasureSettings:
    """Settings of the default predictors."""
    return MeasureSettings(
        blocks=plan.blocks, probes=plan.probes, flips=plan.flips, strength=plan.strength, error=plan.error, seed=seed
    )


def task_bands(task: Task) -> Bands:
    """One band for each lag that the task scores: the lag itself, or the bin of distances that it stands for."""
    if not isinstance(task, Adding):
        return Bands(tuple(getattr(task, "bands", ((lag, lag) for lag in task.lags))))
    first = [-(-task.length * b // task.bins) for b in range(task.bins + 1)]
    return Bands(tuple((a, b - 1) for a, b in pairwise(first)))


class _Windows:
    """Requirements of all kinds, sharing what they can."""

    def __init__(self, model: nn.Module, task: Task, batch: Batch, settings: MeasureSettings) -> None:
        self.model, self.task, self.batch, self.settings = model, task, batch, settings
        self.lags = list(task.lags)
        mask = task.mask()
        self.last_only = mask is not None and bool(mask[:-1].sum() == 0) and task.output_size == 1
        self.measured = self._measured(settings)
        self.walked = self._walk(self.measured)
        self.found = self._directions(self.measured, self.walked, "dependence")
        self.default: Window

    def _measured(self, settings: MeasureSettings, params: str = "input") -> MeasurementPlan:
        made = plan_measurement(self.model, self.batch, self.task.loss, self.lags, params=params, settings=settings)
        return replace(made, bands=task_bands(self.task))

    def _walk(self, measured: MeasurementPlan) -> LastStep | None:
        return walk_back(measured, max(1, *self.lags)) if self.last_only else None

    def _directions(self, measured: MeasurementPlan, walked: LastStep | None, signal: str) -> BlockMeans:
        return block_means(replace(measured, signal=signal)) if walked is None else walked.directions(signal)

    def _along(self, means: BlockMeans, settings: MeasureSettings) -> np.ndarray:
        generator = np.random.default_rng(settings.seed)
        return unit_directions(means, self.measured.probe.group, settings.direction, generator)

    def predictions(self) -> Iterator[Prediction]:
        """Return the default window, the raw gradient as signal, and the lag's own noise."""
        settings, measured, means = self.settings, self.measured, self.found
        along = self._along(means, settings)
        raw = self._directions(measured, self.walked, "gradient")
        # one pass over the sequences gives the noise along the directions of both signals
        both = np.concatenate((along, self._along(raw, settings)[:, :1]), axis=1)
        values = noise_values(measured, both, noise=settings.noise, unit=settings.unit)
        planted = values.probe.shape[1] - 1
        steps = values.step_sums[:, : 1 + planted]
        of_data = replace(values, probe=values.probe[:, :planted], step_sums=steps)
        of_raw = replace(of_data, data=values.probe[:, planted])
        self.default = window_of(measured, means, of_data, settings)
        yield from _of_window(self.default.required_if_present(), "n_probe", self.lags)
        yield from _of_window(self.default.required, "n_data", self.lags)
        window = window_of(replace(measured, signal="gradient"), raw, of_raw, replace(settings, signal="gradient"))
        yield from _of_window(window.required, "n_gradient", self.lags)
        lag_noise = noise_values(measured, along, noise="lag") if self.walked is None else self.walked.lag_noise(along)
        window = window_of(measured, means, lag_noise, replace(settings, noise="lag"))
        yield from _of_window(window.required, "n_lag_noise", self.lags)

    def variant(self, params: str = "input", **changes: Any) -> list[Prediction]:
        """Return the default predictors with other settings; NaN where the network has no such weights."""
        settings = replace(self.settings, **changes)
        try:
            measured = self._measured(settings, params)
        except InputError:  # a network without recurrent weights
            return [Prediction(name, lag, np.nan) for name in ("n_probe", "n_data") for lag in self.lags]
        means = self._directions(measured, self._walk(measured), "dependence")
        values: NoiseValues = noise_values(
            measured, self._along(means, settings), noise=settings.noise, unit=settings.unit
        )
        window = window_of(measured, means, values, settings)
        return [
            *_of_window(window.required_if_present(), "n_probe", self.lags),
            *_of_window(window.required, "n_data", self.lags),
        ]


def _of_window(required: Any, name: str, lags: list[int]) -> list[Prediction]:
    numbers = zip(lags, required.sequences, required.low, required.high, strict=True)
    return [Prediction(name, lag, float(value), float(low), float(high)) for lag, value, low, high in numbers]


def _printed(model: nn.Module, task: Task, batch: Batch, settings: MeasureSettings) -> list[Prediction]:
    """Sequences needed by the paper's own recipe."""
    lags = list(task.lags)
    printed = paper_window(model, batch, lags, task.loss, settings.error, settings.seed)
    return [Prediction("paper_window", lag, float(n)) for lag, n in zip(lags, printed.sequences, strict=True)]


def _by_rank(
    model: nn.Module, task: Task, batch: Batch, hidden: int, windows: _Windows, seed: int
) -> Iterator[Prediction]:
    """Return predictors without a scale of sequences: time scales and sizes are given per step of the lag."""
    lags = list(task.lags)
    shown = batch.select(range(min(SHOWN, len(batch))))
    if windows.walked is not None:
        first, *gains = windows.walked.log10_gain([1, *lags])
    else:
        at = sorted({1, *lags})
        exact = fidelity(model, shown.x, shown.y, at, task.loss, mask=shown.mask).log10_exact.tolist()
        first, gains = exact[at.index(1)], [exact[at.index(lag)] for lag in lags]
    part = run(windows.measured.view.bind(shown))
    growth = growth_per_step(part, generator_for(seed, "growth"))
    tau, half_life = longest_time_scale(model, shown, lags[-1]), retention(model, shown.x).layers[0].quantiles()[-1]
    for lag, gain in zip(lags, gains, strict=True):
        yield Prediction("gradient_ratio", lag, gain - first)  # as a decimal logarithm
        yield Prediction("lyapunov", lag, growth * lag)
        yield Prediction("tau_max", lag, tau / max(lag, 1))
        yield Prediction("half_life", lag, half_life / max(lag, 1))
        yield Prediction("capacity", lag, hidden / (lag + 1))


def longest_time_scale(model: nn.Module, batch: Batch, reach: int) -> float:
    """Largest time scale of the first-order rates; inf if some rate does not fall, 0 if nothing is retained."""
    last = min(max(reach, 8), batch.x.shape[1] - 1)
    at = sorted({round(lag) for lag in np.geomspace(1, last, RATE_LAGS).tolist()})
    scales = timescales(at, log10_rates=effective_rates(model, batch.x, at).log10_rates.numpy())
    if Status.NO_DECAY in scales.status:
        return float("inf")
    usable = scales.tau[np.isfinite(scales.tau)]
    return float(usable.max()) if len(usable) else 0.0
