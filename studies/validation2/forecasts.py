"""Forecasts of many checkpoints at once: the statistics of `lagreach.forecast`, for the dependency that a task holds.

The public function plants a linear dependency on the input at a fixed lag. Tasks with marked inputs or products have dependencies
of another form, so what is planted here are the task's own parts. And it runs a network once for every direction of the weights;
here all checkpoints of a condition and all directions run side by side, which a GPU does in a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.forecasting.budget import readout_scale
from lagreach.forecasting.single_inputs import LaggedCovariances, SingleInputs
from lagreach.gradients.optimiser_geometry import step_sizes
from lagreach.models.gated_rnn import GatedRNN
from lagreach.statistics import reachable, readable
from lagreach.statistics.linear_share import ANCHORS, Observed, ShareMoments, output_space, share_curves
from lagreach.statistics.linear_share.curves import GRID, first_half
from lagreach.statistics.linear_share.moments import SUMS
from lagreach.statistics.reachable import Directions
from lagreach.study.data import generator_for
from lagreach.study.losses import replica_losses
from lagreach.study.optimisers import OptimiserSettings
from lagreach.study.replicas import READOUT, Replicas
from studies.validation2.tasks import KnownDependency

Params = dict[str, Tensor]  # (checkpoint, *weight)
STEP = 1e-5  # of a difference, relative to the length of all weights: in double precision good to five digits and more
SMALLEST = 1e-3  # length of all weights that steps are taken for, should they be zero
FLOOR = 1e-12  # variances below this part of the largest are rounding, as in `lagreach.forecast`
ROOM = 2**30  # bytes of one state of all networks that run side by side
GRADIENT_BATCH = 32  # sequences of a batch, and batches, whose gradients tell what Adam divides by
GRADIENT_BATCHES = 4


@dataclass(frozen=True)
class ForecastSize:
    """How much is looked at: sequences, directions of the weights, and blocks that fits are judged on."""

    sequences: int = 1024
    sequences_several_targets: int = 512
    directions: int = 256
    blocks: int = 8

    def for_task(self, task: KnownDependency) -> int:
        """Sequences for a task: fewer where each has many targets."""
        return self.sequences_several_targets if task.rows > 1 else self.sequences


@dataclass(frozen=True)
class Looked:
    """Sequences that forecasts are made from, and what their targets hold.

    `planted` are the task's parts; where inputs follow from each other, behind them what each of them alone holds.
    """

    x: Float[Tensor, "seq time input"]
    y: Float[Tensor, "seq target"]
    planted: Float[Tensor, "seq time probe"]

    @classmethod
    def draw(cls, task: KnownDependency, name: str, seed: int, size: ForecastSize, device: torch.device) -> Looked:
        """Draw sequences that no training has seen: the same for all checkpoints of a seed."""
        x, y = task.sample(size.for_task(task), generator_for(name, seed, "forecast"))
        planted = task.planted(x)[..., None]
        if task.follows:
            planted = torch.cat((planted, single_inputs(x[..., :1])), dim=2)
        return cls(*(v.double().to(device) for v in (x, y[:, list(task.targets), 0], planted)))

    @property
    def singled(self) -> bool:
        """Whether what each input alone holds is there."""
        return self.planted.shape[2] > 1


def single_inputs(x: Float[Tensor, "seq time 1"]) -> Float[Tensor, "seq time 1"]:
    """What each input alone holds, as `lagreach.forecast` takes it."""
    inside = torch.ones(x.shape[:2], dtype=torch.bool)
    lagged = LaggedCovariances(1, x.shape[1])
    lagged.add(x.double(), inside)
    return SingleInputs.of(lagged.autoregression(), x.double(), inside, 1).up_to()


def unflatten(model: GatedRNN, flat: Float[Tensor, "checkpoint param"]) -> Params:
    """Weights by name, of all checkpoints."""
    shapes = {name: p.shape for name, p in model.named_parameters()}
    parts = flat.split([shape.numel() for shape in shapes.values()], dim=1)
    return {name: part.reshape(-1, *shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def run_side_by_side(
    model: GatedRNN, params: Params, x: Float[Tensor, "seq time input"], targets: tuple[int, ...], *, states: bool
) -> tuple[Float[Tensor, "network seq target"], Float[Tensor, "network seq target unit"] | None]:
    """Outputs of networks of one shape at some steps, and what their readouts read there."""
    stack, wanted = model.stack, set(targets)

    def run(weights: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        s = x.new_zeros(len(x), stack.state_size)
        read, outputs = [], []
        for t in range(x.shape[1]):
            s = stack.step(x[:, t], s, weights)
            if t in wanted:
                top = stack.output(s)
                outputs.append(top @ weights[READOUT[0]][0] + weights[READOUT[1]])
                read.append(top)
        shown = torch.stack(outputs, dim=1)
        return (shown, torch.stack(read, dim=1)) if states else (shown,)

    with torch.no_grad():
        shown = torch.func.vmap(run)(params)
    return shown[0], shown[1] if states else None


def step_scales(
    model: GatedRNN,
    flat: Float[Tensor, "checkpoint param"],
    looked: Looked,
    targets: tuple[int, ...],
    settings: OptimiserSettings,
) -> list[dict[str, Tensor]]:
    """How far the optimiser moves each weight for a unit gradient, at each checkpoint: `step_sizes` of the library."""
    replicas = Replicas([model] * len(flat), device=flat.device)
    replicas.load(flat.to(replicas.flat))
    squares = torch.zeros_like(replicas.flat)
    mask = torch.zeros(looked.x.shape[1], device=flat.device)
    mask[list(targets)] = 1.0
    y = torch.zeros_like(looked.x[..., :1])
    y[:, list(targets), 0] = looked.y
    for k in range(GRADIENT_BATCHES):
        part = slice(k * GRADIENT_BATCH, (k + 1) * GRADIENT_BATCH)
        x, wanted = (v[part].to(replicas.flat).expand(len(flat), -1, -1, -1) for v in (looked.x, y))
        losses = replica_losses("mse", replicas(x.contiguous()), wanted, mask)
        squares += replicas.gradient(losses).square() / GRADIENT_BATCHES
    named = unflatten(model, squares.double().cpu())
    made: torch.optim.Optimizer
    if settings.optimiser in ("sgd", "momentum"):
        momentum = settings.momentum if settings.optimiser == "momentum" else 0.0
        made = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=momentum)
    else:
        made = torch.optim.AdamW(model.parameters(), lr=settings.lr, eps=settings.eps)
    return [step_sizes(made, model, {name: squared[c] for name, squared in named.items()}) for c in range(len(flat))]


def tangents_side_by_side(
    model: GatedRNN,
    params: Params,
    outputs: Float[Tensor, "checkpoint seq target"],
    directions: list[Directions],
    looked: Looked,
    targets: tuple[int, ...],
) -> Iterator[Float[Tensor, "direction seq target"]]:
    """Derivatives of each checkpoint's output along its directions, by differences in double precision."""
    count = len(directions[0])
    state = len(looked.x) * model.stack.state_size * 8
    together = max(1, ROOM // (count * state))
    for start in range(0, len(directions), together):
        chosen = range(start, min(start + together, len(directions)))
        moved: dict[str, list[Tensor]] = {name: [] for name in params}
        lengths, steps = [], []
        for c in chosen:
            chunk = directions[c].chunk(0, count)
            length = torch.stack([part.square().flatten(1).sum(1) for part in chunk.values()]).sum(0).sqrt()
            size = float(sum(weight[c].square().sum() for weight in params.values())) ** 0.5
            step = STEP * max(size, SMALLEST)
            for name, weight in params.items():
                here = weight[c].expand(count, *weight[c].shape)
                if name in chunk:
                    here = here + chunk[name] * (step / length).reshape(-1, *[1] * weight[c].ndim)
                moved[name].append(here)
            lengths.append(length)
            steps.append(step)
        many = {name: torch.cat(parts) for name, parts in moved.items()}
        after, _ = run_side_by_side(model, many, looked.x, targets, states=False)
        for place, c in enumerate(chosen):
            moved_outputs = after[place * count : (place + 1) * count]
            yield (moved_outputs - outputs[c]) * (lengths[place] / steps[place])[:, None, None]


@dataclass(frozen=True)
class Sums:
    """Sums of one checkpoint, small and on the CPU: of the readout, and of all weights in the optimiser's own scale.

    `now` is the share of each lag that the output has already.
    """

    lags: tuple[int, ...]
    now: Float[np.ndarray, "lag"]
    readable: dict[str, np.ndarray]
    reachable: dict[str, np.ndarray]


def forecast_sums(
    task: KnownDependency,
    model: GatedRNN,
    flat: Float[Tensor, "checkpoint param"],
    looked: Looked,
    settings: OptimiserSettings,
    size: ForecastSize,
    seed: int,
) -> list[Sums]:
    """Sums of all checkpoints of a condition and seed; the device is that of `flat`."""
    device, targets = flat.device, task.targets
    params = unflatten(model, flat.double())
    outputs, states = run_side_by_side(model, params, looked.x, targets, states=True)
    assert states is not None
    scales = step_scales(model, flat, looked, targets, settings)
    directions = []
    for c, scale in enumerate(scales):
        weights = {name: p[c] for name, p in params.items() if name not in READOUT}
        directions.append(Directions(weights, size.directions, seed, {n: scale[n].to(device) for n in weights}))
    space = output_space("mse", 1, 1, 1, generator_for(seed, "space"))
    if looked.singled:
        space = replace(space, group=2 * space.group)
    lags, hidden = tuple(task.lags), model.hidden_size
    sums = []
    along = tangents_side_by_side(model, params, outputs, directions, looked, targets)
    for c, change in enumerate(along):
        observed = _observed(task, looked, outputs[c], size.blocks, seed)
        of_readout = readable.start(size.blocks, hidden, lags, space.copies, device, looked.singled)
        of_readout.add(readable.readable_rows(observed, states[c], lags))
        root = readout_scale(scales[c], READOUT, hidden)
        assert root is not None  # it is one of these weights
        count = len(directions[c])
        of_all = reachable.start(size.blocks, count + hidden, space, lags, device, looked.singled)
        shown = outputs[c][..., None]
        rows = reachable.reachable_rows(
            observed, shown, iter([(0, change[..., None])]), count, states[c] * root.to(device), space, lags
        )
        of_all.add(rows)
        now = share_now(task, looked, outputs[c])
        sums.append(
            Sums(lags, now, *({n: getattr(moments, n).cpu().numpy() for n in SUMS} for moments in (of_readout, of_all)))
        )
    return sums


def share_now(task: KnownDependency, looked: Looked, output: Float[Tensor, "seq target"]) -> Float[np.ndarray, "lag"]:
    """Slope of the output on each lag's part, over that of the target; on what the part alone holds where parts follow."""
    slopes = []
    for lag in task.lags:
        part, alone = looked.planted[:, [target - lag for target in task.targets]][..., [0, -1]].unbind(2)
        alone = alone - alone.mean()
        slopes.append(float((alone * output).sum() / (alone * part).sum()) / task.amplitude)
    return np.array(slopes)


def _observed(
    task: KnownDependency, looked: Looked, output: Float[Tensor, "seq target"], blocks: int, seed: int
) -> Observed:
    sequences, count = output.shape
    device = output.device
    residual = (looked.y - output)[..., None]
    return Observed(
        block=torch.arange(sequences) % blocks,
        times=torch.tensor(task.targets, device=device).expand(sequences, -1),
        shares=torch.full_like(output, 1 / count),
        planted=looked.planted,
        residual=residual,
        towards=torch.ones(sequences, count, 1, 1, dtype=output.dtype, device=device),
        along_residual=residual,
        along_output=output[..., None],
        along=(0,) * looked.planted.shape[2],
        chance=torch.rand(sequences, ANCHORS, generator=generator_for(seed, "anchors"), dtype=torch.float64).to(device),
    )


def shares_of(sums: Sums, strength: float, sequences: tuple[int, ...], time: float) -> dict[str, np.ndarray]:
    """Forecast shares (lag, n) by name, and under ``n_...`` sequences needed (lag,).

    `time` is the sum of the learning rate's factors over the steps that are left, for `budgeted`.
    """
    n = np.array(sequences, dtype=float)
    at = np.concatenate((n, GRID))
    read, reach = (_moments(sums, name) for name in ("readable", "reachable"))
    curves = {"readable": share_curves(read, floor=FLOOR), "reachable": share_curves(reach, floor=FLOOR)}
    # the loss is a mean of squares without a half, hence the two
    curves["budgeted"] = share_curves(reach, floor=FLOOR, budget=max(2.0 * time, 1e-6))
    shares = {name: curve.planted(at, strength).value for name, curve in curves.items()}
    shares["forecast"] = (np.maximum(shares["readable"], shares["reachable"]) + shares["budgeted"]) / 2
    forecasts = {name: values[:, : len(n)] for name, values in shares.items()}
    forecasts |= {f"{name}_data": curves[name].data(n).value for name in ("readable", "reachable")}
    # ranks are taken of logarithms, so that shares below zero become a tiny one
    forecasts["share_now"] = np.repeat(np.maximum(sums.now, 1e-6)[:, None], len(n), axis=1)
    for name in ("readable", "reachable", "forecast"):
        forecasts[f"n_{name}"] = first_half(shares[name][:, len(n) :])
    return forecasts


def _moments(sums: Sums, name: str) -> ShareMoments:
    arrays = getattr(sums, name)
    blocks, features = arrays["squares"].shape[:2]
    probes = arrays["cross"].shape[3]
    made = ShareMoments(blocks, features, 1, sums.lags, (0,) * probes, torch.ones(probes, 1), singled=probes > 1)
    for key in SUMS:
        getattr(made, key).copy_(torch.from_numpy(arrays[key]))
    return made
