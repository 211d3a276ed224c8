"""Try a model on its data before something long begins."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lagreach._util.bounds import check_bounds
from lagreach._util.spelling import MEASURES, also_called, refuse_spelling
from lagreach._util.threads import one_thread
from lagreach.adapters import View
from lagreach.adapters.as_it_was import leaves_as_it_was
from lagreach.adapters.calling import Call
from lagreach.adapters.fresh_state import from_fresh_state
from lagreach.adapters.tokens import refuse_unknown_tokens
from lagreach.cells import Cell
from lagreach.data.lags import listed_lags
from lagreach.data.sequences import as_sequences, telling_sample
from lagreach.diagnosis.diagnose import diagnose, diagnosis_plans
from lagreach.diagnosis.measure import MeasureSettings
from lagreach.diagnosis.settings import with_arguments
from lagreach.diagnosis.whole_model import check_whole_model, choices_of_layers, collecting
from lagreach.errors import InputError
from lagreach.gradients.optimiser_geometry import optimiser_name
from lagreach.gradients.selection import Selection
from lagreach.statistics import LagStatistic, all_statistics, check_statistics
from lagreach.transport.losses import Loss
from lagreach.transport.objective import make_objective
from lagreach.transport.rollout import run
from lagreach.whole_model.choice import choose_lags
from lagreach.whole_model.language_models import aligned_labels


@refuse_spelling("optimiser", MEASURES)
@also_called("target_steps", "steps")
@leaves_as_it_was
@torch.enable_grad()
@one_thread()
def check_diagnosable(
    model: nn.Module | View,
    data: Any,
    loss: Loss = "mse",
    lags: str | Iterable[int] = "auto",
    *,
    sequences: int | None = None,
    budget: float | None = None,
    memory: int | None = None,
    params: Selection = "input",
    require: Iterable[int] = (),
    steps: Any = None,
    outputs: str | None = None,
    cell: Mapping[str, Cell] | None = None,
    call: Call | None = None,
    optimizer: Any = None,
    settings: MeasureSettings | None = None,
    statistics: Sequence[LagStatistic] = (),
    lags_of: str = "auto",
    inputs: str | None = None,
    only: str | None = None,
    **choices: Any,
) -> None:
    """Try a model on a few sequences and raise what `lagreach.diagnose` would raise about them; nothing is measured.

    `choices` are those of the settings that `lagreach.diagnose` takes by their names.
    """
    _refuse_unknown(choices)
    check_bounds(sequences=sequences, budget=budget, memory=memory)
    check_statistics([*all_statistics().values(), *statistics])
    if optimizer is not None:  # whose state comes with the training
        optimiser_name(optimizer)
    chosen = with_arguments(settings or MeasureSettings(), **choices)
    lags = lags if isinstance(lags, str) else listed_lags(lags)
    require = listed_lags(require, "require")
    source, aligned, _notes = aligned_labels(model, as_sequences(data), loss, call)
    sample = telling_sample(source)
    call, _reset = from_fresh_state(model, sample, call)
    refuse_unknown_tokens(model, source, call)
    of_layers = bool(choices_of_layers(chosen, {"params": params}) or collecting(statistics))
    choice = choose_lags(
        model, sample, lags_of=lags_of, inputs=inputs, cell=cell, call=call, only=only, of_layers=of_layers
    )
    if choice.of == "model":
        check_whole_model(
            model, source, aligned, lags, settings=chosen, why=choice.why, only_of_layers={"params": params},
            require=require, steps=steps, outputs=outputs or choice.outputs, call=call, inputs=choice.inputs,
            memory=memory,
        )  # fmt: skip
        return
    diagnosis_plans(
        model, source, aligned, lags, settings=chosen, params=params, require=require, steps=steps, outputs=outputs,
        cell=cell, call=call, views=choice.views, roughly=True,
    )  # fmt: skip
    if callable(aligned):  # what a loss of the user's own makes of outputs
        part = run(choice.views[0].bind(sample))
        seq, positions, out = part.output.shape
        shape = (seq, positions, out)
        make_objective(aligned, sample, part.recurrence, shape, input_time=part.x.shape[1])(part.output)


def _refuse_unknown(choices: Mapping[str, Any]) -> None:
    """Refuse what `lagreach.diagnose` does not know."""
    known = list(inspect.signature(diagnose).parameters)[2:]
    unknown = [name for name in choices if name not in known]
    if unknown:
        raise InputError(
            "unknown options",
            got=", ".join(f"{name}={choices[name]!r}" for name in unknown),
            expected=f"options of lagreach.diagnose: {', '.join(known)}",
            fix="leave them out",
        )
