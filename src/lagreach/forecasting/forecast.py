"""The whole forecast: a model and data in, a `Forecast` out."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import nn

from lagreach._util.about import about
from lagreach._util.bounds import check_bounds, counts_of
from lagreach._util.progress import Progress, progress_bar, ticks
from lagreach._util.seeds import check_seed
from lagreach._util.spelling import TRAINS, refuse_spelling
from lagreach._util.threads import one_thread
from lagreach._version import __version__
from lagreach.adapters import View
from lagreach.adapters.as_it_was import leaves_as_it_was
from lagreach.adapters.calling import Call
from lagreach.adapters.fresh_state import from_fresh_state
from lagreach.adapters.precision import in_single_precision, precision_note
from lagreach.adapters.tokens import refuse_unknown_tokens
from lagreach.data.sequences import Sequences, as_sequences, fingerprint, telling_sample
from lagreach.data.targets import refuse_constant_targets
from lagreach.errors import InputError, LagreachError
from lagreach.forecasting.budget import farthest, mean_squared_gradients, optimiser_scale
from lagreach.forecasting.exchanged_targets import exchange_test
from lagreach.forecasting.kinds import kind_of
from lagreach.forecasting.network import as_network
from lagreach.forecasting.overshoot import decay_note, overshoot_note
from lagreach.forecasting.pacing import Budget
from lagreach.forecasting.plan import ForecastPlan, make_plan
from lagreach.forecasting.result import Forecast
from lagreach.forecasting.run import ForecastRun
from lagreach.gradients.optimiser_geometry import optimiser_name
from lagreach.gradients.significance import flip_test
from lagreach.statistics.linear_share import ShareCurves
from lagreach.transport.losses import Loss
from lagreach.whole_model.language_models import aligned_labels

Train = Callable[[nn.Module, int], Any]
MEMORY = 2**29  # bytes of the sums
FLIPS = 2000
WORTH_A_LOOK = 5  # times the error: up to there, what flipped signs say is looked at again by exchanging targets
FINEST = 1 / FLIPS  # error of the tests: p-values are counted in patterns
GRADIENTS = 0.05  # share of a budget after which no further batch tells the size of gradients

FROZEN = "all weights of the model are frozen (requires_grad is False); shares are those of a training that moves them"


@refuse_spelling("optimizer", TRAINS)
@leaves_as_it_was
@torch.enable_grad()
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
    outputs: str | None = None,
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
        Any differentiable torch module; it is run in evaluation mode and left as it was (BatchNorm has
        to be in that mode already).
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
        it gets (with ``weights="readout"``, how far with the readout alone). It must belong to this very model (with a pilot,
        to the model before it).
    error
        Error of the tests: of a dependence in the data, and of a gradient that stands out.
    train, pilot
        A function ``train(model, steps)`` that trains a model in place, and for how many steps: the forecast is made from there,
        on a copy. Your model stays as it is.
    directions
        Random directions of the weights; 256, or fewer where `memory` (bytes), `budget` (seconds) or the data allow no more.
    budget
        Seconds to stay within, about: fewer directions (also than those asked for) and sequences are looked at, and it is said
        where even the fewest take longer.
    derivatives
        How derivatives along the directions are taken: "backward" (gradients carried back from the outputs looked at, for one
        recurrent layer with a readout), "difference" (one run of the model in double precision for each), "forward" (forward
        mode, some ten times slower), or "auto": the first of these that the model allows.
    target_steps
        Which steps of x targets belong to: "last", or a list of time indices, one a target; by their shape if None. Outputs of
        a coarser rhythm than x (behind a front with a stride) need the list.
    outputs
        Whether outputs belong to each step ("per step") or, as in a forecast of several steps, all to the end ("at the end");
        found from gradients if None, and asked where these cannot tell.
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
    if isinstance(steps, (list, tuple)) or steps == "last":  # as a diagnosis calls them
        raise InputError(
            "steps are those of a training here",
            got=f"steps={steps!r}",
            expected="a number",
            fix=f"pass target_steps={steps!r}",
        )
    if (optimiser is None) != (steps is None):
        raise InputError(
            "a budget is an optimiser and a number of steps",
            got="steps alone" if optimiser is None else "an optimiser alone",
            fix="pass both, optimiser= and steps= (--optimiser and --steps on the command line), or neither",
        )
    check_seed(seed)
    check_bounds(
        strength=strength, error=error, steps=steps, directions=directions, budget=budget, memory=memory, pilot=pilot
    )
    if error < FINEST:
        raise InputError(
            f"error is smaller than {FLIPS:,} patterns of signs can tell",
            got=f"error={error!r}",
            expected=f"at least {FINEST:.2g}",
        )
    numbers = counts_of(sequences)
    source, loss, said = aligned_labels(model, as_sequences(data), loss, call)
    moved = model  # which the optimiser knows; the weights of a pilot and of other copies have the same names
    if pilot:
        model = _after_pilot(model, train, pilot)
    if (note := precision_note(model)) is not None:
        said = (*said, note)
    model = in_single_precision(model) if isinstance(model, nn.Module) else model
    call, reset = from_fresh_state(model, telling_sample(source), call)
    refuse_unknown_tokens(model, source, call)
    plan = make_plan(source, lags, seed, require)
    refuse_constant_targets(source)
    seconds = {"reading": time.perf_counter() - started}
    with progress_bar(progress if isinstance(progress, bool) else None) as bar:
        shown = progress if callable(progress) else bar
        run = ForecastRun(model, plan, loss, target_steps, call, seed, outputs)
        alone = weights == "readout"
        if alone:
            run.refuse_frozen_readout()
        run.warnings += [*said, *reset]
        if budget is not None:
            run.within(Budget(budget, started))
        scale = None
        if optimiser is not None and steps is not None:
            squared = mean_squared_gradients(run.measurement, None if budget is None else GRADIENTS * budget)
            scale = optimiser_scale(run.measurement, optimiser, moved, squared)
            run.settings["farthest"] = farthest(scale, squared, steps)
        read, within = run.readable(ticks(shown, "readout", len(plan)), *((scale, steps) if alone else ()))
        seconds["readout"] = time.perf_counter() - started - sum(seconds.values())
        reach, sketch = None, np.full(len(plan.lags), np.nan)
        if not alone:
            reach, within, sketch = run.reachable(
                scale, steps, shown, directions=directions, derivatives=derivatives, memory=memory,
                strength=strength, have=len(source),
            )  # fmt: skip
            seconds["all weights"] = time.perf_counter() - started - sum(seconds.values())
        if optimiser is not None and steps is not None:
            both = overshoot_note(optimiser, run.step_times_curvature), decay_note(optimiser, steps)
            run.warnings += [note for note in both if note is not None]
    test = flip_test(
        run.dependence.by_block() if run.dependence else read.dependence,
        flips=FLIPS,
        generator=np.random.default_rng(seed),
    )
    adjusted = np.where(plan.told, test.adjusted, np.nan)
    if (adjusted <= WORTH_A_LOOK * error).any():
        suspects = [plan.lags[at] for at in np.argsort(adjusted) if adjusted[at] <= WORTH_A_LOOK * error]
        exchanged = exchange_test(run.measurement, run.positions, run.outputs, suspects, FLIPS, seed)
        adjusted = adjusted if exchanged is None else np.where(plan.told, exchanged.adjusted, np.nan)
    return Forecast(
        read=read,
        reach=reach,
        within=within,
        sequences=numbers,
        strength=strength,
        error=error,
        available=len(source),
        adjusted_p=adjusted,
        sketch=sketch,
        settings={
            "loss": loss,
            "weights_fitted": weights,
            "seed": seed,
            "pilot": pilot,
            "kind": kind_of(model),
            "time": plan.time,
            "follow": plan.coding.singled,
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
    return ForecastRun(model, plan, loss, target_steps, call, seed).readable(None)[0], features


def _after_pilot(model: nn.Module | View, train: Train | None, pilot: int) -> nn.Module:
    """Train a copy for a while."""
    if not callable(train) or not isinstance(model, nn.Module):
        raise InputError(
            "a pilot is a piece of your own training",
            got=f"pilot={pilot} and train={train!r}",
            expected="train=a function (model, steps) that trains a torch module in place",
        )
    trained = copy.deepcopy(model)
    try:
        train(trained, pilot)
    except (LagreachError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever the user's function raises
        raise InputError(
            "the function train does not train a copy of the model",
            got=f"{type(error).__name__}: {error}",
            expected="train(model, steps), which trains that model in place for so many steps",
            fix="see the error above, or leave out train= and pilot=",
        ) from error
    return trained


def _warnings(plan: ForecastPlan, model: object) -> list[str]:
    notes = list(plan.notes)
    if isinstance(model, nn.Module) and any(isinstance(m, nn.Dropout) and m.training for m in model.modules()):
        notes.append("the model was in training mode; it was looked at in evaluation mode, without dropout")
    if plan.coding.singled:
        notes.append(
            "inputs follow from each other in time: a share is what the model changes by when the one input alone is exchanged; "
            "a loss may fall without it, by neighbours that stand in"
        )
    if isinstance(model, nn.Module) and not any(weight.requires_grad for weight in model.parameters()):
        notes.append(FROZEN)
    if len(plan) < 128:
        notes.append(f"only {len(plan)} sequences: shares are rough; 500 or more are better")
    return notes
