"""Gradients on their way back through time, a lag at a time, in buffers that are used again at every lag.

Rows are ordered by position and then by sequence. What lag l has reached, the positions ``0 .. T-1-l``, is then one
contiguous stretch, a lag step is "pull back, then shift by one position", and rows are worked on in blocks that stay in
the cache. Positions that no anchor reaches hold zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.recorded import recorded
from lagreach._util.threads import Workers
from lagreach.transport.cotangent import SAFE_EXPONENT, Cotangent
from lagreach.transport.joined import Joined
from lagreach.transport.linearised import Closed, Linearised, linearise
from lagreach.transport.rollout import Rollout
from lagreach.transport.scaled import LOWEST, lift, times_power_of_two, times_two_to_the

ROWS = 1024  # of a block; more where a kernel is compiled, which keeps fewer rows in the cache by itself
GPU_ROWS = 2**22  # there, starting a kernel costs more than what a cache could save
RESCALE_EVERY = 4  # lags
WORTH_THREAD = 2  # blocks: fewer take no longer than waking a thread


class WeightSums:
    """Sums over the rows of each group of the weights' gradients, with k sets of row weights, over lags in float64.

    Parameters
    ----------
    reached
        Weights (seq, time, k) of the positions that are reached; one set of ones if None.
    anchors
        Weights (seq, time, k) of the anchors where the gradients started, instead.
    kept
        Hold what lies below the range of float64 at its lower end, so that the direction is not lost with the size.
    """

    def __init__(
        self,
        steps: Steps,
        reached: Float[Tensor, "seq time k"] | None = None,
        anchors: Float[Tensor, "seq time k"] | None = None,
        *,
        kept: bool = False,
    ) -> None:
        self._steps, self._kept = steps, kept
        self._anchors, self._reached, self._weighted = None, steps.x.new_empty(0), []
        if anchors is not None:
            at_steps = steps.rows(anchors)
            self._anchors = torch.cat((at_steps, torch.zeros_like(at_steps)))  # anchors beyond the end do not exist
        else:
            self._reached = steps.x.new_ones(steps.total, 1) if reached is None else steps.rows(reached)
            self._weighted = [block.weighted(self._reached[place]) for block, place in steps.blocks]
        self._total: Tensor | None = None

    def row_weights(self, rows: slice, started: slice) -> Float[Tensor, "row k"]:
        """Weights of these rows, which `started` at these anchors."""
        return self._reached[rows] if self._anchors is None else self._anchors[started]

    def add(self, block: int, spread: Tensor, started: slice, exponent: Tensor | None) -> None:
        """Add a block's rows, which `started` at these anchors and whose values are ``spread * 2**exponent``."""
        step, count, top = self._steps.blocks[block][0], self._steps.count, 0
        weighted = self._weighted[block] if self._anchors is None else step.weighted(self._anchors[started])
        if exponent is not None:
            top = int(exponent[started].max())
            weighted = weighted * torch.exp2((exponent[started] - top).to(spread.dtype))
        self.take_in(step.weights(spread, weighted, self._steps.groups, count).double(), top)

    def take_in(self, sums: Float[Tensor, "group k sum"], top: int) -> None:
        """Add sums of the weights' gradients, of size ``2**top``."""
        if top and self._kept:
            top += lift(sums.abs().max(), top)
        if top:
            sums = times_two_to_the(top, sums)
        self._total = sums if self._total is None else self._total.add_(sums)

    def take(self) -> Float[Tensor, "group k param"]:
        """Return what was collected, and start anew."""
        assert self._total is not None, "nothing was collected"
        gradients, self._total = self._steps.flat(self._total), None
        return gradients


def linearised(part: Rollout, positions: slice, names: Sequence[str]) -> Linearised:
    """Steps at some positions, linearised; rows are ordered by position and then by sequence."""
    before = part.states[:, max(positions.start - 1, 0) : positions.stop - 1]
    if positions.start == 0:
        before = torch.cat((part.initial[:, None], before), dim=1)
    x, s = (v.to(part.x).transpose(0, 1).flatten(0, 1) for v in (part.x[:, positions], before))
    return linearise(part.recurrence, x, s, names)


