"""The whole forecast: a model and data in, a `Forecast` out."""

from __future__ import annotations

import copy
import math
import operator
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lagreach._util.about import about
from lagreach._util.progress import Progress, Tick, progress_bar, ticks
from lagreach._util.seeds import check_seed
from lagreach._util.threads import one_thread
from lagreach._version import __version__
from lagreach.adapters import View
from lagreach.adapters.calling import Call
from lagreach.adapters.fresh_state import from_fresh_state
from lagreach.adapters.precision import in_single_precision, precision_note
from lagreach.data.sequences import Sequences, as_sequences, fingerprint, telling_sample
from lagreach.data.targets import refuse_constant_targets
from lagreach.errors import InputError
from lagreach.forecasting.budget import descent_time, farthest, optimiser_scale, readout_scale
from lagreach.forecasting.dependence import dependence_of
from lagreach.forecasting.linearise import Linearisation, choose_linearisation, sequences_together
from lagreach.forecasting.network import MOST_FEATURES, as_network
from lagreach.forecasting.plan import BLOCKS, ForecastPlan, make_plan
from lagreach.forecasting.result import Forecast
from lagreach.forecasting.target_batches import Measurement
from lagreach.forecasting.training_gradients import cut_gradients
from lagreach.gradients.optimiser_geometry import optimiser_name
from lagreach.gradients.significance import flip_test
from lagreach.statistics import reachable, readable
from lagreach.statistics.linear_share import ANCHORS, ShareCurves, output_space, rounding_floor, share_curves
from lagreach.statistics.reachable import Directions
from lagreach.transport.objective import Loss
from lagreach.whole_model.language_models import aligned_labels

Train = Callable[[nn.Module, int], Any]
DIRECTIONS = 256
FEWEST_DIRECTIONS = 16
READOUT_WEIGHTS = 512  # of these at most, every one is a feature; else a few directions of the output are looked at
ROWS_A_FEATURE = 4  # at least so many anchors for each feature, or fewer directions are taken
AMPLE_ROWS = 32  # anchors for each feature: more sequences are not looked at for all weights
FEWEST_SEQUENCES = 256
MEMORY = 2**29  # bytes of the sums
FLIPS = 2000


