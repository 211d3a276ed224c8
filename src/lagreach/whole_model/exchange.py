"""Exchange the inputs at one lag alone: does the target depend on them given the rest, and does the model use them?

Swapping targets tests whether targets depend on any input. It is not specific to a lag: in a nonlinear network the gradient
at one lag also carries products of inputs at others. So at each anchor t the partners of a pair exchange their inputs at ``t
- l`` and nothing else, and what swapped targets change in the lag's gradient is compared with what they change then. If the
target does not depend on that input given the rest, exchanging the two turns the difference into its negative, whatever the
network, for inputs that are independent in time; sign flips are then exact. That targets are swapped besides takes out what
the model's own output and the level of the targets would add by chance. An exchange costs a run for every lag and output, so
few outputs are looked at, and where lags are many, each at some of the pairs alone (`exchange_rounds.py`); by how much these
say more than all do, by chance, swapped targets tell, and it is taken off. Of numbers that follow each other in time, only
what their neighbours do not predict is exchanged (`lagreach.gradients.partial_inputs`); tokens that do are exchanged as
fairly as they fit into each other's places (`token_context.py`). The rise of the loss at t in the same runs is the model's
reliance on the lag.
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
from lagreach.whole_model.anchors import draw_anchors, pair_streams
from lagreach.whole_model.exchange_rounds import Rounds
from lagreach.whole_model.factors import Factors, Products, block_gram, coordinates
from lagreach.whole_model.input_module import OtherInputs, PartnerSteps
from lagreach.whole_model.measurement_plan import PairBatch, WholeModelPlan
from lagreach.whole_model.spread import Here, Spread
from lagreach.whole_model.swapped_targets import Rows, Swap, both, swapped_everywhere
from lagreach.whole_model.token_context import TokenContext


@dataclass(frozen=True)
class Exchanged:
    """What exchanging the inputs at some lags changes.

    `factors` hold, for each of the `lags`, half of what swapped targets change in the gradients as they were and, with the
    other sign, after the exchange; `controls`, of mean zero, what swapped targets say at the same outputs and, with the other
    sign, at all that were carried back (none for tokens that follow each other). `rises` (value, pair, lag) are the rise of
    the loss at the anchors, the loss itself and its bend (`lagreach.statistics.reliance`), NaN where no anchor reaches back
    so far or a pair exchanged nothing at the lag.
    """

    plan: WholeModelPlan
    lags: tuple[int, ...]
    factors: tuple[Factors, ...]
    controls: tuple[Factors, ...]
    size: np.ndarray
    rises: np.ndarray

    def data(self, number: int) -> Products:
        """The signal at one of the lags, by its number."""
        return Products.of(self.factors[number], [0], 0)

    def means(self) -> np.ndarray:
        """Block means of the signal (block, lag, axis), in coordinates with the gradients' inner products."""
        weighting = self.plan.weighting
        grams = np.stack([block_gram(self.data(i), self.size, weighting) for i in range(len(self.lags))])
        return np.moveaxis(coordinates(grams), 0, 1)

    def controlled(self) -> tuple[np.ndarray, list[Products]]:
        """The same means, and signals, with the chance of the few outputs taken out that swapped targets show.

        What is taken off is the multiple that leaves least. It comes from products, which do not change when a block's sign is
        flipped: sign flips stay valid.
        """
        if not self.controls:
            return self.means(), [self.data(i) for i in range(len(self.lags))]
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
    """The exchange at some lags, on some blocks; with `neighbours`, of what they do not predict.

    Tokens that follow each other are exchanged as fairly as their `contexts` say.
    """

    lags: tuple[int, ...]
    neighbours: Neighbours | None = None
    contexts: tuple[TokenContext, ...] = ()  # of each lag, where tokens follow each other
    stage: str = "exchange"

    def rounds(self, plan: WholeModelPlan) -> Rounds:
        """How runs are dealt to the lags; tokens that follow each other have no control."""
        return Rounds.planned(plan, len(self.lags), controlled=not self.contexts)

    def __call__(self, plan: WholeModelPlan, blocks: tuple[int, ...], tick: Tick = None) -> ExchangePart:
        """Run the model on every pair as it is, and in every round once for each anchor with inputs exchanged."""
        rounds = self.rounds(plan)
        pairs = np.flatnonzero(np.isin(plan.block_plan.blocks, blocks))
        place = {int(plan.block_plan.pairs[pair, 0]): number for number, pair in enumerate(pairs)}
        rows_of = rounds.rows(pairs)
        store = _Rows([2 * rows for rows in rows_of])
        controls = _Rows([rows + 2 * len(pairs) * plan.anchors for rows in rows_of])
        sums, counted = np.zeros((3, len(pairs), len(self.lags))), np.zeros((len(pairs), len(self.lags)))

        def exchange(rows: np.ndarray, home: np.ndarray) -> _Exchanges:
            piece, numbers = plan.run(rows), np.array([place[int(row)] for row in rows[::2]])
            reads = [_read(piece, lag, self.neighbours) for lag in self.lags]
            swap = Swap.of(plan, piece, rows)
            made = []
            for run, columns in enumerate(rounds.columns[:, pairs[numbers]]):
                dealt = _Dealt(columns, *(values[pairs[numbers], columns] for values in (rounds.scale, rounds.anchors)))
                made.append(_exchange(plan, piece, rows, home, self, dealt, rounds.number(run), reads, swap))
            # an exchange of tokens weighs as much as it is fair, which swapped targets are not
            everywhere = [] if self.contexts else swapped_everywhere(plan, piece, swap, self.lags, reads)
            return _Exchanges(numbers, home, made, everywhere)

        for piece in plan.each(exchange, tick, blocks):
            for one in piece.made:
                sums[:, piece.numbers, one.columns] += one.rise
                counted[piece.numbers, one.columns] += one.counted
                for column in np.unique(one.columns).tolist():
                    store.add(column, piece.home, one.rows, one.columns == column)
                    controls.add(column, piece.home, one.control, one.columns == column)
            for column, everywhere in enumerate(piece.everywhere):
                controls.add(column, piece.home, everywhere)
        with np.errstate(invalid="ignore"):
            return ExchangePart(pairs, store.held, controls.held, sums / counted)