def one_position_back(part: Rollout) -> Callable[[int, Tensor, Tensor], None]:
    """How to pull gradients after the steps at a position, one a sequence, back to the states before them.

    What is returned is called with the position, the gradients after, and where those before go. Where a kernel knows the
    cell, all steps are linearised beforehand, many at once.
    """
    count, time = part.x.shape[:2]
    first = linearised(part, slice(0, 1), ())
    if first.compiled:
        size = max(1, ROWS // count)
        pieces = (linearised(part, slice(t, min(t + size, time)), ()) for t in range(0, time, size))
        joined = Joined.of_pieces(pieces, count * time)
        return lambda position, after, before: joined.back(after, before, None, first=position * count)

    if part.x.is_cuda and isinstance(first, Closed):
        return _recorded_step(part)

    def alone(position: int, after: Tensor, before: Tensor) -> None:
        step = linearised(part, slice(position, position + 1), ())
        step.back(after, after.new_empty(count, step.width), before)

    return alone


def _recorded_step(part: Rollout) -> Callable[[int, Tensor, Tensor], None]:
    """Linearise and pull back, recorded: from Python, each of the many small kernels takes longer to start than to run."""
    x, s, after = (
        torch.empty_like(v[:, 0], memory_format=torch.contiguous_format) for v in (part.x, part.states, part.states)
    )
    before = torch.empty_like(after)

    def step() -> None:
        linear = linearise(part.recurrence, x, s, ())
        linear.back(after, after.new_empty(len(x), linear.width), before)

    def back(position: int, cotangent: Tensor, out: Tensor) -> None:
        x.copy_(part.x[:, position])
        s.copy_(part.states[:, position - 1] if position else part.initial)
        after.copy_(cotangent)
        again()
        out.copy_(before)

    for buffer in (x, s, after):
        buffer.zero_()
    with torch.cuda.device(x.device):
        again = recorded(step)
    return back


class Steps:
    """All steps of a rollout, linearised in blocks of rows; any number of gradients can use them.

    On one thread, if a kernel knows the cell and all sequences are one group, the blocks are `joined` into one.

    Parameters
    ----------
    names
        Weights whose gradients may be asked for.
    groups
        Sequences whose gradients are summed together, as ranges; all of them if None.
    """

    def __init__(self, part: Rollout, names: Sequence[str] = (), groups: Sequence[slice] | None = None) -> None:
        self.count, self.time = part.x.shape[:2]
        self.groups = [slice(0, self.count)] if groups is None else list(groups)
        self.x, self.total, self.state_size = part.x, self.count * self.time, part.states.shape[2]
        first, one_thread = linearised(part, slice(0, 1), names), torch.get_num_threads() == 1
        compiled = first.compiled
        by_torch = names and not one_thread  # see `Closed.back`
        size = max(1, self._rows_of_block(compiled and not by_torch, bool(names)) // self.count)
        places = [slice(t, min(t + size, self.time)) for t in range(0, self.time, size)]
        made = (linearised(part, place, names) for place in places)
        self.joined: Joined | None = None
        self.blocks: list[tuple[Linearised, slice]] = []
        if compiled and one_thread and (not names or self.groups == [slice(0, self.count)]):
            # Without weights, what is carried is the same to the last bit on any number of threads: linearised as there.
            run = (first, part.recurrence, part.x.transpose(0, 1), part.initial)
            self.joined = (Joined.of_run(*run) if names else None) or Joined.of_pieces(made, self.total)
        else:
            rows = [slice(place.start * self.count, place.stop * self.count) for place in places]
            self.blocks = list(zip(made, rows, strict=True))
        self._threads = torch.get_num_threads() if compiled else 1  # torch has threads of its own
        self.workers = Workers()
        self._scratch: list[Tensor] = []

    def _rows_of_block(self, compiled: bool, with_weights: bool) -> int:
        if self.x.is_cuda:
            return GPU_ROWS
        rows = ROWS if not compiled else 2 * ROWS if with_weights else 4 * ROWS
        # Every lag reaches fewer rows, but of the last block all are computed as long as one of them is reached: where there
        # are few blocks, smaller ones waste less.
        while self.total < 8 * rows and rows > ROWS // 2:
            rows //= 2
        return rows

    def flat(self, sums: Float[Tensor, "*any sum"]) -> Float[Tensor, "*any param"]:
        """Lay the weights' gradients side by side; see `Linearised.flat`."""
        return (self.blocks[0][0] if self.joined is None else self.joined).flat(sums)

    def rows(self, values: Float[Tensor, "seq time k"]) -> Float[Tensor, "row k"]:
        """Lay values out by position and then by sequence."""
        return values.to(self.x).transpose(0, 1).flatten(0, 1)

    def buffer(self, block: int, thread: int = 0) -> Tensor:
        """Where a block's spread goes: for every thread the same memory again and again."""
        while len(self._scratch) <= thread:
            step, largest = self.blocks[0]
            self._scratch.append(self.x.new_empty(largest.stop, step.width))
        place = self.blocks[block][1]
        return self._scratch[thread][: place.stop - place.start]

    def shares(self, count: int) -> list[range]:
        """The first blocks, as a range for each thread."""
        threads = max(1, min(self._threads, count // WORTH_THREAD))
        size = -(-count // threads)
        return [range(start, min(start + size, count)) for start in range(0, count, size)]


class Carry:
    """Loss gradients that start at every state and travel back step by step.

    What `cotangent` returns is a view. It outlives the next `step`, but not the one after; if the gradients are `passing`, not
    even that one.
    """

    def __init__(self, steps: Steps, delta: Float[Tensor, "seq time state"], *, passing: bool = False) -> None:
        self.lag = 0
        self._steps = steps
        count, size = steps.count, steps.state_size
        # one position in front, for what the first step hands to the initial state
        self._now = steps.x.new_empty(steps.total + count, size)
        # A step moves every row one position back. One buffer will do where rows are written in the order in which they are
        # read, behind the reading; else there are two, of which the second need not be filled: the first step writes all of it.
        self._next = self._now if passing and steps.joined else torch.empty_like(self._now)
        self._now[count:].unflatten(0, (steps.time, count)).copy_(delta.transpose(0, 1))
        self._exponent: Tensor | None = None  # by anchor, not by position: then it need not move
        pieces = self._now.split(GPU_ROWS if self._now.is_cuda else ROWS)
        # of rows; measured again only by steps after which `_rescale` looks at them
        self._sizes = torch.cat([rows.abs().amax(1) for rows in pieces])
        self._rescale()

    @property
    def left(self) -> int:
        """Number of positions reached."""
        return self._steps.time - self.lag

    def cotangent(self) -> Cotangent:
        """What has arrived, by the position it has reached."""
        count = self._steps.count
        values = self._now[count : (self.left + 1) * count].unflatten(0, (self.left, count)).transpose(0, 1)
        if self._exponent is None:
            return Cotangent(self.lag, values)
        mine = self._exponent[self.lag * count : self._steps.time * count]
        return Cotangent(self.lag, values, mine.unflatten(0, (self.left, count)).transpose(0, 1))

    def step(self, sums: Sequence[WeightSums] = (), *, go_on: bool = True) -> None:
        """Collect weights' gradients at this lag, and go on to the next one."""
        steps, count = self._steps, self._steps.count
        reached = sum(place.start < self.left * count for _, place in steps.blocks)
        if steps.joined is not None:
            self._joined_step(steps.joined, sums, go_on=go_on)
        elif sums:
            for i in range(reached):
                self._pull(range(i, i + 1), go_on=go_on, whole=True)
                place = steps.blocks[i][1]
                started = slice(place.start + self.lag * count, place.stop + self.lag * count)
                for total in sums:
                    total.add(i, steps.buffer(i), started, self._exponent)
        elif go_on:
            shares = enumerate(steps.shares(reached))
            steps.workers.run([partial(self._pull, rows, thread) for thread, rows in shares])
        if go_on:
            self._next[self.left * count : (self.left + 2) * count] = 0  # what lies beyond is zero already
            self._now, self._next = self._next, self._now
            self.lag += 1
            if self.lag % RESCALE_EVERY == 0:
                self._rescale()

    def _joined_step(self, joined: Joined, sums: Sequence[WeightSums], *, go_on: bool) -> None:
        """Do so with all rows in one call."""
        count, end, top = self._steps.count, self.left * self._steps.count, 0
        here, there, sizes = self._now[count : end + count], self._next[:end], self._measured(slice(0, end))
        if not sums:
            if go_on:
                joined.back(here, there, sizes)
            return
        started = slice(self.lag * count, self.lag * count + end)
        sets = [total.row_weights(slice(0, end), started) for total in sums]
        by = torch.cat(sets, dim=1)
        if self._exponent is not None:
            top = int(self._exponent[started].max())
            by = by * torch.exp2((self._exponent[started] - top).to(by.dtype))
        products = joined.back_and_sums(here, there, sizes, by)
        for total, part in zip(sums, products.split([mine.shape[1] for mine in sets]), strict=True):
            total.take_in(part[None], top)

    def _pull(self, blocks: range, thread: int = 0, *, go_on: bool = True, whole: bool = False) -> None:
        """Spread what has reached these blocks and lead it on; if `whole`, the spread of the last one remains."""
        steps, count = self._steps, self._steps.count
        for i in blocks:
            block, place = steps.blocks[i]
            if block.compiled and not whole:  # a compiled block leaves out rows that no gradient reaches any more
                place = slice(place.start, min(place.stop, self.left * count))
            here, spread = self._now[place.start + count : place.stop + count], steps.buffer(i, thread)
            if go_on:
                block.back(here, spread, self._next[place], whole=whole, sizes=self._measured(place))
            else:
                block.spread(here, spread)

    def _measured(self, rows: slice) -> Tensor | None:
        """Where the sizes of rows after this step go, if they will be looked at."""
        return self._sizes[rows] if (self.lag + 1) % RESCALE_EVERY == 0 else None

    def _rescale(self) -> None:
        """Bring anchors that drift out of the float range back to order one."""
        count, steps = self._steps.count, self._steps
        bound = 2.0 ** SAFE_EXPONENT[self._now.dtype]
        reached = self._now[count : (self.left + 1) * count]
        size = self._sizes[count : (self.left + 1) * count, None]
        drifted = (size > 0) & ((size < 1 / bound) | (size > bound))
        if not drifted.any():
            return
        if self._exponent is None:  # an exact zero must not set the scale of a sum; nor must anchors that do not exist
            exponent = torch.full((2 * steps.total, 1), LOWEST, dtype=torch.int32, device=size.device)
            exponent[self.lag * count : steps.time * count] = torch.where(size > 0, 0, LOWEST)
        else:
            exponent = self._exponent.clone()  # views of the old one may be about
        shift = torch.where(drifted, torch.frexp(size).exponent, 0)
        exponent[self.lag * count : steps.time * count] += shift
        reached.copy_(times_power_of_two(reached, -shift))
        self._exponent = exponent


def weights_of(
    steps: Steps, carried: Float[Tensor, "seq reached state"], reached: Float[Tensor, "seq time k"] | None = None
) -> Float[Tensor, "group k param"]:
    """Gradients of the weights from gradients at the states of the first positions; see `WeightSums`."""
    sums = WeightSums(steps, reached)
    missing = steps.time - carried.shape[1]
    Carry(steps, torch.nn.functional.pad(carried, (0, 0, 0, missing))).step([sums], go_on=False)
    return sums.take()
