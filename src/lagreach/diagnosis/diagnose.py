"""The whole pipeline: a model and data in, a `Diagnosis` out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lagreach._moved import renamed
from lagreach._util.about import about
from lagreach._util.bounds import check_bounds
from lagreach._util.interrupts import as_it_stands, despite_interrupt
from lagreach._util.progress import Progress, progress_bar
from lagreach._util.spelling import MEASURES, also_called, refuse_spelling
from lagreach._util.threads import one_thread
from lagreach._version import __version__
from lagreach.adapters import View
from lagreach.adapters.as_it_was import leaves_as_it_was
from lagreach.adapters.calling import Call
from lagreach.adapters.fresh_state import from_fresh_state
from lagreach.adapters.tokens import refuse_unknown_tokens
from lagreach.cells import Cell
from lagreach.data.lags import listed_lags
from lagreach.data.pairs import check_enough
from lagreach.data.sequences import as_sequences, fingerprint, telling_sample
from lagreach.data.survey import rough_survey, survey
from lagreach.data.targets import check_time_axis, refuse_constant_targets
from lagreach.diagnosis import pacing
from lagreach.diagnosis.assemble import MeasuredWindow
from lagreach.diagnosis.cost import DiagnosisCost, beyond_budget, memory_needed, within_budget
from lagreach.diagnosis.layer import anchors_of, convergence_of, diagnose_layer
from lagreach.diagnosis.measure import MeasureSettings, interruptible_window, plan_measurement
from lagreach.diagnosis.notes import how_measured, notes_on
from lagreach.diagnosis.passes import Statistics
from lagreach.diagnosis.result import Diagnosis, LayerDiagnosis
from lagreach.diagnosis.settings import with_arguments
from lagreach.diagnosis.whole_model import (
    Spreads,
    choices_of_layers,
    collecting,
    diagnose_whole_model,
    whole_model_cost,
)
from lagreach.errors import InputError
from lagreach.gradients.input_scales import unlike_columns
from lagreach.gradients.measurement_plan import MeasurementPlan
from lagreach.gradients.optimiser_geometry import optimiser_name, update_scale
from lagreach.gradients.output_anchors import decide
from lagreach.gradients.selection import Selection
from lagreach.statistics import LagStatistic, all_statistics, check_statistics
from lagreach.statistics._statistic import listed_statistics
from lagreach.transport.losses import Loss
from lagreach.transport.rollout import run
from lagreach.types import Status
from lagreach.whole_model.choice import choose_lags
from lagreach.whole_model.language_models import aligned_labels

if not TYPE_CHECKING:  # names of `lagreach.pipeline`, which is this module
    __getattr__ = renamed(
        __name__, {"DiagnosisPlan": "DiagnosisCost", "diagnose_step": "lagreach.diagnosis.bare_step.diagnose_step"}
    )

Measure = Callable[[MeasurementPlan, MeasureSettings, Progress | None, Statistics], MeasuredWindow]


@refuse_spelling("optimiser", MEASURES)
@also_called("target_steps", "steps")
@leaves_as_it_was
@torch.enable_grad()
@one_thread()  # steps of recurrent layers are small: several threads only get in each other's way
def diagnose(
    model: nn.Module | View,
    data: Any,
    loss: Loss = "mse",
    lags: str | Iterable[int] = "auto",
    *,
    sequences: int | None = None,
    strength: float | None = None,
    transport: str | None = None,
    signal: str | None = None,
    noise: str | None = None,
    params: Selection = "input",
    error: float | None = None,
    seed: int | None = None,
    budget: float | None = None,
    memory: int | None = None,
    dry_run: bool = False,
    require: Sequence[int] = (),
    steps: Any = None,
    outputs: str | None = None,
    cell: Mapping[str, Cell] | None = None,
    call: Call | None = None,
    optimizer: Any = None,
    settings: MeasureSettings | None = None,
    statistics: Sequence[LagStatistic] = (),
    progress: Progress | bool | None = None,
    measure: Measure = interruptible_window,
    lags_of: str = "auto",
    inputs: str | None = None,
    only: str | None = None,
) -> Diagnosis:
    """Tell how far back a sequence model learns from data, and how many sequences each lag would need.

    Parameters
    ----------
    model
        Any differentiable torch module, or a `GatedRNN`. Recurrent ones (`nn.LSTM`, `nn.GRU`, `nn.RNN`, a loop over their cells
        or one of your own, one gated linear layer; see docs/adapters.md) are carried back step by step; of any other (several
        recurrent layers in a row that are not one module, a Transformer, a stack of Mamba layers, a hybrid, a convolution, an
        encoder and a decoder) lags are those of the whole model. It is run in evaluation mode and left as it was
        (BatchNorm has to be in that mode already).
    data
        ``(x, y)`` tensors, sequences first (also ``(x, y, mask)``, ``(x, y, mask, lengths)``, or a dict with these names and
        ``state``), or an iterable of such batches, such as a data loader. Also batches as libraries have them:
        ``{"input_ids", "attention_mask", "labels"}``, ``((source, target), y)``, ``(inputs by name, y)``.
    loss
        "mse", "cross_entropy" (or torch's `nn.MSELoss()`, `nn.CrossEntropyLoss()`), or a function
        ``loss(output, y, mask) -> (seq,)``.
    lags
        "auto" (contiguous bands over all lags), or the lags to look at; `require` lags are always included.
    sequences
        Number of sequences to plan for; as many as the data hold, if None.
    strength
        Share of the target's variance that a dependency should explain to be worth noticing.
    transport
        "exact", or "first-order" for the paper's approximation.
    signal
        "dependence" (what swapping targets changes), or "gradient" (the mean gradient, which is not zero without one).
    noise
        "gradient" (fluctuation of the whole gradient along a lag's direction), or "lag" (of the lag's own term).
    params
        Weights whose gradient is looked at: "input" (locates lags), "all", "recurrent", "gates" (of a `GatedRNN`; torch's
        layers keep them in one tensor with the rest), or a function of a name.
    error
        Error of the test at every lag, each way.
    seed
        Of pairs, probes and sign flips.
    budget
        Seconds to stay within: a fair subsample is fixed before anything is measured.
    memory
        Bytes for the sequences that are run together, at least one pair; `lagreach.cost` says how much comes on top.
    dry_run
        No longer here: `lagreach.cost` says what a diagnosis would do and what it would cost.
    steps
        Which steps targets belong to: "last", or a list of time indices, one a target; by their shape if None. Also
        ``target_steps=``, as `lagreach.forecast` calls it, where steps are those of a training.
    outputs
        "per step" or "at the end" (a forecast, say). None: by the states that feed them; where both are possible, you are asked.
    cell
        For a recurrent layer of your own: the path of its module and the `Cell` that describes it.
    call
        How to run the model on a batch, if ``model(x)`` is not it: a function of the model and a batch.
    optimizer
        The Adam, AdamW, RMSprop or SGD that trains the model, or its ``state_dict()``: signal and noise are then those of
        its steps, every weight's gradient being divided as the optimiser divides it. Plain gradients if None.
    settings
        All choices together, also finer points: blocks, probes, flips, direction, unit.
    statistics
        Numbers per lag of your own, besides those of `lagreach.statistics`: they are collected in the same passes over the
        data and show up wherever numbers per lag are shown.
    progress
        A function (stage, done, of), or whether to show a bar; by default on terminals.
    measure
        What measures the window of a recurrence, given its plan; `lagreach.study.shards` gives one that spreads it over machines.
    lags_of
        "layers" (steps within recurrent layers), "model" (steps of the whole model), or "auto" to choose; the result says
        which and why.
    inputs
        For lags of the whole model: the path of the module that reads the input (an embedding, the first linear layer or
        convolution); found by what it is given if None.
    only
        Path of the part to diagnose: its recurrent layers, or where it has none, lags counted to the part's own input.

    Examples
    --------
    >>> import torch, lagreach
    >>> x = torch.randn(64, 24, 2)
    >>> y = torch.nn.functional.pad(x[:, :-3, :1], (0, 0, 3, 0))
    >>> model = lagreach.GatedRNN("diag_gate", 2, 8, 1, gate_init=0.2)
    >>> diagnosis = lagreach.diagnose(model, (x, y), lags=[0, 1, 3, 8])
    >>> diagnosis.layers[0].window.dependences
    (3,)
    """
    started = pacing.clock()
    chosen = with_arguments(settings or MeasureSettings(), signal=signal, noise=noise, transport=transport, strength=strength,
                            error=error, seed=seed)  # fmt: skip
    if dry_run:
        raise InputError(
            "diagnose always returns a diagnosis",
            got="dry_run=True",
            fix="ask lagreach.cost(...), with the same arguments (but progress and measure)",
        )
    if not callable(measure):
        raise InputError("measure is a function of a plan", got=repr(measure), fix="leave it out")
    check_bounds(sequences=sequences, budget=budget, memory=memory)
    statistics = listed_statistics(statistics)
    check_statistics([*(built_in := all_statistics()).values(), *statistics])
    measured_statistics = built_in | {one.name: one for one in statistics}
    source, loss, said = aligned_labels(model, as_sequences(data), loss, call)
    sample = telling_sample(source)
    check_time_axis(sample)
    call, reset = from_fresh_state(model, sample, call)
    refuse_unknown_tokens(model, source, call)
    only_of_layers = {
        "params": params,
        "measure": not isinstance(measure, Spreads) and measure is not interruptible_window,
    }
    of_layers = bool(choices_of_layers(chosen, only_of_layers) or collecting(statistics))
    choice = choose_lags(
        model, sample, lags_of=lags_of, inputs=inputs, cell=cell, call=call, only=only, of_layers=of_layers
    )
    said = (*said, *reset, *choice.notes, *unlike_columns(source))
    if choice.of == "model":
        return diagnose_whole_model(
            model, source, loss, lags, settings=chosen, why=choice.why, require=require, steps=steps,
            outputs=outputs or choice.outputs, call=call, inputs=choice.inputs, memory=memory, budget=budget,
            sequences=sequences, notes=said, statistics=statistics, optimizer=optimizer, only_of_layers=only_of_layers,
            progress=progress, spread=measure.spread(chosen) if isinstance(measure, Spreads) else None,
        )  # fmt: skip
    plans = diagnosis_plans(
        model, source, loss, lags, settings=chosen, params=params, require=require, steps=steps, outputs=outputs,
        cell=cell, call=call, optimizer=optimizer, views=choice.views,
    )  # fmt: skip
    available, measurable = plans[0].block_plan.available, plans[0].block_plan.sequences
    plans, pace = within_budget(
        plans, chosen, measurable, budget, memory, begun=started, statistics=measured_statistics
    )
    plans = [replace(plan, planned=sequences or available) for plan in plans]
    taken = used = plans[0].block_plan.sequences
    notes = (*said, *notes_on(plans, sample), *beyond_budget(budget, pace, taken))
    layers: list[LayerDiagnosis] = []
    seconds = {"setting up": pacing.clock() - started}
    partial = False
    put_back = as_it_stands()
    for plan in plans:
        begun = pacing.clock()
        try:
            with progress_bar(progress if isinstance(progress, bool) else None) as bar:
                shown = _named(progress if callable(progress) else bar, plan.view.name)
                measured = measure(plan, chosen, shown, measured_statistics)
                layer, cut_last = despite_interrupt(diagnose_layer, plan, measured, measured_statistics)
                layers.append(layer)
                used = min(used, measured.sequences)
                partial = measured.cut_short or cut_last or layer.fidelity.status is Status.INTERRUPTED
        except KeyboardInterrupt:
            if not layers:
                raise
            put_back()
            partial = True  # the layers before are there
        seconds[plan.view.name] = pacing.clock() - begun
        if partial:
            break
    plans, missing = plans[: len(layers)], plans[len(layers) :]
    return Diagnosis(
        layers=tuple(layers),
        sequences=sequences or available,
        available=available,
        settings={"loss": loss if isinstance(loss, str) else getattr(loss, "__name__", "function"), "used": used}
        | {"optimizer": None if optimizer is None else optimiser_name(optimizer)}
        | {"time": plans[0].time, "anchors": anchors_of(plans[0])}
        | {"lags_of": "layers", "lags_of_why": choice.why}
        | ({"partial": True} if partial else {})
        | dict(layers[0].window.settings),
        versions={"lagreach": __version__} | {name: version(name) for name in ("torch", "numpy", "scipy")},
        fingerprint=fingerprint(source),
        seconds=seconds,
        partial=partial,
        warnings=(*how_measured(model, taken < measurable, partial, plans, missing), *notes),
        convergence=convergence_of(model, source, loss),
        about=about(model, source, plans[0].time),
    )


@refuse_spelling("optimiser", MEASURES)
@also_called("target_steps", "steps")
@leaves_as_it_was
@torch.enable_grad()
@one_thread()
def cost(
    model: nn.Module | View,
    data: Any,
    loss: Loss = "mse",
    lags: str | Iterable[int] = "auto",
    *,
    sequences: int | None = None,
    strength: float | None = None,
    transport: str | None = None,
    signal: str | None = None,
    noise: str | None = None,
    error: float | None = None,
    seed: int | None = None,
    settings: MeasureSettings | None = None,
    budget: float | None = None,
    memory: int | None = None,
    params: Selection = "input",
    require: Sequence[int] = (),
    steps: Any = None,
    outputs: str | None = None,
    cell: Mapping[str, Cell] | None = None,
    call: Call | None = None,
    optimizer: Any = None,
    statistics: Sequence[LagStatistic] = (),
    lags_of: str = "auto",
    inputs: str | None = None,
    only: str | None = None,
) -> DiagnosisCost:
    """Say what `diagnose` with these arguments would do here, and what it would cost, from timing a few sequences.

    Time and memory are meant to a factor of 1.5. The estimate takes about 2 % of a work of ten seconds or more, up to 3 % of one
    of five. Of a shorter one, pieces are timed for about a tenth of a second, after what a diagnosis does first as well: looking
    at model and data. docs/reliability.md has both, measured.
    Of a whole model, finding nothing takes less (`seconds_if_nothing`), finding much takes more (`seconds_if_many`): where lags
    show something, single inputs are exchanged, in at most four times as many runs for many lags as for one.

    Examples
    --------
    >>> import torch, lagreach
    >>> x = torch.randn(64, 24, 2)
    >>> plan = lagreach.cost(lagreach.GatedRNN("diag_gate", 2, 8, 1), (x, x[..., :1]), lags=[0, 1, 3])
    >>> plan.sequences, plan.lags
    (64, '0, 1, 3')
    """
    started = pacing.clock()
    check_bounds(sequences=sequences, budget=budget, memory=memory)
    statistics = listed_statistics(statistics)
    check_statistics([*(built_in := all_statistics()).values(), *statistics])
    source, loss, _ = aligned_labels(model, as_sequences(data), loss, call)
    chosen = with_arguments(settings or MeasureSettings(), signal=signal, noise=noise, transport=transport, strength=strength,
                            error=error, seed=seed)  # fmt: skip
    sample = telling_sample(source)
    check_time_axis(sample)
    call, _ = from_fresh_state(model, sample, call)
    refuse_unknown_tokens(model, source, call)
    of_layers = bool(choices_of_layers(chosen, {"params": params}) or collecting(statistics))
    choice = choose_lags(
        model, sample, lags_of=lags_of, inputs=inputs, cell=cell, call=call, only=only, of_layers=of_layers
    )
    if choice.of == "model":
        return whole_model_cost(
            model, source, loss, lags, settings=chosen, why=choice.why, only_of_layers={"params": params}, require=require,
            steps=steps, outputs=outputs or choice.outputs, call=call, inputs=choice.inputs, memory=memory, budget=budget,
            optimizer=optimizer,
        )  # fmt: skip
    plans = diagnosis_plans(
        model, source, loss, lags, settings=chosen, params=params, require=require, steps=steps, outputs=outputs,
        cell=cell, call=call, optimizer=optimizer, views=choice.views, roughly=True,
    )  # fmt: skip
    plans, pace = within_budget(
        plans, chosen, plans[0].block_plan.sequences, budget, memory, begun=started, timed=True,
        statistics=built_in | {one.name: one for one in statistics},
    )  # fmt: skip
    return DiagnosisCost(
        layers=tuple(plan.view.name for plan in plans),
        available=plans[0].block_plan.available,
        sequences=plans[0].block_plan.sequences,
        lags=str(plans[0].bands),
        weights=plans[0].width,
        seconds=(seconds := pace.seconds(plans[0].block_plan.sequences)),
        seconds_if_nothing=seconds,
        seconds_if_many=seconds,
        memory=memory_needed(plans[0]),
    )


def diagnosis_plans(
    model: nn.Module | View,
    data: Any,
    loss: Loss = "mse",
    lags: str | Iterable[int] = "auto",
    *,
    settings: MeasureSettings,
    params: Selection = "input",
    require: Sequence[int] = (),
    steps: Any = None,
    outputs: str | None = None,
    cell: Mapping[str, Cell] | None = None,
    call: Call | None = None,
    optimizer: Any = None,
    views: Sequence[View] = (),
    roughly: bool = False,
) -> list[MeasurementPlan]:
    """Find the recurrences of a model (or take `views`, found before), and fix what is measured of each.

    `roughly` is for plans that are only timed, see `plan_measurement`.
    """
    lags = (
        lags if isinstance(lags, str) else listed_lags(lags)
    )  # which may be iterated over once, and layers be several
    require = listed_lags(require, "require")
    source = as_sequences(data)
    check_enough(len(source))
    if settings.signal == "dependence":
        refuse_constant_targets(source)
    sample = telling_sample(source)
    if not views:
        views = choose_lags(model, sample, lags_of="layers", cell=cell, call=call).views
    which = decide([run(view.bind(source.read([0]))) for view in views], outputs) if steps is None else None
    shared = {
        "params": params,
        "require": require,
        "steps": steps,
        "outputs": which,
        "settings": settings,
        "roughly": roughly,
    }
    seen = rough_survey(source) if roughly else survey(source)
    plans = [plan_measurement(view, source, loss, lags, **shared, seen=seen) for view in views]
    if optimizer is None:
        return plans
    return [replace(plan, scale=update_scale(optimizer, model, plan.names)) for plan in plans]


def _named(progress: Progress, name: str) -> Progress:
    return lambda stage, done, of: progress(f"{name}: {stage}", done, of)
