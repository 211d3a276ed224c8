"""Two more ways to let an untrained network grow before it is forecast, beside the noise-free pilot.

*Newton*: a few Gauss-Newton steps on the planted dependency, in a random subspace of the weights that is drawn anew at every
step; the forecast is made where they end. *Nudge*: a fifteenth of the pilot, from which the motion of the shares is carried on to
its end. Neither needs a trained network, so the trainings of the study stay as they are.
"""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.models.gated_rnn import GatedRNN
from lagreach.statistics.reachable import Directions
from lagreach.study.config import StudyConfig
from lagreach.study.data import generator_for
from lagreach.study.replicas import READOUT
from lagreach.study.store import RunDirectory
from lagreach.study.tables import Row, read_rows
from studies.validation.design import Condition, conditions, validation_plan
from studies.validation2.clean_pilot import clean_pilot
from studies.validation2.forecasts import (
    ForecastSize,
    Looked,
    Params,
    forecast_sums,
    run_side_by_side,
    tangents_side_by_side,
    unflatten,
)
from studies.validation2.jobs import Checkpoint, ForecastJob, forecasts_path, known_task, measure_forecasts
from studies.validation2.run import PILOT_SHARE, WorkerPool
from studies.validation2.tables import save_growth
from studies.validation2.tasks import KnownDependency

NEWTON_STEPS = 6
SHRINKAGES = tuple(10.0**k for k in range(-6, 3))  # in units of the mean square of a feature
BETTER = 0.999  # part of the loss that a step must not leave
NUDGE_STEPS = 20
STAGES = ("init", "newton", "nudge")


def newton(
    task: KnownDependency,
    name: str,
    model: GatedRNN,
    flat: Float[Tensor, "param"],
    seed: int,
    size: ForecastSize,
    device: torch.device,
) -> Float[Tensor, "param"]:
    """Weights after Gauss-Newton steps on clean targets of variance one.

    Half of the sequences are fitted; the amount of shrinkage is the one with the lowest loss, of the network itself, on the
    other half. A step that does not lower it is not made.
    """
    x = task.inputs(size.for_task(task), generator_for(name, seed, "newton"))
    y = (task.clean(x)[:, list(task.targets)] / task.strength**0.5).double().to(device)
    looked = Looked(x.double().to(device), y, y[..., None])
    fitted = torch.arange(len(x), device=device) < len(x) // 2
    here = flat.double().to(device)
    for step in range(NEWTON_STEPS):
        params = unflatten(model, here[None])
        outputs, states = run_side_by_side(model, params, looked.x, task.targets, states=True)
        assert states is not None
        weights = {n: p[0] for n, p in params.items() if n not in READOUT}
        directions = Directions(weights, size.directions, seed * NEWTON_STEPS + step)
        (change,) = tangents_side_by_side(model, params, outputs, [directions], looked, task.targets)
        features = torch.cat((change.permute(1, 2, 0), states[0], torch.ones_like(y)[..., None]), dim=2)
        moves = _ridge(features[fitted].flatten(0, 1), (y - outputs[0])[fitted].flatten())
        tried = torch.cat((here[None], here + _in_weights(model, directions, moves)))
        reached, _ = run_side_by_side(model, unflatten(model, tried), looked.x[~fitted], task.targets, states=False)
        loss = (reached - y[~fitted]).square().mean((1, 2)).nan_to_num(float("inf"))
        best = int(loss.argmin())
        if loss[best] <= BETTER * loss[0]:  # else other directions are tried
            here = tried[best]
    return here.to(flat)


def _ridge(
    features: Float[Tensor, "row feature"], residual: Float[Tensor, "row"]
) -> Float[Tensor, "shrinkage feature"]:
    """Ridge fits with every amount of shrinkage."""
    values, vectors = torch.linalg.eigh(features.T @ features)
    along = vectors.T @ (features.T @ residual)
    amounts = values.mean() * torch.tensor(SHRINKAGES, dtype=values.dtype, device=values.device)
    return (along / (values.clamp(min=0) + amounts[:, None])) @ vectors.T


def _in_weights(
    model: GatedRNN, directions: Directions, moves: Float[Tensor, "fit feature"]
) -> Float[Tensor, "fit param"]:
    """Moves along directions and of the readout as moves of all weights, in their order."""
    count = len(directions)
    chunk = directions.chunk(0, count)
    parts: Params = {name: torch.einsum("fk,k...->f...", moves[:, :count], part) for name, part in chunk.items()}
    parts[READOUT[0]], parts[READOUT[1]] = moves[:, count:-1], moves[:, -1:]
    return torch.cat([parts[name].flatten(1) for name, _ in model.named_parameters()], dim=1)


def run_growth(
    out: str | Path, config: StudyConfig, *, device: str, workers: int, size: ForecastSize | None = None
) -> RunDirectory:
    """Forecast from all untrained networks as they are, after Newton steps, and after a nudge."""
    run, size = RunDirectory.create(out, config), size or ForecastSize()
    plan, seeds = validation_plan(config), config.seed_list()
    (run.path / "predictors").mkdir()
    everything = conditions(plan, config.seed)
    pool = WorkerPool(workers, lambda: None)
    nudge = max(1, round(PILOT_SHARE * plan.steps * NUDGE_STEPS / 300))
    with run.lock():
        for condition in everything:
            _grow(run, condition, seeds, nudge, plan.batch, size, torch.device(device), pool)
        pool.wait()
        rows: list[Row] = []
        for condition in everything:
            for seed in seeds:
                rows += read_rows(forecasts_path(run, condition.name, seed), read=run.read)
        save_growth(run.path, rows, run.write)
        run.log("finished")
    return run


def _grow(
    run: RunDirectory,
    condition: Condition,
    seeds: list[int],
    nudge: int,
    batch: int,
    size: ForecastSize,
    device: torch.device,
    pool: WorkerPool,
) -> None:
    task, name, settings = known_task(condition), condition.plan.name, condition.optimiser.settings()
    models = [condition.model(seed) for seed in seeds]
    first = torch.stack([torch.nn.utils.parameters_to_vector(m.parameters()).detach() for m in models])
    nudged = clean_pilot(task, name, [condition.model(s) for s in seeds], tuple(seeds), settings, nudge, batch, device)
    for place, seed in enumerate(seeds):
        grown = newton(task, name, models[place], first[place], seed, size, device)
        flat = torch.stack((first[place].to(device), grown.to(device), nudged[place].to(device)))
        looked = Looked.draw(task, name, seed, size, device)
        sums = forecast_sums(task, models[place], flat, looked, settings, size, seed)
        at = tuple(Checkpoint(stage, 0) for stage in STAGES)
        pool.submit(measure_forecasts, ForecastJob(str(run.path), condition.name, seed, at, tuple(sums)))
    run.log(f"{condition.name}: grown")
