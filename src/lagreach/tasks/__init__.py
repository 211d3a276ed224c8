"""Tasks whose true lags are known, one file each. `all_tasks` finds them, so a new file needs no registration.

>>> import torch
>>> task = make_task("multi_lag", lags=(2, 5), coefficients=(0.6, 0.3), length=32)
>>> x, y = task.sample(8, torch.Generator().manual_seed(0))
>>> task.recovered(x, y, y).shape
torch.Size([2])
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from lagreach.errors import InputError, LagreachError
from lagreach.tasks._task import Task

__all__ = ["Task", "all_tasks", "make_task"]


@lru_cache(maxsize=1)
def _tasks() -> dict[str, type[Task]]:
    tasks: dict[str, type[Task]] = {}
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for cls in vars(module).values():
            defined_here = inspect.isclass(cls) and cls.__module__ == module.__name__
            if defined_here and issubclass(cls, Task) and not inspect.isabstract(cls):
                tasks[cls.name] = cls
    return dict(sorted(tasks.items()))


def all_tasks() -> dict[str, type[Task]]:
    """Every task in this package, by name."""
    return dict(_tasks())


def make_task(name: str | Task, **options: Any) -> Task:
    """Make a task from its name and options; a finished task is returned as it is.

    Examples
    --------
    >>> make_task("multi_lags")
    Traceback (most recent call last):
    lagreach.errors.InputError: unknown task 'multi_lags'; did you mean 'multi_lag'?
    ...
    """
    if isinstance(name, Task):
        if options:
            raise InputError(
                f"{type(name).__name__} is already made, so its options cannot be changed here",
                got=", ".join(sorted(options)),
                fix="use dataclasses.replace, or pass the name of the task instead",
            )
        return name
    known = all_tasks()
    if name not in known:
        raise _unknown("task", name, known)
    cls = known[name]
    fields = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for option in options:
        if option not in fields:
            raise _unknown(f"option of the {name} task", option, fields)
    try:
        return cls(**options)
    except LagreachError:
        raise
    except (TypeError, ValueError, OverflowError) as error:  # a word for a number, a number for a list
        shown = ", ".join(f"{option}={value!r:.60}" for option, value in options.items())
        raise InputError(
            f"the options of the {name} task do not fit: {error}",
            got=shown,
            fix="see the task in docs/tasks.md for the kinds of its options",
        ) from error


def _unknown(what: str, got: str, known: Iterable[str]) -> InputError:
    near = difflib.get_close_matches(str(got), list(known), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InputError(f"unknown {what} {got!r}{hint}", expected=", ".join(known))


def __getattr__(name: str) -> Any:  # the classes themselves: lagreach.tasks.MultiLag
    for cls in _tasks().values():
        if cls.__name__ == name:
            return cls
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(cls.__name__ for cls in _tasks().values())])
