"""Run a network on batches of sequences, and hand what a linear fit sees of them to the sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lagreach._util.progress import Tick
from lagreach.adapters.view import unbound_recurrence
from lagreach.cells.stack import Stack
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError
from lagreach.forecasting.carried_back import all_directions
from lagreach.forecasting.dependence import Dependence
from lagreach.forecasting.linearise import Linearisation, sequences_together
from lagreach.forecasting.network import Network, Shown
from lagreach.forecasting.plan import ForecastPlan
from lagreach.statistics.linear_share import Observed, OutputSpace, ShareMoments, enough_anchors
from lagreach.statistics.reachable import Directions, Sketched, sketched, sketched_rows, tangents
from lagreach.statistics.readable import readable_rows
from lagreach.transport.objective import Loss, Objective, make_objective, valid_steps

FEW = 64  # sequences that tell how much of the targets the model knows already


@dataclass(frozen=True)
class TargetBatch:
    """Some sequences, run: outputs and features of the readout at the targets, and the objective that weighs them."""

    batch: Batch
    objective: Objective
    times: Tensor  # (seq, target), step of the input that a target belongs to
    positions: Tensor  # (seq, target), position of the output
    output: Tensor  # (seq, target, out)
    features: Tensor  # (seq, target, feature)

    def at_targets(self, output: Tensor) -> Tensor:
        """Pick the targets' positions of an output (seq, position, out)."""
        return _at(output, self.positions)


@dataclass(frozen=True)
class Measurement:
    """What is measured: a network on sequences, with a loss, in some coordinates of the output.

    `mixing` (feature, kept) are the combinations that stand for very many features of a readout.
    """

    network: Network
    plan: ForecastPlan
    loss: Loss
    steps: object
    space: OutputSpace
    mixing: Tensor | None = None

    def run(self, batch: Batch) -> TargetBatch:
        """Run the network on some sequences."""
        shown = _at_least_single(self.network.show(batch))
        objective, times, positions = targets(shown, batch, self.loss, self.steps)
        features = shown.features if self.mixing is None else shown.features @ self.mixing.to(shown.features)
        place = times if shown.by_step else positions
        return TargetBatch(
            batch=batch,
            objective=objective,
            times=times,
            positions=positions,
            output=_at(shown.output, positions),
            features=_at(features, place),
        )

    def observed(self, piece: TargetBatch, block: Tensor, chance: Tensor, *, readout: bool) -> Observed:
        """Everything but the features, in the coordinates of a readout or of all weights."""
        space, output, objective = self.space, piece.output, piece.objective
        along_residual, along_output = space.along(output, objective)
        return Observed(
            block=block,
            times=piece.times,
            shares=objective.weights / objective.weights.sum(1, keepdim=True),
            planted=self.plan.coding.planted(piece.batch).to(output),
            residual=(space.readout_residual if readout else space.residual)(output, objective),
            towards=space.curvature_root(output) if readout else space.towards(output),
            along_residual=along_residual,
            along_output=along_output,
            along=space.group,
            chance=chance.to(output.device),
        )

    def missed(self) -> float:
        """Variance of what the output misses of the targets, over that of the targets; of a few sequences, squared error only."""
        if self.loss != "mse":
            return math.nan
        few, size = self.plan.only(FEW), sequences_together(self.network, 1)
        rows = []
        for batch, _, _ in few.batches(size):
            piece = self.run(batch)
            parts = (piece.objective.weights[..., None], piece.objective.y, piece.output)
            rows.append([part.flatten(0, 1).double() for part in parts])
        weights, targets, outputs = (torch.cat(parts) for parts in zip(*rows, strict=True))

        def variance(values: Tensor) -> float:
            counted = torch.where(weights > 0, values, 0.0)
            mean = (weights * counted).sum(0) / weights.sum()
            return float((weights * (counted - mean).square()).sum() / weights.sum())

        return variance(targets - outputs) / of if (of := variance(targets)) > 0 else math.nan

    def add_readable(
        self, moments: ShareMoments, tick: Tick | None = None, dependence: Dependence | None = None
    ) -> None:
        """Add all sequences of the plan to the sums of a readout, and to those of the targets' dependence on inputs."""
        for batch, block, chance in self.plan.batches(sequences_together(self.network, 1)):
            piece = self.run(batch)
            anchors = enough_anchors(piece.times.shape[1], self.plan.total, moments.features)
            observed = self.observed(piece, block, chance[:, :anchors], readout=True)
            moments.add(readable_rows(observed, piece.features, self.plan.lags))
            if dependence is not None:
                dependence.add(batch, piece.objective, piece.times, block)
            if tick is not None:
                tick(len(batch))

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
            piece = self.run(batch)
            features = piece.features if readout_scale is None else piece.features * readout_scale.to(piece.features)
            with network.at_rest(), how.flags(), torch.no_grad():
                observed = self.observed(piece, block, chance, readout=False)
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
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))


def targets(shown: Shown, batch: Batch, loss: Loss, steps: object) -> tuple[Objective, Tensor, Tensor]:
    """Which positions of the output have targets, how much each counts, and which step of the input it belongs to."""
    seq, positions, out = shown.output.shape
    time = batch.x.shape[1]
    # only the type and the place of its weights are read
    bare = unbound_recurrence(Stack((), 0, ()), {"": shown.output.new_zeros(1)}, -1)
    objective = make_objective(
        loss,
        batch,
        bare,
        (seq, positions, out),
        input_time=time,
        steps=steps,  # type: ignore[arg-type]
    )
    device = shown.output.device
    index = torch.arange(positions, device=device).expand(seq, -1) if objective.steps is None else objective.steps
    if positions == time:
        return objective, index, index
    if positions > 1:
        raise UnsupportedError(
            "the model has neither one output a step nor one a sequence, so it is not known which step an output belongs to",
            got=f"{positions} outputs for {time} steps",
            fix="pass call=lambda model, batch: ... that returns an output for every step, or one",
        )
    last = valid_steps(batch.lengths, seq, time, device).sum(1, keepdim=True) - 1
    return objective, last.expand_as(index), index
