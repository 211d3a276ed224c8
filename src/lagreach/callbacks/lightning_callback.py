"""`LightningCallback`: windows while Lightning trains. Needs the extra ``lagreach[lightning]``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from lagreach.callbacks.watched_training import WatchedTraining
from lagreach.errors import InputError, UnsupportedError

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:  # without Lightning the class only says what is missing
    Callback = None

_Base: Any = object if Callback is None else Callback


class LightningCallback(WatchedTraining, _Base):
    """Diagnose held-out data every so many epochs (or steps) of a Lightning training.

    Only the first process measures; in others, and under sharded strategies that leave no process with whole weights, there
    is nothing to see. Numbers go to the trainer's own loggers unless `logger` is given.

    Parameters
    ----------
    data
        Held-out data; the trainer's validation loader if None. Batches are ``(x, y)``, see `lagreach.diagnose`.
    every, unit
        Every so many epochs ("epoch") or optimiser steps ("step").
    find
        The part of the LightningModule to diagnose, such as ``lambda module: module.net``; all of it if None.
    optimizer
        Measure in the geometry of the trainer's optimiser.
    options
        As for `lagreach.watch`: budget, total, logger, out, labels, log_lags, planned (the trainer's own steps if not said),
        forecast_at, say, and those of `lagreach.diagnose`.
    """

    def __init__(
        self,
        data: Any = None,
        *,
        every: int = 1,
        unit: str = "epoch",
        find: Callable[[Any], nn.Module] | None = None,
        optimizer: bool = False,
        **options: Any,
    ) -> None:
        if Callback is None:
            raise UnsupportedError("LightningCallback needs Lightning", fix='pip install "lagreach[lightning]"')
        super().__init__()
        self._data, self._find, self._optimizer = data, find, optimizer
        self._options = {"every": every, "unit": unit, **options}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Set up, once the loaders and optimisers are there."""
        if not trainer.is_global_zero:
            return
        options = dict(self._options)
        options.setdefault("logger", list(trainer.loggers))
        if self._optimizer:
            if len(trainer.optimizers) != 1:
                raise InputError(
                    "optimizer=True needs one optimiser",
                    got=f"{len(trainer.optimizers)} optimisers",
                    fix="leave it out, and windows are those of plain gradients",
                )
            options["optimizer"] = trainer.optimizers[0]
        if "planned" not in options:
            planned = trainer.estimated_stepping_batches
            options["planned"] = int(planned) if math.isfinite(planned) and planned > 0 else None
        self._begin(pl_module, self._held_out(trainer), options)

    def _held_out(self, trainer: Any) -> Any:
        loaders = trainer.val_dataloaders if self._data is None else self._data
        if loaders is None:
            raise InputError(
                "there are no held-out data", got="a trainer without validation loader",
                fix="pass LightningCallback(data), or val_dataloaders to trainer.fit",
            )  # fmt: skip
        return loaders

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """Count optimiser steps; several batches may make one."""
        if self.watch is not None:
            self.watch.step(trainer.global_step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Count epochs."""
        if self.watch is not None:
            self.watch.epoch(trainer.current_epoch + 1)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Draw the figure."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Draw what there is."""
        self.on_train_end(trainer, pl_module)
