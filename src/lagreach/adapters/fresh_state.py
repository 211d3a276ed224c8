"""Models that keep a state from one call to the next: every run starts as the model stands now."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lagreach.adapters.calling import (
    Call,
    default_call,
    refuse_inference_mode,
    refuse_scripted,
    refuse_without_values,
    untouched,
)
from lagreach.data.batch import Batch

KEPT = (
    "the model keeps a state between calls, in {names}: every sequence was started without one, as the model stands. For another "
    "start pass call= with a function that sets it"
)


def from_fresh_state(model: Any, sample: Batch, call: Call | None) -> tuple[Call | None, tuple[str, ...]]:
    """A call that first puts back what the model keeps, if its outputs depend on that; and what should be said about it.

    Only where it keeps nothing yet: whose a state left by other batches is, nobody knows. What is wrong otherwise is said
    where models are checked.
    """
    refuse_inference_mode()
    if isinstance(model, nn.Module):
        refuse_scripted(model)
        refuse_without_values(model)
    if call is not None or not isinstance(model, nn.Module) or len(sample) == 0:
        return call, ()
    with torch.no_grad(), untouched(model) as kept:
        try:
            first = _tensors(default_call(model, sample))
            changed = kept.changed()
            empty = [name for name in kept.empty() if name in changed]
            if not changed or len(empty) < len(changed):
                return call, ()
            second = _tensors_or_none(model, sample)
            if second is not None and _equal(first, second):
                return call, ()  # a cache that changes nothing
            kept.restore()
            if not _equal(first, _tensors(default_call(model, sample))):
                return call, ()
        except (Exception, SystemExit):  # whatever the user's model raises is said where models are checked
            return call, ()
        kept.restore()
        before = [(name.rpartition("."), _attribute(model, name)) for name in empty]

    def fresh(module: nn.Module, batch: Batch) -> Any:
        for (path, _, name), value in before:
            owner = module.get_submodule(path)
            if value is _MISSING:
                vars(owner).pop(name, None)
            else:
                setattr(owner, name, deepcopy(value))
        return default_call(module, batch)

    return fresh, (KEPT.format(names=" and ".join(f"model.{name}" for name in empty)),)


_MISSING = object()


def _attribute(model: nn.Module, name: str) -> Any:
    path, _, attribute = name.rpartition(".")
    return vars(model.get_submodule(path)).get(attribute, _MISSING)


def _tensors(result: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def _tensors_or_none(model: nn.Module, sample: Batch) -> list[Tensor] | None:
    try:
        return _tensors(default_call(model, sample))
    except Exception:  # a state of another shape than this batch needs
        return None


def _equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(
        one.shape == other.shape and torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)
        for one, other in zip(first, second, strict=True)
    )
