"""Predictors of what will be learned, from one checkpoint and fresh sequences: the curves of `statistics.STATISTICS`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
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
from lagreach.statistics import LagCurve, LagStatistic, Measured, draw_curves
from lagreach.study.data import generator_for
from lagreach.study.tables import Row
from lagreach.tasks import Task
from lagreach.tasks.adding import Adding
from lagreach.transport.fidelity import Fidelity, fidelity
from lagreach.transport.first_order import effective_rates
from lagreach.transport.rollout import run
from lagreach.types import Status
from studies.validation.design import Condition, PredictorPlan
from studies.validation.last_step import LastStep, growth_per_step, walk_back
from studies.validation.statistics import IN_DATA, IN_SEQUENCES, PLANTED, STATISTICS, predictor_name

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
        default, others = windows.measure()
        collected = _collected(model, task, batch, hidden, windows, seed)
        curves = draw_curves(STATISTICS, Measured(default, gains=windows.gains()), collected)
        predictions = [*of_curves(curves.values(), lags)]
        for name, window in others.items():
            predictions += [replace(one, predictor=name) for one in of_curves(_drawn(IN_DATA, window), lags)]
        if ablate:
            varied = {name: windows.variant(**changes) for name, changes in ABLATIONS.items()}
            varied |= {f"strength={share:g}": _drawn(PLANTED, replace(default, strength=share)) for share in STRENGTHS}
            for name, drawn in varied.items():
                predictions += [replace(one, predictor=f"{one.predictor}|{name}") for one in of_curves(drawn, lags)]
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


def of_curves(curves: Iterable[LagCurve], lags: Iterable[int]) -> Iterator[Prediction]:
    """Every curve at the lags of a task, under its name in the tables."""
    for curve in curves:
        place = {lag: i for i, lag in enumerate(curve.lags.tolist())}
        for lag in lags:
            numbers = (float(part[place[lag]]) for part in (curve.value, curve.low, curve.high))
            yield Prediction(predictor_name(curve.name), lag, *numbers)


def _drawn(statistics: dict[str, LagStatistic], window: Window) -> Iterable[LagCurve]:
    return draw_curves(statistics, Measured(window), {}).values()


class _Windows:
    """Requirements of all kinds, sharing what they can."""

    def __init__(self, model: nn.Module, task: Task, batch: Batch, settings: MeasureSettings) -> None:
        self.model, self.task, self.batch, self.settings = model, task, batch, settings
        self.lags = list(task.lags)
        mask = task.mask()
        self.last_only = mask is not None and bool(mask[:-1].sum() == 0) and task.output_size == 1
        self.plan = self._planned(settings)
        self.walked = self._walk(self.plan)

    def _planned(self, settings: MeasureSettings, params: str = "input") -> MeasurementPlan:
        made = plan_measurement(self.model, self.batch, self.task.loss, self.lags, params=params, settings=settings)
        return replace(made, bands=task_bands(self.task))

    def _walk(self, plan: MeasurementPlan) -> LastStep | None:
        return walk_back(plan, max(1, *self.lags)) if self.last_only else None

    def _means(self, plan: MeasurementPlan, walked: LastStep | None, signal: str) -> BlockMeans:
        return block_means(replace(plan, signal=signal)) if walked is None else walked.directions(signal)

    def _along(self, means: BlockMeans, settings: MeasureSettings) -> np.ndarray:
        generator = np.random.default_rng(settings.seed)
        return unit_directions(means, self.plan.probe.group, settings.direction, generator)

    def _window(
        self, plan: MeasurementPlan, means: BlockMeans, noise: NoiseValues, settings: MeasureSettings
    ) -> Window:
        """Return the window with the task's lags: a band is known by the lag that it stands for."""
        window, lags = window_of(plan, means, noise, settings), np.array(self.lags)
        return replace(window, required=replace(window.required, lags=lags), probe=replace(window.probe, lags=lags))

    def measure(self) -> tuple[Window, dict[str, Window]]:
        """Return the default window, and those of the raw gradient as signal and of the lag's own noise, by predictor."""
        settings, plan = self.settings, self.plan
        means, raw = (self._means(plan, self.walked, signal) for signal in ("dependence", "gradient"))
        along = self._along(means, settings)
        # one pass over the sequences gives the noise along the directions of both signals
        both = np.concatenate((along, self._along(raw, settings)[:, :1]), axis=1)
        values = noise_values(plan, both, noise=settings.noise, unit=settings.unit)
        planted = values.probe.shape[1] - 1
        steps = values.step_sums[:, : 1 + planted]
        of_data = replace(values, probe=values.probe[:, :planted], step_sums=steps)
        of_raw = replace(of_data, data=values.probe[:, planted])
        lag_noise = noise_values(plan, along, noise="lag") if self.walked is None else self.walked.lag_noise(along)
        by_gradient = replace(settings, signal="gradient")
        return self._window(plan, means, of_data, settings), {
            "n_gradient": self._window(replace(plan, signal="gradient"), raw, of_raw, by_gradient),
            "n_lag_noise": self._window(plan, means, lag_noise, replace(settings, noise="lag")),
        }

    def variant(self, params: str = "input", **changes: Any) -> Iterable[LagCurve]:
        """Return the numbers of sequences with other settings; NaN where the network has no such weights."""
        settings = replace(self.settings, **changes)
        try:
            plan = self._planned(settings, params)
        except InputError:  # a network without recurrent weights
            return [one.make(self.lags, np.full(len(self.lags), np.nan)) for one in IN_SEQUENCES.values()]
        means = self._means(plan, self._walk(plan), "dependence")
        values = noise_values(plan, self._along(means, settings), noise=settings.noise, unit=settings.unit)
        return _drawn(IN_SEQUENCES, self._window(plan, means, values, settings))

    def gains(self) -> Fidelity:
        """Exact gains at the task's lags and at lag 1, which they are compared with."""
        at = sorted({1, *self.lags})
        if self.walked is None:
            shown = self.shown
            return fidelity(self.model, shown.x, shown.y, at, self.task.loss, mask=shown.mask)
        exact = torch.tensor(self.walked.log10_gain(at), dtype=torch.float64)
        status = Status.FIRST_ORDER_UNAVAILABLE
        return Fidelity(torch.tensor(at), exact, torch.full_like(exact, torch.nan), status, (status,) * len(at))

    @property
    def shown(self) -> Batch:
        """Sequences that gains, rates and decays are averaged over."""
        return self.batch.select(range(min(SHOWN, len(self.batch))))


