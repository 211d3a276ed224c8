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

    Only what counts is compared, and no further than to the first sequences that differ.
    """
    first: tuple[Tensor, Tensor] | None = None
    for start in range(0, len(sequences), READ):
        batch = sequences.read(range(start, min(start + READ, len(sequences))))
        counted = _counted(batch)
        if first is None:
            first = batch.y[0], counted[0]
        both = counted & first[1]
        if bool(((batch.y != first[0]) & both.reshape(*both.shape, *[1] * (batch.y.ndim - both.ndim))).any()):
            return
    assert first is not None, "as_sequences refuses data without sequences"
    values = first[0][first[1]] if first[1].ndim else first[0]
    constant = values.numel() > 0 and bool((values == values.flatten()[0]).all())
    shown = f"{values.flatten()[0].item():.6g} throughout" if constant else "the same course over time"
    raise InputError(
        "the targets are the same in every sequence, so nothing can be said about what they depend on",
        got=f"{shown}, in all {len(sequences)} sequences",
        expected="targets that differ between sequences",
        fix="check y, the mask and how they were read",
    )


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
