"""What a result is about, in words for the head of its page: the model, the data, and the day."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

KNOWN = 3  # kinds of layers that are named


def about(model: Any, sequences: Any, time: int) -> dict[str, str]:
    """Name the model, the data (a `lagreach.data.sequences.Sequences`) and the day."""
    x = sequences.read([0]).x
    inputs = x[0, 0].numel() if x.is_floating_point() and x.ndim > 1 else 0
    wide = f", {inputs:,} input{'' if inputs == 1 else 's'}" if inputs else ""
    return {
        "model": describe_model(model),
        "data": f"{len(sequences):,} sequences of {time:,} step{'' if time == 1 else 's'}{wide}",
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
