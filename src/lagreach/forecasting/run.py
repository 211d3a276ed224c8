"""The passes of one forecast: the readout, then all weights, as far as memory, time and the targets allow."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lagreach._util.progress import Progress, Tick, ticks
from lagreach.adapters import View
from lagreach.adapters.calling import Call
from lagreach.data.batch import Batch
from lagreach.diagnosis.pacing import timed
from lagreach.errors import InputError
from lagreach.forecasting.budget import descent_time, readout_scale, readout_time
from lagreach.forecasting.dependence import dependence_of
from lagreach.forecasting.linearise import Linearisation, choose_linearisation
from lagreach.forecasting.network import MOST_FEATURES, Network, Shown, as_network
from lagreach.forecasting.output_steps import which_outputs
from lagreach.forecasting.overshoot import constant_of, largest_square
from lagreach.forecasting.pacing import (
    FEATURES,
    FEWEST_DIRECTIONS,
    FEWEST_SEQUENCES,
    ROWS_A_FEATURE,
    Affordable,
    Budget,
    affordable,
    clock,
    measured_pace,
    too_small,
)
from lagreach.forecasting.plan import BLOCKS, ForecastPlan
from lagreach.forecasting.target_batches import Measurement
from lagreach.forecasting.training_gradients import cut_gradients
from lagreach.gradients.output_anchors import AT_THE_END
from lagreach.statistics import reachable, readable
from lagreach.statistics.linear_share import (
    ANCHORS,
    ShareCurves,
    ShareMoments,
    Start,
    output_space,
    rounding_floor,
    share_curves,
)
from lagreach.statistics.reachable import Directions
from lagreach.transport.losses import Loss
from lagreach.transport.target_scale import scale_note

DIRECTIONS = 256
READOUT_WEIGHTS = 512  # of these at most, every one is a feature; else a few directions of the output are looked at
AMPLE_ROWS = 32  # anchors for each feature: more sequences are not looked at for all weights
ENOUGH_SEQUENCES = 256
READOUT_TAKES = 2.0  # times the model's own run, with the sums
FOR_READOUT = 0.3  # share of a budget for that
SMALLER = "within the budget, the readout and the data's dependences are judged by {} of {:,} sequences"
ROUGH = "within the budget, what all weights reach is judged by {} of {:,} sequences, and is rough"

STEPS_UNKNOWN = (
    "how far the steps take the readout alone is not known, since what is judged here are not weights of a linear layer that the "
    'model ends in: shares are those of a training to the end; weights="all" counts the steps'
)
READOUT_FROZEN = (
    "the readout is frozen (requires_grad is False): what training recovers is counted without it; `readable` is what a readout "
    "would recover that is trained"
)
NOT_MOVED = "the optimiser does not move the readout: nothing is learned by it alone"

UNEVEN = 10  # times the mean square of what most outputs miss, that all of them may
FEW_LARGE = (
    "the outputs of a few sequences miss their targets by very much more than the others (all together by {:.0f} times the "
    "square of what some sequences show): a fit that starts there has to mend these first, and shares may be far too small; look "
    "at what makes them so large, a unit that is seldom active, say"
)


def _refuse_deaf(network: Network, plan: ForecastPlan, shown: Shown) -> None:
    """Refuse a model in which nothing of the inputs arrives, neither at its outputs nor at what its readout reads."""
    if not _all_alike(shown.output, shown.features):
        return
    few = next(plan.only(FEWEST_SEQUENCES).batches(FEWEST_SEQUENCES))[0]  # two may be alike by chance
    # inputs that all sequences share, a calendar say, tell nothing of the model
    if not _all_alike(few.x) and _all_alike(*network.show(few)[:2], _elsewhere(network, few)):
        raise InputError(
            "the model's output does not depend on its input",
            got=f"the same output for each of {len(few)} sequences",
            expected="a model that reads x",
            fix="look whether forward uses x, and whether all units on the way are dead (zero whatever they are given)",
        )


def _elsewhere(network: Network, batch: Batch) -> Tensor:
    """Output with slightly other weights: those of a checkpoint may be zero, and move."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, weight in network.weights.items():
        weights[name] = weight + 1e-3 * torch.randn(weight.shape, generator=generator).to(weight)
    with network.at_rest(), torch.no_grad():
        return network.output(weights, batch)


def _all_alike(*parts: Tensor) -> bool:
    """Whether each is the same for all sequences."""
    return all(torch.equal(part, part[:1].expand_as(part)) for part in parts)