class _Rows:
    """Factors of several lags while their rows come in."""

    def __init__(self, rows: list[int]) -> None:
        self._rows = rows
        self._held: dict[int, Factors] = {}

    def add(self, column: int, home: np.ndarray, made: Sequence[Rows], pairs: np.ndarray | None = None) -> None:
        """Add rows of a lag: of all pairs, or of some."""
        chosen = np.arange(len(home)) if pairs is None else np.flatnonzero(np.repeat(pairs, 2))
        for arrived, read in made:
            if column not in self._held:
                self._held[column] = Factors(self._rows[column], arrived, read)
            self._held[column].append(home[chosen], arrived[chosen], read[chosen])

    @property
    def held(self) -> tuple[Factors, ...]:
        """What has come in, lag by lag."""
        return tuple(self._held[column] for column in sorted(self._held))


def measure_exchange(
    plan: WholeModelPlan,
    lags: Sequence[int],
    neighbours: Neighbours | None = None,
    progress: Progress | None = None,
    spread: Spread | None = None,
    contexts: Sequence[TokenContext] = (),
) -> Exchanged:
    """Have inputs exchanged at some lags, and put the parts together; all blocks take part, or it counts as interrupted."""
    pairs = len(plan.block_plan.pairs)
    rises = np.full((3, pairs, len(lags)), np.nan)
    store, controls = list[Factors](), list[Factors]()
    work = ExchangeWork(tuple(lags), neighbours, tuple(contexts))
    rows_of = work.rounds(plan).rows(np.arange(pairs))
    seen = 0
    for part in (spread or Here()).parts(plan, work, progress):
        rises[:, part.pairs] = part.rises
        _take_in(store, part.factors, [2 * rows for rows in rows_of])
        _take_in(controls, part.controls, [rows + 2 * pairs * plan.anchors for rows in rows_of])
        seen += len(part.pairs)
    if seen < pairs:
        raise KeyboardInterrupt
    size = np.bincount(plan.block_plan.blocks, minlength=plan.block_plan.count) * 2
    return Exchanged(plan, tuple(lags), tuple(store), tuple(controls), size, rises)


