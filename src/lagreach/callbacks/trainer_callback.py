"""`TrainerCallback`: windows while the Trainer of transformers trains. Needs the extra ``lagreach[transformers]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from lagreach.callbacks.watched_training import WatchedTraining
from lagreach.errors import UnsupportedError

try:
    from transformers import TrainerCallback as Callback
except ImportError:  # without transformers the class only says what is missing
    Callback = None

_Base: Any = object if Callback is None else Callback


class TrainerCallback(WatchedTraining, _Base):
    """Diagnose held-out data every so many steps (or epochs) of a `transformers.Trainer`.

    Only the first process measures. Models of transformers take named arguments; say how to run yours with
    ``call=lambda model, batch: model(inputs=batch.x).logits`` or the like. To send the numbers to the trainer's own
    trackers, pass ``logger=lambda metrics, step: trainer.log(metrics)``.

    Parameters
    ----------
    data
        Held-out data: ``(x, y)`` or a loader of such batches, see `lagreach.diagnose`.
    every, unit
        Every so many optimiser steps ("step") or epochs ("epoch").
    find
        The part of the model to diagnose; all of it if None.
    optimizer
        Measure in the geometry of the trainer's optimiser.
    options
        As for `lagreach.watch`: budget, total, logger, out, labels, log_lags, planned (the trainer's own steps if not said),
        forecast_at, say, and those of `lagreach.diagnose`.
    """

    def __init__(
        self,
        data: Any,
        *,
        every: int = 500,
        unit: str = "step",
        find: Callable[[Any], nn.Module] | None = None,
        optimizer: bool = False,
        **options: Any,
    ) -> None:
        if Callback is None:
            raise UnsupportedError("TrainerCallback needs transformers", fix='pip install "lagreach[transformers]"')
        super().__init__()
        self._data, self._find, self._optimizer = data, find, optimizer
        self._options = {"every": every, "unit": unit, **options}

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Set up, once the model and the optimiser are there."""
        if not state.is_world_process_zero:
            return
        options = dict(self._options)
        if self._optimizer:
            options["optimizer"] = objects["optimizer"]
        options.setdefault("planned", state.max_steps if state.max_steps > 0 else None)
        self._begin(objects["model"], self._data, options)

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Count optimiser steps."""
        if self.watch is not None:
            self.watch.step(state.global_step)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Count epochs."""
        if self.watch is not None:
            self.watch.epoch(round(state.epoch))

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Draw the figure."""
        self._end()
