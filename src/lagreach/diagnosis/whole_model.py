"""Lags of the whole model as a `Diagnosis`: for any differentiable torch model, without an adapter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from lagreach._util.about import about
from lagreach._util.interrupts import as_it_stands, despite_interrupt
from lagreach._util.progress import Progress, progress_bar
from lagreach._util.threads import threads_of_user
from lagreach._version import __version__
from lagreach.adapters.fresh_state import from_fresh_state
from lagreach.data.pairs import check_enough
from lagreach.data.sequences import Sequences, as_sequences, fingerprint, telling_sample
from lagreach.data.survey import rough_survey
from lagreach.data.targets import refuse_constant_targets
from lagreach.diagnosis import pacing
from lagreach.diagnosis.assemble import untold, window_from
from lagreach.diagnosis.cost import DiagnosisCost
from lagreach.diagnosis.curves import with_curves
from lagreach.diagnosis.readout_shares import with_readout_shares
from lagreach.diagnosis.result import Diagnosis, LayerDiagnosis, NoiseSample
from lagreach.diagnosis.settings import MeasureSettings, check_settings
from lagreach.diagnosis.whole_model_timing import WholeModelPace, whole_model_pace
from lagreach.errors import UnsupportedError
from lagreach.gradients.optimiser_geometry import optimiser_name
from lagreach.regimes import fit_regimes
from lagreach.statistics import LagStatistic, Measured, draw_curves
from lagreach.statistics._statistic import DEPENDENCES, STATES
from lagreach.statistics.memory import Memory
from lagreach.tails.fit import fit_tail
from lagreach.transport.fidelity import Fidelity
from lagreach.transport.losses import Loss
from lagreach.transport.target_scale import PAIRS, scale_note
from lagreach.types import Status
from lagreach.whole_model.factors import IN_MEMORY
from lagreach.whole_model.language_models import aligned_labels
from lagreach.whole_model.measure import ModelMeasurement, measure_model
from lagreach.whole_model.measurement_plan import WholeModelPlan, plan_model_measurement, subsample
from lagreach.whole_model.reach import reach_note
from lagreach.whole_model.running import at_rest
from lagreach.whole_model.spread import Spread

NAME = "whole model"
NO_GRADIENT = (
    "no gradient reaches the weights of {}: something on the way back is saturated, dead or not looked at by the loss"
)
LOOKS_AHEAD = 1e-9  # share of the square gradient at inputs behind their outputs, from which a model looks ahead
ONLY = {"transport": "exact", "noise": "gradient", "direction": "matched", "unit": "sequence"}


@runtime_checkable
class Spreads(Protocol):
    """A way of measuring that has the passes over a whole model's sequences done elsewhere."""

    def spread(self, settings: MeasureSettings) -> Spread:
        """Who does the work."""
        ...


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
    spread: Spread | None = None,
    **options: Any,
) -> Diagnosis:
    """Diagnose a model as a whole; arguments as for `lagreach.diagnose`, checked there.

    `why` says why it is the whole model, `spread` who does the work; the other options are those of `_planned`.
    """
    started = pacing.clock()
    _refuse_collecting(statistics)
    plan, whole, _ = _planned(model, source, loss, lags, settings=settings, why=why, **options)
    seconds = {"setting up": pacing.clock() - started}
    begun = pacing.clock()
    with progress_bar(progress if isinstance(progress, bool) else None) as bar:
        shown = progress if callable(progress) else bar

        def named(stage: str, done: int, of: int) -> None:
            shown(f"{NAME}: {stage}", done, of)

        measured = measure_model(plan, flips=settings.flips, error=settings.error, progress=named, spread=spread)
    layer, interrupted = despite_interrupt(_layer, measured, settings, why)
    block_plan = measured.plan.block_plan
    cut_short = measured.cut_short or interrupted
    if not cut_short:
        planned, how = (
            sequences or block_plan.available,
            {name: options.get(name) for name in ("steps", "outputs", "call")},
        )
        put_back = as_it_stands()
        try:
            layer, said = with_readout_shares(layer, model, source, loss, settings.seed, planned, **how)
        except KeyboardInterrupt:  # everything else is there
            put_back()
            cut_short, said = True, ("interrupted before the shares of a readout were told",)
        notes = (*notes, *said)
    if statistics:
        by_name = {one.name: one for one in statistics}
        curves = draw_curves(by_name, Measured(layer.window, layer.fidelity), {})
        layer = replace(layer, window=replace(layer.window, curves=dict(layer.window.curves) | curves))
    seconds[NAME] = pacing.clock() - begun
    return Diagnosis(
        layers=(layer,),
        sequences=sequences or block_plan.available,
        available=block_plan.available,
        settings={"loss": loss if isinstance(loss, str) else getattr(loss, "__name__", "function")}
        | {"used": block_plan.sequences}
        | {"optimizer": None if options.get("optimizer") is None else optimiser_name(options["optimizer"])}
        | {"time": plan.time, "anchors": float(plan.used.sum())}
        | ({"partial": True} if cut_short else {})
        | dict(layer.window.settings),
        versions={"lagreach": __version__} | {name: version(name) for name in ("torch", "numpy", "scipy")},
        fingerprint=fingerprint(source),
        seconds=seconds,
        partial=cut_short,
        warnings=(*_how_measured(model, whole, measured), *notes),
        about=about(model, source, plan.time),
    )


