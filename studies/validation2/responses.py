"""What a trained network has of each lag: how its output answers when the input there is exchanged for another sequence's.

With Dy the change of the clean target and Do that of the output, over many sequences,

    share        sum Dy Do / sum Dy^2
    loss gained  sum (Dy Do - Do^2 / 2) / sum (Dy^2 / 2)

The share is the slope of the output on what the target has of this lag: 0 for nothing, 1 for all, whatever else the output
holds. The loss gained is what this input pays for on fresh data, over what it would if all were known: a share of s without noise
gives ``2 s - s^2``, and what the output makes of this input beyond that is a loss.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.study.data import generator_for
from lagreach.study.replicas import Replicas
from studies.validation2.tasks import VALUE, KnownDependency

TARGETS = 4  # target steps at which a lag is looked at, where there are many
CHUNK = 256  # sequences that run at a time


def exchanged(
    task: KnownDependency, x: Float[Tensor, "seq time input"], target: int, lag: int
) -> tuple[Float[Tensor, "seq time input"], Tensor]:
    """Inputs with the value that a lag's part comes from exchanged for the next sequence's, and which sequences have one."""
    source = task.source(x, target)[lag]
    has = source >= 0
    numbers = has.nonzero()[:, 0]
    other = x.clone()
    taken = numbers.roll(1)
    other[numbers, source[numbers], VALUE] = x[taken, source[taken], VALUE]
    return other, has


@torch.no_grad()
def responses(
    task: KnownDependency, replicas: Replicas, x: Float[Tensor, "seed seq time input"], pool: list[int]
) -> tuple[Float[np.ndarray, "replica lag"], Float[np.ndarray, "replica lag"]]:
    """Share and loss gained of every network at every lag; network r is given the sequences of ``x[pool[r]]``."""
    steps = task.targets
    generator = generator_for("targets")
    chosen = [steps[k] for k in torch.randperm(len(steps), generator=generator)[:TARGETS].tolist()]
    lags = len(task.lags)
    sums = np.zeros((3, len(replicas), lags))  # of Dy Do, Do^2, Dy^2
    before = _outputs(replicas, x, pool)
    clean = [task.clean(inputs) for inputs in x]
    for target in chosen:
        for lag in range(lags):
            swaps = [exchanged(task, inputs, target, lag) for inputs in x]
            after = _outputs(replicas, torch.stack([other for other, _ in swaps]), pool)
            moved = (before - after)[:, :, target]
            for r, p in enumerate(pool):
                other, has = swaps[p]
                wanted = (clean[p] - task.clean(other))[has, target].double()
                got = moved[r, has].double()
                sums[:, r, lag] += [float(wanted @ got), float(got @ got), float(wanted @ wanted)]
    both, output, target_sum = sums
    return both / target_sum, (2 * both - output) / target_sum


def _outputs(
    replicas: Replicas, x: Float[Tensor, "seed seq time input"], pool: list[int]
) -> Float[Tensor, "replica seq time"]:
    device, which = replicas.flat.device, torch.tensor(pool)
    parts = [replicas(x[:, k : k + CHUNK][which].to(device))[..., 0].cpu() for k in range(0, x.shape[1], CHUNK)]
    return torch.cat(parts, dim=1)