def _take_in(store: list[Factors], parts: Sequence[Factors], rows_of: list[int]) -> None:
    """Add the rows of each lag to those that are there; of one part with all rows nothing is copied."""
    if not store and parts:
        each = zip(parts, rows_of, strict=True)
        store.extend(new if new.filled == rows else Factors.like(rows, new) for new, rows in each)
    for factors, new in zip(store, parts, strict=True):
        if factors is not new:
            factors.extend(new)


@dataclass(frozen=True)
class _Dealt:
    """What the pairs of a piece do in a run: each one's lag by its number, the pairs it stands for there, and its anchors."""

    columns: np.ndarray
    scale: np.ndarray
    anchors: np.ndarray


@dataclass(frozen=True)
class _Run:
    """Rows of factors before and after the exchange at an anchor of each pair, and of its control.

    Besides, the rise of the loss, the loss and its bend (value, pair), summed over those sequences that are `counted`.
    """

    columns: np.ndarray
    rows: list[Rows]
    control: list[Rows]
    rise: np.ndarray
    counted: np.ndarray


@dataclass(frozen=True)
class _Exchanges:
    """The runs of a piece, with the numbers of its pairs and the blocks of its sequences, and the rest of each control."""

    numbers: np.ndarray
    home: np.ndarray
    made: list[_Run]
    everywhere: list[list[Rows]]


def _exchange(
    plan: WholeModelPlan,
    piece: PairBatch,
    rows: np.ndarray,
    home: np.ndarray,
    work: ExchangeWork,
    dealt: _Dealt,
    number: int,
    reads: Sequence[Tensor],
    swap: Swap,
) -> _Run:
    """Exchange the inputs of each pair at its lag, for an anchor by its number; `reads` are, for each lag, what is exchanged."""
    seq, time = piece.inside.shape
    device = piece.output.device
    lags = np.array(work.lags)[dealt.columns]
    lag, row = both(torch.from_numpy(lags), piece), torch.arange(seq, device=device)
    shares = step_weights(piece.objective, piece.output.shape[1])
    reach = (piece.stand >= lag[:, None]) & (piece.stand[piece.partner] >= lag[:, None])
    usable = ((swap.common > 0) & reach)[::2] & plan.used.to(device)
    streams = pair_streams(piece.batch.x, piece.batch.lengths, plan.seed, purpose=(1 + lags).tolist())
    anchors = draw_anchors(usable, dealt.anchors.tolist(), streams)
    weight = both(torch.from_numpy(anchors.weight[:, number] * dealt.scale), piece)
    position = both(torch.from_numpy(anchors.position[:, number]), piece)
    read, step = _each_its_own(reads, dealt.columns), piece.stand[row, position] - lag
    there = _partner_steps(piece, position, lag, weight > 0)
    exchange = PartnerSteps(there) if work.neighbours is None else _unpredicted(piece, there >= 0, read)
    changed = plan.run(rows, exchange=exchange)
    here = (row, step.clamp(0, time - 1))
    factor = weight * ((step >= 0) & (there[here] >= 0))
    if work.contexts:
        factor = factor * _fairness(work.contexts, dealt.columns, piece, step, home).to(factor)
    replaced = piece.output.detach().clone()
    replaced[row, position] = changed.output.detach()[row, position]
    made, control = list[Rows](), list[Rows]()
    # half, since the targets of both partners show what either input changes
    for one, output, sign in ((piece, piece.output, 0.5), (changed, replaced, -0.5)):
        arrived = one.pull(position, swap.at(output)[row, position])[here]
        made.append(_as_rows(sign * factor, arrived, one.reading.inputs[here]))
        if one is piece and not work.contexts:
            control.append(_as_rows(factor, arrived, read[here]))
    with torch.no_grad():
        as_it_was = piece.output.detach()
        before, after, middle = (piece.objective(one) for one in (as_it_was, replaced, (as_it_was + replaced) / 2))
    counted = (weight > 0).double()
    share = torch.where(weight > 0, shares[row, position].double(), 1.0)
    values = torch.stack(((after - before) / share, before, (after + before - 2 * middle) / share)).double() * counted
    of_pair = values.view(3, -1, 2).sum(2).cpu().numpy()
    return _Run(dealt.columns, made, control, of_pair, counted.view(-1, 2).sum(1).cpu().numpy())


