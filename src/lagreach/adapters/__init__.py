"""How a user's model becomes cells: one file a family of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from lagreach._moved import renamed
from lagreach.adapters.calling import Call, refuse_scripted
from lagreach.adapters.find import torch_views
from lagreach.adapters.precision import in_single_precision, refuse_half
from lagreach.adapters.scan_cell import AffineStep, ScanCell
from lagreach.adapters.scan_layer import ScanInputs, ScanLayer, register
from lagreach.adapters.view import BoundRecurrence, GatedView, Recurrence, View, check_inputs, gated_view
from lagreach.data.batch import Batch
from lagreach.errors import InputError
from lagreach.models.gated_rnn import GatedRNN

__all__ = [
    "AffineStep",
    "BoundRecurrence",
    "GatedView",
    "Recurrence",
    "ScanCell",
    "ScanInputs",
    "ScanLayer",
    "View",
    "as_view",
    "find_views",
    "register",
]

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"Bound": "BoundRecurrence", "Given": "ScanInputs", "Written": "AffineStep"})


def find_views(
    model: nn.Module | Recurrence | View, sample: Batch, call: Call | None = None, only: str | None = None
) -> list[View]:
    """Return every recurrence in a model; a small sample batch shows how its layers are called.

    `call` is a function of the model and a batch that runs it, for models that ``model(x)`` does not run; `only` is the path of
    the part that is looked at.
    """
    check_inputs(sample)
    if isinstance(model, View):
        refuse_half(model.template.dtype)
        return [model]
    if isinstance(model, Recurrence):
        refuse_half(model.dtype)
        return [GatedView(model)]
    refuse_scripted(model)
    model = in_single_precision(model)
    if isinstance(model, GatedRNN):
        return [gated_view(model)]
    return torch_views(model, sample, call, only)


def as_view(model: nn.Module | Recurrence | View, sample: Batch, call: Call | None = None) -> View:
    """Return the one recurrence in a model; `call` as for `find_views`."""
    views = find_views(model, sample, call)
    if len(views) > 1:
        raise InputError(
            "the model holds several recurrences",
            got=", ".join(view.name for view in views),
            expected="one",
            fix="pick one: pass find_views(model, batch)[k] from lagreach.adapters instead of the model",
        )
    return views[0]
