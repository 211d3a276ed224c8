"""Derivatives of the output along many directions of the weights, by carrying gradients back from the steps looked at.

Forward, every direction takes a run of the model. Backward, every *step that is looked at* takes a journey back in time; there
are 64 of them at most, and all journeys of a sequence share the same linearised steps. What arrives is a gradient of the weights
for each of these steps, from which any number of directions is one matrix product. For recurrent layers of one kind of cell
whose transposed Jacobians are known in closed form (`lagreach.cells._pullback`), followed by a linear readout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach._util.room import room
from lagreach.adapters import View
from lagreach.cells._candidate import normalised_back
from lagreach.cells._pullback import Norm, Pullback, RowForm
from lagreach.data.batch import Batch
from lagreach.errors import LagreachError
from lagreach.forecasting.network import ModuleNetwork, Network
from lagreach.statistics.linear_share import Observed, OutputSpace
from lagreach.statistics.reachable import Directions, Sketched
from lagreach.transport.objective import valid_steps
from lagreach.transport.rollout import run

CHUNK = 32  # steps whose spread gradients are kept before they are multiplied with what the weights read
ROOM = 2**26  # bytes of the weights' gradients of some sequences, on a processor
MOST_TOGETHER = 128  # sequences
CLOSE = 1e-5  # how closely the layer's own states must give the model's output


@dataclass(frozen=True)
class CarriedBack:
    """A model seen as one recurrent layer with a linear readout: `weight` (out, unit), `unit` (unit, state)."""

    view: View
    weight: Tensor
    unit: Tensor

    @classmethod
    def of(cls, network: Network, sample: Batch) -> CarriedBack | None:
        """See a model so; None where it is something else."""
        if not isinstance(network, ModuleNetwork) or not network.readout:
            return None
        try:
            views = network.recurrences(sample)
            seen = cls._of(network, views[0], sample) if len(views) == 1 else None
        except LagreachError:  # no recurrence that is known, or one that cannot be bound
            return None
        return seen

    @classmethod
    def _of(cls, network: ModuleNetwork, view: View, sample: Batch) -> CarriedBack | None:
        part = run(view.bind(sample))
        stack, params = part.recurrence.stack, part.recurrence.params
        inner = {name: weight for name, weight in network.weights.items() if name not in network.readout}
        # not by address: cuDNN lays the weights of a layer out anew when it likes
        same = set(inner) == set(params) and all(torch.equal(w, params[n]) for n, w in inner.items())
        if len(stack.cells) != 1 or not same or part.x.shape[1] != sample.x.shape[1]:  # a front may make fewer steps
            return None
        every = torch.eye(stack.state_size, dtype=part.states.dtype, device=part.states.device)
        seen = cls(view, network.last_weight(), stack.output(every).T)
        pulled = seen._pullback(part.x[:, :1], part.states[:, :1], params)
        if pulled is None or pulled.form is None or any(name not in pulled.uses for name in stack.names[0]):
            return None
        shown = network.show(sample)
        features = part.states @ seen.unit.T
        read = features[:, -1:] if shown.features.shape[1] == 1 else features
        fits = sample.lengths is None or shown.features.shape[1] > 1
        if not fits or read.shape != shown.features.shape or not _close(read, shown.features, part.lengths):
            return None
        return seen

    def _pullback(self, x: Tensor, before: Tensor, params: dict[str, Tensor]) -> Pullback | None:
        """Steps (seq, time) as rows, by position and then by sequence."""
        stack = self.view.template.stack
        rows = [values.transpose(0, 1).flatten(0, 1).contiguous() for values in (x, before)]
        with torch.no_grad():
            return stack.cells[0].pullback(rows[0], rows[1], stack.layer_params(0, params))

    def sequences_together(self, time: int, rows: int) -> int:
        """Sequences whose gradients of the weights fit into memory."""
        stack = self.view.template.stack
        size = sum(weight.numel() for weight in self.view.template.params.values())
        each = (rows + 1) * 4 * size + 16 * time * stack.state_size * 4
        return max(1, min(MOST_TOGETHER, room(self.weight.device, ROOM) // each))

    def sketch(
        self,
        batch: Batch,
        observed: Observed,
        output: Float[Tensor, "seq target out"],
        directions: Float[Tensor, "direction param"],
        names: Sequence[str],
        space: OutputSpace,
    ) -> Sketched:
        """Derivatives at the anchors in the coordinates of `space`, and the gradient over all targets, along all directions."""
        index, _ = observed.anchors
        anchors = index.shape[1]
        seq, time = len(output), observed.planted.shape[1]
        every = torch.eye(output.shape[2], dtype=output.dtype, device=output.device)
        mixing = space.rows(every[:, None, None].expand(-1, *output.shape), output)  # (out, seq, target, row)
        towards = torch.einsum("ostr,ou->stru", mixing, self.weight) @ self.unit  # (seq, target, row, state)
        rows = towards.shape[2]
        pull = observed.residual * observed.shares[..., None]
        over = output.new_zeros(seq, time, towards.shape[3])
        at = observed.times[..., None].expand(-1, -1, towards.shape[3])
        over.scatter_add_(1, at, (towards * pull[..., None]).sum(2))
        start = towards.gather(1, index[..., None, None].expand(-1, -1, *towards.shape[2:])).flatten(1, 2)
        times = observed.times.gather(1, index).repeat_interleave(rows, 1)
        derivatives = torch.cat(
            list(self._back(batch, start, times, over, directions, names))
        )  # (seq, 1 + anchor row, direction)
        return Sketched(derivatives[:, 1:].unflatten(1, (anchors, rows)), derivatives[:, 0].double())

    def derivatives(
        self, batch: Batch, times: Int[Tensor, "seq step"], directions: Directions
    ) -> Float[Tensor, "direction seq step out"]:
        """Derivatives of the output at some steps along directions of the weights."""
        seq, steps = times.shape
        outputs, state = self.weight.shape[0], self.unit.shape[1]
        start = (self.weight @ self.unit).expand(seq, steps, -1, -1).flatten(1, 2)
        over = start.new_zeros(seq, batch.x.shape[1], state)
        matrix = all_directions(directions).to(start)
        along = torch.cat(
            list(self._back(batch, start, times.repeat_interleave(outputs, 1), over, matrix, list(directions.weights)))
        )
        return along[:, 1:].unflatten(1, (steps, outputs)).permute(3, 0, 1, 2)

    def _back(
        self, batch: Batch, start: Tensor, times: Tensor, over: Tensor, directions: Tensor, names: Sequence[str]
    ) -> Iterator[Tensor]:
        """Gradients of the weights along the directions, a few sequences at a time: first of `over`, then of each start."""
        part = run(self.view.bind(batch))
        recurrence = part.recurrence
        before = torch.cat((part.initial[:, None], part.states[:, :-1]), dim=1)
        together = self.sequences_together(over.shape[1], start.shape[1])
        own_names = {name: short for short, name in recurrence.stack.names[0].items()}
        for first in range(0, len(start), together):
            short = slice(first, first + together)
            pulled = self._pullback(part.x[short], before[short], recurrence.params)
            assert pulled is not None
            weights = [own_names[name] for name in names]
            order, gradients = _journeys(pulled, _groups(pulled, weights), start[short], times[short], over[short])
            along = _along(pulled, weights, gradients, directions)
            own = torch.empty_like(along[:, 1:]).scatter_(1, order[..., None].expand_as(along[:, 1:]), along[:, 1:])
            yield torch.cat((along[:, :1], own), dim=1)


def all_directions(directions: Directions) -> Float[Tensor, "direction param"]:
    """All directions as rows."""
    chunk = directions.chunk(0, len(directions))
    return torch.cat([part.flatten(1) for part in chunk.values()], dim=1)


def _close(ours: Tensor, theirs: Tensor, lengths: Tensor | None) -> bool:
    inside = valid_steps(lengths, ours.shape[0], ours.shape[1], ours.device)[..., None]
    return bool((((ours - theirs).abs() <= CLOSE * (1 + theirs.abs())) | ~inside).all())


class _Group(NamedTuple):
    """Columns of the spread that the same factors are multiplied with, and the weights that these make."""

    columns: slice
    names: tuple[str, ...]


def _groups(pulled: Pullback, names: Sequence[str]) -> list[_Group]:
    """All columns that some weight makes use of; products of others would take time for nothing."""
    edges = sorted({edge for name in names for columns in pulled.uses[name].columns for edge in _ends(pulled, columns)})
    groups: list[_Group] = []
    for first, last in pairwise(edges):
        using = tuple(name for name in names if _within(pulled, name, first, last))
        factors = {pulled.uses[name].factor for name in using}
        before = groups[-1] if groups else None
        if before and before.columns.stop == first and {pulled.uses[name].factor for name in before.names} == factors:
            groups[-1] = _Group(slice(before.columns.start, last), tuple(dict.fromkeys((*before.names, *using))))
        elif using:
            groups.append(_Group(slice(first, last), using))
    return groups


def _ends(pulled: Pullback, columns: slice) -> tuple[int, int]:
    return columns.indices(pulled.width)[:2]


def _within(pulled: Pullback, name: str, first: int, last: int) -> bool:
    ends = [_ends(pulled, columns) for columns in pulled.uses[name].columns]
    return any(begin <= first and last <= end for begin, end in ends)


Gradients = list[tuple[_Group, Float[Tensor, "seq _ journey _"]]]  # sums by factor and column


def _journeys(
    pulled: Pullback,
    groups: Sequence[_Group],
    start: Float[Tensor, "seq row state"],
    times: Int[Tensor, "seq row"],
    over: Float[Tensor, "seq time state"],
) -> tuple[Int[Tensor, "seq row"], Gradients]:
    """Carry all gradients back through time together, and sum up what they leave at the weights on the way.

    Journey 0 is one gradient that starts at every step (`over`); the others start at one step each. Those that start late come
    first, so that the ones under way are always the first; their order is returned.
    """
    assert pulled.form is not None
    seq, time, state = over.shape
    order = times.argsort(dim=1, descending=True, stable=True)
    begins = times.gather(1, order)
    first = start.gather(1, order[..., None].expand(-1, -1, state))
    arrays = [array.unflatten(0, (time, seq)) for array in pulled.form.arrays]
    factors = [pulled.factor(group.names).unflatten(0, (time, seq)).permute(1, 2, 0) for group in groups]
    carried = start.new_zeros(seq, 1 + start.shape[1], state)
    journeys = carried.shape[1]
    widths = [group.columns.stop - group.columns.start for group in groups]
    sums = [
        start.new_zeros(seq, factor.shape[1], journeys * width) for factor, width in zip(factors, widths, strict=True)
    ]
    kept = start.new_zeros(seq, CHUNK, journeys, pulled.width)
    under_way = (begins[..., None] >= torch.arange(time, device=begins.device)).sum(1).amax(0).tolist()  # by time
    starting: dict[int, tuple[Tensor, Tensor]] = {}
    for t in begins.unique().tolist():
        where = (begins == t).nonzero()
        starting[int(t)] = where[:, 0], where[:, 1]
    for stop in range(time, 0, -CHUNK):
        begin = max(0, stop - CHUNK)
        rows = 1 + under_way[begin]
        for t in range(stop - 1, begin - 1, -1):
            carried[:, 0] += over[:, t]
            if t in starting:
                sequence, row = starting[t]
                carried[sequence, 1 + row] = first[sequence, row]
            after, spread = carried[:, :rows], kept[:, t - begin, :rows]
            carried[:, :rows] = back(pulled.form, [array[t][:, None] for array in arrays], after, spread)
        for group, factor, total, width in zip(groups, factors, sums, widths, strict=True):
            spreads = kept[:, : stop - begin, :rows, group.columns].flatten(2)
            total[..., : rows * width].baddbmm_(factor[..., begin:stop], spreads)
    by_journey = [total.unflatten(2, (journeys, -1)) for total in sums]
    return order, list(zip(groups, by_journey, strict=True))


def back(form: RowForm, arrays: Sequence[Tensor], after: Tensor, spread: Tensor) -> Tensor:
    """One step back for gradients (seq, row, state) that share their sequence's step; the spread is written.

    What `lagreach.kernels.cpu.pullback` does for rows with a step of their own.
    """
    *arrays, normal, inverse = arrays
    *weights, gain = form.weights
    norm = Norm(normal, inverse, gain)

    def normalised(candidate: Tensor, first: int) -> None:
        """Through the LayerNorm, if there is one, whose weights' columns start at the first."""
        if len(gain):
            normalised_back(candidate, norm, spread[..., first : first + 2 * gain.shape[1]])

    if form.kernel == "lstm":
        output, i, f, g, o, forget = arrays
        units = output.shape[-1]
        h, c = after.split(units, dim=-1)
        new = torch.addcmul(c, h, output)
        for place, slope in enumerate((i, f, g)):
            torch.mul(new, slope, out=spread[..., place * units : (place + 1) * units])
        torch.mul(h, o, out=spread[..., 3 * units : 4 * units])
        normalised(spread[..., 2 * units : 3 * units], 4 * units)
        return torch.cat((spread[..., : 4 * units] @ weights[0], new * forget), dim=-1)
    if form.kernel == "gru":
        slope, update, reset_slope, reset, retained = arrays
        units = slope.shape[-1]
        torch.mul(after, slope, out=spread[..., :units])
        torch.mul(after, update, out=spread[..., units : 2 * units])
        normalised(spread[..., :units], 3 * units)
        through = spread[..., :units] @ weights[0]
        torch.mul(through, reset_slope, out=spread[..., 2 * units : 3 * units])
        return after * retained + through * reset + spread[..., units : 3 * units] @ weights[1]
    slopes, shared, retained, through = arrays
    units, (recurrent,) = after.shape[-1], weights
    sizes = slopes.shape[-1], through.shape[-1], int(shared.shape[-1] > 0)
    used, straight = sum(sizes), spread[..., : sizes[0]].unflatten(-1, (-1, units))
    torch.mul(after[..., None, :], slopes.unflatten(-1, (-1, units)), out=straight)
    if shared.shape[-1]:
        spread[..., used - 1] = (after * shared).sum(-1)
    candidate = spread[..., :units]
    normalised(candidate, used)
    for start in range(0, sizes[1], units):
        behind = spread[..., sizes[0] + start : sizes[0] + start + units]
        torch.mul(candidate, through[..., start : start + units], out=behind)
    led = spread[..., used - len(recurrent) : used] @ recurrent
    return led if retained.shape[-1] == 0 else torch.addcmul(led, after, retained.expand_as(after))


