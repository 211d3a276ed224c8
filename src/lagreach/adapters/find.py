"""Find the recurrences in a user's model."""

from __future__ import annotations

import torch
from torch import nn

from lagreach.adapters.calling import (
    Call,
    captured,
    default_call,
    first_call,
    refuse_batch_norm,
    refuse_coupling,
    untouched,
)
from lagreach.adapters.cell_loops import CellLoopView
from lagreach.adapters.families import scan_modules
from lagreach.adapters.scan_layer import remembered
from lagreach.adapters.scan_view import ScanView, check_output
from lagreach.adapters.torch_rnn import TorchRNNView, check_replay, read_call
from lagreach.adapters.view import View
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError


def torch_views(model: nn.Module, sample: Batch, call: Call | None = None) -> list[View]:
    """Return a view of every recurrent layer in a model, of `torch.nn` or gated linear, checked on a small batch."""
    call = call or default_call
    found = [
        (path, module) for path, module in model.named_modules() if isinstance(module, (nn.RNNBase, nn.RNNCellBase))
    ]
    scans = list(scan_modules(model))
    if not found and not scans:
        looked_at = sorted({type(module).__name__ for module in model.modules()})
        raise UnsupportedError(
            "no recurrent layer was found in the model",
            got=f"modules of type {', '.join(looked_at)}",
            expected="torch.nn.RNN, GRU, LSTM or their cells, a gated linear layer (docs/adapters.md), or lagreach.GatedRNN",
            fix="describe your recurrence as a Cell and build a GatedRNN from it, or register a ScanLayer",
        )
    refuse_batch_norm(model)
    _refuse_learned_state(model, [module for _, module in found], sample, call)
    with untouched(model), remembered(model):
        refuse_coupling(model, call, sample, sample.x.shape[1])
    alone = len(found) + len(scans) == 1
    views: list[View] = []
    for path, module in found:
        if isinstance(module, nn.RNNCellBase):
            loop = CellLoopView(model, path, module, call, alone)
            loop.refuse_feedback(sample)
            views.append(loop)
            continue
        parts = [None]
        if module.bidirectional:
            parts = [(layer, direction) for layer in range(module.num_layers) for direction in (0, 1)]  # type: ignore[misc]
        layer_views = [TorchRNNView(model, path, module, call, part, alone) for part in parts]
        check_replay(layer_views[0], sample)
        views += layer_views
    for path, layer, adapter in scans:
        scan = ScanView(model, path, adapter(layer), call, alone)
        scan.check_replay(sample)
        check_output(scan, sample)
        views.append(scan)
    return views


def _refuse_learned_state(model: nn.Module, modules: list[nn.Module], sample: Batch, call: Call) -> None:
    """Run once with gradients on, to see whether an initial state is a function of weights."""
    with untouched(model), remembered(model), torch.enable_grad(), captured(modules) as calls:
        first_call(model, sample, call)
    for module in modules:
        if isinstance(module, nn.RNNBase):
            read_call(module, calls[module], sample)
