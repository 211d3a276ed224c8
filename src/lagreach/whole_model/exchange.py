"""Exchange the inputs at one lag alone: does the target depend on them given the rest, and does the model use them?

Swapping targets tests whether targets depend on any input. It is not specific to a lag: in a nonlinear network the gradient
at one lag also carries products of inputs at others. So at each anchor t the partners of a pair exchange their inputs at
``t - l`` and nothing else, and the lag's gradient is compared with what it was. If the target does not depend on that input
given the rest, exchanging the two turns the difference into its negative, whatever the network, for inputs that are
independent in time; sign flips are then exact. Of numbers that follow each other in time, only what their neighbours do not
predict is exchanged (`lagreach.gradients.partial_inputs`); tokens that do are exchanged as fairly as they fit into each other's
places (`token_context.py`). The rise of the loss at t in the same runs is the model's reliance
on the lag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lagreach._util.progress import Progress, Tick
from lagreach.gradients.contrast import step_weights
from lagreach.gradients.partial_inputs import Neighbours
from lagreach.whole_model.anchors import draw_anchors, draw_lags, make_slots, pair_streams
from lagreach.whole_model.factors import Factors, Products, block_gram, coordinates
from lagreach.whole_model.input_module import OtherInputs, PartnerSteps
from lagreach.whole_model.measurement_plan import PairBatch, WholeModelPlan
from lagreach.whole_model.outputs import cotangents
from lagreach.whole_model.spread import Here, Spread
from lagreach.whole_model.token_context import TokenContext

MOST_ANCHORS = 4  # of a pair, for each band: every one of them is a run of its own


@dataclass(frozen=True)
class Exchanged:
    """What exchanging the inputs at some lags changes.

    `factors` hold, for each of the `edges` (first and last lag), the gradients as they were and, behind them with the other
    sign, after the exchange; `rises` (value, pair, edge) are the rise of the loss at the anchors, the loss itself and its bend
    (`lagreach.statistics.reliance`), NaN where no anchor reaches back so far.
    """

    plan: WholeModelPlan
    edges: tuple[tuple[int, int], ...]
    factors: tuple[Factors, ...]
    size: np.ndarray
    rises: np.ndarray

    def data(self, number: int) -> Products:
        """The signal at one of the edges, by its number."""
        factors = self.factors[number]
        return Products.of(factors, list(range(factors.arrived.shape[0])), 0)

    def means(self) -> np.ndarray:
        """Block means of the signal (block, edge, axis), in coordinates with the gradients' inner products."""
        weighting = self.plan.weighting
        grams = np.stack([block_gram(self.data(i), self.size, weighting) for i in range(len(self.edges))])
        return np.moveaxis(coordinates(grams), 0, 1)


@dataclass(frozen=True)
class ExchangePart:
    """What `Exchanged` is made of, for the pairs of some blocks."""

    pairs: np.ndarray
    factors: tuple[Factors, ...]
    rises: np.ndarray


@dataclass(frozen=True)
class ExchangeWork:
    """The exchange at some lags, on some blocks; with `neighbours`, of what they do not predict, at single lags.

    Tokens that follow each other are exchanged as fairly as their `contexts` say, at single lags too.
    """

    edges: tuple[tuple[int, int], ...]
    neighbours: Neighbours | None = None
    contexts: tuple[TokenContext, ...] = ()  # of each edge, where tokens follow each other
    stage: str = "exchange"

    def __call__(self, plan: WholeModelPlan, blocks: tuple[int, ...], tick: Tick = None) -> ExchangePart:
        """Run the model on every pair as it is, and once for each of the edges and anchors with inputs exchanged."""
        anchors = min(MOST_ANCHORS, plan.anchors)
        pairs = np.flatnonzero(np.isin(plan.block_plan.blocks, blocks))
        place = {int(plan.block_plan.pairs[pair, 0]): number for number, pair in enumerate(pairs)}
        store: list[Factors | None] = [None] * len(self.edges)
        rises = np.full((3, len(pairs), len(self.edges)), np.nan)

        def exchange(rows: np.ndarray, home: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[_Edge]]:
            piece = plan.run(rows)
            contexts = self.contexts or (None,) * len(self.edges)
            made = [
                _exchange_at(plan, piece, (rows, home), edge, anchors, self.neighbours, context)
                for edge, context in zip(self.edges, contexts, strict=True)
            ]
            return rows, home, made

        for rows, home, made in plan.each(exchange, tick, blocks):
            numbers = [place[int(row)] for row in rows[::2]]
            for column, edge in enumerate(made):
                rises[:, numbers, column] = edge.rise
                for arrived, read in edge.rows:
                    factors = store[column]
                    if factors is None:
                        factors = store[column] = Factors(2 * len(pairs) * anchors * 2, arrived, read)
                    factors.append(home, arrived, read)
        return ExchangePart(pairs, tuple(factors for factors in store if factors is not None), rises)


def measure_exchange(
    plan: WholeModelPlan,
    edges: Sequence[tuple[int, int]],
    neighbours: Neighbours | None = None,
    progress: Progress | None = None,
    spread: Spread | None = None,
    contexts: Sequence[TokenContext] = (),
) -> Exchanged:
    """Have inputs exchanged at some lags, and put the parts together; all blocks take part, or it counts as interrupted."""
    pairs = len(plan.block_plan.pairs)
    rises = np.full((3, pairs, len(edges)), np.nan)
    store: list[Factors] = []
    rows = 2 * pairs * min(MOST_ANCHORS, plan.anchors) * 2
    seen = 0
    for part in (spread or Here()).parts(plan, ExchangeWork(tuple(edges), neighbours, tuple(contexts)), progress):
        rises[:, part.pairs] = part.rises
        if not store:
            store = [new if new.filled == rows else Factors.like(rows, new) for new in part.factors]
        for factors, new in zip(store, part.factors, strict=True):
            if factors is not new:
                factors.extend(new)
        seen += len(part.pairs)
    if seen < pairs:
        raise KeyboardInterrupt
    size = np.bincount(plan.block_plan.blocks, minlength=plan.block_plan.count) * 2
    return Exchanged(plan, tuple(edges), tuple(store), size, rises)