@threads_of_user()
def whole_model_cost(
    model: Any, source: Sequences, loss: Loss, lags: str | Iterable[int], **options: Any
) -> DiagnosisCost:
    """What `diagnose_whole_model` would do and what it would cost, from measuring a few sequences."""
    plan, _, pace = _planned(model, source, loss, lags, timed=True, **options)
    together = min(plan.pairs_together, len(plan.block_plan.pairs))
    return DiagnosisCost(
        layers=(f"{NAME} (input read by {plan.source.name})",),
        available=plan.block_plan.available,
        sequences=plan.block_plan.sequences,
        lags=str(plan.bands),
        weights=_weights(plan),
        seconds=(pace.always + pace.few_lags).seconds(plan.block_plan.sequences),
        seconds_if_nothing=pace.always.seconds(plan.block_plan.sequences),
        seconds_if_many=(pace.always + pace.many_lags).seconds(plan.block_plan.sequences),
        # what arrived is kept of each group of blocks and of all together; beyond a bound it lies on disk
        memory=together * plan.pair_bytes
        + 2 * min(IN_MEMORY, plan.block_plan.sequences * plan.anchors * plan.anchor_bytes),
    )


def check_whole_model(model: Any, source: Sequences, loss: Loss, lags: str | Iterable[int], **options: Any) -> None:
    """Raise what `diagnose_whole_model` would raise of a few sequences; nothing is measured."""
    plan, _, _ = _planned(model, source, loss, lags, roughly=True, **options)
    with at_rest(plan.model.module):
        piece = plan.run(plan.block_plan.pairs[0])
        piece.objective(piece.output)


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
    roughly: bool = False,
    **options: Any,
) -> tuple[WholeModelPlan, int, WholeModelPace]:
    """Try the model, fix what is measured, and how much of it.

    Also returned are how many sequences could be measured, and the time that they take, if `timed`;
    `roughly` is for a plan that nothing is measured with.

    `only_of_layers` holds, by name, what was asked for and recurrent layers alone have.
    """
    begun = pacing.clock()
    check_settings(settings)
    _refuse_choices(settings, only_of_layers, why)
    check_enough(len(source))
    if settings.signal == "dependence":
        refuse_constant_targets(source)
    plan = plan_model_measurement(
        model, source, loss, lags, blocks=settings.blocks, probes=settings.probes, seed=settings.seed,
        signal=settings.signal, params=only_of_layers.get("params", "input"),
        seen=rough_survey(source) if timed or roughly else None, **options,
    )  # fmt: skip
    pace = whole_model_pace(plan, begun, budget) if budget is not None or timed else WholeModelPace()
    whole = plan.block_plan.sequences
    planned = whole if budget is None else pace.whole.affordable(budget, whole)
    return subsample(plan, planned), whole, pace


