"""Exchange the inputs at one lag alone: does the target depend on them given the rest, and does the model use them?

Swapping targets tests whether targets depend on any input. It is not specific to a lag: in a nonlinear network the gradient
at one lag also carries products of inputs at others. So at each anchor t the partners of a pair exchange their inputs at
``t - l`` and nothing else, and the lag's gradient is compared with what it was. If the target does not depend on that input
given the rest, exchanging the two turns the difference into its negative, whatever the network, for inputs that are
independent in time; sign flips are then exact. An exchange costs a run for every lag and output, so few outputs are looked at;
by how much these say more than all outputs do, by chance, swapped targets tell, and it is taken off. Of numbers that follow
each other in time, only what their neighbours do not predict is exchanged (`lagreach.gradients.partial_inputs`); tokens that do
are exchanged as fairly as they fit into each other's places (`token_context.py`). The rise of the loss at t in the same runs is
the model's reliance on the lag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from lagreach.whole_model.swapped_targets import Rows, SwapControl
from lagreach.whole_model.token_context import TokenContext

MOST_ANCHORS = 4  # of a pair, for each band: every one of them is a run of its own


@dataclass(frozen=True)
class Exchanged:
    """What exchanging the inputs at some lags changes.

    `factors` hold, for each of the `edges` (first and last lag), the gradients as they were and, behind them with the other
    sign, after the exchange; `controls`, of mean zero, what swapped targets say at the same outputs and, with the other sign,
    at all that were carried back (none for tokens that follow each other). `rises` (value, pair, edge) are the rise of the
    loss at the anchors, the loss itself and its bend (`lagreach.statistics.reliance`), NaN where no anchor reaches back so far.
    """

    plan: WholeModelPlan
    edges: tuple[tuple[int, int], ...]
    factors: tuple[Factors, ...]
    controls: tuple[Factors, ...]
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

    def controlled(self) -> tuple[np.ndarray, list[Products]]:
        """The same means, and signals, with the chance of the few outputs taken out that swapped targets show.

        What is taken off is the multiple that leaves least. It comes from products, which do not change when a block's sign is
        flipped: sign flips stay valid.
        """
        if not self.controls:
            return self.means(), [self.data(i) for i in range(len(self.edges))]
        grams, signals, count = [], [], len(self.size)
        for number, control in enumerate(self.controls):
            parts = [self.data(number), Products.of(control, [0], 0)]
            joined = Products.joined(parts, apart=True)
            products = block_gram(joined, np.repeat(self.size, 2), self.plan.weighting).reshape(count, 2, count, 2)
            shared, square = (np.trace(products[:, i, :, 1]) for i in (0, 1))
            turn = np.array([1.0, -shared / square if square > 0 else 0.0])
            grams.append(np.einsum("i,aibj,j->ab", turn, products, turn))
            signals.append(Products.joined([parts[0], replace(parts[1], arrived=turn[1] * parts[1].arrived)]))
        return np.moveaxis(coordinates(np.stack(grams)), 0, 1), signals


@dataclass(frozen=True)
class ExchangePart:
    """What `Exchanged` is made of, for the pairs of some blocks."""

    pairs: np.ndarray
    factors: tuple[Factors, ...]
    controls: tuple[Factors, ...]
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
        store, controls = _Rows(2 * len(pairs) * anchors * 2), _Rows(2 * len(pairs) * (anchors + plan.anchors))
        rises = np.full((3, len(pairs), len(self.edges)), np.nan)

        def exchange(rows: np.ndarray, home: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[_Edge]]:
            piece = plan.run(rows)
            if self.contexts:  # an exchange then weighs as much as it is fair, which swapped targets are not
                numbers = (rows, home)
                each = zip(self.edges, self.contexts, strict=True)
                return *numbers, [_exchange_at(plan, piece, numbers, edge, anchors, None, fair) for edge, fair in each]
            reads = [_read(piece, first, self.neighbours) for first, _ in self.edges]
            control = SwapControl(plan, piece, rows, [first for first, _ in self.edges])
            made = [
                _exchange_at(plan, piece, (rows, home), edge, anchors, self.neighbours, None, control.pair, read)
                for edge, read in zip(self.edges, reads, strict=True)
            ]
            for edge, everywhere in zip(made, control.everywhere(reads), strict=True):
                edge.control.extend(everywhere)
            return rows, home, made

        for rows, home, made in plan.each(exchange, tick, blocks):
            numbers = [place[int(row)] for row in rows[::2]]
            for column, edge in enumerate(made):
                rises[:, numbers, column] = edge.rise
                store.add(column, home, edge.rows)
                controls.add(column, home, edge.control)
        return ExchangePart(pairs, store.held, controls.held, rises)


class _Rows:
    """Factors of several edges while their rows come in."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._held: dict[int, Factors] = {}

    def add(self, edge: int, home: np.ndarray, made: Sequence[Rows]) -> None:
        """Add rows of an edge."""
        for arrived, read in made:
            if edge not in self._held:
                self._held[edge] = Factors(self._rows, arrived, read)
            self._held[edge].append(home, arrived, read)

    @property
    def held(self) -> tuple[Factors, ...]:
        """What has come in, edge by edge."""
        return tuple(self._held[edge] for edge in sorted(self._held))


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
    store, controls = list[Factors](), list[Factors]()
    anchors = min(MOST_ANCHORS, plan.anchors)
    seen = 0
    for part in (spread or Here()).parts(plan, ExchangeWork(tuple(edges), neighbours, tuple(contexts)), progress):
        rises[:, part.pairs] = part.rises
        _take_in(store, part.factors, 2 * pairs * anchors * 2)
        _take_in(controls, part.controls, 2 * pairs * (anchors + plan.anchors))
        seen += len(part.pairs)
    if seen < pairs:
        raise KeyboardInterrupt
    size = np.bincount(plan.block_plan.blocks, minlength=plan.block_plan.count) * 2
    return Exchanged(plan, tuple(edges), tuple(store), tuple(controls), size, rises)


