"""A replayed layer must give what the model itself gives."""

from __future__ import annotations

import torch
from torch import nn

from lagreach._util.full_precision import full_precision
from lagreach.adapters.calling import Call, agreement, as_output, untouched
from lagreach.adapters.view import View
from lagreach.data.batch import Batch
from lagreach.errors import InputError
from lagreach.kernels import scan_stack


def check_replay(
    view: View, model: nn.Module, call: Call, sample: Batch, *, problem: str, fix: str, least: float = 0.0
) -> None:
    """Run the recurrence step by step, give its states to the head, and compare the output with the model's own."""
    bound = view.bind(sample)
    recurrence = bound.recurrence
    with torch.no_grad(), full_precision():
        states = scan_stack(recurrence.stack, bound.x, recurrence.initial_state(bound.x), recurrence.params)
        replayed = recurrence.head(states, recurrence.head_params)
        with untouched(model):
            theirs = as_output(call(model, sample), sample, bound.x.shape[1])
    tolerance = max(agreement(theirs.dtype), least)
    if not torch.allclose(replayed.to(theirs.dtype), theirs, rtol=tolerance, atol=tolerance, equal_nan=True):
        raise InputError(
            problem, got=f"a difference of {(replayed - theirs).abs().max().item():.3g} after replaying it", fix=fix
        )