def _collected(
    model: nn.Module, task: Task, batch: Batch, hidden: int, windows: _Windows, seed: int
) -> dict[str, np.ndarray | float]:
    """What the study's own statistics draw their curves from, by name."""
    lags, settings, shown = list(task.lags), windows.settings, windows.shown
    return {
        "paper_window": paper_window(model, batch, lags, task.loss, settings.error, settings.seed).sequences,
        "lyapunov": growth_per_step(run(windows.plan.view.bind(shown)), generator_for(seed, "growth")),
        "tau_max": longest_time_scale(model, shown, lags[-1]),
        "half_life": retention(model, shown.x).layers[0].quantiles()[-1],
        "capacity": float(hidden),
    }


def longest_time_scale(model: nn.Module, batch: Batch, reach: int) -> float:
    """Largest time scale of the first-order rates; inf if some rate does not fall, 0 if nothing is retained."""
    last = min(max(reach, 8), batch.x.shape[1] - 1)
    at = sorted({round(lag) for lag in np.geomspace(1, last, RATE_LAGS).tolist()})
    scales = timescales(at, log10_rates=effective_rates(model, batch.x, at).log10_rates.numpy())
    if Status.NO_DECAY in scales.status:
        return float("inf")
    usable = scales.tau[np.isfinite(scales.tau)]
    return float(usable.max()) if len(usable) else 0.0
