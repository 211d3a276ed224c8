"""Batches as libraries hand them out: dicts of inputs with labels, several inputs, inputs beside targets and weights.

Hugging Face's ``{"input_ids", "attention_mask", "labels"}``, ``((source, target), y)`` of an encoder and a decoder, and
``(inputs by name, (y, weight))`` of forecasting libraries become a `Batch` whose x is the first thing that is read step
by step; the rest goes along in `others`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lagreach.data.batch import Batch
from lagreach.errors import InputError

TARGETS = ("labels", "y", "targets", "target", "label")
# what is read step by step, in the order in which it is looked for
INPUTS = ("input_ids", "inputs_embeds", "input_values", "input_features", "past_values", "encoder_cont", "x", "inputs")
OWN_NAMES = {"x", "y", "mask", "lengths", "state"}  # of the dicts that lagreach has always taken


def named_batch(batch: object, where: str = "the data") -> Batch | None:
    """Take such a batch apart; None if it is another kind of batch."""
    if isinstance(batch, Mapping):
        if {"x", "y"} <= set(batch) <= OWN_NAMES:
            return None
        return _from_mapping(batch, None, where)
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        return None
    inputs, y = batch
    if isinstance(inputs, Mapping):
        return _from_mapping(inputs, y, where)
    if isinstance(inputs, (tuple, list)) and len(inputs) > 1 and all(isinstance(part, Tensor) for part in inputs):
        target, mask = _target(y)
        _same_length(inputs[0], {"the targets": target, **{f"input {i}": p for i, p in enumerate(inputs)}}, where)
        return Batch(inputs[0], target, mask, others=tuple(inputs[1:]))
    return None


def _from_mapping(inputs: Mapping[str, Any], y: Any, where: str) -> Batch | None:
    tensors = {name: torch.as_tensor(value) for name, value in inputs.items() if _numbers(value)}
    fields = dict(inputs) | tensors
    name = next((key for key in INPUTS if key in tensors), None)
    name = name or next((key for key, value in tensors.items() if value.ndim > 1 and key not in TARGETS), None)
    if name is None:
        return None
    x = tensors[name]
    label = next((key for key in TARGETS if key in tensors), None)
    if y is None and label is not None:
        y = fields.pop(label)
    elif y is None and name == "input_ids":
        y = x  # a language model's own text, as with labels
    if y is None:
        raise InputError(
            f"{where} holds no targets",
            got=", ".join(map(str, inputs)),
            expected=f"one of {', '.join(TARGETS)} among them, or (inputs, y)",
        )
    target, mask = _target(y)
    others = {key: value for key, value in fields.items() if key != name and value is not None}
    checked = {key: value for key, value in others.items() if isinstance(value, Tensor) and value.ndim}
    _same_length(x, {"the targets": target, **checked}, where)
    return Batch(x, target, mask, others=others, name=name)


def _numbers(value: Any) -> bool:
    return isinstance(value, Tensor) or hasattr(value, "__array__")


def _target(y: Any) -> tuple[Tensor, Tensor | None]:
    """Targets, and the weights that some libraries put beside them."""
    if isinstance(y, (tuple, list)):
        target, weight = (*y, None)[:2]
        return torch.as_tensor(target), None if weight is None else torch.as_tensor(weight)
    return torch.as_tensor(y), None


def _same_length(x: Tensor, parts: Mapping[str, Tensor], where: str) -> None:
    wrong = {name: len(part) for name, part in parts.items() if len(part) != len(x)}
    if wrong:
        raise InputError(
            f"inputs and targets of {where} hold different numbers of sequences",
            got=", ".join(f"{name} {size}" for name, size in wrong.items()) + f", the first input {len(x)}",
            expected="the sequences on the first axis of each",
        )


def holds_named(data: object) -> bool:
    """Whether something is one such batch, and not an iterable of batches."""
    if isinstance(data, Mapping):
        return True
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        return False
    inputs, y = data
    if isinstance(inputs, Mapping):
        return not (isinstance(y, Mapping) or _is_batch(y))
    several = isinstance(inputs, (tuple, list)) and len(inputs) > 1 and all(isinstance(p, Tensor) for p in inputs)
    return several and (isinstance(y, Tensor) or (isinstance(y, Sequence) and not _is_batch(y)))


def _is_batch(value: object) -> bool:
    """Whether the second of two things is a batch like the first: two batches in a list are data too."""
    return isinstance(value, (tuple, list)) and len(value) > 1 and isinstance(value[0], Mapping)
