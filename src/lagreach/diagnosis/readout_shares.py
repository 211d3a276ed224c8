"""Shares that a readout recovers, beside the lags of a whole model: layers have them from their states, it by one more pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from lagreach.adapters.calling import Call
from lagreach.data.sequences import Sequences
from lagreach.diagnosis.result import LayerDiagnosis
from lagreach.errors import LagreachError
from lagreach.forecasting.forecast import readout_shares
from lagreach.statistics.readable import MOST_UNITS, Readable, too_wide
from lagreach.transport.losses import LOSSES, Loss


def with_readout_shares(
    layer: LayerDiagnosis,
    model: nn.Module,
    source: Sequences,
    loss: Loss,
    seed: int,
    planned: int,
    *,
    steps: Any = None,
    outputs: str | None = None,
    call: Call | None = None,
) -> tuple[LayerDiagnosis, tuple[str, ...]]:
    """Add the curve of shares where the model ends in a readout that is not wide, and say where it is."""
    if loss not in LOSSES or outputs is not None:
        return layer, ()
    window = layer.window
    options = {"loss": loss, "most_features": MOST_UNITS, "seed": seed, "target_steps": steps, "call": call}
    try:
        curves, features = readout_shares(model, source, [int(lag) for lag in window.lags], **options)
    except LagreachError:  # a model that can be diagnosed, but whose outputs belong to no step, say
        return layer, ()
    if curves is None:
        return layer, (too_wide(features),)
    statistic = Readable()
    shown = {statistic.name: statistic.shown(curves, float(planned), window.strength)}
    return replace(layer, window=replace(window, curves=dict(window.curves) | shown)), ()
