"""One small protocol for whatever draws curves, and how the usual trackers fit it, by the methods they have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from lagreach.errors import InputError


@runtime_checkable
class Logger(Protocol):
    """Takes flat numbers at a step of the training."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Take the numbers of one diagnosis."""
        ...


class _Calls:
    """A logger made of a function; numbers that are not finite have no place on a chart and are left out."""

    def __init__(self, call: Callable[[dict[str, float], int], Any]) -> None:
        self._call = call

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._call({name: float(value) for name, value in metrics.items() if math.isfinite(value)}, step)


def as_logger(target: Any) -> Logger:
    """Turn a tracker, a function ``f(metrics, step)`` or a sequence of them into a `Logger`.

    Trackers are told apart by what they can do, so none has to be installed: ``log_metrics`` (MLflow, the loggers of
    Lightning, Comet), ``add_scalar`` (TensorBoard's SummaryWriter), ``log`` (wandb, trackio, or a `Logger` of your own).

    Examples
    --------
    >>> seen = []
    >>> as_logger(lambda metrics, step: seen.append((step, metrics))).log({"a": 1.0, "b": math.inf}, 7)
    >>> seen
    [(7, {'a': 1.0})]
    """
    if isinstance(target, Sequence) and not isinstance(target, str):
        return _Calls(_all([as_logger(one) for one in target]))
    if callable(getattr(target, "log_metrics", None)):
        return _Calls(lambda metrics, step: target.log_metrics(metrics, step=step))
    if callable(getattr(target, "add_scalar", None)):
        return _Calls(_one_by_one(target.add_scalar))
    if callable(getattr(target, "log", None)):
        return _Calls(lambda metrics, step: target.log(metrics, step=step))
    if callable(target):
        return _Calls(target)
    raise InputError(
        "this cannot take metrics",
        got=type(target).__name__,
        expected="something with log_metrics, add_scalar or log, or a function of (metrics, step)",
    )


def _all(loggers: list[Logger]) -> Callable[[dict[str, float], int], None]:
    def call(metrics: dict[str, float], step: int) -> None:
        for logger in loggers:
            logger.log(metrics, step)

    return call


def _one_by_one(add_scalar: Callable[..., Any]) -> Callable[[dict[str, float], int], None]:
    def call(metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            add_scalar(name, value, step)

    return call
