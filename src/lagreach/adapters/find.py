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
from lagreach.adapters.replay import check_replay
from lagreach.adapters.rows import in_batch_order
from lagreach.adapters.scan_view import ScanView, scan_tolerance
from lagreach.adapters.torch_rnn import TorchRNNView, read_call
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
    refuse_coupling(model, call, sample, sample.x.shape[1])
    alone = len(found) + len(scans) == 1
    views: list[View] = []
    for path, module in found:
        if isinstance(module, nn.RNNCellBase):
            loop = CellLoopView(model, path, module, call, alone)
            loop.refuse_feedback(sample)
            loop.refuse_truncation(sample)
            _check_torch_layer(loop, model, call, sample)
            views += in_batch_order([loop], sample)
            continue
        parts = [None]
        if module.bidirectional:
            parts = [(layer, direction) for layer in range(module.num_layers) for direction in (0, 1)]  # type: ignore[misc]
        layer_views: list[View] = [TorchRNNView(model, path, module, call, part, alone) for part in parts]
        _check_torch_layer(layer_views[0], model, call, sample)
        views += in_batch_order(layer_views, sample)
    for path, layer, adapter in scans:
        scan = ScanView(model, path, adapter(layer), call, alone)
        scan.check_replay(sample)
        scan.refuse_truncation(sample)
        check_replay(
            scan,
            model,
            call,
            sample,
            problem=f"the model gives another output when {scan.name} is replayed",
            fix="is the layer's state used elsewhere? Pass call=lambda model, batch: model(batch.x, use_cache=False)",
            least=scan_tolerance(torch.float32),
        )
        views.append(scan)
    return views


def _check_torch_layer(view: View, model: nn.Module, call: Call, sample: Batch) -> None:
    check_replay(
        view,
        model,
        call,
        sample,
        problem=f"{view.name} does not compute what its weights say",
        fix="a subclass with another forward? Describe it as a Cell and pass it to GatedRNN",
    )


def _refuse_learned_state(model: nn.Module, modules: list[nn.Module], sample: Batch, call: Call) -> None:
    """Run once with gradients on, to see whether an initial state is a function of weights."""
    with untouched(model), torch.enable_grad(), captured(modules) as calls:
        first_call(model, sample, call)
    for module in modules:
        if isinstance(module, nn.RNNBase):
            read_call(module, calls[module], sample)