def model_plan(
    model: nn.Module,
    data: Any,
    loss: Loss = "mse",
    lags: str | Iterable[int] = "auto",
    *,
    settings: MeasureSettings,
    inputs: str | None = None,
    only: str | None = None,
    lags_of: str = "model",
    **options: Any,
) -> WholeModelPlan:
    """What `diagnose` measures of a whole model, made anew in another process; the options are those of `diagnose`."""
    assert lags_of != "layers", "the process that asks has chosen lags of the whole model"
    source, aligned, _ = aligned_labels(model, as_sequences(data), loss, None)
    call, _ = from_fresh_state(model, telling_sample(source), None)
    return plan_model_measurement(
        model, source, aligned, lags, blocks=settings.blocks, probes=settings.probes, seed=settings.seed,
        signal=settings.signal, inputs=inputs or only, call=call, **options,
    )  # fmt: skip


def choices_of_layers(settings: MeasureSettings, only_of_layers: Mapping[str, Any]) -> list[str]:
    """What is asked for that recurrent layers alone have."""
    usual = {"params": "input", "measure": False}
    asked = [f"{name}={getattr(settings, name)!r}" for name, only in ONLY.items() if getattr(settings, name) != only]
    return asked + [
        f"{name}={value!r}" for name, value in only_of_layers.items() if value != usual[name] and not callable(value)
    ]


def _refuse_choices(settings: MeasureSettings, only_of_layers: Mapping[str, Any], why: str) -> None:
    if wrong := choices_of_layers(settings, only_of_layers):
        raise UnsupportedError(
            "lags of the whole model do not have this choice",
            got=f"{', '.join(wrong)}; lags of the whole model, because {why}",
            expected="gradients of the weights that read the input, carried back exactly",
            fix='leave it out; for recurrent layers, lags_of="layers" has it',
        )


def collecting(statistics: Sequence[LagStatistic]) -> list[str]:
    """Names of statistics that collect something of a recurrence's states, which a whole model does not have."""
    return [one.name for one in statistics if one.reads & {STATES, DEPENDENCES}]


def _refuse_collecting(statistics: Sequence[LagStatistic]) -> None:
    if names := collecting(statistics):
        raise UnsupportedError(
            "these statistics read the states of a recurrence",
            got=f"{', '.join(names)}, for lags of the whole model",
            fix='let them read "window" or "gains", or ask for lags_of="layers"',
        )


def _layer(measured: ModelMeasurement, settings: MeasureSettings, why: str) -> LayerDiagnosis:
    """Put what was measured into the record that layers have."""
    plan, located = measured.plan, measured.located
    lags = plan.bands.lags
    memory = replace(Memory.unknown(lags), independent_inputs=not measured.correlated_inputs)
    window = window_from(
        plan.bands, plan.group, plan.block_plan.sequences, measured.means.data, measured.means, measured.test,
        measured.noise, settings=settings, reliance=measured.reliance, memory=memory, more=_settings(plan, why),
    )  # fmt: skip
    unknown = Status.LIMIT_CANNOT_BE_TOLD if plan.block_plan.untold else Status.LIMIT_SHARED_INPUT
    vanished = (NO_GRADIENT.format(plan.source.name),) if window.concentration.status is Status.NO_SPREAD else ()
    window = replace(
        window,
        required=untold(window.required, ~np.isnan(measured.test.adjusted), unknown),
        probe=untold(window.probe, measured.told, unknown),
        warnings=(*window.warnings, *vanished, *_warnings(measured)),
        marginal_p=located.marginal,
        named=located.named,
        left=located.left,
    )
    gains = _gains(lags, measured.log10_gain)
    sample = measured.noise.sample
    return LayerDiagnosis(
        name=NAME,
        local=False,
        window=with_curves(window, gains, None),
        fidelity=gains,
        rates=None,
        tail=fit_tail(sample),
        regimes=fit_regimes(np.array(lags), log10_values=measured.log10_gain),
        noise=NoiseSample.of(sample),
    )


