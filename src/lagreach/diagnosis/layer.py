"""What a diagnosis adds to a measured window: gains, rates, their shape, tails of the noise, the theory of convergence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from lagreach._util.interrupts import as_it_stands
from lagreach.adapters import View
from lagreach.adapters.folded import by_row
from lagreach.cells.diag_elman import DiagElman
from lagreach.data.sequences import Sequences
from lagreach.diagnosis.assemble import MeasuredWindow
from lagreach.diagnosis.curves import with_curves
from lagreach.diagnosis.notes import POOLED
from lagreach.diagnosis.pacing import SHOWN
from lagreach.diagnosis.passes import Statistics
from lagreach.diagnosis.result import LayerDiagnosis, NoiseSample
from lagreach.errors import LagreachError, UnsupportedError
from lagreach.gradients.head_reach import pools
from lagreach.gradients.measurement_plan import MeasurementPlan
from lagreach.models.gated_rnn import GatedRNN
from lagreach.papers.cayci import standing
from lagreach.regimes import fit_regimes
from lagreach.tails.fit import fit_tail
from lagreach.transport.fidelity import Fidelity, fidelity
from lagreach.transport.first_order import EffectiveRates, effective_rates
from lagreach.transport.losses import Loss
from lagreach.transport.objective import output_gradient
from lagreach.types import Status


def diagnose_layer(plan: MeasurementPlan, measured: MeasuredWindow, statistics: Statistics) -> LayerDiagnosis:
    """Add gains, rates, their shape and the tail fit to a window; an interrupt leaves gains and rates out."""
    window, noise_sample = measured.window, measured.noise_sample
    put_back = as_it_stands()
    try:
        gains, rates = gains_and_rates(plan)
    except KeyboardInterrupt:  # the window is there
        put_back()
        lags = torch.tensor(plan.bands.lags)
        unknown = torch.full((len(lags),), torch.nan, dtype=torch.float64)
        by_lag = (Status.INTERRUPTED,) * len(lags)
        gains, rates = Fidelity(lags, unknown, unknown, Status.INTERRUPTED, by_lag), None
    pooled = not plan.view.local and pools(plan)
    if pooled:
        window = replace(window, warnings=(*window.warnings, POOLED), settings={**window.settings, "pooled": True})
    return LayerDiagnosis(
        name=plan.view.name.replace("\0", "\\0"),  # which files cannot hold
        local=plan.view.local or pooled,
        window=with_curves(window, gains, rates, statistics, measured.collected),
        fidelity=gains,
        rates=rates,
        tail=fit_tail(noise_sample),
        regimes=fit_regimes(gains.lags.numpy(), log10_values=gains.log10_exact.numpy()),
        noise=NoiseSample.of(noise_sample),
    )


def gains_and_rates(plan: MeasurementPlan) -> tuple[Fidelity, EffectiveRates | None]:
    """Exact and first-order gain and the rates, on up to 64 of the sequences."""
    batch = plan.sequences.read(np.sort(plan.block_plan.pairs.ravel()[:SHOWN]).tolist())
    options = {"lengths": batch.lengths, "state": batch.state, "others": batch.others, "name": batch.name}
    if plan.memory is not None:
        options["chunk"] = 2 * replace(plan, transport="first-order").pairs_together
    view, lags = by_row(plan.view), plan.bands.lags
    gains = fidelity(view, batch.x, batch.y, lags, plan.loss, mask=batch.mask, steps=plan.steps, **options)
    try:
        rates = effective_rates(view, batch.x, lags, **options)
    except UnsupportedError:  # a projected LSTM has no units to follow
        return gains, None
    return gains, rates


def anchors_of(plan: MeasurementPlan) -> float:
    """Number of steps whose state the loss looks at: one for a loss at the end, all for a loss at every step."""
    part, objective = plan.run(plan.block_plan.pairs[0].tolist())
    delta = output_gradient(part.recurrence, objective, part.states)[0]
    return (delta.abs().amax(-1) > 0).sum(1).double().mean().item()


def convergence_of(model: nn.Module | View, source: Sequences, loss: Loss) -> Mapping[str, Any] | None:
    """Where a diagonal network stands to the theory of its convergence; None for any other model."""
    if not (isinstance(model, GatedRNN) and isinstance(model.cell, DiagElman) and model.num_layers == 1):
        return None
    batch = source.read(range(min(len(source), SHOWN)))
    targets = batch.y if loss == "mse" and model.output_size == 1 and batch.mask is None else None
    try:
        position = standing(model, batch.x, targets)
    except LagreachError as error:  # say, inputs that are all zero: the window above stands without it
        return {"text": str(error)}
    return {"text": str(position)} | position.to_dict()