@dataclass(frozen=True)
class _Edge:
    """Rows of factors, before and after the exchange at each anchor, and rise, loss and bend (value, pair)."""

    rows: list[tuple[Tensor, Tensor]]
    rise: np.ndarray


def _exchange_at(
    plan: WholeModelPlan,
    piece: PairBatch,
    numbers: tuple[np.ndarray, np.ndarray],
    edge: tuple[int, int],
    most: int,
    neighbours: Neighbours | None,
    context: TokenContext | None,
) -> _Edge:
    """Exchange inputs at some anchors; `numbers` are those of the sequences and of their blocks."""
    first, _ = edge
    rows, half = numbers[0], torch.from_numpy(numbers[1] % 2)
    slots = make_slots([edge])
    seq, time = piece.inside.shape
    device = piece.output.device
    positions = piece.output.shape[1]
    shares = step_weights(piece.objective, positions)
    both = torch.minimum(shares, shares[piece.partner])
    reach = (piece.stand >= first) & (piece.stand[piece.partner] >= first)
    usable = ((both > 0) & reach)[::2] & plan.used.to(device)
    streams = pair_streams(piece.batch.x, piece.batch.lengths, plan.seed, purpose=1 + first)
    anchors = draw_anchors(usable, most, streams)
    lags = draw_lags(slots, most, streams).repeat_interleave(2, dim=0).to(device)
    width = torch.from_numpy(slots.width).to(device)
    row = torch.arange(seq, device=device)
    field, before = cotangents(piece.objective, piece.output)
    weight = torch.from_numpy(anchors.weight).repeat_interleave(2, dim=0).to(device)
    rise, bend = torch.zeros(2, seq, most, dtype=torch.float64, device=device)
    made = []
    for number in range(most):
        position = torch.from_numpy(anchors.position[:, number]).repeat_interleave(2).to(device)
        stand = piece.stand[row, position]
        there = _partner_steps(piece, position, edge, weight[:, number] > 0)
        exchange = PartnerSteps(there) if neighbours is None else _unpredicted(piece, there >= 0, first, neighbours)
        changed = plan.run(rows, exchange=exchange)
        step = stand[:, None] - lags[:, number]
        seen = (step >= 0) & (there[row[:, None], step.clamp(0, time - 1)] >= 0)
        step = step.clamp(0, time - 1)
        factor = (weight[:, number, None] * width * seen)[..., None]
        if context is not None:
            fair = context.fairness(piece.reading.inputs, piece.inside, stand - first, half.to(device))
            factor = factor * fair[:, None, None].to(factor)
        replaced = piece.output.detach().clone()
        replaced[row, position] = changed.output.detach()[row, position]
        after_field, after = cotangents(piece.objective, replaced)
        for one, own_field, sign in ((piece, field, 1.0), (changed, after_field, -1.0)):
            arrived = one.pull(position, own_field[row, position])[row[:, None], step]
            made.append(((sign * factor.to(arrived) * arrived)[:, :, None], one.reading.inputs[row[:, None], step]))
        with torch.no_grad():
            middle = piece.objective((piece.output.detach() + replaced) / 2)
        share = shares[row, position].double()
        for values, change in ((rise, after - before), (bend, after + before - 2 * middle)):
            values[:, number] = torch.where(share > 0, change.double() / torch.where(share > 0, share, 1.0), 0.0)
    counted = (weight > 0).double()
    per_pair = counted.view(-1, 2 * most).sum(1)
    some = torch.where(per_pair > 0, per_pair, 1.0)
    none = torch.full_like(some, torch.nan)
    each = torch.stack((rise, before.double()[:, None].expand_as(rise), bend))
    sums = (each * counted).view(3, -1, 2 * most).sum(2)
    return _Edge(made, torch.where(per_pair > 0, sums / some, none).cpu().numpy())


def _partner_steps(piece: PairBatch, position: Tensor, edge: tuple[int, int], wanted: Tensor) -> Tensor:
    """The partner's step that each step of a range of lags reads instead of its own, (seq, time); -1 elsewhere.

    Steps are counted back from where the output stands in each of the two, so that the exchange is its own inverse.
    """
    seq, time = piece.inside.shape
    row = torch.arange(seq, device=position.device)
    step = torch.arange(time, device=position.device)
    stand = piece.stand[row, position]
    there = step + (stand[piece.partner] - stand)[:, None]
    back = stand[:, None] - step
    chosen = (back >= edge[0]) & (back <= edge[1]) & wanted[:, None] & (there >= 0) & (there < time)
    chosen = chosen & piece.inside & piece.inside[piece.partner][row[:, None], there.clamp(0, time - 1)]
    return torch.where(chosen, there, -1)


def _unpredicted(piece: PairBatch, chosen: Tensor, lag: int, neighbours: Neighbours) -> OtherInputs:
    """Inputs with what their neighbours, up to the anchor, do not predict exchanged between partners."""
    inputs = piece.reading.inputs.double()
    left = neighbours.unpredicted(inputs - inputs[piece.partner], lag)
    return OtherInputs(inputs - left, chosen)
