"""What the callbacks of trainers share: the watch begins with the training, in the first process alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from lagreach.callbacks.watching import Watch
from lagreach.diagnosis.result import Diagnosis
from lagreach.errors import InputError
from lagreach.forecasting.result import Forecast


class WatchedTraining:
    """A `Watch` that is made when the trainer has its model, data and optimisers; None before, and in other processes."""

    watch: Watch | None = None
    _find: Callable[[Any], nn.Module] | None

    @property
    def history(self) -> list[Diagnosis]:
        """The diagnoses so far."""
        return [] if self.watch is None else self.watch.history

    @property
    def forecasts(self) -> list[Forecast]:
        """What was forecast after 1 % and 5 % of the planned steps."""
        return [] if self.watch is None else self.watch.forecasts

    def _begin(self, model: Any, data: Any, options: Mapping[str, Any]) -> None:
        found = model if self._find is None else self._find(model)
        if not isinstance(found, nn.Module):
            raise InputError(
                "find= must return the module to diagnose",
                got=repr(found),
                expected="a part of the model, such as model.net",
            )
        self.watch = Watch(found, data, **options)
        self.watch.check()

    def _end(self) -> None:
        if self.watch is not None:
            self.watch.close()
