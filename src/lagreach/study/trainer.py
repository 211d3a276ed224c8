"""`Trainer`: training that can stop after any epoch, of several models at once, and several trainings side by side.

On a GPU every step is recorded once as a CUDA graph and replayed, each training on a stream of its own, so that small
networks of different kinds share the device and the host never limits them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from lagreach.errors import InputError
from lagreach.study.data import TrainingData
from lagreach.study.losses import check_loss, replica_losses
from lagreach.study.optimisers import Optimiser, OptimiserSettings, clip_rows
from lagreach.study.replicas import Replicas
from lagreach.types import Status

WARM_UP = 3  # steps before a graph is recorded, on copies of the state


class Trainer:
    """Training of models of one shape: `state` is all that the next epoch depends on, `load` goes on from it."""

    def __init__(
        self,
        replicas: Replicas,
        data: TrainingData,
        loss: str,
        settings: OptimiserSettings,
        epochs: int,
        lr: Sequence[float] | None = None,
    ) -> None:
        rates = [settings.lr] * len(replicas) if lr is None else list(lr)
        if len(rates) != len(replicas):
            raise InputError(
                "one learning rate for each model",
                got=f"{len(rates)} for {len(replicas)} models",
                expected="as many rates as models",
            )
        self.replicas, self.data, self.loss, self.settings, self.epochs = (
            replicas,
            data,
            check_loss(loss),
            settings,
            epochs,
        )
        self.optimiser = Optimiser(settings, replicas.flat, torch.tensor(rates, dtype=torch.float64))
        device = replicas.flat.device
        self.alive = torch.ones(len(replicas), dtype=torch.bool, device=device)
        self.epoch = 0
        self._mask = data.mask
        self._sums = torch.zeros(2, len(replicas), dtype=torch.float64, device=device)  # of loss and gradient norm
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._recorded: tuple[tuple[torch.Size, torch.Size], Tensor, Tensor, torch.cuda.CUDAGraph] | None = None

    def run_epoch(self) -> tuple[np.ndarray, np.ndarray]:
        """Train for one epoch; return mean loss and gradient norm of each model."""
        return run_epoch([self])[0]

    def steps(self) -> Iterator[None]:
        """Take the steps of an epoch, one at each turn; on a GPU they are only queued."""
        self._sums.zero_()
        total = self.data.steps_per_epoch * self.epochs
        with self._on_stream():
            batches = self.data.epoch(self.epoch)
        while True:
            with self._on_stream():
                batch = next(batches, None)
                if batch is None:
                    return
                self.optimiser.advance(self.settings.factor(self.optimiser.steps, total))
                self._launch(*batch)
            yield

    def finish_epoch(self) -> tuple[np.ndarray, np.ndarray]:
        """Wait for the steps, and return mean loss and gradient norm; NaN for models that have failed."""
        if self._stream is not None:
            self._stream.synchronize()
        self.epoch += 1
        means = self._sums / max(1, self.data.steps_per_epoch)
        shown = torch.where(self.alive, means, torch.nan).cpu().numpy()
        return shown[0], shown[1]

    def _on_stream(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _launch(self, x: Tensor, y: Tensor) -> None:
        if self._stream is None:
            self._step(x, y)
            return
        if self._recorded is None:
            self._record(x, y)
        assert self._recorded is not None
        shapes, held_x, held_y, graph = self._recorded
        if shapes != (x.shape, y.shape):  # the last, smaller batch of an epoch
            self._step(x, y)
            return
        held_x.copy_(x)
        held_y.copy_(y)
        graph.replay()

    def _record(self, x: Tensor, y: Tensor) -> None:
        """Record one step as a graph. The steps that warm up are taken back."""
        before = {name: value.clone() for name, value in self._changing().items()}
        held_x, held_y = x.clone(), y.clone()
        for _ in range(WARM_UP):
            self._step(held_x, held_y)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            self._step(held_x, held_y)
        for name, value in self._changing().items():
            value.copy_(before[name])
        self._recorded = (x.shape, y.shape), held_x, held_y, graph

    def _changing(self) -> dict[str, Tensor]:
        """Everything that a step changes in place."""
        tensors = {"weights": self.replicas.flat, "alive": self.alive, "sums": self._sums}
        return tensors | {f"optimiser.{name}": buffer for name, buffer in self.optimiser.buffers.items()}

    def _step(self, x: Tensor, y: Tensor) -> None:
        losses = replica_losses(self.loss, self.replicas(x), y, self._mask)
        gradient, norms = clip_rows(self.replicas.gradient(losses), self.settings.clip)
        losses = losses.detach()
        # A model whose loss or gradient is no number stops here, with the weights that gave the last good one.
        self.alive &= losses.isfinite() & norms.isfinite()
        self.optimiser.step(self.replicas.flat, gradient, self.alive)
        self._sums += torch.stack((losses, norms))

    def state(self) -> dict[str, Tensor]:
        """Everything that the next epoch depends on."""
        counters = torch.tensor([self.epoch, self.optimiser.steps])
        return {name: value for name, value in self._changing().items() if name != "sums"} | {"counters": counters}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from a state."""
        expected = {name: tuple(value.shape) for name, value in self.state().items()}
        shapes = {name: tuple(value.shape) for name, value in state.items()}
        if expected != shapes:
            raise InputError("this state belongs to another training", got=shapes, expected=expected)
        with torch.no_grad():
            for name, value in self.state().items():
                if name != "counters":
                    value.copy_(state[name])
        self.epoch, self.optimiser.steps = (int(n) for n in state["counters"])

    @property
    def status(self) -> tuple[Status, ...]:
        """OK or DIVERGED for each model."""
        return tuple(Status.OK if alive else Status.DIVERGED for alive in self.alive.tolist())


def run_epoch(trainers: Sequence[Trainer]) -> list[tuple[np.ndarray, np.ndarray]]:
    """One epoch of several trainings in turns, step by step: on a GPU their streams run side by side."""
    running: list[Callable[[], object]] = [iter(trainer.steps()).__next__ for trainer in trainers]
    while running:
        still = []
        for take in running:
            try:
                take()
            except StopIteration:
                continue
            still.append(take)
        running = still
    return [trainer.finish_epoch() for trainer in trainers]
