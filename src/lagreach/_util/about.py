"""What a result is about, in words for the head of its page: the model, the data, and the day."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

KNOWN = 3  # kinds of layers that are named


def about(model: Any, sequences: int, time: int, inputs: int | None) -> dict[str, str]:
    """Name the model, the data and the day.

    >>> about(object(), 96, 24, 2)["data"]
    '96 sequences of 24 steps, 2 inputs'
    """
    wide = "" if inputs is None else f", {inputs:,} input{'' if inputs == 1 else 's'}"
    return {
        "model": describe_model(model),
        "data": f"{sequences:,} sequences of {time:,} step{'' if time == 1 else 's'}{wide}",
        "date": datetime.date.today().isoformat(),
    }


def describe_model(model: Any) -> str:
    """The class of a model, the kinds of layers it holds, and its size.

    >>> import torch
    >>> describe_model(torch.nn.Sequential(torch.nn.Linear(2, 3)))
    'Sequential (Linear), 9 weights'
    """
    name = type(model).__name__
    if not hasattr(model, "modules"):
        return str(getattr(model, "name", name))
    cell = getattr(getattr(model, "cell", None), "name", None)  # of a GatedRNN
    kinds = [cell] if isinstance(cell, str) else _kinds(model.modules())
    inside = f" ({', '.join(kinds)})" if kinds else ""
    return f"{name}{inside}, {sum(weight.numel() for weight in model.parameters()):,} weights"


def _kinds(modules: Iterable[Any]) -> list[str]:
    """Kinds of layers that hold weights of their own, in the order in which they stand."""
    inside = list(modules)[1:]
    named = [type(module).__name__ for module in inside if any(True for _ in module.parameters(recurse=False))]
    return list(dict.fromkeys(named))[:KNOWN]
