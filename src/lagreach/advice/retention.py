"""`retention`: how much each recurrent layer keeps from step to step, without targets or gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lagreach.adapters import View, find_views
from lagreach.adapters.as_it_was import leaves_as_it_was
from lagreach.adapters.calling import Call
from lagreach.adapters.scan_cell import ScanCell
from lagreach.adapters.scan_view import ScanView
from lagreach.adapters.view import lengths_within
from lagreach.cells.stack import Layer
from lagreach.data.batch import Batch, sample_of
from lagreach.data.lags import check_lags
from lagreach.errors import InputError, UnsupportedError
from lagreach.transport.first_order_sums import factors_of
from lagreach.transport.linear_scan import decay_products
from lagreach.transport.objective import valid_steps
from lagreach.transport.rollout import run


@dataclass(frozen=True)
class LayerRetention:
    """Decays of one layer on some sequences.

    `log_decay` is ``(seq, time, *axes)`` with the names in `axes`: the logarithm of the factor by which a step keeps what
    was there, -inf where a document begins. `phase` is the angle by which complex units turn. `valid` says which steps
    count. `exact` is False where the state has other paths besides (gates that read the state), so that products of
    decays are only the retention part of transport.
    """

    name: str
    family: str
    axes: tuple[str, ...]
    log_decay: Float[Tensor, "seq time *axes"]
    valid: Bool[Tensor, "seq time"]
    phase: Float[Tensor, "seq time *axes"] | None
    reset: Bool[Tensor, "seq time"] | None
    exact: bool

    @property
    def half_lives(self) -> Float[Tensor, "*axes"]:
        """Steps after which half is left, from the mean log decay over steps that count; inf if nothing is lost."""
        counted = self.valid if self.reset is None else self.valid & ~self.reset
        weights = counted.double().flatten()
        logs = self.log_decay.double().flatten(0, 1)
        mean = torch.einsum("r,r...->...", weights, torch.where(torch.isneginf(logs), 0.0, logs)) / weights.sum()
        forgets = torch.einsum("r,r...->...", weights, torch.isneginf(logs).double()) > 0
        return torch.where(forgets, 0.0, math.log(2) / (-mean).clamp(min=0))

    def quantiles(self, levels: Sequence[float] = (0.5, 0.9, 1.0)) -> list[float]:
        """Half-lives at some quantiles over decays; the last of the default is the longest."""
        ordered = self.half_lives.flatten().sort().values
        return [ordered[math.ceil(level * len(ordered)) - 1 if level > 0 else 0].item() for level in levels]

    def log10_gain(self, lags: Sequence[int]) -> Float[Tensor, "lag *axes"]:
        """Base-10 logarithm of the root mean square of the product of decays over each lag, for every decay.

        The mean runs over sequences and over anchors whose whole window counts; NaN where there is none.
        """
        wanted = check_lags(lags, self.log_decay.shape[1])
        padded = (~self.valid).int().cumsum(1)
        log_gains = []
        for lag, logs in decay_products(self.log_decay.flatten(2), wanted):
            reached = self.log_decay.shape[1] - lag
            whole = self.valid[:, :reached] & (padded[:, lag:] == padded[:, :reached])
            sums = torch.logsumexp(torch.where(whole[..., None], 2 * logs, -torch.inf).flatten(0, 1), dim=0)
            count = whole.sum().double()
            log_gains.append(torch.where(count > 0, (sums - count.log()) / 2, torch.nan))
        return (torch.stack(log_gains) / math.log(10)).unflatten(1, self.log_decay.shape[2:])


@dataclass(frozen=True)
class Retention:
    """Decays of all recurrent layers of a model."""

    layers: tuple[LayerRetention, ...]

    def __getitem__(self, name: str) -> LayerRetention:
        for layer in self.layers:
            if layer.name == name:
                return layer
        known = ", ".join(layer.name for layer in self.layers)
        raise InputError("there is no such layer", got=repr(name), expected=f"one of {known}")

    def __str__(self) -> str:
        width = max(len("layer"), *(len(layer.name) for layer in self.layers))
        lines = [f"{'layer':{width}}{'median':>9}{'90 %':>9}{'longest':>9}   half-lives in steps of"]
        for layer in self.layers:
            numbers = "".join(f"{value:9.3g}" for value in layer.quantiles())
            shape = " x ".join(f"{n} {a}" for n, a in zip(layer.log_decay.shape[2:], layer.axes, strict=True))
            note = "" if layer.exact else "  (retention part only)"
            lines.append(f"{layer.name:{width}}{numbers}   {shape}, {layer.family}{note}")
        return "\n".join(lines)


@leaves_as_it_was
def retention(
    model: nn.Module | View, x: Tensor, *, lengths: Tensor | None = None, state: Any = None, call: Call | None = None
) -> Retention:
    """Measure the per-step decay of every recurrent layer of a model on some sequences.

    Parameters
    ----------
    x
        Inputs (seq, time, ...), as the model takes them: token numbers for a language model.
    lengths
        Number of valid steps of each sequence; the rest does not count.
    call
        How to run the model on a batch, if ``model(x)`` is not it.

    Examples
    --------
    >>> from lagreach import GatedRNN
    >>> model = GatedRNN("const_gate", 2, 3, 1, gate_init=0.5)
    >>> print(retention(model, torch.zeros(1, 4, 2)))
    layer   median     90 %  longest   half-lives in steps of
    model        1        1        1   3 unit, const_gate  (retention part only)
    """
    x = torch.as_tensor(x)
    batch = Batch(x, torch.zeros(len(x)), None, None if lengths is None else torch.as_tensor(lengths), state)
    views = find_views(model, sample_of(batch), call)
    return Retention(tuple(layer for view in views for layer in _layers(view, batch)))


def _layers(view: View, batch: Batch) -> list[LayerRetention]:
    if isinstance(view, ScanView) and isinstance(view.layer.cell, ScanCell):
        return [_scan_layer(view, view.layer.cell, batch)]
    part = run(view.bind(batch))
    recurrence = part.recurrence
    valid = valid_steps(part.lengths, len(part.x), part.x.shape[1], part.x.device)
    layers = []
    with torch.no_grad():
        for k, layer in enumerate(recurrence.stack.layers(part.x, part.previous, part.states, recurrence.params)):
            decay = _decay(layer)
            name = view.name if len(recurrence.stack.cells) == 1 else f"{view.name} layer {k}"
            exact = layer.cell.first_order == "exact"
            layers.append(
                LayerRetention(
                    name, layer.cell.name, ("unit",), decay.abs().log().cpu(), valid.cpu(), None, None, exact
                )
            )
    return layers


def _decay(layer: Layer) -> Tensor:
    """Retention part of a step, or the forget gate where a projected or rescaled state has no such part."""
    try:
        return factors_of(layer).middle.real
    except UnsupportedError:
        return layer.cell.gates(layer.x, layer.previous, layer.params)["f"]


def _scan_layer(view: ScanView, cell: ScanCell, batch: Batch) -> LayerRetention:
    layer, scan_inputs = view.layer, view.scan_inputs(batch)
    with torch.no_grad():
        written = cell.write(scan_inputs.x, layer.weights())
    shape = layer.decay_shape
    lengths = lengths_within(batch, scan_inputs.x.shape[1])
    inside = valid_steps(lengths, len(scan_inputs.x), scan_inputs.x.shape[1], scan_inputs.x.device)
    return LayerRetention(
        view.name,
        layer.family,
        layer.axes,
        written.log_decay.unflatten(-1, shape).cpu(),
        (scan_inputs.valid & inside).cpu(),
        None if written.phase is None else written.phase.unflatten(-1, shape).cpu(),
        None if scan_inputs.reset is None else scan_inputs.reset.cpu(),
        exact=cell.diagonal,
    )
