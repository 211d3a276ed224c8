"""First pass: what each lag's gradient of the input weights is made of, for the data and for planted dependencies.

For the data it is what changes when the partners of a pair swap their targets; for a probe, a target that moves along a
random direction of the outputs with the input at the lag (docs/theory/detection.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.progress import Progress, Tick
from lagreach.gradients.contrast import step_weights
from lagreach.gradients.partial_inputs import InputMoments as PartialMoments
from lagreach.gradients.partial_inputs import WholeProducts, neighbour_products
from lagreach.whole_model.anchors import draw_anchors, draw_lags, pair_streams
from lagreach.whole_model.factors import Factors, Products, block_gram, coordinates
from lagreach.whole_model.input_moments import InputMoments
from lagreach.whole_model.lag_sketch import ModelLagSketch
from lagreach.whole_model.measurement_plan import PairBatch, WholeModelPlan
from lagreach.whole_model.outputs import cotangents
from lagreach.whole_model.spread import Here, Spread
from lagreach.whole_model.swapped_targets import both, swaps_of


@dataclass(frozen=True)
class Signals:
    """Factors of the lag gradients of all anchors, what the probes plant there, and the spread of the targets.

    The data have a signal for every pairing of the sequences. `contrast` (pairing, row) weights the planted factors where it
    is a multiple of them (one output); it is None where the data have factors of their own, the first ones. `spread` (block,
    group, 2) are sums whose ratio is the variance of the target part; `sketch` (block, pairing, lag, coordinate) holds the
    lags inside bands one by one (`ModelLagSketch`). `followed` says how numbers follow each other in time (None for tokens),
    and `ahead` is the share of the square gradient that reached inputs behind their outputs.
    """

    plan: WholeModelPlan
    factors: Factors
    contrast: np.ndarray | None
    size: np.ndarray
    spread: np.ndarray
    moments: InputMoments
    planted: Float[np.ndarray, "probe slot row"]
    followed: PartialMoments | None
    ahead: float
    sketch: np.ndarray | None = None

    def data(self, band: int) -> Products:
        """The data's signal at a band of lags: the mean over pairings."""
        slots, pairings = self._slots(band), self.plan.pairings
        if self.contrast is not None:
            return Products.of(self.factors, slots, 0, [self.contrast.mean(0)] * len(slots))
        parts = [Products.of(self.factors, slots, pairing) for pairing in range(pairings)]
        return replace(parts[0], arrived=sum((one.arrived for one in parts[1:]), parts[0].arrived) / pairings)

    def _pairings(self, band: int) -> Float[np.ndarray, "place place"]:
        """Inner products of the block means of all pairings; those of a block follow each other.

        Of some columns of the width at a time, so that all pairings take no more memory than one.
        """
        slots, pairings = self._slots(band), self.plan.pairings
        width, size = self.factors.arrived.shape[-1], np.repeat(self.size, pairings)
        total, together = np.zeros((len(size), len(size))), -(-width // pairings)
        for first in range(0, width, together):
            columns = slice(first, first + together)
            parts = [self._pairing(slots, pairing, columns) for pairing in range(pairings)]
            weighting = None if self.plan.weighting is None else self.plan.weighting[:, columns]
            total += block_gram(Products.joined(parts, apart=True), size, weighting)
        return total

    def _pairing(self, slots: list[int], pairing: int, columns: slice) -> Products:
        if self.contrast is None:
            return Products.of(self.factors, slots, pairing, columns=columns)
        return Products.of(self.factors, slots, 0, [self.contrast[pairing]] * len(slots), columns)

    def _slots(self, band: int) -> list[int]:
        return np.flatnonzero(self.plan.slots.band == band).tolist()

    def probe(self, number: int, band: int) -> Products:
        """A probe's signal at the far edge of a band, for a planted share of one."""
        slot = int(self.plan.slots.edge[band])
        signal = self.plan.group[number] + (self.plan.pairings if self.contrast is None else 0)
        return Products.of(self.factors, [slot], signal, [self.planted[number, slot]])

    @property
    def told(self) -> np.ndarray:
        """Whether inputs at a band's lags differ between some partners, (band,): else nothing can be told there."""
        read = self.factors.read[:, : self.factors.filled]
        differs = (read[:, ::2] != read[:, 1::2]).reshape(len(read), -1).any(1)  # rows of partners are neighbours
        return np.array([differs[self.plan.slots.band == band].any() for band in range(len(self.plan.bands))])

    def means(self) -> tuple[np.ndarray, np.ndarray]:
        """Block means of the data's signal (block, pairing, band, axis) and of the probes' (block, probe, band, axis).

        In coordinates with the same inner products as the gradients themselves.
        """
        bands, probes = range(len(self.plan.bands)), range(len(self.plan.group))
        weighting = self.plan.weighting
        data = np.moveaxis(coordinates(np.stack([self._pairings(band) for band in bands])), 0, 1)
        planted = np.stack([[block_gram(self.probe(p, band), self.size, weighting) for band in bands] for p in probes])
        return data.reshape(len(self.size), -1, *data.shape[1:]), np.moveaxis(coordinates(planted), 2, 0)


@dataclass(frozen=True)
class _Rows:
    """What one piece adds: rows of factors, with the coefficient of the data's signal, and sums over its sequences."""

    block: np.ndarray
    arrived: list[Tensor]
    read: list[Tensor]
    contrast: list[Tensor]  # (pairing, row)
    spread: np.ndarray
    ahead: tuple[float, float]
    inputs: Tensor
    inside: Tensor
    sketch: dict[int, np.ndarray]  # sums of a block, (pairing, lag, coordinate)


@dataclass(frozen=True)
class SignalPart:
    """What `Signals` are made of, for some blocks."""

    blocks: tuple[int, ...]
    factors: Factors
    contrast: np.ndarray
    spread: np.ndarray
    moments: InputMoments
    followed: PartialMoments | None
    ahead: np.ndarray
    sketch: np.ndarray | None = None


@dataclass(frozen=True)
class SignalWork:
    """The first pass on some blocks."""

    stage: str = "lags"

    def __call__(self, plan: WholeModelPlan, blocks: tuple[int, ...], tick: Tick = None) -> SignalPart:
        """Run the model once on every pair, with a few ways back from each sequence."""
        place = {block: number for number, block in enumerate(blocks)}
        rows = 2 * int(np.isin(plan.block_plan.blocks, blocks).sum()) * plan.anchors
        factors: Factors | None = None
        contrast, moments = np.zeros((plan.pairings, rows)), InputMoments(plan.source.reads_tokens)
        spread = np.zeros((len(blocks), len(plan.output), 2))
        ahead, followed = np.zeros(2), _Followed(blocks)
        lag_sketch = ModelLagSketch.of(plan)
        shape = None if lag_sketch is None else (len(blocks), plan.pairings, len(lag_sketch.lags), lag_sketch.size)
        sketch = None if shape is None else np.zeros(shape)
        for piece in plan.each(lambda rows, home: _rows(plan, rows, home, lag_sketch), tick, blocks):
            for arrived, read, coefficient in zip(piece.arrived, piece.read, piece.contrast, strict=True):
                if factors is None:
                    factors = Factors(rows, arrived, read)
                start = factors.filled
                factors.append(piece.block, arrived, read)
                contrast[:, start : factors.filled] = coefficient.cpu().numpy()
            homes = [place[block] for block in piece.block.tolist()]
            np.add.at(spread, homes, piece.spread)
            for block, inside in piece.sketch.items():
                assert sketch is not None
                sketch[place[block]] += inside
            ahead += piece.ahead
            moments.add(piece.inputs, piece.inside)
            if not plan.source.reads_tokens:
                followed.add(piece.inputs, piece.inside, piece.block)
        assert factors is not None
        follows = None if plan.source.reads_tokens else followed.result()
        return SignalPart(blocks, factors, contrast, spread, moments, follows, ahead, sketch)


def measure_signals(
    plan: WholeModelPlan,
    progress: Progress | None = None,
    spread: Spread | None = None,
) -> Signals:
    """Have the first pass done, and put its parts together; of an interrupted one, with the blocks that are finished."""
    work = SignalWork()
    parts: list[SignalPart] = []
    factors: Factors | None = None
    rows = plan.block_plan.sequences * plan.anchors
    for part in (spread or Here()).parts(plan, work, progress):
        if factors is None:  # one part alone is taken as it is
            factors = part.factors if part.factors.filled == rows else Factors.like(rows, part.factors)
        if factors is not part.factors:
            factors.extend(part.factors)
        parts.append(replace(part, factors=factors))
    assert factors is not None
    blocks = [block for part in parts for block in part.blocks]
    if len(blocks) < plan.block_plan.count:
        plan = replace(plan, block_plan=plan.block_plan.only(blocks))
    moments = InputMoments(plan.source.reads_tokens)
    for part in parts:
        moments.merge(part.moments)
    ahead = np.sum([part.ahead for part in parts], axis=0)
    followed = [part.followed for part in parts if part.followed is not None]
    sketch = [part.sketch for part in parts if part.sketch is not None]
    size = np.bincount(plan.block_plan.blocks, minlength=plan.block_plan.count) * 2
    return Signals(
        plan=plan,
        factors=factors,
        contrast=np.concatenate([part.contrast for part in parts], axis=1) if plan.output.shape[1] == 1 else None,
        size=size,
        spread=np.concatenate([part.spread for part in parts]),
        moments=moments,
        planted=_planted(plan, factors, moments),
        followed=PartialMoments.merge(followed) if followed else None,
        ahead=float(ahead[0] / ahead[1]) if ahead[1] > 0 else 0.0,
        sketch=np.concatenate(sketch) / size[:, None, None, None] if sketch else None,
    )


class _Followed:
    """Products of the differences of partners' inputs with those before, by block."""

    def __init__(self, blocks: tuple[int, ...]) -> None:
        self._sums: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {block: [] for block in blocks}
        self._moves: dict[int, list[np.ndarray]] = {
            block: [] for block in blocks
        }  # (2, input): in time, between partners
        self._whole = WholeProducts()

    def add(self, inputs: Tensor, inside: Tensor, block: np.ndarray) -> None:
        """Take in some pairs."""
        difference, valid = inputs[::2] - inputs[1::2], inside[::2] & inside[1::2]
        self._whole.add(difference, valid)
        for number in np.unique(block):
            in_block = torch.from_numpy(block[::2] == number).to(inputs.device)
            self._sums[number].append(neighbour_products(difference[in_block], valid[in_block]))
            first, steps = inputs[::2][in_block], valid[in_block]
            change = (first[:, 1:] != first[:, :-1]) & steps[:, 1:, None]
            apart = (difference[in_block] != 0) & steps[..., None]
            self._moves[number].append(torch.stack([moved.any(0).any(0) for moved in (change, apart)]).cpu().numpy())

    def result(self) -> PartialMoments:
        """Sums by block."""
        steps = np.stack([np.sum([some for some, _ in sums], axis=0) for sums in self._sums.values()])
        products = np.stack([np.sum([some for _, some in sums], axis=0) for sums in self._sums.values()])
        # left empty: `Signals.told` has the answer by band, which this class does not know
        told = np.ones((len(self._sums), 0), dtype=bool)
        change, apart = np.stack([np.any(moves, axis=0) for moves in self._moves.values()], axis=1)
        blocks = np.array(list(self._sums))
        return PartialMoments(blocks, steps, products, told, change & ~apart, *self._whole.result())


def _planted(plan: WholeModelPlan, factors: Factors, moments: InputMoments) -> np.ndarray:
    """Value of every probe's input at each slot of each row, (probe, slot, row): mean zero, variance one."""
    plant = moments.probe(len(plan.group), plan.seed)
    values = [plant(torch.from_numpy(np.ascontiguousarray(one[: factors.filled]))) for one in factors.read]
    return np.stack([value.numpy() for value in values], axis=1)


def _rows(plan: WholeModelPlan, rows: np.ndarray, blocks: np.ndarray, lag_sketch: ModelLagSketch | None) -> _Rows:
    """Run one piece, and carry its anchors back."""
    piece = plan.run(rows)
    swaps, common = swaps_of(piece, *plan.exchanged(rows, piece))
    fields = swaps if plan.signal == "dependence" else [cotangents(piece.objective, piece.output)[0]]
    shares = step_weights(piece.objective, piece.output.shape[1])
    usable = (common > 0)[::2] & plan.used.to(common.device)
    streams = pair_streams(piece.batch.x, piece.batch.lengths, plan.seed)
    anchors = draw_anchors(usable, plan.anchors, streams)
    lags = draw_lags(plan.slots, plan.anchors, streams)
    arrived, read, contrast, ahead = [], [], [], np.zeros(2)
    inside: dict[int, np.ndarray] = {}
    for number in range(anchors.count):
        position = both(torch.from_numpy(anchors.position[:, number]), piece)
        weight = both(torch.from_numpy(anchors.weight[:, number]), piece)
        new = _carried(plan, piece, position, weight, both(lags[:, number], piece), fields, shares, lag_sketch)
        arrived.append(new[0])
        read.append(new[1])
        contrast.append(new[2])
        ahead += new[3]
        for block in np.unique(blocks).tolist() if new[4] else ():
            inside[block] = inside.get(block, 0.0) + _summed(new[4], new[2], torch.from_numpy(blocks == block))
    return _Rows(
        block=blocks,
        arrived=arrived,
        read=read,
        contrast=contrast,
        spread=np.sum([_spread(plan, swap, common) for swap in swaps], axis=0),
        ahead=(float(ahead[0]), float(ahead[1])),
        inputs=piece.reading.inputs,
        inside=piece.inside,
        sketch=inside,
    )


def _summed(inside: list[Tensor], contrast: Tensor, rows: Tensor) -> np.ndarray:
    """Coordinates (seq, lag, coordinate) of some rows, summed up for every pairing: each its own, or one times a contrast."""
    rows = rows.to(contrast.device)
    if len(inside) > 1:
        return torch.stack([one[rows].sum(0) for one in inside]).cpu().numpy()
    return torch.tensordot(contrast[:, rows].double(), inside[0][rows], 1).cpu().numpy()


def _carried(
    plan: WholeModelPlan,
    piece: PairBatch,
    position: Tensor,
    weight: Tensor,
    lags: Tensor,
    fields: list[Tensor],
    shares: Tensor,
    lag_sketch: ModelLagSketch | None,
) -> tuple[Tensor, Tensor, Tensor, np.ndarray, list[Tensor]]:
    """What arrives at the slots from one anchor of each sequence, what stands there, and the data's coefficient by pairing.

    With one output, one way back serves all pairings. Then what of it reached inputs behind the output, and the data's
    gradients inside bands, in random coordinates.
    """
    seq = torch.arange(len(position), device=position.device)
    time = piece.reading.inputs.shape[1]
    stand = piece.stand[seq, position]
    step = stand[:, None] - lags
    seen = (step >= 0) & piece.inside[seq[:, None], step.clamp(0, time - 1)]
    step = step.clamp(0, time - 1)
    planted = [shares[seq, position, None] * direction.to(shares) for direction in plan.output]
    alone = len(planted) == 1 and fields[0].shape[2] == 1
    at_anchor = [field[seq, position] for field in fields]
    starts = planted if alone else [*at_anchor, *planted]
    factor = weight[:, None] * torch.from_numpy(plan.slots.width).to(weight) * seen
    share = planted[0][:, 0]
    coefficient = torch.stack([start[:, 0] / torch.where(share != 0, share, 1.0) for start in at_anchor])
    coefficient = coefficient if alone else torch.ones_like(coefficient)
    parts, ahead, inside = [], np.zeros(2), list[Tensor]()
    for number, start in enumerate(starts):
        gradient = piece.pull(position, start)
        later = torch.arange(time, device=position.device) > stand[:, None]
        square = gradient.double().square().sum(-1)
        ahead += (float((square * later).sum()), float(square.sum()))
        parts.append(gradient[seq[:, None], step] * factor[..., None].to(gradient))
        if lag_sketch is not None and number < len(fields):  # the data's gradients come first
            inside.append(lag_sketch(piece, stand, weight, gradient))
    return torch.stack(parts, dim=2), piece.reading.inputs[seq[:, None], step], coefficient, ahead, inside


def _spread(plan: WholeModelPlan, swap: Tensor, shares: Tensor) -> np.ndarray:
    """Two sums per sequence and output direction, whose ratio is the variance of the target part of the gradient."""
    along = swap.double() @ plan.output.T.to(swap.device)  # (seq, position, group)
    squares = along.square().sum(1)
    counted = 2 * shares.double().square().sum(1, keepdim=True).expand_as(squares)
    return torch.stack((squares, counted), dim=2).cpu().numpy()