@one_thread()  # steps of recurrent layers are small: several threads only get in each other's way
def forecast(
    model: nn.Module | View,
    data: Any,
    sequences: Iterable[int] | int = (100, 1000, 10000),
    lags: str | Iterable[int] = "auto",
    *,
    strength: float = 0.05,
    weights: str = "all",
    loss: Loss = "mse",
    optimiser: Any = None,
    steps: int | None = None,
    error: float = 0.05,
    seed: int = 0,
    train: Train | None = None,
    pilot: int = 0,
    require: Iterable[int] = (),
    directions: int | None = None,
    derivatives: str = "auto",
    budget: float | None = None,
    memory: int = MEMORY,
    target_steps: Any = None,
    call: Call | None = None,
    progress: Progress | bool | None = None,
) -> Forecast:
    """Forecast which lags training will recover from how many sequences, and what stands in the way of the others.

    *Seen is not recovered*: a gradient may stand out at a lag, and yet no weights near the checkpoint tell that lag from its
    neighbours. So two fits are made in closed form, of the readout alone and of all weights (the network being linear in them
    near the checkpoint), to dependencies planted at each lag and to the targets in the data.

    Parameters
    ----------
    model
        Any differentiable torch module; it is run in evaluation mode and left as it was.
    data
        As for `lagreach.diagnose`; held-out data, not those that the model was trained on.
    sequences
        Numbers of sequences to forecast for.
    lags
        "auto", or the lags to look at; `require` lags are always included.
    strength
        Share of the target's variance that a dependency explains.
    weights
        "all", or "readout" for the last layer alone, which takes one forward pass.
    loss
        "mse" or "cross_entropy".
    optimiser, steps
        The optimiser of `torch.optim` that will train the model, and for how many steps: shares are then also limited by how far
        it gets. It must belong to this very model (with a pilot, to the model before it).
    error
        Error of the tests: of a dependence in the data, and of a gradient that stands out.
    train, pilot
        A function ``train(model, steps)`` that trains a model in place, and for how many steps: the forecast is made from there,
        on a copy. Your model stays as it is.
    directions
        Random directions of the weights; 256, or fewer where `memory` (bytes), `budget` (seconds) or the data allow no more.
    derivatives
        How derivatives along the directions are taken: "backward" (gradients carried back from the outputs looked at, for one
        recurrent layer with a readout), "difference" (one run of the model in double precision for each), "forward" (forward
        mode, some ten times slower), or "auto": the first of these that the model allows.
    target_steps
        Which steps targets belong to: "last", or a list of time indices, one a target; by their shape if None.
    call
        How to run the model on a batch, if ``model(x)`` is not it: a function of the model and a batch.

    Examples
    --------
    >>> import torch, lagreach
    >>> x = torch.randn(128, 24, 1)
    >>> y = torch.nn.functional.pad(x[:, :-3], (0, 0, 3, 0))
    >>> model = lagreach.GatedRNN("diag_gate", 1, 8, 1, gate_init=0.3)
    >>> shares = lagreach.forecast(model, (x, y), lags=[0, 3, 16], weights="readout")
    >>> shares.readable.sel(lag=[0, 16], sequences=1000).values > 0.5
    array([ True, False])
    """
    started = time.perf_counter()
    if weights not in ("all", "readout"):
        raise InputError("unknown weights", got=repr(weights), expected='"all" or "readout"')
    if (optimiser is None) != (steps is None):
        raise InputError(
            "a budget is an optimiser and a number of steps", got="one of them", fix="pass optimiser= and steps="
        )
    check_seed(seed)
    _check_limits(error=error, directions=directions, budget=budget, memory=memory, pilot=pilot)
    numbers = _counts(sequences)
    source, loss, said = aligned_labels(model, as_sequences(data), loss, call)
    if pilot:
        model = _after_pilot(model, train, pilot)
    if (note := precision_note(model)) is not None:
        said = (*said, note)
    trained = model  # which the optimiser knows
    model = in_single_precision(model) if isinstance(model, nn.Module) else model
    call, reset = from_fresh_state(model, telling_sample(source), call)
    plan = make_plan(source, lags, seed, require)
    refuse_constant_targets(source)
    seconds = {"reading": time.perf_counter() - started}
    with progress_bar(progress if isinstance(progress, bool) else None) as bar:
        shown = progress if callable(progress) else bar
        run = _Run(model, plan, loss, target_steps, call, seed)
        run.warnings += [*said, *reset]
        read = run.readable(ticks(shown, "readout", len(plan)))
        seconds["readout"] = time.perf_counter() - started - sum(seconds.values())
        reach = within = None
        sketch = np.full(len(plan.lags), np.nan)
        if weights == "all":
            scale = None if optimiser is None else optimiser_scale(run.measurement, optimiser, trained)
            if scale is not None and steps is not None:
                run.settings["farthest"] = farthest(run.measurement, scale, steps)
            reach, within, sketch = run.reachable(
                scale, steps, shown, directions=directions, derivatives=derivatives, budget=budget, memory=memory,
                strength=strength, have=len(source),
            )  # fmt: skip
            seconds["all weights"] = time.perf_counter() - started - sum(seconds.values())
    test = flip_test(
        run.dependence.by_block() if run.dependence else read.dependence,
        flips=FLIPS,
        generator=np.random.default_rng(seed),
    )
    return Forecast(
        read=read,
        reach=reach,
        within=within,
        sequences=numbers,
        strength=strength,
        error=error,
        available=len(source),
        adjusted_p=np.where(plan.told, test.adjusted, np.nan),
        sketch=sketch,
        settings={
            "loss": loss,
            "weights_fitted": weights,
            "seed": seed,
            "pilot": pilot,
            "time": plan.time,
            "steps": steps,
            "optimiser": None if optimiser is None else optimiser_name(optimiser),
            "design_effect": read.design_effect,
            **run.settings,
        },
        versions={"lagreach": __version__} | {name: version(name) for name in ("torch", "numpy", "scipy")},
        fingerprint=fingerprint(source),
        seconds=seconds,
        warnings=(*run.warnings, *_warnings(plan, model)),
        about=about(model, source, plan.time),
    )


