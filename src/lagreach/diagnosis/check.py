"""Try a model on its data before something long begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from lagreach._util.threads import one_thread
from lagreach.adapters import View
from lagreach.adapters.as_it_was import leaves_as_it_was
from lagreach.adapters.calling import Call
from lagreach.adapters.fresh_state import from_fresh_state
from lagreach.cells import Cell
from lagreach.data.lags import listed_lags
from lagreach.data.sequences import as_sequences, telling_sample
from lagreach.transport.losses import Loss
from lagreach.transport.objective import make_objective
from lagreach.transport.rollout import run
from lagreach.whole_model.choice import choose_lags
from lagreach.whole_model.language_models import aligned_labels
from lagreach.whole_model.measurement_plan import plan_model_measurement


@leaves_as_it_was
@torch.enable_grad()
@one_thread()
def check_diagnosable(
    model: nn.Module | View,
    data: Any,
    loss: Loss = "mse",
    lags: str | Iterable[int] = "auto",
    *,
    require: Iterable[int] = (),
    steps: Any = None,
    outputs: str | None = None,
    cell: Mapping[str, Cell] | None = None,
    call: Call | None = None,
    lags_of: str = "auto",
    inputs: str | None = None,
    only: str | None = None,
    **_: Any,
) -> None:
    """Try a model on a few sequences and raise what `lagreach.diagnose` would raise about them; nothing is measured."""
    if not isinstance(lags, str):
        lags = listed_lags(lags)
    listed_lags(require, "require")
    source, aligned, _notes = aligned_labels(model, as_sequences(data), loss, call)
    sample = telling_sample(source)
    call, _reset = from_fresh_state(model, sample, call)
    choice = choose_lags(model, sample, lags_of=lags_of, inputs=inputs, cell=cell, call=call, only=only)
    if choice.of == "model":
        assert isinstance(model, nn.Module)
        plan = plan_model_measurement(
            model,
            source,
            aligned,
            lags,
            blocks=2,
            probes=1,
            seed=0,
            steps=steps,
            outputs=outputs or choice.outputs,
            call=call,
            inputs=choice.inputs,
        )
        piece = plan.run(plan.block_plan.pairs[0])
        piece.objective(piece.output)
    elif callable(aligned) and choice.views:  # what a loss of the user's own makes of outputs
        part = run(choice.views[0].bind(sample))
        seq, positions, out = part.output.shape
        shape = (seq, positions, out)
        make_objective(aligned, sample, part.recurrence, shape, input_time=part.x.shape[1])(part.output)
