"""Does the target depend on the input l steps ago, given the rest? Exchange that input alone and see what is left.

For a pair of sequences, an anchor t and a lag l, the inputs at ``t - l`` are exchanged and both run on to t. With C the
lag's gradient at the anchor for the difference of the partners' targets, ``D = [C(x) - C(x exchanged)] / 2``, summed over
both partners. If the target does not depend on that input given the others, exchanging it turns D into -D, whatever the
network: its mean is zero, however the Jacobians on the way depend on other inputs. For a linear network D is the swap
contrast itself.

One run from a position serves all lags. Where all positions of a long sequence would be too much work, some are drawn at
random for each pair, and the swap contrast at the same positions, `kept`, tells afterwards what the others would have
added (`Exchanged.controlled`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from lagreach.adapters import Recurrence
from lagreach.data.pairs import pair_scores
from lagreach.errors import InputError
from lagreach.gradients.contrast import signal_gradient
from lagreach.gradients.head_reach import EVERYTHING, NOTHING
from lagreach.gradients.lag_contrasts import same_neighbours
from lagreach.gradients.measurement_plan import MeasurementPlan, PairBatch, select
from lagreach.gradients.partial_inputs import Neighbours
from lagreach.gradients.step_inputs import PartReading, StepInput, part_reading, step_input
from lagreach.kernels import scan_stack
from lagreach.transport.carry import Carry, Steps, WeightSums
from lagreach.transport.exact import walk_back
from lagreach.transport.linear_scan import jumped, only_scan
from lagreach.transport.linearised import linearise
from lagreach.transport.windows import Windows

FEWEST = 32  # positions of a pair, if it has so many
VALUES_TOGETHER = 2**21  # of the states of windows that are worked on at once
ALIVE = 24  # tensors of that size at the peak, so many at most
LINEARISED = 3  # times the work of carrying a gradient over a step is that of linearising it

Sums = tuple[int, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class ExchangePlan:
    """Which lags are examined, at how many positions of each pair, and what of an input is exchanged.

    `reach` says which states the gradient at the anchor hangs on, see `head_reach`.
    """

    lags: tuple[int, ...]
    positions: int
    reach: str
    neighbours: Neighbours | None = None
    seed: int = 0


def affordable_positions(lags: Sequence[int], time: int, reach: str = NOTHING) -> int:
    """Positions that take about as much work as the transport of all lags, but not fewer than a few.

    Where the gradient at an anchor hangs on states (see `head_reach`), the head is run there and back for every position.

    >>> affordable_positions([8, 9, 12], 40), affordable_positions([8], 24), affordable_positions([128, 512], 1024)
    (32, 24, 92)
    >>> affordable_positions([8], 256), affordable_positions([8], 256, reach=EVERYTHING)
    (256, 32)
    """
    run, back = max(lags) + 1, sum(lags) + len(lags)  # forward, linearised twice; carried back twice
    head = 0 if reach == NOTHING else 3 * time
    return min(time, max(FEWEST, time * time // 4 // (3 * run + 2 * back + head)))


@dataclass(frozen=True)
class Exchanged:
    """Block means of D, `data` (block, lag, param), and of the swap contrast at the same positions, `kept`."""

    block: np.ndarray
    lags: tuple[int, ...]
    data: np.ndarray
    kept: np.ndarray

    @classmethod
    def merge(cls, parts: Iterable[Exchanged]) -> Exchanged:
        """Put the blocks of several parts together, in the order of their numbers."""
        listed = list(parts)
        block = np.concatenate([part.block for part in listed])
        if len(set(block.tolist())) != len(block):
            raise InputError("two parts hold the same block", got=sorted(block.tolist()), fix="merge every part once")
        order = np.argsort(block)
        data, kept = (np.concatenate([getattr(part, name) for part in listed])[order] for name in ("data", "kept"))
        return cls(block[order], listed[0].lags, data, kept)

    def controlled(self, everywhere: Float[np.ndarray, "block lag param"]) -> Float[np.ndarray, "block lag param"]:
        """D with the chance of the drawn positions taken out, given the swap contrast over all positions.

        The difference of the two contrasts has mean zero, whatever the data, so any multiple of it may be subtracted. The
        share of the contrast that D is comes from products, which do not change when a block's sign is flipped: sign flips
        stay valid. It is one for a linear network.
        """
        square = np.einsum("blp,blp->l", self.kept, self.kept)
        share = np.einsum("blp,blp->l", self.data, self.kept) / np.where(square > 0, square, 1.0)
        return self.data - share[None, :, None] * (self.kept - everywhere)


class ExchangeSums:
    """D of some blocks while it is summed; `result` divides by the numbers of sequences."""

    def __init__(self, plan: MeasurementPlan, exchange_plan: ExchangePlan, numbers: list[int]) -> None:
        self._plan, self._exchange_plan, self._numbers = plan, exchange_plan, numbers
        self._data, self._kept = (np.zeros((len(numbers), len(exchange_plan.lags), plan.width)) for _ in range(2))
        self._size = np.zeros(len(numbers))
        self._row_of = {number: row for row, number in enumerate(numbers)}

    def add(self, piece: PairBatch) -> None:
        """Exchange inputs within the pairs of a piece."""
        plan, exchange_plan = self._plan, self._exchange_plan
        np.add.at(self._size, [self._row_of[number] for number in piece.block], 1)
        for after, lags in same_neighbours(exchange_plan.lags, exchange_plan.neighbours):
            columns = [exchange_plan.lags.index(lag) for lag in lags]
            for block, as_it_is, exchanged, contrast in _Work(plan, piece, exchange_plan, lags, after).sums():
                row = self._row_of[block]
                self._data[row, columns] += plan.scaled((as_it_is - exchanged) / 2)
                self._kept[row, columns] += plan.scaled(contrast)

    def result(self) -> Exchanged:
        """Means by block."""
        size = self._size[:, None, None]
        return Exchanged(np.array(self._numbers), self._exchange_plan.lags, self._data / size, self._kept / size)


def exchange(
    plan: MeasurementPlan,
    exchange_plan: ExchangePlan,
    blocks: Iterable[int] | None = None,
    tick: Callable[[int], None] | None = None,
) -> Exchanged:
    """Measure the block means of D at the planned lags for some blocks (all by default)."""
    numbers = list(range(plan.block_plan.count)) if blocks is None else list(blocks)
    sums = ExchangeSums(plan, exchange_plan, numbers)
    plan.feed([sums], numbers, tick)
    return sums.result()


class _Work:
    """The windows of one piece, for lags whose inputs have equally many neighbours."""

    def __init__(
        self, plan: MeasurementPlan, piece: PairBatch, exchange_plan: ExchangePlan, lags: list[int], after: int
    ) -> None:
        self.piece, self.lags, self.names, self.reach, self.room = (
            piece,
            lags,
            plan.names,
            exchange_plan.reach,
            plan.room,
        )
        part = piece.part
        place = step_input(part)
        assert place is not None, "asked for a layer whose inputs cannot be exchanged"
        self.place: StepInput = place
        self.scan = only_scan(part) is not None  # then only the states before the first step of a window are looked at
        self.signal = signal_gradient(part.recurrence, piece.objective, piece.swapped, part.states, "dependence")
        newest = place.newest(part.x)
        difference = newest - newest[piece.partner]
        self.left = (
            difference
            if exchange_plan.neighbours is None
            else exchange_plan.neighbours.unpredicted(difference, after).to(part.x)
        )
        self.reading = None if exchange_plan.neighbours is None else part_reading(part, plan.names)
        self.positions, self.weights = self._positions(exchange_plan)
        # zeros behind the end, for windows that reach beyond it
        self.span = part.x.shape[1] if exchange_plan.reach == EVERYTHING else lags[-1] + 1
        self.x, self.before, self.starts = (pad(v, (0, 0, 0, self.span)) for v in (part.x, part.previous, self.signal))

    def _positions(self, exchange_plan: ExchangePlan) -> tuple[Tensor, Tensor]:
        """Positions (draw, row), and by how much each counts."""
        counted = (self.signal.abs().amax(-1) > 0).cpu()
        anchors = counted[::2] | counted[1::2]
        time = anchors.shape[1]
        useful = torch.zeros_like(anchors)
        for lag in self.lags:
            useful[:, : time - lag] |= anchors[:, lag:]
        number = useful.sum(1)
        scores = useful.double()
        if (number > exchange_plan.positions).any():
            scores *= pair_scores(self.piece.pair, self.lags[-1], time, exchange_plan.seed)
        best = scores.topk(min(exchange_plan.positions, int(number.max())), dim=1)
        share = number / number.clamp(min=1, max=exchange_plan.positions)
        weights = torch.where(best.values > 0, share[:, None].double(), 0.0)
        by_row = [v.T.repeat_interleave(2, dim=1).to(self.signal.device) for v in (best.indices, weights)]
        return by_row[0], by_row[1].to(self.signal)

    def sums(self) -> Iterator[Sums]:
        """Yield a block and its sums (lag, param): of C, of C with the input exchanged, and of the contrast to compare with."""
        walks = self._walks_back()
        if walks:
            yield from self._walk_back()
        exchanged_starts = None if self.reach == NOTHING else self._exchanged_starts()
        values = self.room // (ALIVE * self.signal.element_size())
        values = values if self.signal.is_cuda else min(values, VALUES_TOGETHER)
        most = max(2, values // ((self.lags[-1] + 1) * self.signal.shape[-1]))
        for rows, groups in _joined(self.piece.groups(most), most):
            together = max(1, most // (rows.stop - rows.start))
            for first in range(0, len(self.positions), together):
                draws = slice(first, first + together)
                at_exchanged = None if exchanged_starts is None else exchanged_starts[:, draws, rows].flatten(1, 2)
                yield from self._sums(rows, groups, draws, at_exchanged, as_it_is=not walks)

    def _walks_back(self) -> bool:
        """Whether to carry back what starts at every step costs less than windows, which are linearised one by one."""
        last, (draws, _), time = self.lags[-1], self.positions.shape, self.signal.shape[1]
        return (
            self.reading is None and not self.scan and last * time < draws * (sum(self.lags) + LINEARISED * (last + 1))
        )

    def _walk_back(self) -> Iterator[Sums]:
        """C without an exchange; all that starts is carried back, and counts where a position was drawn."""
        drawn = torch.zeros_like(self.signal[..., 0]).scatter_add_(1, self.positions.T, self.weights.T)
        for rows, groups in self.piece.bundles():
            steps = Steps(select(self.piece.part, rows), self.names, [group for _, group in groups])
            sums = WeightSums(steps, drawn[rows, :, None], kept=True)
            walk = walk_back([Carry(steps, self.signal[rows])], self.lags[-1], partial(self._collected, [sums]))
            by_lag = [sums.take()[:, 0].cpu().numpy() for lag, _ in walk if lag in self.lags]
            for i, (block, _) in enumerate(groups):
                as_it_is = np.stack([gradients[i] for gradients in by_lag])
                yield block, as_it_is, np.zeros_like(as_it_is), as_it_is

    def _collected(self, sums: Sequence[WeightSums], lag: int, _: int) -> Sequence[WeightSums]:
        return sums if lag in self.lags else []

    def _sums(
        self, rows: slice, groups: list[tuple[int, slice]], draws: slice, at_exchanged: Tensor | None, *, as_it_is: bool
    ) -> Iterator[Sums]:
        recurrence, positions = self.piece.part.recurrence, self.positions[draws, rows]
        index = torch.arange(rows.start, rows.stop, device=positions.device).expand_as(positions)
        steps = torch.arange(self.lags[-1] + 1, device=positions.device)[:, None, None]
        x = self.x[index, positions + steps].flatten(1, 2)
        looked_at = steps if as_it_is and not self.scan else steps[:1]  # windows with an exchange have other states
        before = self.before[index, positions + looked_at].flatten(1, 2)
        starts = self._at_lags(self.starts, index, positions).flatten(1, 2)
        weights = self.weights[draws, rows].flatten()
        add = _Adder(self.names, weights, [group for _, group in groups], rows.stop - rows.start)
        change = -self.left[index, positions].flatten(0, 1)
        moved = self.place.changed(x, change)
        windows = None if self.scan else Windows(recurrence, moved, before[0])
        exchanged = add(
            recurrence, windows, moved, before[0], starts if at_exchanged is None else at_exchanged, self.lags
        )
        nothing = torch.zeros_like(exchanged)
        there, contrast = self._as_it_is(add, recurrence, x, before, starts, change) if as_it_is else (nothing, nothing)
        for i, (block, _) in enumerate(groups):
            yield block, there[:, i].cpu().numpy(), exchanged[:, i].cpu().numpy(), contrast[:, i].cpu().numpy()

    def _run(self, x: Float[Tensor, "step row input"], before: Tensor) -> Float[Tensor, "step row state"]:
        recurrence = self.piece.part.recurrence
        with torch.no_grad():
            return scan_stack(recurrence.stack, x.transpose(0, 1), before, recurrence.params).transpose(0, 1)

    def _as_it_is(
        self, add: _Adder, recurrence: Recurrence, x: Tensor, before: Tensor, starts: Tensor, change: Tensor
    ) -> tuple[Tensor, Tensor]:
        """C without an exchange, and the swap contrast of these anchors: C too, or that of reading what is exchanged."""
        reading: PartReading | None = self.reading
        if reading is None:
            windows = None if self.scan else Windows(recurrence, x, before[0], before[1:])
            sums = add(recurrence, windows, x, before[0], starts, self.lags)
            return sums, sums
        read = x.new_zeros(x.shape)
        read[0] = -change / 2  # only the gradients of the first step are collected
        both = torch.cat((x, read), dim=-1)
        windows = None if self.scan else Windows(reading.recurrence, both, before[0], before[1:])
        wide = add(reading.recurrence, windows, both, before[0], starts, self.lags)
        return reading.own_columns(wide), reading.part_columns(wide)

    def _at_lags(self, padded: Tensor, index: Tensor, positions: Tensor) -> Float[Tensor, "lag *row state"]:
        """Values at the anchors of each position."""
        return torch.stack([padded[index, positions + lag] for lag in self.lags])

    def _exchanged_starts(self) -> Float[Tensor, "lag draw row state"]:
        """Gradients at the anchors when the states are those after the exchange; a head belongs to its whole batch."""
        piece, time = self.piece, self.piece.part.x.shape[1]
        rows = torch.arange(len(self.x), device=self.x.device)
        steps = torch.arange(self.span, device=self.x.device)
        replaced = steps if self.reach == EVERYTHING else torch.tensor(self.lags, device=self.x.device)
        starts = []
        for positions in self.positions:
            x = self.x[rows, positions + steps[:, None]]
            moved = self.place.changed(x, -self.left[rows, positions])
            run = self._run(moved, self.before[rows, positions])
            states = pad(piece.part.states, (0, 0, 0, self.span))
            states[rows, positions + replaced[:, None]] = run[replaced]
            signal = signal_gradient(
                piece.part.recurrence, piece.objective, piece.swapped, states[:, :time], "dependence"
            )
            starts.append(self._at_lags(pad(signal, (0, 0, 0, self.span)), rows, positions))
        return torch.stack(starts, dim=1)


def _joined(groups: Iterable[tuple[int, slice]], most: int) -> Iterator[tuple[slice, list[tuple[int, slice]]]]:
    """Put groups of rows together up to so many rows; they are then counted from the first of these rows."""
    first, joined = 0, list[tuple[int, slice]]()
    for block, rows in groups:
        if joined and rows.stop - first > most:
            yield slice(first, rows.start), joined
            first, joined = rows.start, []
        joined.append((block, slice(rows.start - first, rows.stop - first)))
    if joined:
        yield slice(first, first + joined[-1][1].stop), joined


class _Adder:
    """Carries gradients from the anchors of windows back to their first step, and adds up what the weights get there.

    Rows are ordered by draw and then by sequence; `groups` are ranges of the `count` sequences that are summed together.
    """

    def __init__(self, names: list[str], weights: Float[Tensor, "row"], groups: list[slice], count: int) -> None:
        self.names, self.weights, self.groups, self.count = names, weights, groups, count

    def __call__(
        self,
        recurrence: Recurrence,
        windows: Windows | None,
        x: Float[Tensor, "step row input"],
        before: Float[Tensor, "row state"],
        starts: Float[Tensor, "lag row state"],
        lags: list[int],
    ) -> Float[Tensor, "lag group param"]:
        """Return the sums over rows, in float64; `before` is the state before the first step.

        `windows` are steps that gradients are carried back through one by one, None where transport is a product of decays.
        """
        if windows is None:
            carried, power = jumped(recurrence, x, dict(zip(lags, starts, strict=True)))
        else:
            carried, power = windows.to_first_step(starts, lags)
            rows = [carried[lag].contiguous() for lag in sorted(carried)]
            sums = windows.first_step_sums(self.names, rows, self._weights_by_group)
            if sums is not None:
                return torch.stack([one * power[lag] for one, lag in zip(sums, sorted(carried), strict=True)])
        return self._collected(recurrence, x[0], before, carried, power)

    @property
    def _weights_by_group(self) -> Float[Tensor, "row group"]:
        """Weights of the rows, zero in all groups but their own."""
        place = torch.arange(len(self.weights), device=self.weights.device) % self.count
        mine = [(group.start <= place) & (place < group.stop) for group in self.groups]
        return torch.stack([torch.where(inside, self.weights, 0.0) for inside in mine], dim=1)

    def _collected(
        self, recurrence: Recurrence, x: Tensor, before: Tensor, carried: dict[int, Tensor], power: dict[int, float]
    ) -> Tensor:
        linear = linearise(recurrence, x, before, self.names)
        spread, weighted = x.new_empty(len(x), linear.width), linear.weighted(self.weights[:, None])
        by_lag = []
        for lag in sorted(carried):
            linear.spread(carried[lag].contiguous(), spread)
            sums = linear.weights(spread, weighted, self.groups, self.count)
            by_lag.append(linear.flat(sums.double())[:, 0] * power[lag])
        return torch.stack(by_lag)
