"""Run a network on batches of sequences, and hand what a linear fit sees of them to the sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.progress import Tick
from lagreach._util.same_rows import by_row
from lagreach._util.threads import threads_of_user
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError
from lagreach.forecasting.carried_back import all_directions
from lagreach.forecasting.dependence import Dependence
from lagreach.forecasting.linearise import Linearisation, sequences_in_cache, sequences_together
from lagreach.forecasting.network import Network, Shown
from lagreach.forecasting.output_steps import in_one_output
from lagreach.forecasting.plan import ForecastPlan
from lagreach.statistics.linear_share import (
    Observed,
    OutputSpace,
    Rows,
    ShareMoments,
    Start,
    choose_anchors,
    enough_anchors,
    joined,
)
from lagreach.statistics.reachable import Directions, Sketched, sketched, sketched_rows, tangents
from lagreach.statistics.readable import Read, read_features, read_rows
from lagreach.transport.losses import Loss
from lagreach.transport.objective import Objective, objective_of, valid_steps

SUMMED = 256  # sequences that are read and summed together, whatever runs together: calls of torch take their time, too
READ = 2**25  # numbers of their inputs that are held at a time,
SINGLED = 8  # and a part of that where what each of them alone holds is worked out, in double precision
FEW = 64  # sequences that tell how much of the targets the model knows already, and what a fit starts from
LEAST_SHARE = 1e-30  # of outputs in what a fit starts from: targets are divided by it


@dataclass(frozen=True)
class TargetBatch:
    """Some sequences, run: outputs at the targets, and the objective that weighs them.

    Steps and positions stay where the data are: a GPU would be waited for whenever they are looked at.
    """

    batch: Batch
    objective: Objective
    times: Tensor  # (seq, target), step of the input that a target belongs to
    positions: Tensor  # (seq, target), position of the output
    shares: Tensor  # (seq, target), share of a target in the loss of its sequence
    output: Tensor  # (seq, target, out)
    apart: Tensor  # (seq, target, out), what it misses of the targets

    def at_targets(self, output: Tensor) -> Tensor:
        """Pick the targets' positions of an output (seq, position, out)."""
        return _at(output, self.positions)