class ForecastRun:
    """The passes of one forecast, and what is to be said about them."""

    def __init__(
        self,
        model: nn.Module | View,
        plan: ForecastPlan,
        loss: Loss,
        steps: Any,
        call: Call | None,
        seed: int,
        which: str | None = None,
    ) -> None:
        sample = plan.sample()
        network = as_network(model, sample, call)
        output, features, _ = shown = network.show(sample)
        _refuse_deaf(network, plan, shown)
        which = which_outputs(network, sample, output, which) if steps is None else None
        if (
            which == AT_THE_END and loss == "mse" and sample.mask is None
        ):  # one output of many values, whatever its shape
            network = as_network(model, sample, call, in_one=True)
            output, features, _ = network.show(sample)
        generator = torch.Generator().manual_seed(seed + 1)
        width, mixing = features.shape[-1], None
        self.warnings = list(network.notes)
        if width > MOST_FEATURES:
            draws = torch.randn(width, MOST_FEATURES, generator=generator, dtype=torch.float64)
            mixing, width = torch.linalg.qr(draws).Q, MOST_FEATURES
            self.warnings.append(
                f"a readout of {features.shape[-1]} features: {width} random combinations of them are judged"
            )
            network.readout = ()
        outputs = output.shape[-1]
        probes = plan.coding.project.shape[1]
        space = output_space(loss, outputs, max(1, READOUT_WEIGHTS // width), probes, generator)
        if plan.coding.singled:
            space = replace(space, group=2 * space.group)
        self.sample, self.seed, self.outputs, self.width = sample, seed, outputs, width
        self.positions = output.shape[1]
        self.measurement = Measurement(network, plan, loss, steps, space, mixing, which == AT_THE_END)
        if network.readout_frozen:
            self.warnings.append(READOUT_FROZEN)
        self.dependence = dependence_of(plan, loss, outputs, seed)
        self.settings: dict[str, Any] = {
            "sequences_used": len(plan),
            "readout_features": width,
            "outputs": which,
            "readout_frozen": network.readout_frozen,
        }
        self._start()
        self.budget: Budget | None = None
        self.step_times_curvature = 0.0  # of the weights that are fitted, at the checkpoint
        self._fit_seconds = 0.0

    def _start(self) -> None:
        """Look at a few sequences: how much of the targets the model knows, and what a fit starts from."""
        self.settings["missed"], self._left = math.nan, math.inf
        if (looked_at := self.measurement.looked_at()) is None:
            return
        objective, output = looked_at
        start = Start.of(objective.weights[0], objective.y[0], output[0])
        self.settings["missed"] = start.missed
        y, begun, counts = objective.y, output, objective.weights
        if start.bridged:
            self.measurement = replace(self.measurement, start=start)
            y, begun = start.targets(y), start.outputs(begun)
        self._left = float((counts[..., None] * (y - begun).square())[counts > 0].sum() / counts.sum())
        if (note := scale_note(objective, output)) is not None:
            self.warnings.append(note)

    def refuse_frozen_readout(self) -> None:
        """Refuse to speak of a training of the readout alone, where it is frozen."""
        if self.measurement.network.readout_frozen:
            raise InputError(
                "the readout is frozen, so that a training of it alone moves nothing",
                got='weights="readout" (--fit readout), and a last linear layer with requires_grad=False',
                fix='pass weights="all", which counts the weights that are trained, or call requires_grad_(True) on the layer',
            )

    def within(self, budget: Budget) -> None:
        """Stay within a budget: of very many sequences, take a fair part."""
        self.budget, plan = budget, self.measurement.plan
        few = next(plan.only(FEWEST_SEQUENCES).batches(FEWEST_SEQUENCES))[0]
        each = READOUT_TAKES * timed(lambda: self.measurement.run(few)) / len(few)
        count = max(ENOUGH_SEQUENCES, int(FOR_READOUT * budget.left / max(each, 1e-9)))
        if count < len(plan):
            self.warnings.append(SMALLER.format(count, len(plan)))
            self.measurement = replace(self.measurement, plan=plan.only(count))
            self.settings["sequences_used"] = count

    def readable(
        self, tick: Tick, scale: dict[str, Tensor] | None = None, steps: int | None = None
    ) -> tuple[ShareCurves, ShareCurves | None]:
        """Fit the readout; also within a number of steps, if these and the optimiser's scale are given."""
        measurement, plan = self.measurement, self.measurement.plan
        device = measurement.network.device
        moments = readable.start(BLOCKS, self.width, plan.lags, measurement.space.copies, device, plan.coding.singled)
        measurement.add_readable(moments, tick, self.dependence)
        rows = len(plan) * self._anchors()
        if rows < ROWS_A_FEATURE * self.width:
            self.warnings.append(
                f"only {rows} targets were looked at for {self.width} features of the readout: shares for more sequences than "
                "these are lower bounds; more data, or targets at more steps, would tell"
            )
        missed = float(moments.residual.sum() / moments.sequences.sum())
        if missed > UNEVEN * self._left > 0:
            self.warnings.append(FEW_LARGE.format(missed / self._left))
        begun = clock()
        curves = share_curves(moments, floor=rounding_floor(measurement.network.dtype))
        self._fit_seconds = (clock() - begun) / max(1.0, self.width / FEATURES) ** 2
        within = None if scale is None or steps is None else self._readable_within(moments, scale, steps)
        return curves, within

    def _readable_within(self, moments: ShareMoments, scale: dict[str, Tensor], steps: int) -> ShareCurves | None:
        """Fit the readout within a number of steps."""
        network = self.measurement.network
        root = readout_scale(scale, network.readout, self.width)
        if root is None:
            self.warnings.append(STEPS_UNKNOWN)
            return None
        if not bool(root.any()):
            self.warnings.append(NOT_MOVED)
        loss = self.measurement.space.loss
        time, constant = readout_time(loss, self.outputs, steps), self._constant(scale)
        self.step_times_curvature = time / steps * largest_square(moments, root, constant)
        return share_curves(moments, floor=rounding_floor(network.dtype), budget=time, scale=root)

    def _anchors(self) -> int:
        """Anchors of a typical sequence."""
        weights = self.measurement.run(self.sample).objective.weights
        return min(ANCHORS, int((weights > 0).sum(1).float().mean().ceil()))

    def reachable(
        self,
        scale: dict[str, Tensor] | None,
        steps: int | None,
        shown: Progress,
        *,
        directions: int | None,
        derivatives: str,
        memory: int,
        strength: float,
        have: int,
    ) -> tuple[ShareCurves, ShareCurves | None, np.ndarray]:
        """Fit all weights; also within a number of steps, and with half the directions."""
        measurement, space = self.measurement, self.measurement.space
        network = measurement.network
        if (cut := cut_gradients(network, self.sample)) is not None:
            self.warnings.append(cut)
        all_outputs = space.basis.shape[1] == self.outputs
        looked_at: int | None = space.basis.shape[1] * self._anchors()
        if not all_outputs or (directions or DIRECTIONS) < (looked_at or 0):  # a run a direction is then cheaper
            looked_at = None
        how = choose_linearisation(network, self.sample, derivatives, looked_at)
        fixed = network.readout if all_outputs else ()  # every weight of the readout is a feature of its own
        beside = space.basis.shape[1] * self.width if network.readout else 0
        count, most = self._count(directions, beside, memory), len(measurement.plan)
        if self.budget is not None and len(fixed) < len(network.weights):
            allowed = self._within(self.budget, how, count, beside, fixed, derivatives == "auto")
            how, count, most = allowed.how, allowed.directions, allowed.sequences
        if how.note:
            self.warnings.append(how.note)
        moved = {n: w for n, w in how.weights(network).items() if n not in fixed}
        chosen = Directions(moved, count, self.seed, None if scale is None else {n: scale[n] for n in moved})
        features = len(chosen) + beside
        part = measurement.plan.only(min(self._wanted(features), most))
        measurement = replace(measurement, plan=part)
        moments = reachable.start(BLOCKS, features, space, part.lags, network.device, part.coding.singled)
        of_readout = None if scale is None or not beside else readout_scale(scale, network.readout, self.width)
        measurement.add_reachable(moments, chosen, how, of_readout, ticks(shown, "all weights", len(part)))
        floor = rounding_floor(None if how.note else network.dtype)
        curves = share_curves(moments, floor=floor)
        within = None
        if steps is not None:
            time = descent_time(space.loss, self.outputs, steps)
            within = share_curves(moments, floor=floor, budget=time)
            constant, drawn = self._constant(scale or {}) if beside else 0.0, 0 if chosen.exact else len(chosen)
            self.step_times_curvature = time / steps * largest_square(moments, None, constant, drawn)
        self.settings |= {
            "directions": len(chosen), "weights": chosen.size, "derivatives": how.method, "sequences_for_all_weights": len(part),
        }  # fmt: skip
        if chosen.exact:
            return curves, within, np.zeros(len(part.lags))
        kept = np.concatenate((np.arange(len(chosen) // 2), np.arange(len(chosen), features)))
        fewer = share_curves(moments, floor=floor, features=kept)
        both = [one.planted(np.array([float(have)]), strength).value[:, 0] for one in (curves, fewer)]
        return curves, within, both[0] - both[1]

    def _constant(self, scale: dict[str, Tensor]) -> float:
        """Root of the step size of a constant in every row: a readout's bias has the curvature of one for squares alone."""
        readout = self.measurement.network.readout
        return constant_of(scale, readout) if scale and self.measurement.space.loss == "mse" else 0.0

    def _wanted(self, features: int) -> int:
        """Sequences that are looked at for all weights, where there are so many."""
        return max(ENOUGH_SEQUENCES, math.ceil(AMPLE_ROWS * features / self._anchors()))

    def _count(self, asked: int | None, beside: int, memory: int) -> int:
        """Directions that memory and the number of targets allow."""
        if asked is not None:
            return asked
        by_rows = len(self.measurement.plan) * self._anchors() // ROWS_A_FEATURE - beside
        by_memory = int((memory / (2 * BLOCKS * 8)) ** 0.5) - beside
        count = min(DIRECTIONS, by_rows, by_memory)
        if count < FEWEST_DIRECTIONS:
            self.warnings.append(
                f"only {FEWEST_DIRECTIONS} directions of the weights are looked at: targets or memory allow no more; the share "
                "that all weights reach is a lower bound"
            )
        return max(FEWEST_DIRECTIONS, count)

    def _within(
        self,
        budget: Budget,
        how: Linearisation,
        most: int,
        beside: int,
        fixed: tuple[str, ...],
        any_way: bool,
    ) -> Affordable:
        """Sequences and directions that the time allows, and what is to be said of them.

        Gradients that are carried back cost the same for few directions as for many: where there is time for few of them, a
        run of the model for each of a few directions may be cheaper.
        """
        network, available = self.measurement.network, len(self.measurement.plan)
        allowed = self._affordable(budget, how, most, beside, fixed)
        if any_way and how.carried is not None and allowed.sequences < min(available, ENOUGH_SEQUENCES) / 2:
            by_runs = choose_linearisation(network, self.sample, "difference")
            if not by_runs.note:
                other = self._affordable(budget, by_runs, most, beside, fixed)
                quicker = other.worth == allowed.worth and other.seconds < allowed.seconds
                allowed = other if other.worth > allowed.worth or quicker else allowed
        if allowed.seconds > budget.left and (
            small := too_small(budget, allowed.seconds, allowed.sequences, allowed.directions)
        ):
            self.warnings.append(small)
        elif allowed.sequences < min(available, ENOUGH_SEQUENCES):
            self.warnings.append(ROUGH.format(allowed.sequences, available))
        return allowed

    def _affordable(
        self, budget: Budget, how: Linearisation, most: int, beside: int, fixed: tuple[str, ...]
    ) -> Affordable:
        """Sequences and directions by one way of taking derivatives."""
        measurement, available = self.measurement, len(self.measurement.plan)
        moved = {n: w for n, w in how.weights(measurement.network).items() if n not in fixed}
        most = min(most, sum(weight.numel() for weight in moved.values()))
        pace = measured_pace(
            measurement, moved, how, most=most, beside=beside, fit=self._fit_seconds, anchors=self._anchors(),
            wanted=min(available, self._wanted(most + beside)), left=budget.left,
        )  # fmt: skip
        left, fewest = budget.left, min(most, FEWEST_DIRECTIONS)
        enough = min(available, ENOUGH_SEQUENCES)
        sequences, count = affordable(
            pace, left, most=most, fewest=fewest, beside=beside, anchors=self._anchors(), available=enough
        )
        if sequences == enough:  # and more, if there is time
            once = pace.seconds(0, count, beside)
            each = max(pace.seconds(1, count, beside) - once, 1e-12)
            sequences = min(available, max(enough, int((left - once) / each)))
        return Affordable(how, sequences, count, pace.seconds(sequences, count, beside))
