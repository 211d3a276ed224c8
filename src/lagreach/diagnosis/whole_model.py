"""Lags of the whole model as a `Diagnosis`: for any differentiable torch model, without an adapter."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import nn

from lagreach._util.progress import Progress, progress_bar
from lagreach._util.threads import threads_of_user
from lagreach._version import __version__
from lagreach.data.sequences import Sequences, fingerprint
from lagreach.diagnosis.assemble import window_from
from lagreach.diagnosis.cost import PILOT, DiagnosisCost, Pace, check_budget
from lagreach.diagnosis.curves import with_curves
from lagreach.diagnosis.result import Diagnosis, LayerDiagnosis, NoiseSample
from lagreach.diagnosis.settings import MeasureSettings, check_settings
from lagreach.errors import UnsupportedError
from lagreach.regimes import fit_regimes
from lagreach.statistics import LagStatistic, Measured, draw_curves
from lagreach.statistics._statistic import DEPENDENCES, STATES
from lagreach.statistics.memory import Memory
from lagreach.tails.fit import fit_tail
from lagreach.transport.fidelity import Fidelity
from lagreach.transport.objective import Loss
from lagreach.types import Status
from lagreach.whole_model.measure import ModelMeasurement, measure_model
from lagreach.whole_model.subject import ModelSubject, make_model_subject, subsample

NAME = "whole model"
LOOKS_AHEAD = 1e-9  # share of the square gradient at inputs behind their outputs, from which a model looks ahead
ONLY = {"transport": "exact", "noise": "gradient", "direction": "matched", "unit": "sequence"}


@threads_of_user()
def diagnose_whole_model(
    model: Any,
    source: Sequences,
    loss: Loss,
    lags: str | Iterable[int],
    *,
    settings: MeasureSettings,
    why: str,
    sequences: int | None = None,
    notes: tuple[str, ...] = (),
    statistics: Sequence[LagStatistic] = (),
    progress: Progress | bool | None = None,
    **options: Any,
) -> Diagnosis:
    """Diagnose a model as a whole; arguments as for `lagreach.diagnose`, checked there.

    `why` says why it is the whole model; the other options are those of `_planned`.
    """
    started = time.perf_counter()
    _refuse_collecting(statistics)
    subject, _ = _planned(model, source, loss, lags, settings=settings, why=why, **options)
    seconds = {"setting up": time.perf_counter() - started}
    begun = time.perf_counter()
    with progress_bar(progress if isinstance(progress, bool) else None) as bar:
        shown = progress if callable(progress) else bar
        layer = _measured(subject, settings, why, lambda stage, done, of: shown(f"{NAME}: {stage}", done, of))
    if statistics:
        own = {one.name: one for one in statistics}
        curves = draw_curves(own, Measured(layer.window, layer.fidelity), {})
        layer = replace(layer, window=replace(layer.window, curves=dict(layer.window.curves) | curves))
    seconds[NAME] = time.perf_counter() - begun
    used = subject.plan.sequences
    return Diagnosis(
        layers=(layer,),
        sequences=sequences or len(source),
        available=len(source),
        settings={"loss": loss if isinstance(loss, str) else getattr(loss, "__name__", "function"), "used": used}
        | {"optimizer": None, "time": subject.time, "anchors": float(subject.used.sum())}
        | dict(layer.window.settings),
        versions={"lagreach": __version__} | {name: version(name) for name in ("torch", "numpy", "scipy")},
        fingerprint=fingerprint(source),
        seconds=seconds,
        warnings=(*notes, *_notes(model, source, used)),
    )


@threads_of_user()
def whole_model_cost(
    model: Any, source: Sequences, loss: Loss, lags: str | Iterable[int], **options: Any
) -> DiagnosisCost:
    """What `diagnose_whole_model` would do and what it would cost, from measuring a few sequences."""
    subject, per_sequence = _planned(model, source, loss, lags, timed=True, **options)
    together = min(subject.pairs_together, len(subject.plan.pairs))
    return DiagnosisCost(
        layers=(f"{NAME} (input read by {subject.source.name})",),
        available=len(source),
        sequences=subject.plan.sequences,
        lags=str(subject.bands),
        weights=_weights(subject),
        seconds=per_sequence * subject.plan.sequences,
        memory=together * subject.pair_bytes,
    )


def _planned(
    model: Any,
    source: Sequences,
    loss: Loss,
    lags: str | Iterable[int],
    *,
    settings: MeasureSettings,
    why: str,
    only_of_layers: Mapping[str, Any],
    budget: float | None = None,
    timed: bool = False,
    **options: Any,
) -> tuple[ModelSubject, float]:
    """Try the model, fix what is measured, and how much of it; also return the seconds a sequence takes, if `timed`.

    `only_of_layers` holds, by name, what was asked for and recurrent layers alone have.
    """
    check_settings(settings)
    check_budget(budget)
    _refuse_choices(settings, only_of_layers, why)
    subject = make_model_subject(
        model, source, loss, lags, blocks=settings.blocks, probes=settings.probes, seed=settings.seed,
        signal=settings.signal, **options,
    )  # fmt: skip
    per_sequence = _pilot(subject, settings) if budget is not None or timed else 0.0
    planned = len(source) if budget is None else Pace(0.0, per_sequence).affordable(budget, len(source))
    return subsample(subject, planned), per_sequence


def _refuse_choices(settings: MeasureSettings, only_of_layers: Mapping[str, Any], why: str) -> None:
    usual = {"params": "input", "optimizer": None, "measure": False}
    wrong = [f"{name}={getattr(settings, name)!r}" for name, only in ONLY.items() if getattr(settings, name) != only]
    wrong += [name for name, value in only_of_layers.items() if value != usual[name]]
    if wrong:
        raise UnsupportedError(
            "lags of the whole model do not have this choice",
            got=f"{', '.join(wrong)}; lags of the whole model, because {why}",
            expected="plain gradients of the weights that read the input, carried back exactly",
            fix='leave it out; for recurrent layers, lags_of="layers" has it',
        )


def _refuse_collecting(statistics: Sequence[LagStatistic]) -> None:
    """Refuse statistics that collect something of a recurrence's states, which a whole model does not have."""
    collecting = [one.name for one in statistics if one.reads & {STATES, DEPENDENCES}]
    if collecting:
        raise UnsupportedError(
            "these statistics read the states of a recurrence",
            got=f"{', '.join(collecting)}, for lags of the whole model",
            fix='let them read "window" or "gains", or ask for lags_of="layers"',
        )