@dataclass(frozen=True)
class Measurement:
    """What is measured: a network on sequences, with a loss, in some coordinates of the output.

    `mixing` (feature, kept) are the combinations that stand for very many features of a readout. With `at_end`, all outputs of a
    sequence belong to its last step. `start` is where a fit starts, if that is not the checkpoint's output as it is.
    """

    network: Network
    plan: ForecastPlan
    loss: Loss
    steps: object
    space: OutputSpace
    mixing: Tensor | None = None
    at_end: bool = False
    start: Start | None = None

    def run(self, batch: Batch) -> TargetBatch:
        """Run the network on some sequences."""
        return self.run_with_features(batch)[0]

    def run_with_features(self, batch: Batch) -> tuple[TargetBatch, Float[Tensor, "seq target feature"]]:
        """Run the network; also what its readout reads at the targets."""
        shown = self._show(batch)
        found = self._targets(shown.output.shape, shown.output.dtype, batch)
        moved = found.moved(shown.output.device)
        output, features = _of_targets(shown, found.times, found.positions)
        output = self._started(output)
        apart = self.space.apart(output, moved.objective)
        return TargetBatch(batch, moved.objective, found.times, found.positions, moved.shares, output, apart), features

    def _targets(self, shape: Sequence[int], dtype: torch.dtype, batch: Batch) -> Targets:
        """Find the targets of some sequences, when the first of them gave an output of this shape."""
        _, positions, out = shape
        given = in_one_output(batch, out) if self.at_end and positions == 1 else batch
        kind = dtype if self.start is None else torch.float64  # a mean is taken off before numbers are rounded
        found = targets((len(batch), positions, out), kind, given, self.loss, self.steps, at_end=self.at_end)
        return found if self.start is None else found.started(self.start, dtype)

    def _started(self, output: Tensor) -> Tensor:
        return output if self.start is None else self.start.outputs(output)

    def _show(self, batch: Batch) -> Shown:
        shown = _at_least_single(self.network.show(batch))
        return (
            shown if self.mixing is None else shown._replace(features=shown.features @ self.mixing.to(shown.features))
        )

    def observed(self, piece: TargetBatch, block: Tensor, chance: Tensor) -> Observed:
        """Everything but the features, in the coordinates of all weights."""
        space, output, apart = self.space, piece.output, piece.apart
        pulls = Pulls(space.residual(output, apart), space.towards(output), *space.along(output, apart))
        times = _moved(piece.times, output.device)
        planted, single = self.plan.coding.planted_and_single(piece.batch, output.device)
        planted, chance = planted.to(pulls.residual), chance.to(output.device)
        return Observed(block, times, piece.shares, planted, *pulls, space.group, chance, single)

    def looked_at(self) -> tuple[Objective, Tensor] | None:
        """Targets and outputs of a few sequences one after another, in double precision; squared error only."""
        if self.loss != "mse":
            return None
        few, size = self.plan.only(FEW), sequences_together(self.network, 1)
        rows = []
        for batch, _, _ in few.batches(size):
            shown = self._show(batch)
            found = self._targets(shown.output.shape, torch.float64, batch).moved(shown.output.device)
            output, _ = _of_targets(shown, found.times, found.positions)
            parts = (found.objective.weights[..., None], found.objective.y, output)
            rows.append([part.flatten(0, 1).double() for part in parts])
        weights, targets, outputs = (torch.cat(parts)[None] for parts in zip(*rows, strict=True))
        return Objective("mse", targets, weights[..., 0]), outputs

    def add_readable(
        self, moments: ShareMoments, tick: Tick | None = None, dependence: Dependence | None = None
    ) -> None:
        """Add all sequences of the plan to the sums of a readout, and to those of the targets' dependence on inputs."""
        size = min(sequences_together(self.network, 1), sequences_in_cache(self.network))
        sample = self.plan.sample()
        read = READ // SINGLED if self.plan.coding.singled else READ
        together = max(size, min(SUMMED, read // sample.x[0].numel()) // size * size)
        if sample.lengths is not None:  # what runs together may decide how long outputs are
            together = size = sequences_together(self.network, 1)
        lent = self.network.sums_as_it_runs(sample)  # kernels of ours write into nobody's inputs
        with self.network.at_rest():
            for batch, block, most in self.plan.batches(together, lent=lent):
                found, rows = self._readable_rows(batch, block, most, size, moments.features, tick)
                moments.add(rows)
                if dependence is not None:
                    dependence.add(batch, found.objective, found.times, block)

    def _readable_rows(
        self, batch: Batch, block: Tensor, most: Tensor, size: int, features: int, tick: Tick | None
    ) -> tuple[Targets, Rows]:
        """Run the network on so many sequences at a time, and keep of them only what a fit of the readout needs."""
        # at once: a GPU takes them in little more time than a few
        batch = batch.with_x(batch.x.to(self.network.device))
        # now that a cache holds the inputs
        planted, single = self.plan.coding.planted_and_single(batch, batch.x.device)
        run = self._summed_at_once(batch, most, features, tick) or self._summed_in_parts(
            batch, most, size, features, tick
        )
        found, moved, anchors, pulls, read = run
        planted = planted.to(pulls.residual)
        group = self.space.group
        observed = Observed(block, moved.times, moved.shares, planted, *pulls, group, most, single).with_anchors(
            *anchors
        )
        return found, read_rows(observed, read, self.plan.lags)

    def _summed_at_once(self, batch: Batch, most: Tensor, features: int, tick: Tick | None) -> Summed | None:
        """In one compiled pass, where a network has one output a step and a pass like that."""
        plain = self.loss == "mse" and self.mixing is None and not self.at_end and self.steps is None
        if self.start is not None and float(self.start.share.abs().min() / self.start.size) < LEAST_SHARE:
            return None
        if not plain or not self.network.sums_as_it_runs(batch):
            return None
        time = batch.x.shape[1]
        found = self._targets((len(batch), time, 1), self.network.dtype, batch)
        anchors = choose_anchors(found.shares, most[:, : enough_anchors(time, self.plan.total, features)])
        # the pass takes outputs as they are
        share = 1.0 if self.start is None else float(self.start.share / self.start.size)
        with threads_of_user():  # blocks of sequences do not wait for each other
            made = self.network.sums(batch, found.objective.y[..., 0] / share, found.shares, anchors[0])
        if made is None:
            return None
        output = self._started(made.output[..., None])
        apart = self.space.apart(output, found.objective)
        pulls = Pulls(apart, self.space.curvature_root(output), *self.space.along(output, apart))
        if tick is not None:
            tick(len(batch))
        return found, found, anchors, pulls, Read(made.picked, share * made.gradient[:, None].double())

    def _summed_in_parts(self, batch: Batch, most: Tensor, size: int, features: int, tick: Tick | None) -> Summed:
        """Part after part, as many sequences together as caches hold."""
        space, parts = self.space, [slice(start, start + size) for start in range(0, len(batch), size)]
        pulls: list[Pulls] = []
        kept: list[Read] = []
        for part in parts:
            shown = self._show(batch.select(part))
            if not pulls:
                device, found = shown.output.device, self._targets(shown.output.shape, shown.output.dtype, batch)
                moved = found.moved(device)
                chance = most[:, : enough_anchors(found.times.shape[1], self.plan.total, features)]
                index, weights = (
                    chosen.to(device) for chosen in choose_anchors(found.shares, chance.to(found.shares.device))
                )
            here = moved.part(part)
            output, read = _of_targets(shown, found.times[part], found.positions[part])
            output = self._started(output)
            apart, root = space.apart(output, here.objective), space.curvature_root(output)
            residual = space.readout_residual(output, apart)
            pulls.append(Pulls(residual, root, *space.along(output, apart)))  # outputs themselves may be very many
            kept.append(read_features(read, index[part], here.shares, root[..., 0], residual))
            if tick is not None:
                tick(len(output))
            del shown, output, read, apart  # what the next run leaves can take their place in a cache
        return found, moved, (index, weights), Pulls.joined(pulls), Read.joined(kept)

    def add_reachable(
        self,
        moments: ShareMoments,
        directions: Directions,
        how: Linearisation,
        readout_scale: Tensor | None = None,
        tick: Tick | None = None,
    ) -> None:
        """Add all sequences of the plan to the sums of the network linearised in its weights.

        Weights that no direction moves stay as they are. `readout_scale` (feature,) is the root of the optimiser's scale of the
        readout's weights.
        """
        network = self.network
        sketch = self._sketch(directions, how)
        for batch, block, chance in self.plan.batches(sequences_together(network, how.alive)):
            piece, features = self.run_with_features(batch)
            features = features if readout_scale is None else features * readout_scale.to(features)
            with network.at_rest(), how.flags(), torch.no_grad():
                observed = self.observed(piece, block, chance)
                rows = sketched_rows(
                    observed,
                    piece.output,
                    sketch(piece, observed),
                    features if network.readout else None,
                    self.space,
                    self.plan.lags,
                )
            moments.add(rows)
            if tick is not None:
                tick(len(batch))

    def _sketch(self, directions: Directions, how: Linearisation) -> Callable[[TargetBatch, Observed], Sketched]:
        """How derivatives along the directions are taken of a piece: carried back, or one run a direction."""
        carried = how.carried
        if carried is not None and len(directions):
            matrix, names = all_directions(directions), list(directions.weights)
            return lambda piece, seen: carried.sketch(piece.batch, seen, piece.output, matrix, names, self.space)

        def forward(piece: TargetBatch, observed: Observed) -> Sketched:
            along = tangents(
                _outputs(self.network, piece), directions, how.together, how.method, step=how.step, one_by_one=how.one_by_one
            )  # none where only the readout is trained  # fmt: skip
            return sketched(observed, piece.output, along, len(directions), self.space)

        return forward


def _outputs(network: Network, piece: TargetBatch) -> Callable[[dict[str, Tensor]], Tensor]:
    return lambda weights: piece.at_targets(network.output(weights, piece.batch))


def _at_least_single(shown: Shown) -> Shown:
    """Sums of models in half precision are taken in single precision; some have parts of both."""
    kind = torch.promote_types(torch.promote_types(shown.output.dtype, shown.features.dtype), torch.float32)
    return shown._replace(output=shown.output.to(kind), features=shown.features.to(kind))


def _at(values: Tensor, index: Tensor) -> Tensor:
    if index.shape == values.shape[:2] and torch.equal(index[0], torch.arange(index.shape[1], device=index.device)):
        return values  # all of them, in their order
    return values.gather(1, index.to(values.device)[..., None].expand(-1, -1, values.shape[-1]))


def _moved(values: Tensor, device: torch.device) -> Tensor:
    """Rows on a device."""
    return by_row(lambda rows: rows.to(device), values)


class Targets(NamedTuple):
    """Where targets are, on the device of the data; see `TargetBatch`."""

    objective: Objective
    times: Tensor
    positions: Tensor
    shares: Tensor

    def started(self, start: Start, dtype: torch.dtype) -> Targets:
        """Targets as a fit sees them that starts there."""
        y, weights = (
            start.targets(self.objective.y).to(dtype),
            by_row(lambda rows: rows.to(dtype), self.objective.weights),
        )
        shares = by_row(lambda rows: rows.to(dtype), self.shares)
        return self._replace(objective=replace(self.objective, y=y, weights=weights), shares=shares)

    def part(self, some: slice) -> Targets:
        """Targets of some of the sequences."""
        return Targets(self.objective.select(some), *(values[some] for values in self[1:]))

    def moved(self, device: torch.device) -> Targets:
        """Targets on the device of the outputs."""
        return Targets(self.objective.to(device), *(_moved(values, device) for values in self[1:]))


class Pulls(NamedTuple):
    """What targets pull at outputs with; see `Observed`."""

    residual: Float[Tensor, "seq target out"]
    towards: Float[Tensor, "seq target row group"]
    along_residual: Float[Tensor, "seq target direction"]
    along_output: Float[Tensor, "seq target direction"]

    @classmethod
    def joined(cls, parts: Sequence[Pulls]) -> Pulls:
        """Put sequences behind each other."""
        return cls(*(joined(values) for values in zip(*parts, strict=True)))


# targets where the data and where the outputs are, anchors with their weights, and what is left of the network's run
Summed: TypeAlias = tuple[Targets, Targets, tuple[Tensor, Tensor], Pulls, Read]


def _of_targets(shown: Shown, times: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Output, and features of the readout, at the targets."""
    return _at(shown.output, positions), _at(shown.features, times if shown.by_step else positions)


def targets(
    shape: tuple[int, int, int], dtype: torch.dtype, batch: Batch, loss: Loss, steps: object, *, at_end: bool = False
) -> Targets:
    """Which positions of an output (seq, position, out) have targets, how much each counts, and which step it belongs to.

    With `at_end`, all of them belong to the last step of the sequence. They are found where the data are: a GPU would be waited
    for.
    """
    (seq, positions, _), time, device = shape, batch.x.shape[1], torch.as_tensor(batch.y).device
    inside = valid_steps(batch.lengths, seq, time, device)
    listed = None if at_end or positions in (1, time) else _own_steps(steps, positions, time, device)
    objective = objective_of(
        loss,
        batch if not at_end and listed is None else replace(batch, lengths=None),  # they count steps, not such outputs
        shape,
        input_time=time,
        steps=steps if listed is None else None,  # type: ignore[arg-type]
        device=device,
        dtype=dtype,
        named="target_steps",
    )
    index = torch.arange(positions, device=device).expand(seq, -1) if objective.steps is None else objective.steps
    if listed is not None and objective.steps is None:
        times = listed.expand(seq, -1)
        objective = replace(objective, weights=objective.weights * inside.gather(1, times))
    elif positions == time and not at_end:
        times = index
    elif positions == 1 or at_end:
        times = (inside.sum(1, keepdim=True) - 1).expand_as(index)
    else:
        raise UnsupportedError(
            "the model has neither one output a step nor one a sequence, so it is not known which step an output belongs to",
            got=f"{positions} outputs for {time} steps",
            expected=f"target_steps= with {positions} steps of x, the one that each output belongs to",
            fix=f"pass target_steps={list(range(0, time, max(1, time // positions)))[:3]} and so on, as the model's front makes "
            "its steps",
        )
    shares = by_row(lambda weights: weights / weights.sum(1, keepdim=True), objective.weights)
    return Targets(objective, times, index, shares)


def _own_steps(steps: object, positions: int, time: int, device: torch.device) -> Tensor | None:
    """Steps of the input that outputs of a coarser rhythm belong to, where the user lists one for each output."""
    if steps is None or isinstance(steps, str):
        return None
    listed = torch.as_tensor(steps, dtype=torch.long, device=device)
    fits = listed.shape == (positions,) and bool(((listed >= 0) & (listed < time)).all())
    return listed if fits else None
