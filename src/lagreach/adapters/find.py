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
    untouched,
)
from lagreach.adapters.cell_loops import CellLoopView, own_cell_loop, torch_cell_loop
from lagreach.adapters.coupling import refuse_coupling
from lagreach.adapters.families import scan_modules
from lagreach.adapters.own_cells import own_cell_paths
from lagreach.adapters.replay import check_replay
from lagreach.adapters.rows import in_batch_order
from lagreach.adapters.scan_layer import ScanLayer
from lagreach.adapters.scan_view import ScanView, scan_tolerance
from lagreach.adapters.torch_rnn import TorchRNNView, read_call
from lagreach.adapters.view import View
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError

Layers = list[tuple[str, nn.RNNBase | nn.RNNCellBase]]
Scans = list[tuple[str, nn.Module, type[ScanLayer]]]


def recurrent_modules(model: nn.Module, only: str | None = None) -> tuple[Layers, Scans]:
    """Recurrent layers of `torch.nn` and gated linear layers, by path; with `only`, those at or inside that path."""
    part, prefix = (model, "") if not only else (model.get_submodule(only), f"{only}.")
    recurrent = [
        (f"{prefix}{path}".rstrip("."), module)
        for path, module in part.named_modules()
        if isinstance(module, (nn.RNNBase, nn.RNNCellBase))
    ]
    return recurrent, [(f"{prefix}{path}".rstrip("."), module, adapter) for path, module, adapter in scan_modules(part)]


def torch_views(model: nn.Module, sample: Batch, call: Call | None = None, only: str | None = None) -> list[View]:
    """Return a view of every recurrent layer in a model, of `torch.nn` or gated linear, checked on a small batch.

    With `only`, of the layers at or inside that path.
    """
    call = call or default_call
    recurrent, scans = recurrent_modules(model, only)
    own_cells_at = [] if recurrent or scans else own_cell_paths(model, sample, call, only)
    if not recurrent and not scans and not own_cells_at:
        looked_at = sorted({type(module).__name__ for module in model.modules()})
        raise UnsupportedError(
            "no recurrent layer was found in the model",
            got=f"modules of type {', '.join(looked_at)}",
            expected="torch.nn.RNN, GRU, LSTM or their cells, a gated linear layer (docs/adapters.md), a cell of your own "
            "that is called as forward(x, state) once a step, or lagreach.GatedRNN",
            fix="leave lags_of out: lags of the whole model need none of these; or describe your recurrence as a Cell",
        )
    refuse_batch_norm(model)
    _refuse_learned_state(model, [module for _, module in recurrent], sample, call)
    refuse_coupling(model, call, sample, sample.x.shape[1])
    alone = only is None and len(recurrent) + len(scans) + len(own_cells_at) == 1
    views: list[View] = []
    for path, module in recurrent:
        if isinstance(module, nn.RNNCellBase):
            views += _checked_loop(torch_cell_loop(model, path, module, call, alone), model, call, sample)
            continue
        parts = [None]
        if module.bidirectional:
            parts = [(layer, direction) for layer in range(module.num_layers) for direction in (0, 1)]  # type: ignore[misc]
        layer_views: list[View] = [TorchRNNView(model, path, module, call, part, alone) for part in parts]
        _check_torch_layer(layer_views[0], model, call, sample)
        views += in_batch_order(layer_views, sample)
    for path in own_cells_at:
        views += _checked_loop(own_cell_loop(model, path, sample, call, alone), model, call, sample)
    looping: list[ScanLayer] = []
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
        if scan.loops(sample):
            looping.append(scan.layer)
        views.append(scan)
    for view in views:
        if isinstance(view, ScanView):
            view.replay_beside(looping)
    return views


def _checked_loop(loop: CellLoopView, model: nn.Module, call: Call, sample: Batch) -> list[View]:
    loop.refuse_feedback(sample)
    loop.refuse_truncation(sample)
    _check_torch_layer(loop, model, call, sample)
    return in_batch_order([loop], sample)


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
