"""Gradients of the selected weights by band of lags, summed over groups of sequences: the data's signal and the planted one.

The data's signal is summed over the lags of a band, and sketched lag by lag (`lag_sketch`). The probe plants at the far edge
of each band: the input at the position reached weights what arrives there. Where the loss sees one output, both start along
the same direction at every step, and one transport serves both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.gradients.measurement_plan import MeasurementPlan, band_cotangents
from lagreach.transport.carry import Carry, Steps, WeightSums, weights_of
from lagreach.transport.exact import walk_back
from lagreach.transport.linear_scan import jumps
from lagreach.transport.rollout import Rollout
from lagreach.transport.scaled import size_in_powers_of_two

TOGETHER = 4  # sequences whose products in float64 lie in a cache
Found = Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]
Carried = Iterator[tuple[list[Tensor], list[Tensor], list[Tensor]]]


def band_gradients(
    plan: MeasurementPlan,
    part: Rollout,
    signals: list[Float[Tensor, "seq time state"]],
    planted: list[Float[Tensor, "seq time state"]],
    groups: Sequence[slice],
) -> Found:
    """Yield, band by band, the data's gradients (group, signal, param) and the probes' (group, probe, param).

    Beside them the sketches (group, signal, lag, coordinate) of the lags of a band of several, or None.

    Parameters
    ----------
    signals
        Gradients at the states whose transport is the data's signal, one for each pairing.
    planted
        The same for the probes, one for each output direction.
    groups
        Ranges of sequences that are summed together.
    """
    steps = Steps(part, plan.names, groups)
    inputs = plan.probe.planted(part.x.double()).movedim(0, -1)  # (seq, time, probe)
    members = [[p for p, g in enumerate(plan.probe.group) if g == group] for group in range(len(planted))]
    directly = plan.transport != "exact" or (plan.sketch is None and jumps(part, plan.bands.examined))
    carry = _from_arrivals if directly else _step_by_step
    for data, probes, sketches in carry(
        plan, part, steps, signals, planted, [inputs[..., in_group] for in_group in members]
    ):
        of_probes = np.empty((len(groups), len(plan.probe.group), plan.width))
        for in_group, gradients in zip(members, probes, strict=True):
            of_probes[:, in_group] = gradients.cpu().numpy()
        inside = torch.stack(sketches, dim=2).cpu().numpy() if sketches else None
        yield torch.cat(data, dim=1).cpu().numpy(), of_probes, inside


def _step_by_step(
    plan: MeasurementPlan,
    part: Rollout,
    steps: Steps,
    signals: list[Tensor],
    planted: list[Tensor],
    inputs: list[Tensor],
) -> Carried:
    probes = [WeightSums(steps, reached, kept=True) for reached in inputs]
    carries = [Carry(steps, start) for start in planted]
    shares = proportions(signals, planted[0]) if len(planted) == 1 else [None]
    known = [share for share in shares if share is not None]
    if len(known) == len(signals):  # one transport carries the probes and every signal
        data = [WeightSums(steps, anchors=torch.stack(known, dim=-1), kept=True)]
    else:
        carries += [Carry(steps, signal) for signal in signals]
        data = [WeightSums(steps, kept=True) for _ in signals]
    examined = set(plan.bands.examined)
    edges, alone = set(plan.bands.lags), len(carries) - len(data)  # carries of probes alone

    def collected(lag: int, number: int) -> list[WeightSums]:
        """A probe's sums at the edge of a band; the data's, with the last carries, all over it."""
        planted_here = probes[number : number + 1] if lag in edges else []
        return [*planted_here, data[number - alone]] if number >= alone and lag in examined else planted_here

    sketch, nearer, sketches = plan.sketch, list[Tensor](), list[Tensor]()
    for lag, _ in walk_back(carries, plan.bands.lags[-1], collected):
        if sketch is not None and lag in sketch.lags:
            here = [sums.take() for sums in data]
            sketches.append(sketch(torch.cat(here, dim=1), plan.scale))
            nearer = [a.add_(b) for a, b in zip(nearer, here, strict=True)] if nearer else here
        if lag in edges:
            yield nearer or [sums.take() for sums in data], [sums.take() for sums in probes], sketches
            nearer, sketches = [], []


def _from_arrivals(
    plan: MeasurementPlan,
    part: Rollout,
    steps: Steps,
    signals: list[Tensor],
    planted: list[Tensor],
    inputs: list[Tensor],
) -> Carried:
    for totals, arrived in band_cotangents(plan, part, signals, planted, kept=True):
        probes = [_weights(steps, carried, reached) for carried, reached in zip(arrived, inputs, strict=True)]
        yield [_weights(steps, total) for total in totals], probes, []


def _weights(steps: Steps, carried: Tensor, reached: Tensor | None = None) -> Tensor:
    """Gradients of the weights, scaled on the way so that float32 models do not underflow."""
    power = size_in_powers_of_two(carried)
    return weights_of(steps, (carried / power).to(steps.x.dtype), reached) * power


def proportions(signals: Sequence[Tensor], to: Float[Tensor, "seq time state"]) -> list[Tensor | None]:
    """Factors (seq, time) by which signals are multiples of `to` at every step, up to rounding; None where they are not."""
    double = to.double()
    square = double.square().sum(-1)
    factors: list[Tensor | None] = []
    for values in signals:
        along = [
            (part * whole).sum(-1) for part, whole in zip(values.split(TOGETHER), double.split(TOGETHER), strict=True)
        ]
        factor = torch.cat(along) / torch.where(square > 0, square, 1.0)
        wrong = torch.addcmul(values, factor[..., None].to(values), to, value=-1).abs_().amax(-1)
        same = wrong <= 64 * torch.finfo(values.dtype).eps * values.abs().amax(-1)
        factors.append(factor if bool(same.all()) else None)
    return factors