@one_thread()
def readout_shares(
    model: nn.Module,
    source: Sequences,
    lags: Iterable[int],
    *,
    loss: Loss,
    most_features: int,
    seed: int,
    target_steps: Any = None,
    call: Call | None = None,
) -> tuple[ShareCurves | None, int]:
    """Fit the readout alone, which takes one forward pass, if it reads few features; also returned is how many they are."""
    plan = make_plan(source, lags, seed)
    sample = plan.sample()
    features = as_network(model, sample, call).show(sample)[1].shape[-1]
    if features > most_features:
        return None, features
    return _Run(model, plan, loss, target_steps, call, seed).readable(None), features


def _counts(sequences: Iterable[int] | int) -> tuple[int, ...]:
    """Numbers of sequences to forecast for."""
    try:
        listed = (sequences,) if isinstance(sequences, int) else tuple(sequences)
        return tuple(operator.index(n) for n in listed)
    except TypeError as error:
        some = "such as (100, 1000, 10000)"
        raise InputError("sequences are positive numbers", got=repr(sequences), expected=some) from error


def _check_limits(**limits: float | None) -> None:
    """Refuse errors, numbers, times and bytes that are none."""
    expected = {
        "error": ("between 0 and 1", lambda value: 0 < value < 1),
        "directions": ("a positive whole number", lambda value: value >= 1 and value == int(value)),
        "budget": ("seconds, more than 0", lambda value: value > 0),
        "memory": ("bytes, more than 0", lambda value: value > 0),
        "pilot": ("steps, 0 or more", lambda value: value >= 0),
    }
    for name, value in limits.items():
        words, fits = expected[name]
        if value is not None and not (isinstance(value, (int, float)) and not math.isnan(value) and fits(value)):
            raise InputError(f"{name} is out of range", got=f"{name}={value!r}", expected=words)


def _after_pilot(model: nn.Module | View, train: Train | None, pilot: int) -> nn.Module:
    """Train a copy for a while."""
    if train is None or not isinstance(model, nn.Module):
        raise InputError(
            "a pilot is a piece of your own training",
            got=f"pilot={pilot} and train={train!r}",
            expected="train=a function (model, steps) that trains a torch module in place",
        )
    trained = copy.deepcopy(model)
    train(trained, pilot)
    return trained


