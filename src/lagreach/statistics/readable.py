"""*Readable* share: what a readout fitted to the states recovers of a lag. One forward pass.

`lagreach.forecast` measures it for any model; `lagreach.diagnose` collects it in its first pass, of each recurrent layer.

Features are what the readout reads. With the squared loss every output has weights of its own on the same features, so one
output stands for all. For classes, the loss is a square near the model's own probabilities p (Gauss-Newton), with the curvature
``diag(p) - p p'``; its mean over the classes, ``h_t = (1 - |p_t|^2) / classes``, says how much a step counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach.gradients.measurement_plan import MeasurementPlan, PairBatch
from lagreach.statistics._statistic import STATES, LagCurve, LagStatistic, Look, Measured
from lagreach.statistics.linear_share import (
    AMPLE,
    Observed,
    Rows,
    ShareCurves,
    ShareMoments,
    anchor_chance,
    at_anchors,
    compiled_sums,
    enough_anchors,
    joined,
    output_space,
    rounding_floor,
    share_curves,
)
from lagreach.transport.losses import LOSSES
from lagreach.transport.objective import valid_steps

BLOCKS = 16  # of sequences, each left out in turn
FEWEST_BLOCKS = 3
MOST_UNITS = 256  # of a layer: moments are their square, fits their cube
MOST_COPIES = 8  # outputs whose gradients are followed; of more, random directions


def start(
    blocks: int,
    features: int,
    lags: Sequence[int],
    copies: Float[Tensor, "probe copy"],
    device: torch.device | str = "cpu",
    singled: bool = False,
) -> ShareMoments:
    """Sums of a readout; `copies` (probe, output) are the output directions of the probes."""
    return ShareMoments(blocks, features, 1, lags, (0,) * len(copies), copies, device, singled)


class Read(NamedTuple):
    """All that a fit of the readout needs of its features: what they are at the anchors, and the gradient of each sequence."""

    at_anchors: Float[Tensor, "seq anchor feature"]
    gradient: Float[Tensor, "seq copy feature"]

    @classmethod
    def joined(cls, parts: Sequence[Read]) -> Read:
        """Put sequences behind each other."""
        return cls(*(joined(values) for values in zip(*parts, strict=True)))


def read_features(
    features: Float[Tensor, "seq target feature"],
    index: Int[Tensor, "seq anchor"],
    shares: Float[Tensor, "seq target"],
    root: Float[Tensor, "seq target 1"],
    residual: Float[Tensor, "seq target copy"],
) -> Read:
    """Reduce features, which are many, to what a fit needs of them.

    `root` is ``sqrt(h_t)`` and `residual` the residual over it: one and the residual itself for the squared loss.
    """
    weighted = (shares[..., None] * root) * residual
    gradient, picked = _summed_and_picked(weighted, features, index)
    return Read(picked * at_anchors(root, index), gradient.double())


def readable_rows(observed: Observed, features: Float[Tensor, "seq target feature"], lags: Sequence[int]) -> Rows:
    """Features of a readout as a linear fit sees them; `observed.towards` (one row, one group) is the root of `read_features`."""
    root = observed.towards[..., 0]
    return read_rows(
        observed, read_features(features, observed.anchors[0], observed.shares, root, observed.residual), lags
    )


def read_rows(observed: Observed, read: Read, lags: Sequence[int]) -> Rows:
    """What a fit needs of the features, beside what was observed."""
    return observed.rows(read.at_anchors[:, :, None], read.gradient, lags)


def _summed_and_picked(
    weighted: Float[Tensor, "seq target copy"],
    features: Float[Tensor, "seq target feature"],
    index: Int[Tensor, "seq anchor"],
) -> tuple[Float[Tensor, "seq copy feature"], Float[Tensor, "seq anchor feature"]]:
    """Features summed over the targets, and at the anchors; of fused layers, which keep time first, in the order of memory."""
    by_time = features.transpose(0, 1)
    if weighted.shape[2] > 1 or not compiled_sums(features) or not by_time.is_contiguous():
        return weighted.mT @ features, at_anchors(features, index)
    from lagreach.kernels.cpu.weighted_sums import weighted_sums  # late: it brings a compiler along

    summed, picked = weighted_sums(weighted[..., 0], by_time, index)
    return summed[:, None], picked


def why_not_readable(plan: MeasurementPlan) -> str | None:
    """Say why a diagnosis does not measure what a readout of this layer would recover; None where it does."""
    units = _units(plan)
    return too_wide(units) if units > MOST_UNITS else None


def too_wide(units: int) -> str:
    """Say that a readout of so many units was not looked at."""
    return (
        f"how much of each lag will be recovered was not measured: {units:,} units are more than the {MOST_UNITS} up to "
        "which that is cheap; lagreach.forecast(model, data) measures it"
    )


def _units(plan: MeasurementPlan) -> int:
    stack = plan.view.template.stack
    return stack.output(torch.zeros(1, 1, stack.state_size)).shape[-1]


class ReadableSums:
    """Moments of what a layer gives to the rest of the model, and of old inputs."""

    def __init__(self, plan: MeasurementPlan) -> None:
        self.probe, self.seed, self.at_end = plan.probe, plan.seed, plan.at_end
        self.lags = list(plan.bands.lags)
        self.sequences = plan.block_plan.pairs.size
        self.loss = str(plan.loss)
        self.dtype = plan.view.template.dtype
        self.moments: ShareMoments | None = None

    def add(self, piece: PairBatch) -> None:
        """Take in some pairs of sequences."""
        part, objective = piece.part, piece.objective
        seq, time = part.x.shape[:2]
        positions, outputs = part.output.shape[1:]
        if positions not in (1, time) and not self.at_end:
            return  # which step an output belongs to is not known
        probes = len(self.probe.group)
        generator = torch.Generator().manual_seed(self.seed + 1)
        space = output_space(self.loss, outputs, MOST_COPIES, probes, generator)
        inside = valid_steps(part.lengths, seq, time, part.x.device)
        index = torch.arange(positions, device=part.x.device).expand(seq, -1)
        index = index if objective.steps is None else objective.steps
        last = inside.sum(1, keepdim=True) - 1
        times = index if positions == time and not self.at_end else last.expand_as(index)
        states = part.recurrence.stack.output(part.states)
        both = ((part.output, index), (states, times))
        output, features = (_picked(values.to(self.dtype), at) for values, at in both)  # autocast makes them coarser
        planted = self.probe.planted(part.x).permute(1, 2, 0)
        apart = space.apart(output, objective)
        along_residual, along_output = space.along(output, apart)
        rank = np.repeat(2 * piece.pair, 2) + np.tile([0, 1], len(piece.pair))
        anchors = enough_anchors(times.shape[1], self.sequences, features.shape[-1])
        observed = Observed(
            block=torch.from_numpy(piece.block % BLOCKS),
            times=times,
            shares=objective.weights / objective.weights.sum(1, keepdim=True),
            planted=torch.where(inside[..., None], planted, 0.0).to(output),
            residual=space.readout_residual(output, apart),
            towards=space.curvature_root(output),
            along_residual=along_residual,
            along_output=along_output,
            along=space.group,
            chance=anchor_chance(self.seed, rank, anchors).to(output.device),
        )
        if self.moments is None:
            self.moments = start(BLOCKS, features.shape[-1], self.lags, space.copies)
        self.moments.add(readable_rows(observed, features, self.lags).to("cpu"))

    def merge(self, other: ReadableSums) -> None:
        """Take in the moments of other sequences."""
        if self.moments is None or other.moments is None:
            self.moments = self.moments or other.moments
        else:
            self.moments.merge(other.moments)


class Readable(LagStatistic):
    """Share of a dependency of the given strength that a readout of the layer's output recovers from N sequences."""

    place: ClassVar[int] = 3
    name: ClassVar[str] = "readable"
    title: ClassVar[str] = "Share that a readout recovers"
    unit: ClassVar[str] = "share"
    reads: ClassVar[frozenset[str]] = frozenset({STATES})
    column: ClassVar[str] = "share recovered"
    tracked: ClassVar[str] = "readable"
    look: ClassVar[Look | None] = Look(opens=True)

    def start(self, plan: MeasurementPlan, dependences: Sequence[int]) -> ReadableSums | None:
        """Collect moments, where that is cheap and the loss has a known curvature."""
        if plan.loss not in LOSSES or why_not_readable(plan) is not None:
            return None
        return ReadableSums(plan)

    def curve(self, measured: Measured) -> LagCurve | None:
        """Shares from the sequences that are planned for; also from more than anyone has, and what half of it needs."""
        sums: ReadableSums | None = measured.collected
        if sums is None or sums.moments is None or int((sums.moments.sequences > 0).sum()) < FEWEST_BLOCKS:
            return None
        window = measured.window
        curves = share_curves(sums.moments, floor=rounding_floor(sums.dtype))
        return self.shown(curves, float(window.planned or window.sequences), window.strength)

    def shown(self, curves: ShareCurves, planned: float, strength: float) -> LagCurve:
        """Shares from so many sequences as a curve."""
        shares = curves.planted(np.array([planned, AMPLE]), strength)
        needed = curves.needed(strength)
        return self.make(
            list(curves.lags), shares.value[:, 0], shares.low[:, 0], shares.high[:, 0],
            ample=shares.value[:, 1], needed=needed.value[:, 0], needed_low=needed.low[:, 0], needed_high=needed.high[:, 0],
        )  # fmt: skip


def _picked(values: Float[Tensor, "seq time value"], index: Tensor) -> Float[Tensor, "seq target value"]:
    whole = torch.arange(values.shape[1], device=index.device)
    if index.shape == values.shape[:2] and torch.equal(index[0], whole):
        return values  # all of them, in their order
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))
