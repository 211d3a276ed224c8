"""Effective learning rates: the paper's first-order view of transport, per lag and unit (sections 4 and 5.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lagreach.adapters import Recurrence, View
from lagreach.adapters.as_it_was import leaves_as_it_was
from lagreach.adapters.calling import Call
from lagreach.cells import Dual, Factors
from lagreach.cells.lstm import LSTM
from lagreach.cells.stack import Layer
from lagreach.data.lags import check_lags
from lagreach.errors import InputError, UnsupportedError
from lagreach.transport.cotangent import Cotangent
from lagreach.transport.dual import LagProduct, windows
from lagreach.transport.first_order_sums import factors_of, rate_sums, square_sums
from lagreach.transport.prepare import prepare
from lagreach.transport.rollout import Rollout
from lagreach.transport.scaled import LOWEST, ScaledSum, times_power_of_two
from lagreach.types import Status

FORMS = ("jacobian", "paper", "paper-eq13")


@dataclass(frozen=True)
class EffectiveRates:
    """Effective learning rates ``mu_q(l)``, averaged in absolute value over anchors and sequences.

    `rates` (lag, unit) and `envelope` (lag), ``f(l) = sum_q mu_q(l)``, are float64 and become zero below 1e-308;
    the ``log10_`` versions never do. `channels` splits the rates by origin: "retention" (gamma0), "correction"
    (gamma1) and, for the paper's GRU, "reset" and "mixed". `layer` tells which layer a unit belongs to.
    """

    lags: Int[Tensor, "lag"]
    log10_rates: Float[Tensor, "lag unit"]
    log10_channels: dict[str, Tensor]
    layer: Int[Tensor, "unit"]
    form: str
    lr: float
    status: Status

    @property
    def rates(self) -> Float[Tensor, "lag unit"]:
        """``mu_q(l)``."""
        return 10.0**self.log10_rates

    @property
    def channels(self) -> dict[str, Tensor]:
        """Mean absolute value of each part of the rates, (lag, unit)."""
        return {name: 10.0**values for name, values in self.log10_channels.items()}

    @property
    def log10_envelope(self) -> Float[Tensor, "lag"]:
        """Base-10 logarithm of the envelope."""
        top = self.log10_rates.amax(-1, keepdim=True)
        top = torch.where(torch.isfinite(top), top, 0.0)
        return torch.log10((10.0 ** (self.log10_rates - top)).sum(-1)) + top[..., 0]

    @property
    def envelope(self) -> Float[Tensor, "lag"]:
        """``f(l) = sum_q |mu_q(l)|``: a sum over units, not a mean."""
        return 10.0**self.log10_envelope

    def __str__(self) -> str:
        lines = [f"effective learning rates, form={self.form!r}: {self.status}", "   lag   log10 f(l)"]
        pairs = zip(self.lags.tolist(), self.log10_envelope.tolist(), strict=True)
        return "\n".join(lines + [f"{lag:6d}   {value:10.3f}" for lag, value in pairs])


@leaves_as_it_was
def effective_rates(
    model: nn.Module | Recurrence | View,
    x: Tensor,
    lags: Sequence[int],
    form: str = "jacobian",
    *,
    lr: float = 1.0,
    lengths: Tensor | Sequence[int] | None = None,
    state: Any = None,
    others: Any = None,
    name: str = "x",
    chunk: int | None = None,
    call: Call | None = None,
) -> EffectiveRates:
    """Effective learning rates ``mu = lr (gamma0 + gamma1)`` of every unit at the given lags.

    Parameters
    ----------
    lags
        Lags from 0 to T-1; at lag 0 every rate is 1.
    form
        "jacobian": the diagonal of the first-order expansion of the Jacobian product. "paper": adds the GRU's
        reset and mixed products as (26) does. "paper-eq13": the LSTM's zeroth order as printed in (13).
    lr
        Global learning rate, a plain factor.
    lengths
        Number of valid steps of each sequence; anchors beyond it do not count.
    state
        Initial state to hand to the model, sequences first.
    call
        How to run the model on a batch, if ``model(x)`` is not it: a function of the model and a batch.

    Examples
    --------
    A ConstGate without recurrent weights has ``f(l) = H (1-s)^l``:

    >>> from lagreach import GatedRNN
    >>> model = GatedRNN("const_gate", 2, 3, 1, gate_init=0.25)
    >>> _ = torch.nn.init.zeros_(model.layers[0]["U_h"])
    >>> effective_rates(model, torch.zeros(1, 9, 2), lags=[1, 2, 4]).envelope
    tensor([2.2500, 1.6875, 0.9492], dtype=torch.float64)
    """
    prepared = prepare(model, x, lengths=lengths, state=state, others=others, name=name, call=call)
    recurrence = prepared.view.template
    wanted = check_lags(lags, prepared.time)
    _check_form(recurrence, form)
    sums: list[dict[str, ScaledSum]] = []
    valid = []
    for rows, part in prepared.parts(chunk):
        valid.append(prepared.anchors(rows, part))
        merged = [_sum_rates(layer, wanted, valid[-1], form) for layer in _layers(part)]
        sums = merged if not sums else [_merge(old, new) for old, new in zip(sums, merged, strict=True)]
    return mean_rates(recurrence, sums, wanted, torch.cat(valid), form=form, lr=lr)


def mean_rates(
    recurrence: Recurrence,
    sums: list[dict[str, ScaledSum]],
    wanted: list[int],
    valid: Bool[Tensor, "seq time"],
    *,
    form: str = "jacobian",
    lr: float = 1.0,
) -> EffectiveRates:
    """Turn sums over anchors, (lag, unit) for every layer and channel, into effective learning rates."""
    reaching = valid.sum(0).flip(0).cumsum(0).flip(0)  # anchors that reach back so far
    log_mean = torch.log10(reaching[wanted].to(torch.float64)) - torch.log10(torch.tensor(lr, dtype=torch.float64))
    joined = {name: torch.cat([layer[name].log10() for layer in sums], dim=-1) for name in sums[0]}
    per_unit = {name: (values - log_mean[:, None]).cpu() for name, values in joined.items()}
    rates = per_unit.pop("rate")
    layer_of_unit = torch.arange(len(sums)).repeat_interleave(recurrence.stack.hidden_size)
    status = {"exact": Status.FIRST_ORDER_EXACT, "vanishes": Status.FIRST_ORDER_VANISHES}
    return EffectiveRates(
        lags=torch.tensor(wanted),
        log10_rates=rates,
        log10_channels=per_unit,
        layer=layer_of_unit,
        form=form,
        lr=lr,
        status=status.get(recurrence.stack.first_order, Status.OK),
    )


def first_order_windows(layer: Layer, lags: Sequence[int]) -> Iterator[LagProduct]:
    """First-order transport of one layer at ascending lags; lag 0 is the identity."""
    factors = factors_of(layer)
    positive = [lag for lag in lags if lag > 0]
    if len(positive) < len(lags):
        like = factors.middle.real.to(torch.float64)
        yield LagProduct(0, torch.ones_like(like), torch.zeros_like(like))
    yield from windows(factors, positive)


def first_order_transport(
    part: Rollout, delta: Float[Tensor, "seq time state"], lags: Sequence[int]
) -> Iterator[Cotangent]:
    """``lambda_{t,l}`` to first order: the rate of each unit times the gradient at the anchor.

    In a stack each layer keeps to itself. For an LSTM the rates lead from the gradient at h to the block of c,
    and everything else is zero.
    """
    return (next(arriving) for arriving in first_order_transports(part, [delta], lags))


def first_order_transports(
    part: Rollout, deltas: Sequence[Float[Tensor, "seq time state"]], lags: Sequence[int]
) -> Iterator[Iterator[Cotangent]]:
    """`first_order_transport` of several gradients: at each lag one after the other, all by the same rates."""
    layers = _layers(part)
    sweeps = [first_order_windows(layer, lags) for layer in layers]
    for lag, *products in zip(lags, *sweeps, strict=True):
        yield (_arrived(part, layers, products, delta) if lag > 0 else Cotangent(0, delta) for delta in deltas)


def _arrived(part: Rollout, layers: list[Layer], products: list[LagProduct], delta: Tensor) -> Cotangent:
    """What is left of gradients after windows of one lag."""
    lag = products[0].lag
    values, exponents, scaled = [], [], False
    for layer, gradient, window in zip(layers, part.recurrence.stack.split(delta), products, strict=True):
        moved = window.rate() * layer.cell.output(gradient)[:, lag:].double()
        for block in layer.cell.blocks:
            carried = block == layer.cell.rate_block
            values.append(moved if carried else torch.zeros_like(moved))
            exponents.append(window.exponent if carried else None)
        scaled |= window.exponent is not None
    if not scaled:
        return Cotangent(lag, torch.cat(values, -1))
    known = [torch.zeros_like(v, dtype=torch.int32) if e is None else e for v, e in zip(values, exponents, strict=True)]
    return Cotangent.aligned(lag, torch.cat(values, -1), torch.cat(known, -1))


def first_order_norms(part: Rollout, delta: Float[Tensor, "seq time state"], lags: Sequence[int]) -> list[ScaledSum]:
    """``sum |lambda_{t,l}|^2`` to first order, for every lag."""
    total: list[ScaledSum] = []
    for layer, gradient in zip(_layers(part), part.recurrence.stack.split(delta), strict=True):
        sums = square_sums(layer, layer.cell.output(gradient), lags)
        if sums is None:
            return [cotangent.square_norm() for cotangent in first_order_transport(part, delta, lags)]
        total = [a + b for a, b in zip(total, sums, strict=True)] if total else sums
    return [ScaledSum.of_squares(delta), *total] if lags[0] == 0 else total


def _layers(part: Rollout) -> list[Layer]:
    recurrence = part.recurrence
    return list(recurrence.stack.layers(part.x, part.previous, part.states, recurrence.params))


def _check_form(recurrence: Recurrence, form: str) -> None:
    if form not in FORMS:
        raise InputError("unknown form", got=repr(form), expected=", ".join(FORMS))
    if form == "paper-eq13" and not all(isinstance(cell, LSTM) for cell in recurrence.stack.cells):
        raise UnsupportedError(
            'form="paper-eq13" is the LSTM of equation (13)',
            got=", ".join(sorted({cell.name for cell in recurrence.stack.cells})),
            fix='use form="jacobian" or form="paper"',
        )


def _sum_rates(layer: Layer, lags: list[int], anchors: Tensor, form: str) -> dict[str, ScaledSum]:
    """Sum |rate| and the size of its channels over sequences and anchors, lag by lag, for one layer."""
    if form == "jacobian" and (fused := rate_sums(layer, lags, anchors)) is not None:
        return fused
    extra: dict[str, Iterator[LagProduct]] = {}
    if form == "paper":
        products = layer.cell.channels(layer.x, layer.previous, layer.params)
        factors = {name: Factors.uniform(Dual(a, torch.zeros_like(a))) for name, a in products.items()}
        extra = {name: windows(f, [lag for lag in lags if lag > 0]) for name, f in factors.items()}
    printed = _eq13_windows(layer, lags) if form == "paper-eq13" else None

    sums: dict[str, list[ScaledSum]] = {}
    for lag, window in zip(lags, first_order_windows(layer, lags), strict=True):
        keep = anchors[:, lag:, None]
        parts = {"retention": (window.real, window.exponent), "correction": (window.slope, window.exponent)}
        if printed is not None:
            parts["retention"] = (next(printed), None)
        for name, sweep in extra.items():
            channel = next(sweep) if lag > 0 else window
            parts[name] = (channel.real, channel.exponent)
        parts["rate"] = _total(list(parts.values()))
        for name, (values, exponent) in parts.items():
            sums.setdefault(name, []).append(ScaledSum.of((values * keep).abs(), exponent, dim=(0, 1)))
    return {name: ScaledSum.stack(by_lag) for name, by_lag in sums.items()}


def _total(parts: list[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
    """Sum numbers with different exponents, keeping the largest exponent."""
    if all(exponent is None for _, exponent in parts):
        return torch.stack([values for values, _ in parts]).sum(0), None
    exponents = [torch.zeros_like(v, dtype=torch.int32) if e is None else e for v, e in parts]
    visible = [torch.where(v == 0, LOWEST, e) for (v, _), e in zip(parts, exponents, strict=True)]
    top = torch.stack(visible).amax(0)
    top = torch.where(top == LOWEST, 0, top)
    shifted = [times_power_of_two(v, (e - top).clamp(max=0)) for (v, _), e in zip(parts, exponents, strict=True)]
    return torch.stack(shifted).sum(0), top


def _merge(a: dict[str, ScaledSum], b: dict[str, ScaledSum]) -> dict[str, ScaledSum]:
    return {name: a[name] + b[name] for name in a}


def _eq13_windows(layer: Layer, lags: list[int]) -> Iterator[Tensor]:
    """Zeroth order as printed in (13): ``sum_m e_m prod_{j<m} f_j`` over the window, oldest step first.

    Adding an older step u turns S into ``e_u + f_u S``: a plain recursion over lags, bounded by the lag.
    """
    assert isinstance(layer.cell, LSTM)
    e, f = (v.to(torch.float64) for v in layer.cell.expression(layer.x, layer.previous, layer.params))
    if 0 in lags:
        yield torch.ones_like(e)  # a gradient that stays where it is
    total = torch.zeros_like(e)  # S over an empty window, stored by the position reached
    for lag in range(1, max(lags) + 1):
        left = e.shape[1] - lag
        total = e[:, 1 : left + 1] + f[:, 1 : left + 1] * total[:, 1:]
        if lag in lags:
            yield total