def _pilot(subject: ModelSubject, settings: MeasureSettings) -> float:
    """Seconds per sequence, from measuring a few."""
    started = time.perf_counter()
    measure_model(subsample(subject, PILOT), flips=settings.flips, error=settings.error)
    return (time.perf_counter() - started) / PILOT


def _measured(subject: ModelSubject, settings: MeasureSettings, why: str, progress: Progress) -> LayerDiagnosis:
    """Measure, and put the result into the record that layers have."""
    found = measure_model(subject, flips=settings.flips, error=settings.error, progress=progress)
    lags = subject.bands.lags
    memory = replace(Memory.unknown(lags), independent_inputs=not found.correlated_inputs)
    window = window_from(
        subject.bands, subject.group, subject.plan.sequences, found.means.data, found.means, found.test, found.noise,
        settings=settings, reliance=found.reliance, memory=memory, more=_settings(subject, why),
    )  # fmt: skip
    located = found.located
    window = replace(
        window,
        warnings=(*window.warnings, *_warnings(found)),
        marginal_p=located.marginal,
        named=located.named,
        left=located.left,
    )
    gains = _gains(lags, found.log10_gain)
    sample = found.noise.sample
    return LayerDiagnosis(
        name=NAME,
        local=False,
        window=with_curves(window, gains, None),
        fidelity=gains,
        rates=None,
        tail=fit_tail(sample),
        regimes=fit_regimes(np.array(lags), log10_values=found.log10_gain),
        noise=NoiseSample.of(sample),
    )


def _gains(lags: list[int], log10_gain: np.ndarray) -> Fidelity:
    """The gain, in the record that holds the exact and the first-order one of a recurrence."""
    by_lag = tuple(
        Status.NO_ANCHOR if math.isnan(value) else Status.FIRST_ORDER_OF_LAYERS for value in log10_gain.tolist()
    )
    none = torch.full((len(lags),), math.nan, dtype=torch.float64)
    return Fidelity(torch.tensor(lags), torch.from_numpy(log10_gain), none, Status.FIRST_ORDER_OF_LAYERS, by_lag)


def _settings(subject: ModelSubject, why: str) -> dict[str, Any]:
    return {
        "params": [f"input weights of {subject.source.name}"],
        "lags": [list(edge) for edge in subject.bands.edges],
        "lags_of": "model",
        "lags_of_why": why,
        "input_module": subject.source.name,
        "input_module_why": subject.source.why,
        "anchors_per_sequence": subject.anchors,
    }


def _warnings(found: ModelMeasurement) -> tuple[str, ...]:
    subject = found.subject
    notes = [*subject.source.warnings, *found.located.notes]
    if found.ahead > LOOKS_AHEAD:
        share = f"{100 * found.ahead:.2g} % of the square gradient"
        notes.append(
            f"outputs also look at later inputs ({share}): lags count steps back from an output's own step, and say nothing "
            'of what lies ahead. If all outputs are a forecast made at the end, pass outputs="at the end"'
        )
    return tuple(notes)


def _weights(subject: ModelSubject) -> int:
    """Number of weights that read the input."""
    modules = [subject.model.module.get_submodule(port.path) for port in subject.source.ports if port.path]
    weights = [getattr(module, "weight", None) for module in modules]
    return sum(weight.numel() for weight in weights if isinstance(weight, torch.Tensor))


def _notes(model: nn.Module, source: Sequences, used: int) -> tuple[str, ...]:
    notes = []
    if any(isinstance(module, nn.Dropout) and module.training for module in model.modules()):
        notes.append("the model was in training mode; it was diagnosed in evaluation mode, without dropout")
    if used < len(source) - 1:  # an odd one out has no partner
        notes.append(
            f"a subsample of {used} of {len(source)} sequences; intervals are {(len(source) / used) ** 0.5:.2f} times as wide"
        )
    return tuple(notes)
