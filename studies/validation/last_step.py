"""Lag gradients of a loss that looks at the last step alone, with one output: one row a sequence instead of one a step.

`directions` and `statistics` carry gradients back from every step. Where only the last one has any, a plain walk back from it
gives the same numbers in a fraction of the time, for all signals at once, since they differ by a factor for each sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.cells._pullback import Pullback
from lagreach.gradients.blocks import BlockMeans
from lagreach.gradients.contrast import planted_gradient, signal_gradients, target_spread
from lagreach.gradients.measurement_plan import MeasurementPlan
from lagreach.gradients.noise import NoiseValues
from lagreach.transport.rollout import Rollout

IN_ONE_PIECE = 2**40  # bytes that a piece may take: all sequences are run together
SIGNALS = ("dependence", "gradient")


@dataclass(frozen=True)
class LastStep:
    """What the walk back gives.

    `block` (seq,) numbers the blocks, `factor` holds each signal's multiples (pairing, seq) of the planted gradient. `data`
    are the planted gradients (seq, band, param) summed over each band, `edge` those at its far edge. `log10_norm` (lag, seq)
    is the size of what is carried.
    """

    plan: MeasurementPlan
    number: np.ndarray
    block: np.ndarray
    factor: dict[str, np.ndarray]
    data: Float[np.ndarray, "seq band param"]
    edge: Float[np.ndarray, "seq band param"]
    planted: Float[np.ndarray, "seq band probe"]
    spread: Float[np.ndarray, "seq 2"]
    log10_norm: Float[np.ndarray, "lag seq"]

    def directions(self, signal: str = "dependence") -> BlockMeans:
        """Block means of a signal's gradients and of the probes', as `lagreach.gradients.blocks.block_means` gives them."""
        members = (self.block[None] == np.arange(self.plan.block_plan.count)[:, None]).astype(float)
        size = members.sum(1)
        averaging = members / size[:, None]
        probe = np.einsum("ks,sbq,sbp->kqbp", averaging, self.planted, self.edge, optimize=True)
        data = np.einsum("ks,gs,sbp->kgbp", averaging, self.factor[signal], self.data, optimize=True)
        spread = (members @ self.spread)[:, None]
        return BlockMeans(np.arange(len(size)), size.astype(int), data, probe, spread)

    def lag_noise(self, along: np.ndarray) -> NoiseValues:
        """Each band's own gradients along directions (block, signal, band, param), as ``statistics(noise="lag")``."""
        gradients = self.factor["gradient"][0, :, None, None] * self.data
        values = np.stack([np.einsum("bp,qbp->qb", g, along[k]) for g, k in zip(gradients, self.block, strict=True)])
        blocks = np.arange(self.plan.block_plan.count)
        steps = np.full((len(blocks), *along.shape[1:3], 3), np.nan)  # values by step are not measured here
        return NoiseValues.merge([NoiseValues(self.number, self.block, values[:, 0], values[:, 1:], blocks, steps)])

    def log10_gain(self, lags: list[int]) -> list[float]:
        """Size of the loss gradient at each lag over its size at the last step, as `lagreach.fidelity`'s exact gain."""
        with np.errstate(divide="ignore"):
            squares = 2 * (self.log10_norm + np.log10(np.abs(self.factor["gradient"][0])))
        top = squares.max(1, keepdims=True, initial=-np.inf)
        top = np.where(np.isfinite(top), top, 0.0)
        with np.errstate(divide="ignore"):
            sums = np.log10((10.0 ** (squares - top)).sum(1)) + top[:, 0]
        return [float(sums[lag] - sums[0]) / 2 for lag in lags]