def _along(
    pulled: Pullback, names: Sequence[str], gradients: Gradients, directions: Tensor
) -> Float[Tensor, "seq journey direction"]:
    """Weights' gradients times directions of the weights."""
    total, first = None, 0
    for name in names:
        parts = [
            part for columns in pulled.uses[name].columns for part in _of_columns(pulled, name, columns, gradients)
        ]
        gathered = torch.cat(parts, dim=3)
        seq, _, journeys, _ = gathered.shape
        flat = gathered.permute(0, 2, 3, 1).reshape(seq * journeys, -1)  # (seq journey, what it makes, what it reads)
        part = (flat @ directions[:, first : first + flat.shape[1]].T).unflatten(0, (seq, journeys))
        total = part if total is None else total.add_(part)
        first += flat.shape[1]
    assert total is not None
    return total


def _of_columns(pulled: Pullback, name: str, columns: slice, gradients: Gradients) -> Iterator[Tensor]:
    """Gradients of a weight in some columns of the spread, in their order."""
    begin, end = _ends(pulled, columns)
    for group, sums in gradients:
        low, high = max(begin, group.columns.start), min(end, group.columns.stop)
        if low < high:
            place = pulled.places(group.names)[pulled.uses[name].factor]
            yield sums[:, place, :, low - group.columns.start : high - group.columns.start]
