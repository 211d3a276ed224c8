"""Targets that cannot tell anything: the same in every sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from lagreach.data.batch import Batch
from lagreach.data.sequences import Sequences
from lagreach.errors import InputError

READ = 64  # sequences at once


def check_time_axis(batch: Batch) -> None:
    """Refuse inputs that are no sequences."""
    if batch.x.ndim < 2:
        raise InputError(
            "the input has no time axis", got=f"shape {tuple(batch.x.shape)}", expected="(seq, time, input)"
        )


def refuse_constant_targets(sequences: Sequences) -> None:
    """Refuse targets that are the same in every sequence: exchanging them between sequences changes nothing.

    Only what counts is compared, at each step with what counted there first, and no further than to the first that differs.
    """
    shown: Tensor | None = None  # of every step (or of all of them, without a time axis), what was seen there first
    seen = torch.zeros(0, dtype=torch.bool)
    for start in range(0, len(sequences), READ):
        batch = sequences.read(range(start, min(start + READ, len(sequences))))
        y, counted = batch.y, _counted(batch)
        if shown is None:
            shown, seen = y[0], torch.zeros_like(counted[0])
        first = counted.int().argmax(0)  # of these sequences, the first in which a step counts
        here = y[first, torch.arange(len(first), device=y.device)] if counted.ndim > 1 else y[first]
        shown = torch.where(_beside(seen, here), shown, here)
        seen = seen | counted.any(0)
        if bool(((y != shown) & _beside(counted, y)).any()):
            return
    assert shown is not None, "as_sequences refuses data without sequences"
    if not bool(seen.any()):
        raise InputError(
            "the mask leaves out every step of every sequence",
            got=f"a mask of zeros, for all {len(sequences)} sequences",
            expected="True, or a weight above 0, at the steps whose targets count",
            fix="pass the mask the other way round (~mask) if it marks what to leave out",
        )
    values = shown[seen]
    constant = bool((values == values.flatten()[0]).all())
    said = f"{values.flatten()[0].item():.6g} throughout" if constant else "the same course over time"
    raise InputError(
        "the targets are the same in every sequence, so nothing can be said about what they depend on",
        got=f"{said}, in all {len(sequences)} sequences",
        expected="targets that differ between sequences",
        fix="check y, the mask and how they were read",
    )


def _beside(counted: Tensor, y: Tensor) -> Tensor:
    """Which targets count, with the axes of the targets."""
    return counted.reshape((*counted.shape, *[1] * (y.ndim - counted.ndim)))  # both may be single numbers


def _counted(batch: Batch) -> Tensor:
    """Which targets count: (seq, time) where there is one for every step, (seq,) otherwise."""
    y = batch.y
    if y.ndim < 2 or y.shape[1] != batch.x.shape[1]:
        return torch.ones(len(y), dtype=torch.bool, device=y.device)
    inside = torch.ones(y.shape[:2], dtype=torch.bool, device=y.device)
    if batch.lengths is not None:
        inside &= torch.arange(y.shape[1], device=y.device) < batch.lengths.to(y.device)[:, None]
    if batch.mask is not None and batch.mask.shape == inside.shape:
        inside &= batch.mask.to(y.device) > 0
    return inside
