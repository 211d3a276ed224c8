"""Other starts of a network: an orthogonal recurrence, more units, another cell."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lagreach.advice.gates import spread_biases
from lagreach.models.gated_rnn import GatedRNN

CELL_OF = {nn.LSTM: "lstm", nn.GRU: "torch_gru", nn.RNN: "elman"}


def orthogonal_weights(model: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Recurrent weights, by parameter name, that keep the length of what they carry: for plain tanh or relu networks.

    >>> model = GatedRNN("elman", 2, 4, 1, recurrent_init="uniform")
    >>> [(name, round(torch.linalg.svdvals(w).min().item(), 3)) for name, w in orthogonal_weights(model).items()]
    [('layers.0.U_h', 1.0)]
    """
    generator = torch.Generator().manual_seed(seed)
    chosen: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        names = []
        if isinstance(module, nn.RNN):
            names = [name for name, _ in module.named_parameters() if name.startswith("weight_hh")]
        elif isinstance(module, GatedRNN) and module.cell.name == "elman":
            names = [f"layers.{k}.U_h" for k in range(module.num_layers)]
        for name in names:
            weight = module.get_parameter(name).detach()
            drawn = nn.init.orthogonal_(torch.empty(weight.shape), generator=generator)
            chosen[f"{path}.{name}".lstrip(".")] = drawn.to(weight)
    return chosen


def is_orthogonal(model: nn.Module, names: dict[str, Tensor]) -> bool:
    """Whether these weights are orthogonal already."""
    held = dict(model.named_parameters(remove_duplicate=False))
    values = [torch.linalg.svdvals(held[name].detach().double()) for name in names]
    return all(float((v - 1).abs().max()) < 0.05 for v in values)


def write(model: nn.Module, values: dict[str, Tensor]) -> None:
    """Put values into a model's weights."""
    held = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, value in values.items():
            held[name].copy_(value.to(held[name]))


def recurrent_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Layers that this package or torch brings, with their names."""
    kinds = (GatedRNN, nn.LSTM, nn.GRU, nn.RNN)
    return [(path, module) for path, module in model.named_modules() if isinstance(module, kinds)]


def alike(
    model: nn.Module, inputs: int, outputs: int, *, units: int | None = None, cell: str | None = None, lag: int | None = None,
    seed: int = 0,
) -> GatedRNN | None:  # fmt: skip
    """A network like this one with another number of units, or another cell started for a lag; None where it has no like.

    A `GatedRNN` is built again. For a model around one `nn.LSTM`, `nn.GRU` or `nn.RNN` that reads the inputs themselves, the
    like is that layer with a linear readout.
    """
    layers = recurrent_layers(model)
    if len(layers) != 1:
        return None
    _, layer = layers[0]
    generator = torch.Generator().manual_seed(seed)
    if isinstance(layer, GatedRNN):
        options: dict[str, Any] = dict(layer.start)
        name = layer.cell.name
        sizes = (layer.input_size, units or layer.hidden_size, layer.output_size, layer.num_layers)
    else:
        assert isinstance(layer, nn.RNNBase)
        if layer.input_size != inputs or layer.bidirectional or layer.proj_size:
            return None
        options = {"recurrent_init": "uniform"}
        name = next(name for kind, name in CELL_OF.items() if isinstance(layer, kind))
        sizes = (inputs, units or layer.hidden_size, outputs, layer.num_layers)
    if cell is not None and cell != name:
        options = {}
    built = GatedRNN(cell or name, *sizes, **options, generator=generator)
    if lag is not None:
        write(built, spread_biases(built, lag))
    return built
