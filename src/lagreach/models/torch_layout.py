"""Weights of `torch.nn.LSTM` and `torch.nn.GRU` under the names and shapes of lagreach's cells."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from lagreach.cells import Cell
from lagreach.errors import InputError, UnsupportedError

GATE_ORDER = {"lstm": "ifgo", "torch_gru": "rzn"}
_KEY = re.compile(r"(weight_ih|weight_hh|bias_ih|bias_hh)_l(\d+)$")


def convert(
    cell: Cell, state_dict: Mapping[str, Tensor], num_layers: int, like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Translate a torch state dict to ``layers.<k>.<name>``, checked against the shapes in `like`."""
    if cell.name not in GATE_ORDER:
        raise UnsupportedError(
            f"torch-layout weights do not fit the cell {cell.name}",
            expected="lstm (for torch.nn.LSTM) or torch_gru (for torch.nn.GRU)",
        )
    if getattr(cell, "layernorm", False):
        raise UnsupportedError(
            "torch-layout weights cannot be loaded into a cell with LayerNorm",
            got="layernorm=True",
            fix="build the model with layernorm=False; torch.nn layers have no LayerNorm inside",
        )
    strange = [key for key in state_dict if not _KEY.match(key)]
    if strange:
        raise UnsupportedError(
            "these weights are not those of a plain torch.nn.LSTM or torch.nn.GRU",
            got=", ".join(sorted(strange)[:4]),
            expected="weight_ih_l<k>, weight_hh_l<k> and optionally bias_ih_l<k>, bias_hh_l<k>",
            fix="bidirectional layers and proj_size are not supported here; pass the state_dict of the layer itself",
        )
    layers = {int(_KEY.match(key)[2]) for key in state_dict}  # type: ignore[index]
    if layers != set(range(num_layers)):
        raise InputError("number of layers differs", got=f"layers {sorted(layers)}", expected=f"{num_layers} layers")
    converted: dict[str, Tensor] = {}
    for k in range(num_layers):
        converted |= {f"layers.{k}.{n}": w for n, w in _convert_layer(cell, state_dict, k, like).items()}
    for name, weight in like.items():
        if converted[name].shape != weight.shape:
            raise InputError(f"shape of {name} differs", got=tuple(converted[name].shape), expected=tuple(weight.shape))
    return converted


def _convert_layer(
    cell: Cell, state_dict: Mapping[str, Tensor], k: int, like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    gates = GATE_ORDER[cell.name]

    def parts(key: str) -> dict[str, Tensor]:
        stacked = state_dict.get(f"{key}_l{k}")
        if stacked is None:
            if key.startswith("weight"):
                raise InputError(
                    f"{key}_l{k} is missing from the weights",
                    got=", ".join(sorted(state_dict)),
                    fix="pass the state_dict of the whole layer",
                )
            zero = torch.zeros_like(like[f"layers.{k}.b_{gates[0]}"])
            return dict.fromkeys(gates, zero)  # bias=False
        if stacked.shape[0] % len(gates):
            raise InputError(
                f"{key}_l{k} does not hold {len(gates)} gates",
                got=tuple(stacked.shape),
                expected=f"{cell.name} weights",
            )
        return dict(zip(gates, stacked.chunk(len(gates)), strict=True))

    W, U, b, c = parts("weight_ih"), parts("weight_hh"), parts("bias_ih"), parts("bias_hh")
    layer = {f"W_{g}": W[g] for g in gates} | {f"U_{g}": U[g] for g in gates}
    layer |= {f"b_{g}": b[g] + c[g] for g in gates}
    if cell.name == "torch_gru":  # the candidate's hidden bias sits inside the reset product
        layer |= {"b_n": b["n"], "c_n": c["n"]}
    return layer
