"""A pilot before training: a few steps on the planted dependency alone, without noise.

Networks grow into lags: weights are shared over time, so that short lags open the gates for longer ones. A fit near the untrained
checkpoint cannot know that. Without noise growth takes few steps and no targets, only inputs; how much of what it opens can be
held from N noisy sequences is then a question for the closed forms, asked at the checkpoint where the pilot ends.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.models.gated_rnn import GatedRNN
from lagreach.study.data import generator_for
from lagreach.study.optimisers import OptimiserSettings
from lagreach.study.replicas import Replicas
from lagreach.study.trainer import Trainer
from studies.validation.trainings import PooledData
from studies.validation2.tasks import KnownDependency

SEQUENCES = 2048


def clean_pilot(
    task: KnownDependency,
    name: str,
    models: list[GatedRNN],
    seeds: tuple[int, ...],
    settings: OptimiserSettings,
    steps: int,
    batch: int,
    device: torch.device | str,
) -> Float[Tensor, "seed param"]:
    """Weights after some steps on clean targets of variance one, of one network a seed, with the training's own optimiser."""
    drawn = [task.inputs(SEQUENCES, generator_for(name, seed, "pilot")) for seed in seeds]
    y = [task.clean(x)[..., None] / task.strength**0.5 for x in drawn]
    mask = task.mask()
    data = PooledData(
        torch.stack(drawn).to(device),
        torch.stack(y).to(device),
        None if mask is None else mask.to(device),
        seeds,
        (SEQUENCES,) * len(seeds),
        tuple(range(len(seeds))),
        (0,) * len(seeds),
        batch,
        steps,
    )
    replicas = Replicas(models, device=device)
    Trainer(replicas, data, task.loss, replace(settings, schedule="constant"), 1).run_epoch()
    return replicas.flat.detach().clone()