def _take_in(store: list[Factors], parts: Sequence[Factors], rows: int) -> None:
    """Add the rows of each edge to those that are there; of one part with all rows nothing is copied."""
    if not store:
        store.extend(new if new.filled == rows else Factors.like(rows, new) for new in parts)
    for factors, new in zip(store, parts, strict=True):
        if factors is not new:
            factors.extend(new)


@dataclass(frozen=True)
class _Edge:
    """Rows of factors, before and after the exchange at each anchor, and of its control; rise, loss and bend (value, pair)."""

    rows: list[Rows]
    control: list[Rows]
    rise: np.ndarray


def _exchange_at(
    plan: WholeModelPlan,
    piece: PairBatch,
    numbers: tuple[np.ndarray, np.ndarray],
    edge: tuple[int, int],
    most: int,
    neighbours: Neighbours | None,
    context: TokenContext | None,
    swap: Tensor | None = None,
    read: Tensor | None = None,
) -> _Edge:
    """Exchange inputs at some anchors; `numbers` are those of the sequences and of their blocks.

    With `swap`, what swapped targets change at the outputs, also what they say at these anchors, of what is `read`.
    """
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
    made, control = list[Rows](), list[Rows]()
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
        starts = [one[row, position] for one in (field, *(() if swap is None else (swap,)))]
        here = (row[:, None], step)
        as_it_was, *swapped = (gradient[here] for gradient in _pulled(piece, position, starts))
        exchanged = changed.pull(position, after_field[row, position])[here]
        for one, arrived, sign in ((piece, as_it_was, 1.0), (changed, exchanged, -1.0)):
            made.append(((sign * factor.to(arrived) * arrived)[:, :, None], one.reading.inputs[here]))
        for arrived in swapped:
            assert read is not None
            control.append(((factor.to(arrived) * arrived)[:, :, None], read[here]))
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
    return _Edge(made, control, torch.where(per_pair > 0, sums / some, none).cpu().numpy())


def _pulled(piece: PairBatch, position: Tensor, starts: list[Tensor]) -> list[Tensor]:
    """Carry several gradients back from the same outputs; of one value, one way back serves all of them."""
    if starts[0].shape[1] > 1 or len(starts) == 1:
        return [piece.pull(position, start) for start in starts]
    once = piece.pull(position, torch.ones_like(starts[0]))
    return [once * start[..., None].to(once) for start in starts]


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


def _read(piece: PairBatch, lag: int, neighbours: Neighbours | None) -> Tensor:
    """The inputs, or what their neighbours, up to the anchor, do not predict of them."""
    inputs = piece.reading.inputs
    if neighbours is None:
        return inputs
    return torch.where(piece.inside[..., None], neighbours.unpredicted(inputs, lag), 0.0)


def _unpredicted(piece: PairBatch, chosen: Tensor, lag: int, neighbours: Neighbours) -> OtherInputs:
    """Inputs with what their neighbours, up to the anchor, do not predict exchanged between partners."""
    inputs = piece.reading.inputs.double()
    left = neighbours.unpredicted(inputs - inputs[piece.partner], lag)
    return OtherInputs(inputs - left, chosen)