def walk_back(plan: MeasurementPlan, reach: int) -> LastStep:
    """Walk back from the last step, `reach` steps or to the far edge of the last band, in float64."""
    (piece,) = replace(plan, memory=IN_ONE_PIECE).pieces(range(plan.block_plan.count))
    part, steps = piece.part, plan.bands.lags[-1]
    start = planted_gradient(part.recurrence, piece.objective, part.states, plan.probe.output[0])[:, -1].double()
    square = start.square().sum(1)
    factor = {}
    others, weights = plan.exchanged(piece)
    for signal in SIGNALS:
        every = others if signal == "dependence" else others[:1]
        deltas = signal_gradients(part.recurrence, piece.objective, every, part.states, signal, weights)
        factor[signal] = np.stack([((d[:, -1].double() * start).sum(1) / square).numpy() for d in deltas])
    inputs = plan.probe.planted(part.x.double()).permute(1, 2, 0)  # (seq, time, probe)
    walk = Walk(part, start)
    data = np.zeros((len(start), len(plan.bands), plan.width))
    edge, planted = np.zeros_like(data), np.zeros((len(start), len(plan.bands), len(plan.probe.group)))
    norms = []
    band_of = {lag: b for b, (first, last) in enumerate(plan.bands.edges) for lag in range(first, last + 1)}
    for lag in range(max(reach, steps) + 1):
        norms.append(walk.log10_norm())
        if lag in band_of:
            band, gradients = band_of[lag], walk.gradients(plan.names)
            data[:, band] += gradients
            if lag == plan.bands.lags[band]:
                edge[:, band], planted[:, band] = gradients, inputs[:, -1 - lag].numpy()
        walk.step()
    spread = target_spread(part.recurrence, piece.objective, piece.swapped, part.states, plan.probe.output[0])
    return LastStep(plan, piece.number, piece.block, factor, data, edge, planted, spread, np.stack(norms))


class Walk:
    """A gradient at the last state of every sequence on its way back through a single layer."""

    def __init__(self, part: Rollout, start: Float[Tensor, "seq state"]) -> None:
        stack = part.recurrence.stack
        (self._cell,) = stack.cells
        self._names = {name: short for short, name in stack.names[0].items()}
        self._params = {name: p.detach().double() for name, p in stack.layer_params(0, part.recurrence.params).items()}
        self._x, self._previous = part.x.double(), part.previous.double()
        self._now, self._position = start, part.x.shape[1] - 1
        self._linearise()

    def _linearise(self) -> None:
        pullback = self._cell.pullback(self._x[:, self._position], self._previous[:, self._position], self._params)
        assert pullback is not None
        self._pullback: Pullback = pullback
        self._spread = self._now.new_empty(len(self._now), self._pullback.width)
        self._pullback.spread(self._now, self._spread)

    def step(self) -> None:
        """Go on to the state before."""
        if self._position == 0:
            return
        before = torch.empty_like(self._now)
        self._pullback.state(self._now, self._spread, before)
        self._now, self._position = before, self._position - 1
        self._linearise()

    def log10_norm(self) -> np.ndarray:
        """Size of each sequence's gradient; minus infinity where nothing is left."""
        top = self._now.abs().amax(1, keepdim=True)
        scaled = self._now / torch.where(top > 0, top, 1.0)
        return (torch.linalg.vector_norm(scaled, dim=1).log10() + top[:, 0].log10()).numpy()

    def rescale(self) -> Float[Tensor, "seq"]:
        """Bring every gradient to length one, and return the logarithms of the lengths."""
        length = torch.linalg.vector_norm(self._now, dim=1, keepdim=True)
        self._now = self._now / torch.where(length > 0, length, 1.0)
        self._spread /= torch.where(length > 0, length, 1.0)
        return length[:, 0].log()

    def gradients(self, names: list[str]) -> Float[np.ndarray, "seq param"]:
        """What each sequence's gradient says about the named weights at this step."""
        by_weight = []
        for name in names:
            short = self._names[name]
            columns = torch.cat([self._spread[:, c] for c in self._pullback.uses[short].columns], dim=1)
            by_weight.append((columns[:, :, None] * self._pullback.factor([short])[:, None, :]).flatten(1))
        return torch.cat(by_weight, dim=1).numpy()


def growth_per_step(part: Rollout, generator: torch.Generator) -> float:
    """Mean logarithm of the growth of a random gradient on its way back, per step: a Lyapunov-type rate."""
    start = torch.randn(part.states[:, -1].shape, generator=generator, dtype=torch.float64)
    walk = Walk(part, start)
    walk.rescale()
    total = torch.zeros(len(start), dtype=torch.float64)
    steps = part.x.shape[1] - 1
    for _ in range(steps):
        walk.step()
        total += walk.rescale()
    return float(total.mean() / steps)
