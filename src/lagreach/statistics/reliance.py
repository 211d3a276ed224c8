"""Does the model use an old input? Replace it by another sequence's and see whether the loss rises.

For a pair of sequences the inputs at ``t - l`` are exchanged, the model runs on to t, and only the state at the anchor t is
replaced in the loss. If the target does not depend on that input given the rest, exchanging the two inputs turns the
difference of losses into its negative, so sign flips over pairs are an exact test.

How much of the lag is learned follows from the same runs. Let a be what the model makes of the input, and c what the target
holds of it, along the same function of the input. The rise is ``R = 2 a c``, and the bend of the loss between the outputs as
they are and after the exchange, ``Q = L + L' - 2 L(middle)``, is ``a^2``. Leaving the input out would cost ``R - Q``; the model
at its best could gain ``c^2 = R^2 / (4 Q)``. Their ratio is one where a equals c, and below zero where the model is worse with
the input than without it, as untrained networks are. It is exact for squared errors; a cross-entropy bends in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.data.pairs import pair_scores
from lagreach.gradients.contrast import anchor_shares
from lagreach.gradients.measurement_plan import MeasurementPlan, PairBatch
from lagreach.gradients.significance import step_down
from lagreach.kernels import scan_stack
from lagreach.statistics._statistic import DEPENDENCES, LagCurve, LagStatistic, Look, Measured
from lagreach.statistics.dependence import HELD_AND_USED
from lagreach.types import Status

ANCHORS = 4  # per pair and lag
FLIPS = 256  # sign patterns held at once


@dataclass(frozen=True)
class Reliance:
    """Rise of the loss at a step when the input l steps before is replaced, as a share of the loss there.

    `explained` is the part of the best constant's loss that the model saves, NaN where that is not known: a network that is
    worse than a constant has learned nothing, however it leans. `learned` is the share of each lag that is learned, as the module
    says.
    """

    lags: tuple[int, ...]
    rise: Float[np.ndarray, "lag"]
    standard_error: Float[np.ndarray, "lag"]
    adjusted: Float[np.ndarray, "lag"]
    explained: float = float("nan")
    learned: Float[np.ndarray, "lag"] | None = None

    def share_learned(self, lag: int) -> float:
        """Share of a lag that is learned; NaN where it was not measured."""
        return float("nan") if self.learned is None else float(self.learned[self.lags.index(lag)])


NO_RELIANCE = Reliance((), np.empty(0), np.empty(0), np.empty(0))  # not measured


class RelianceSums:
    """Rises and losses of every pair seen so far, at the lags that the data depend on."""

    def __init__(self, plan: MeasurementPlan, lags: Sequence[int], seed: int) -> None:
        self.lags, self.seed, self.time = tuple(lags), seed, plan.time
        # pairs of windows from one stretch of a series depend on each other: their signs are flipped together
        self.stretch = plan.block_plan.blocks if plan.block_plan.of_series else None
        self.pair: list[np.ndarray] = []
        self.values: list[np.ndarray] = []  # (3, pair, lag) each: rises, losses and bends
        self.levels: list[np.ndarray] = []  # (pair, 2 + out) each: loss, loss of the output 0, and its slope there
        self.loss = plan.loss

    def add(self, piece: PairBatch) -> None:
        """Exchange inputs within the pairs of a piece; lags without anchors give NaN."""
        values = np.full((3, len(piece.pair), len(self.lags)), np.nan)
        for column, lag in enumerate(self.lags):
            values[:, :, column] = _rise(piece, lag, pair_scores(piece.pair, lag, self.time, self.seed)).numpy()
        self.pair.append(piece.pair)
        self.values.append(values)
        self.levels.append(_levels(piece))

    def merge(self, other: RelianceSums) -> None:
        """Take in the pairs of another part."""
        self.pair += other.pair
        self.values += other.values
        self.levels += other.levels

    def result(self, flips: int) -> Reliance:
        """Test every lag by flipping the signs of pairs (of stretches, in a series); the order of the pairs does not matter."""
        pairs = np.concatenate(self.pair) if self.pair else np.array([], dtype=int)
        order = np.argsort(pairs)
        unit = np.arange(len(pairs)) if self.stretch is None else self.stretch[pairs[order]]
        empty = np.empty((3, 0, len(self.lags)))
        values = np.concatenate([empty, *self.values], axis=1)[:, order]
        reliance = reliance_of(self.lags, values, flips, np.random.default_rng(self.seed), unit)
        if not self.levels or self.loss not in ("mse", "cross_entropy"):
            return reliance
        loss, *nothing = np.concatenate(self.levels)[order].mean(0)
        constant = best_constant(str(self.loss), nothing[0], np.array(nothing[1:]))
        known = np.isfinite(loss) and 0 < constant < np.inf  # squares of huge targets overflow
        return replace(reliance, explained=float(1 - loss / constant) if known else float("nan"))


def best_constant(loss: str, at_zero: float, slope: Float[np.ndarray, "out"]) -> float:
    """Loss of the best constant output, from the loss of the output 0 and its slope there.

    The squared error is a parabola whose slope tells the mean of the targets; at equal logits the slope of the cross-entropy
    is what the shares of the classes differ from equal ones.

    >>> y = np.array([1.0, 2.0, 6.0])
    >>> abs(best_constant("mse", np.square(y).mean(), np.array([-2 * y.mean()])) - y.var()) < 1e-12
    np.True_
    >>> round(best_constant("cross_entropy", np.log(2), np.array([0.25, -0.25])), 6)  # shares 1/4 and 3/4
    0.562335
    """
    if loss == "mse":
        return float(at_zero - len(slope) / 4 * np.square(slope).sum())
    shares = 1 / len(slope) - slope
    shares = shares[shares > 0] / shares[shares > 0].sum()
    return float(-(shares * np.log(shares)).sum())


def _levels(piece: PairBatch) -> np.ndarray:
    """Per pair: the loss, the loss of a constant output 0, and the slope of that in the constant."""
    part, objective = piece.part, piece.objective
    output = part.output
    with torch.no_grad():
        loss = objective(output).double()
    constant = output.new_zeros(len(output), 1, output.shape[-1]).requires_grad_()
    with torch.enable_grad():
        nothing = objective(constant.expand_as(output))
        (slope,) = torch.autograd.grad(nothing.sum(), constant)
    each = torch.cat((loss[:, None], nothing.detach().double()[:, None], slope[:, 0].double()), dim=1)
    return np.asarray(each.view(-1, 2, each.shape[1]).mean(1).cpu().numpy())


class RelianceCurve(LagStatistic):
    """Rise of the loss when the input l steps ago is replaced; only at lags that the data depend on."""

    place: ClassVar[int] = 7
    name: ClassVar[str] = "reliance"
    title: ClassVar[str] = "Rise of the loss when the input is replaced"
    unit: ClassVar[str] = "share of the loss"
    reads: ClassVar[frozenset[str]] = frozenset({DEPENDENCES})
    column: ClassVar[str] = ""
    tracked: ClassVar[str] = ""
    look: ClassVar[Look | None] = Look(
        HELD_AND_USED,
        "Reliance: how much the loss rises when the input at a lag is replaced, for the dependences found.",
        mark="bar",
        lines={"": "reliance"},
    )

    def start(self, plan: MeasurementPlan, dependences: Sequence[int]) -> RelianceSums:
        """Collect rises at the lags that the data depend on."""
        return RelianceSums(plan, dependences, plan.seed)

    def curve(self, measured: Measured) -> LagCurve:
        """As the window keeps it, NaN at the other lags."""
        window, reliance = measured.window, measured.window.reliance
        value, low, high = (np.full(len(window.lags), np.nan) for _ in range(3))
        status = [Status.NOT_SIGNIFICANT] * len(window.lags)
        half = 1.96 * reliance.standard_error
        for column in np.argsort(reliance.rise):  # of several lags in a band the largest rise is shown
            place = window.required.index(reliance.lags[column])
            value[place], status[place] = reliance.rise[column], Status.OK
            low[place], high[place] = value[place] - half[column], value[place] + half[column]
        return self.make(window.lags, value, low, high, status)


def _rise(piece: PairBatch, lag: int, scores: Tensor) -> Float[Tensor, "value pair"]:
    """Rise of the loss, the loss itself, and its bend, per unit weight of the anchor, averaged over each pair's anchors."""
    part, objective, swap = piece.part, piece.objective, piece.partner
    shares = anchor_shares(part.recurrence, objective, part.states).cpu()
    usable = torch.minimum(shares, shares[swap])[::2, lag:] > 0  # both of a pair, at the same times
    none = torch.full((len(usable),), torch.nan, dtype=torch.float64)
    if usable.shape[1] == 0 or not usable.any():
        return torch.stack((none, none, none))
    scores = scores[:, lag : lag + usable.shape[1]] * usable
    count = min(ANCHORS, usable.shape[1])
    best = scores.topk(count, dim=1)
    anchors = (best.indices + lag).repeat_interleave(2, dim=0)  # (seq, anchor)
    counted = (best.values > 0).repeat_interleave(2, dim=0)
    output = part.output
    with torch.no_grad():
        before = objective(output)
        rise, level, bend = torch.zeros(3, *anchors.shape, dtype=torch.float64)
        rows = torch.arange(len(anchors))
        for a in range(count):
            t = anchors[:, a]
            window = t[:, None] - lag + torch.arange(lag + 1)
            inputs = part.x[rows[:, None], window]
            inputs[:, 0] = part.x[swap, t - lag]
            state = scan_stack(part.recurrence.stack, inputs, part.previous[rows, t - lag], part.recurrence.params)[
                :, -1
            ]
            changed = part.states.clone()
            changed[rows, t] = state
            other = part.recurrence.head(changed, part.recurrence.head_params)
            after, middle = objective(other), objective((output + other) / 2)
            rise[:, a] = (after - before).double().cpu() / shares[rows, t]
            bend[:, a] = (after + before - 2 * middle).double().cpu() / shares[rows, t]
            level[:, a] = before.double().cpu()
    weight = counted.double()
    pair_weight = weight.view(-1, 2, count).sum((1, 2))
    sums = torch.where(counted, torch.stack((rise, level, bend)), 0.0).view(3, -1, 2, count).sum((2, 3))
    return torch.where(pair_weight > 0, sums / pair_weight, torch.nan)