def _gains(lags: list[int], log10_gain: np.ndarray) -> Fidelity:
    """The gain, in the record that holds the exact and the first-order one of a recurrence."""
    by_lag = tuple(
        Status.NO_ANCHOR if math.isnan(value) else Status.FIRST_ORDER_OF_LAYERS for value in log10_gain.tolist()
    )
    none = torch.full((len(lags),), math.nan, dtype=torch.float64)
    return Fidelity(torch.tensor(lags), torch.from_numpy(log10_gain), none, Status.FIRST_ORDER_OF_LAYERS, by_lag)


def _settings(plan: WholeModelPlan, why: str) -> dict[str, Any]:
    return {
        "params": [f"input weights of {plan.source.name}"],
        "lags": [list(edge) for edge in plan.bands.edges],
        "lags_of": "model",
        "lags_of_why": why,
        "input_module": plan.source.name,
        "input_module_why": plan.source.why,
        "anchors_per_sequence": plan.anchors,
    }


def _warnings(measured: ModelMeasurement) -> tuple[str, ...]:
    notes = [*measured.plan.source.warnings, *measured.located.notes]
    if measured.ahead > LOOKS_AHEAD:
        share = f"{100 * measured.ahead:.2g} % of the square gradient"
        notes.append(
            f"outputs also look at later inputs ({share}): lags count steps back from an output's own step, and say nothing "
            'of what lies ahead. If all outputs are a forecast made at the end, pass outputs="at the end"'
        )
    if (note := reach_note(measured.plan, measured.log10_gain)) is not None:
        notes.append(note)
    return tuple(notes)


def _weights(plan: WholeModelPlan) -> int:
    """Number of weights that read the input."""
    modules = [plan.model.module.get_submodule(port.path) for port in plan.source.ports if port.path]
    weights = [getattr(module, "weight", None) for module in modules]
    return sum(weight.numel() for weight in weights if isinstance(weight, torch.Tensor))


def _scale_note(plan: WholeModelPlan) -> str | None:
    """Compare outputs and targets of a few pairs; an interrupt costs this note alone."""
    if plan.loss != "mse":
        return None
    try:
        with at_rest(plan.model.module):
            piece = plan.run(plan.block_plan.pairs[: min(PAIRS, plan.pairs_together)].ravel())
    except KeyboardInterrupt:
        return None
    return scale_note(piece.objective, piece.objective.at_targets(piece.output))


def _how_measured(model: nn.Module, whole: int, measured: ModelMeasurement) -> tuple[str, ...]:
    """Say what was seen in the data, in which mode the model was, and how many sequences took part."""
    plan = measured.plan.block_plan
    notes = list(plan.notes)
    if (note := _scale_note(measured.plan)) is not None:
        notes.append(note)
    if any(isinstance(module, nn.Dropout) and module.training for module in model.modules()):
        notes.append("the model was in training mode; it was diagnosed in evaluation mode, without dropout")
    if plan.sequences < whole:
        notes.append(
            f"a subsample of {plan.sequences} of {plan.available} sequences; intervals are "
            f"{(plan.available / plan.sequences) ** 0.5:.2f} times as wide"
        )
    if measured.plan.weighting is not None:
        notes.append("signal and noise are those of the optimiser's steps, not of plain gradients")
    if measured.cut_short:
        notes.append("interrupted: only the blocks that were finished are in this result, which is partial")
    return tuple(notes)