class _Run:
    """The passes of one forecast, and what is to be said about them."""

    def __init__(
        self, model: nn.Module | View, plan: ForecastPlan, loss: Loss, steps: Any, call: Call | None, seed: int
    ) -> None:
        sample = plan.sample()
        network = as_network(model, sample, call)
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
        self.measurement = Measurement(network, plan, loss, steps, space, mixing)
        self.dependence = dependence_of(plan, loss, outputs, seed)
        self.settings: dict[str, Any] = {"sequences_used": len(plan), "readout_features": width}
        self.settings["missed"] = self.measurement.missed()

    def readable(self, tick: Tick) -> ShareCurves:
        """Fit the readout."""
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
        return share_curves(moments, floor=rounding_floor(measurement.network.dtype))

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
        budget: float | None,
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
        if how.note:
            self.warnings.append(how.note)
        moved = {n: w for n, w in how.weights(network).items() if not (all_outputs and n in network.readout)}
        beside = space.basis.shape[1] * self.width if network.readout else 0
        count = self._count(directions, beside, memory, budget, how, moved)
        chosen = Directions(moved, count, self.seed, None if scale is None else {n: scale[n] for n in moved})
        features = len(chosen) + beside
        wanted = max(FEWEST_SEQUENCES, math.ceil(AMPLE_ROWS * features / self._anchors()))
        part = measurement.plan.only(wanted)
        measurement = replace(measurement, plan=part)
        moments = reachable.start(BLOCKS, features, space, part.lags, network.device, part.coding.singled)
        of_readout = None if scale is None or not beside else readout_scale(scale, network.readout, self.width)
        measurement.add_reachable(moments, chosen, how, of_readout, ticks(shown, "all weights", len(part)))
        floor = rounding_floor(None if how.note else network.dtype)
        curves = share_curves(moments, floor=floor)
        within = None
        if steps is not None:
            within = share_curves(moments, floor=floor, budget=descent_time(space.loss, self.outputs, steps))
        self.settings |= {
            "directions": len(chosen), "weights": chosen.size, "derivatives": how.method, "sequences_for_all_weights": len(part),
        }  # fmt: skip
        if chosen.exact:
            return curves, within, np.zeros(len(part.lags))
        kept = np.concatenate((np.arange(len(chosen) // 2), np.arange(len(chosen), features)))
        fewer = share_curves(moments, floor=floor, features=kept)
        both = [one.planted(np.array([float(have)]), strength).value[:, 0] for one in (curves, fewer)]
        return curves, within, both[0] - both[1]

    def _count(
        self,
        asked: int | None,
        beside: int,
        memory: int,
        budget: float | None,
        how: Linearisation,
        moved: dict[str, Tensor],
    ) -> int:
        """Directions that memory, time and the number of targets allow."""
        if asked is not None:
            return asked
        rows = len(self.measurement.plan) * self._anchors()
        by_rows = rows // ROWS_A_FEATURE - beside
        by_memory = int((memory / (2 * BLOCKS * 8)) ** 0.5) - beside
        count = min(DIRECTIONS, by_rows, by_memory)
        if budget is not None:
            count = min(count, self._affordable(budget, how, moved))
        if count < FEWEST_DIRECTIONS:
            self.warnings.append(
                f"only {FEWEST_DIRECTIONS} directions of the weights are looked at: targets, memory or time allow no more; the "
                "share that all weights reach is a lower bound"
            )
        return max(FEWEST_DIRECTIONS, count)

    def _affordable(self, budget: float, how: Linearisation, moved: dict[str, Tensor]) -> int:
        """Directions that the time allows, from timing a few of them on one batch."""
        measurement = self.measurement
        size = sequences_together(measurement.network, how.alive)
        few = measurement.plan.only(size)
        trial = replace(measurement, plan=few)
        beside = measurement.space.basis.shape[1] * self.width if measurement.network.readout else 0
        together = how.together if how.carried is None else DIRECTIONS  # which then cost about the same
        taken = Directions(moved, together, self.seed)
        sums = reachable.start(
            BLOCKS, len(taken) + beside, measurement.space, few.lags, measurement.network.device, few.coding.singled
        )
        begun = time.perf_counter()
        trial.add_reachable(sums, taken, how)
        each = (time.perf_counter() - begun) / (len(taken) * len(few))
        return int(budget / (each * min(len(measurement.plan), FEWEST_SEQUENCES)))


def _warnings(plan: ForecastPlan, model: object) -> list[str]:
    notes = list(plan.notes)
    if isinstance(model, nn.Module) and any(isinstance(m, nn.Dropout) and m.training for m in model.modules()):
        notes.append("the model was in training mode; it was looked at in evaluation mode, without dropout")
    if plan.coding.singled:
        notes.append(
            "inputs follow from each other in time: a share is what the model changes by when the one input alone is exchanged; "
            "a loss may fall without it, by neighbours that stand in"
        )
    if len(plan) < 128:
        notes.append(f"only {len(plan)} sequences: shares are rough; 500 or more are better")
    return notes
