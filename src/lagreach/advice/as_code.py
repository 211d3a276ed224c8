"""Changes of a model as lines of Python that run as they stand, with `model`, `x` and `optimiser` as the reader has them."""

from __future__ import annotations

from keyword import iskeyword
from typing import Any

from torch import nn

from lagreach.models.gated_rnn import GatedRNN

TORCH_NAMES = {"elman": "RNN", "lstm": "LSTM", "torch_gru": "GRU"}
USUAL: dict[str, Any] = {
    "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False, "proj_size": 0,
}  # fmt: skip


def rebuilt(
    model: nn.Module, path: str, *, cell: str | None = None, units: int | None = None, **start: Any
) -> list[str]:
    """Put another layer in the place of the one at `path`: of another cell, of more units, started in another way.

    Where there are more units, what reads them is made anew as well, if it is one linear layer.

    >>> model = nn.ModuleDict({"lstm": nn.LSTM(2, 8, num_layers=2, batch_first=True), "out": nn.Linear(8, 1)})
    >>> for line in rebuilt(model, "lstm", units=32):
    ...     print(line)
    model.lstm = torch.nn.LSTM(2, 32, num_layers=2, batch_first=True)
    model.out = torch.nn.Linear(32, 1)
    >>> rebuilt(GatedRNN("elman", 2, 8, 1, recurrent_init="uniform"), "", recurrent_init="orthogonal")
    ["model = lagreach.GatedRNN('elman', 2, 8, 1, recurrent_init='orthogonal')"]
    """
    layer = model.get_submodule(path)
    if isinstance(layer, GatedRNN):
        options = dict(layer.start) if cell in (None, layer.cell.name) else {}
        layers = {"num_layers": layer.num_layers} if layer.num_layers > 1 else {}
        sizes = (cell or layer.cell.name, layer.input_size, units or layer.hidden_size, layer.output_size)
        return [f"{place(model, path)} = lagreach.GatedRNN({_arguments(sizes, layers | options | start)})"]
    assert isinstance(layer, nn.RNNBase)
    kind = TORCH_NAMES[cell] if cell else type(layer).__name__
    usual = USUAL | ({"nonlinearity": "tanh"} if kind == type(layer).__name__ == "RNN" else {})
    options = {name: getattr(layer, name) for name, value in usual.items() if getattr(layer, name) != value}
    lines = [
        f"{place(model, path)} = torch.nn.{kind}({_arguments((layer.input_size, units or layer.hidden_size), options)})"
    ]
    return lines if units is None else [*lines, *_readout(model, layer, units)]


def _readout(model: nn.Module, layer: nn.RNNBase, units: int) -> list[str]:
    """A linear layer for more units in the place of the one that reads a layer; a remark where there is not just one."""
    wide = 2 if layer.bidirectional else 1
    readers = [
        (path, part)
        for path, part in model.named_modules()
        if isinstance(part, nn.Linear) and part.in_features == wide * layer.hidden_size
    ]
    if len(readers) != 1:
        return [f"# and let what reads the layer take {wide * units} values"]
    ((path, part),) = readers
    options: dict[str, Any] = {} if part.bias is not None else {"bias": False}
    return [f"{place(model, path)} = torch.nn.Linear({_arguments((wide * units, part.out_features), options)})"]


def place(model: nn.Module, path: str) -> str:
    """A module of the model as Python names it: parts of lists and dicts by their keys.

    >>> body = nn.ModuleDict({"my-rnn": nn.LSTM(2, 8), "out": nn.Sequential(nn.Linear(8, 1))})
    >>> place(body, "my-rnn"), place(body, "out.0"), place(body, "")
    ("model['my-rnn']", 'model.out[0]', 'model')
    """
    code, part = "model", model
    for name in path.split(".") if path else ():
        if name.isidentifier() and not iskeyword(name):
            code += f".{name}"
        elif isinstance(part, nn.ModuleDict):
            code += f"[{name!r}]"
        else:
            code += f"[{name}]" if isinstance(part, (nn.Sequential, nn.ModuleList)) else f"._modules[{name!r}]"
        part = part.get_submodule(name)
    return code


def _arguments(values: tuple[Any, ...], options: dict[str, Any]) -> str:
    named = [f"{name}={value!r}" for name, value in options.items() if value is not None]
    return ", ".join([*map(repr, values), *named])
