"""`train`: one model or many of one shape, together, with everything a run needs to stop and go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lagreach._util.progress import Progress, progress_bar
from lagreach.errors import InputError
from lagreach.models.gated_rnn import GatedRNN
from lagreach.study.data import FreshData, TrainingData, hold
from lagreach.study.optimisers import OptimiserSettings
from lagreach.study.replicas import Replicas
from lagreach.study.trainer import Trainer
from lagreach.tasks import Task
from lagreach.types import Status


@dataclass(frozen=True)
class Training:
    """What came out of training.

    Attributes
    ----------
    models
        The trained models, on the CPU.
    loss, gradient_norm
        Means over each epoch, (epoch, replica); NaN from the epoch at which a model failed.
    status
        For each model: OK, or DIVERGED (its weights are the last ones with a finite loss and gradient).
    checkpoints
        Models at the epochs that were asked for.
    """

    models: tuple[GatedRNN, ...]
    loss: np.ndarray
    gradient_norm: np.ndarray
    status: tuple[Status, ...]
    checkpoints: dict[int, tuple[GatedRNN, ...]]

    def __str__(self) -> str:
        if not len(self.loss):
            return "not trained"
        rows = [
            f"model {r}: loss {self.loss[0, r]:.4g} -> {self.loss[-1, r]:.4g}   [{status}]"
            for r, status in enumerate(self.status)
        ]
        return "\n".join([f"{len(self.loss)} epochs", *rows])


def train(
    models: GatedRNN | Sequence[GatedRNN],
    data: Task | Sequence[Tensor],
    *,
    sequences: int | None = None,
    epochs: int = 10,
    batch: int = 16,
    settings: OptimiserSettings | None = None,
    lr: Sequence[float] | None = None,
    loss: str | None = None,
    seeds: Sequence[int] | None = None,
    fresh: bool = False,
    checkpoints: Sequence[int] = (),
    device: torch.device | str | None = None,
    kernel: str = "auto",
    precision: str = "float32",
    on_epoch: Callable[[int, np.ndarray], None] | None = None,
    progress: Progress | bool | None = None,
) -> Training:
    """Train one model, or several of one shape in one batched computation.

    The models given are not changed. What a model learns depends on its own weights, seed and learning rate, and not on
    the models beside it (beyond the rounding of floating-point sums).

    Parameters
    ----------
    data
        A task, with the number of `sequences` to draw from it for each model, or tensors ``(x, y)`` (optionally with a mask
        over time) that all models share.
    lr
        A learning rate for each model, instead of ``settings.lr``.
    seeds
        Of the data and their order, one for each model; 0, 1, ... if None.
    fresh
        New sequences for every step instead of `sequences` that are seen once an epoch (tasks only).
    checkpoints
        Epochs after which copies of the models are kept; 0 is before training.
    precision
        Of the recurrent products on a GPU: "float32", or "float16" with float32 sums, which is faster and has relative
        errors around 1e-3 (see `lagreach.kernels.gpu.precision`). Other devices compute in the models' own precision.
    on_epoch
        Called with the epoch and the losses.

    Examples
    --------
    >>> from lagreach.tasks import MultiLag
    >>> task = MultiLag(lags=(2,), coefficients=(1.0,), noise=0.1, input_size=1, length=12)
    >>> build = lambda seed: GatedRNN("diag_gate", 1, 8, 1, generator=torch.Generator().manual_seed(seed))
    >>> done = train([build(0), build(1)], task, sequences=64, epochs=3, settings=OptimiserSettings(lr=0.02))
    >>> done.loss.shape, bool((done.loss[-1] < done.loss[0]).all())
    ((3, 2), True)
    """
    networks = [models] if isinstance(models, GatedRNN) else list(models)
    for name, value in {"epochs": epochs, "batch": batch}.items():
        if value < (0 if name == "epochs" else 1):
            raise InputError(f"{name} must be a positive number", got=value)
    replicas = Replicas(networks, device=device, kernel=kernel, precision=precision)
    where, dtype = replicas.flat.device, replicas.flat.dtype
    own_seeds = list(range(len(networks))) if seeds is None else list(seeds)
    if len(own_seeds) != len(networks):
        raise InputError("one seed for each model", got=f"{len(own_seeds)} for {len(networks)} models")
    if fresh:
        if not isinstance(data, Task):
            raise InputError("fresh sequences can only be drawn from a task", got=type(data).__name__)
        source: TrainingData = FreshData(data, tuple(own_seeds), batch, -(-(sequences or batch) // batch), where)
    else:
        source = hold(data, sequences, own_seeds, batch, where, dtype)
    wanted = loss or (data.loss if isinstance(data, Task) else "mse")
    trainer = Trainer(replicas, source, wanted, settings or OptimiserSettings(), epochs, lr)
    kept: dict[int, tuple[GatedRNN, ...]] = {}
    history: list[tuple[np.ndarray, np.ndarray]] = []

    def keep() -> None:
        if trainer.epoch in checkpoints:
            kept[trainer.epoch] = tuple(replicas.model(r) for r in range(len(networks)))

    keep()
    with progress_bar(progress if isinstance(progress, bool) else None) as bar:
        report = progress if callable(progress) else bar
        while trainer.epoch < epochs and bool(trainer.alive.any()):
            history.append(trainer.run_epoch())
            report("training", trainer.epoch, epochs)
            if on_epoch is not None:
                on_epoch(trainer.epoch, history[-1][0])
            keep()
    empty = np.zeros((0, len(networks)))
    return Training(
        models=tuple(replicas.model(r) for r in range(len(networks))),
        loss=np.stack([loss for loss, _ in history]) if history else empty,
        gradient_norm=np.stack([norm for _, norm in history]) if history else empty,
        status=trainer.status,
        checkpoints=kept,
    )