def _as_rows(factor: Tensor, arrived: Tensor, read: Tensor) -> Rows:
    """Rows of factors with one slot and one signal."""
    return (factor[:, None].to(arrived) * arrived)[:, None, None], read[:, None]


def _each_its_own(values: Sequence[Tensor], columns: np.ndarray) -> Tensor:
    """From each of several tensors with a row for every sequence, the rows of the pairs that have its number."""
    own, of_row = values[columns[0]], np.repeat(columns, 2)
    for column in set(columns.tolist()) - {int(columns[0])}:
        chosen = torch.from_numpy(of_row == column).to(own.device)
        own = torch.where(chosen.view(-1, *[1] * (own.ndim - 1)), values[column], own)
    return own


def _fairness(
    contexts: Sequence[TokenContext], columns: np.ndarray, piece: PairBatch, step: Tensor, home: np.ndarray
) -> Tensor:
    """How fair it is to exchange the tokens at a step of each sequence, by the context of its lag."""
    half = torch.from_numpy(home % 2).to(step.device)
    fair = torch.zeros(len(step), dtype=torch.float64, device=step.device)
    for column in set(columns.tolist()):
        chosen = torch.from_numpy(np.flatnonzero(np.repeat(columns, 2) == column)).to(step.device)
        of = (piece.reading.inputs, piece.inside, step, half)
        fair[chosen] = contexts[column].fairness(*(one[chosen] for one in of))
    return fair


def _partner_steps(piece: PairBatch, position: Tensor, lag: Tensor, wanted: Tensor) -> Tensor:
    """The partner's step that the step of a sequence's lag reads instead of its own, (seq, time); -1 elsewhere.

    Steps are counted back from where the output stands in each of the two, so that the exchange is its own inverse.
    """
    seq, time = piece.inside.shape
    row = torch.arange(seq, device=position.device)
    step = torch.arange(time, device=position.device)
    stand = piece.stand[row, position]
    there = step + (stand[piece.partner] - stand)[:, None]
    chosen = (stand[:, None] - step == lag[:, None]) & wanted[:, None] & (there >= 0) & (there < time)
    chosen = chosen & piece.inside & piece.inside[piece.partner][row[:, None], there.clamp(0, time - 1)]
    return torch.where(chosen, there, -1)


def _read(piece: PairBatch, lag: int, neighbours: Neighbours | None) -> Tensor:
    """The inputs, or what their neighbours, up to the anchor, do not predict of them."""
    inputs = piece.reading.inputs
    if neighbours is None:
        return inputs
    return torch.where(piece.inside[..., None], neighbours.unpredicted(inputs, lag), 0.0)


def _unpredicted(piece: PairBatch, chosen: Tensor, left: Tensor) -> OtherInputs:
    """Inputs with what their neighbours, up to the anchor, `left` of them exchanged between partners."""
    return OtherInputs(piece.reading.inputs.double() - (left - left[piece.partner]), chosen)