def reliance_of(
    lags: tuple[int, ...],
    values: Float[np.ndarray, "value pair lag"],
    flips: int,
    generator: np.random.Generator,
    unit: np.ndarray | None = None,
) -> Reliance:
    """Test the rises of pairs, NaN where a pair has none, by flipping their signs; as shares of the losses.

    `values` are rises, losses and bends. `unit` (pair,) numbers what is independent: every pair if None.
    """
    rises, losses, bends = values
    unit = np.arange(len(rises)) if unit is None else unit
    seen = np.isfinite(rises)
    count = seen.sum(0)
    sums = _by_unit(np.where(seen, rises, 0.0), unit)
    safe = np.maximum(count, 1)
    mean = sums.sum(0) / safe
    scale = np.sqrt(np.square(sums).sum(0))  # of squares, so that flips leave it alone
    turned = [sums.sum(0, keepdims=True)]
    for start in range(0, flips, FLIPS):  # a few at a time: all signs of many pairs would not be small
        turned.append(generator.choice([-1.0, 1.0], size=(min(FLIPS, flips - start), len(sums))) @ sums)
    z = np.concatenate(turned) / np.where(scale > 0, scale, 1.0)
    level = np.where(seen, losses, 0.0).sum(0) / safe
    units = np.maximum((_by_unit(seen.astype(float), unit) > 0).sum(0), 1)
    apart = _by_unit(np.where(seen, rises - mean, 0.0), unit)
    spread = np.sqrt(np.square(apart).sum(0) * units / np.maximum(units - 1, 1)) / safe
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(count > 0, mean / level, np.nan)
        error = np.where(count > 0, spread / level, np.nan)
    adjusted = np.where(count > 0, step_down(z), np.nan)
    learned = np.where(count > 0, share_of_rise(mean, np.where(seen, bends, 0.0).sum(0) / safe), np.nan)
    return Reliance(lags, share, error, adjusted, learned=learned)


def share_of_rise(rise: Float[np.ndarray, "lag"], bend: Float[np.ndarray, "lag"]) -> Float[np.ndarray, "lag"]:
    """Share of a lag that is learned: ``(R - Q) / (R^2 / (4 Q))``; 0 where the rise is not above zero.

    >>> c, a = 1.0, np.array([1.0, 0.5, 0.1, 2.0, 4.0])  # what the target holds, and what the model makes of it
    >>> share_of_rise(2 * a * c, a**2).round(2)
    array([ 1.  ,  0.75,  0.19,  0.  , -8.  ])
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where((rise > 0) & (bend > 0), 4 * bend * (rise - bend) / np.square(rise), 0.0)


def _by_unit(values: Float[np.ndarray, "pair lag"], unit: np.ndarray) -> Float[np.ndarray, "unit lag"]:
    """Sums over the pairs of each unit."""
    sums = np.zeros((int(unit.max(initial=-1)) + 1, values.shape[1]))
    np.add.at(sums, unit, values)
    return sums
