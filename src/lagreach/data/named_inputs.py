"""Batches as libraries hand them out: dicts of inputs with labels, several inputs, inputs beside targets and weights.

Hugging Face's ``{"input_ids", "attention_mask", "labels"}``, ``((source, target), y)`` of an encoder and a decoder, and
``(inputs by name, (y, weight))`` of forecasting libraries become a `Batch` whose x is the first thing that is read step
by step; the rest goes along in `others`.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Number
from typing import Any, TypeGuard

import torch
from torch import Tensor

from lagreach.data.batch import Batch, as_numbers, check_mask, check_steps, is_array
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
    if _are_arrays(inputs) and len(inputs) > 1:
        x, *others = (as_numbers(part) for part in inputs)
        target, mask = _target(y)
        _same_length(x, {"the targets": target, **{f"input {i}": part for i, part in enumerate(others, 1)}}, where)
        return Batch(x, target, mask, others=tuple(others))
    return None


def _from_mapping(inputs: Mapping[str, Any], y: Any, where: str) -> Batch | None:
    arrays = {name: _as_array(value) for name, value in inputs.items()}
    tensors = {name: value for name, value in arrays.items() if value is not None}
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
    others = {key: value for key, value in fields.items() if key != name and _goes_along(key, value, where)}
    _same_length(x, {"the targets": target} | {k: v for k, v in others.items() if isinstance(v, Tensor)}, where)
    return Batch(x, target, mask, others=others, name=name)


def _goes_along(name: object, value: Any, where: str) -> bool:
    """Whether something is an input beside x: tensors are, texts and other remarks on the sequences are not.

    One value for all sequences is refused: it may be an option of the model, which would be lost.
    """
    if isinstance(value, (Number, str)) or (isinstance(value, Tensor) and value.ndim == 0):
        raise InputError(
            f"{name} of {where} is one value, not one for each sequence",
            got=f"{name}={value!r}",
            expected="tensors with the sequences on their first axis",
            fix=f"leave it out; if it is an option of the model, pass call=lambda model, batch: model(batch.x, {name}=...)",
        )
    return isinstance(value, (Tensor, Mapping)) or (isinstance(value, tuple) and _are_arrays(value))


def _as_array(value: Any) -> Tensor | None:
    """Arrays and lists of numbers as tensors; None of anything else."""
    if not is_array(value) and not isinstance(value, list):
        return None
    try:
        return as_numbers(value)
    except InputError:
        return None


def _are_arrays(values: object) -> TypeGuard[tuple[Any, ...] | list[Any]]:
    return isinstance(values, (tuple, list)) and len(values) > 0 and all(is_array(value) for value in values)


def _target(y: Any) -> tuple[Tensor, Tensor | None]:
    """Targets, and the weights that some libraries put beside them."""
    if isinstance(y, (tuple, list)) and len(y) and not isinstance(y[0], Number):
        target, weight = (*y, None)[:2]
        return as_numbers(target), None if weight is None else as_numbers(weight)
    return as_numbers(y), None


def _same_length(x: Tensor, parts: Mapping[str, Tensor], where: str) -> None:
    if x.ndim == 0:
        raise InputError(f"the input of {where} is a single number", got=f"{x.item()}", expected="(seq, time, input)")
    rows = {name: len(part) if part.ndim else "a single number" for name, part in parts.items()}
    wrong = {name: size for name, size in rows.items() if size != len(x)}
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
    if not _are_arrays(inputs) or len(inputs) < 2:
        return False
    return is_array(y) or _is_target(y, inputs)


def _is_batch(value: object) -> bool:
    """Whether the second of two things is a batch like the first: two batches in a list are data too."""
    return isinstance(value, (tuple, list)) and len(value) > 1 and isinstance(value[0], Mapping)


def _is_target(value: object, inputs: tuple[Any, ...] | list[Any]) -> bool:
    """Whether the second of two things is the target of several inputs, or ``(y, weight)``, and not a batch as they are one.

    Shapes decide: parts of batches may have other numbers of sequences and steps, but not other features.
    """
    if not isinstance(value, (tuple, list)) or not _are_arrays(value):
        return isinstance(value, (tuple, list))
    if len(value) == len(inputs) and all(map(_of_one_kind, inputs, value)):
        return False
    rows = {len(as_numbers(part)) for part in value} == {len(as_numbers(inputs[0]))}
    return rows and (len(value) == 1 or (len(value) == 2 and as_numbers(value[1]).ndim <= 2))  # weights of steps


def _of_one_kind(one: Any, other: Any) -> bool:
    """Whether two arrays may be the same part of two batches."""
    one, other = as_numbers(one), as_numbers(other)
    real = one.is_floating_point() == other.is_floating_point()
    return real and one.ndim == other.ndim and one.shape[2:] == other.shape[2:]


def _within(lengths: Tensor, time: int) -> bool:
    return bool((lengths >= 1).all() and (lengths <= time).all())


def as_batch(batch: object, where: str = "the data") -> Batch:
    """Take (x, y), (x, y, mask) or (x, y, mask, lengths), or a mapping with these names, apart."""
    if isinstance(batch, Batch):
        check_steps(batch.x)
        return batch
    named = named_batch(batch, where)
    if named is not None:
        check_steps(named.x)
        check_mask(named.mask, where)
        return named
    names = ("x", "y", "mask", "lengths")
    if isinstance(batch, dict):
        parts = [batch.get(name) for name in names]
    elif isinstance(batch, (tuple, list)) and 2 <= len(batch) <= 4:
        parts = [*batch, *[None] * (4 - len(batch))]
    else:
        parts = [None]
    if parts[0] is None or parts[1] is None:
        raise InputError(
            f"{where} does not hold inputs and targets",
            got=type(batch).__name__,
            expected="(x, y), (x, y, mask), (x, y, mask, lengths) or a dict with these names",
        )
    x, y, mask, lengths = (None if p is None else as_numbers(p) for p in parts)
    state = batch.get("state") if isinstance(batch, dict) else None
    assert x is not None
    assert y is not None
    y = y.detach()  # another network's output may still hang on its graph
    check_mask(mask, where)
    if x.ndim == 0:
        raise InputError(f"x of {where} is a single number", expected="(seq, time, input)")
    if len(x) and 0 in x.shape:
        raise InputError(
            f"x of {where} has an empty axis", got=f"shape {tuple(x.shape)}", expected="(seq, time, input)"
        )
    check_steps(x)
    if lengths is not None and lengths.is_floating_point():
        if not torch.equal(lengths, lengths.round()):
            raise InputError(
                f"lengths of {where} must be whole numbers", got=f"{lengths.dtype}, {lengths[:6].tolist()}"
            )
        lengths = lengths.long()
    if lengths is not None and x.ndim > 1 and lengths.ndim == 1 and len(lengths) and not _within(lengths, x.shape[1]):
        raise InputError(
            f"lengths of {where} must lie within the sequences",
            got=f"{int(lengths.min())} to {int(lengths.max())}",
            expected=f"1 to {x.shape[1]}",
        )
    for name, part in (("y", y), ("mask", mask), ("lengths", lengths)):
        if part is not None and (part.ndim == 0 or len(part) != len(x)):
            raise InputError(
                f"x and {name} of {where} hold different numbers of sequences",
                got=f"{len(x)} and {len(part) if part.ndim else 'a single number'}",
                expected="the sequences on the first axis of both",
            )
    return Batch(x, y, mask, lengths, state)
