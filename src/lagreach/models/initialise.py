"""Initial weights of a cell, from an explicit generator and by the names of the weights.

``W_*`` read the input, ``U_*`` and ``u_*`` the state, ``b_*`` and ``c_*`` are biases, ``ln_*`` belong to a
LayerNorm. Weights of gates start small, so that the gates start near the value their bias gives.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lagreach.cells import Cell
from lagreach.errors import InputError, UnsupportedError

RECURRENT_INITS = ("orthogonal", "uniform")
GATE_WEIGHT_SCALE = 0.1  # of the spread 1/sqrt(fan_in): gates begin within a few percent of their bias
DIAGONAL_RETENTION = 0.9  # default |u_h| of a cell with a diagonal recurrence


def initial_weights(
    cell: Cell,
    input_size: int,
    hidden_size: int,
    *,
    recurrent_init: str = "orthogonal",
    gate_init: float | None = None,
    forget_bias: float | None = None,
    chrono: int | None = None,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """Draw the weights of one layer; see `GatedRNN` for the options."""
    if recurrent_init not in RECURRENT_INITS:
        raise InputError("unknown recurrent_init", got=repr(recurrent_init), expected=" or ".join(RECURRENT_INITS))
    weights: dict[str, Tensor] = {}
    for name, shape in cell.shapes(input_size, hidden_size).items():
        weight = torch.zeros(shape, dtype=dtype)
        kind, _, suffix = name.partition("_")
        if kind == "ln":
            weight.fill_(1.0 if suffix == "gain" else 0.0)
        elif recurrent_init == "uniform":
            weight.uniform_(-1 / math.sqrt(hidden_size), 1 / math.sqrt(hidden_size), generator=generator)
        elif kind == "u":
            weight.copy_(DIAGONAL_RETENTION * _signs(shape, generator))
        elif kind in ("b", "c"):
            pass
        elif suffix in cell.gate_names:
            weight.normal_(0.0, GATE_WEIGHT_SCALE / math.sqrt(shape[-1]), generator=generator)
        elif len(shape) == 2:
            torch.nn.init.orthogonal_(weight, generator=generator)
        else:
            weight.uniform_(-1 / math.sqrt(hidden_size), 1 / math.sqrt(hidden_size), generator=generator)
        weights[name] = weight
    _set_retention(cell, weights, gate_init, forget_bias, chrono, generator)
    return weights


def _signs(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    return torch.randint(0, 2, shape, generator=generator) * 2.0 - 1.0


def _set_retention(
    cell: Cell,
    weights: dict[str, Tensor],
    gate_init: float | None,
    forget_bias: float | None,
    chrono: int | None,
    generator: torch.Generator | None,
) -> None:
    """Apply the one retention option that was given."""
    options = {"gate_init": gate_init, "forget_bias": forget_bias, "chrono": chrono}
    options = {k: v for k, v in options.items() if v is not None}
    if len(options) > 1:
        raise InputError(
            "at most one of gate_init, forget_bias and chrono sets the retention",
            got=", ".join(f"{k}={v}" for k, v in options.items()),
            fix="keep one of them",
        )
    if gate_init is not None and not 0 < gate_init < 1:
        raise InputError("gate_init must lie strictly between 0 and 1", got=gate_init, fix="try gate_init=0.05")
    if chrono is not None and chrono < 3:
        raise InputError("chrono needs the longest lag to remember, at least 3 steps", got=chrono)
    if not options:
        return
    if "u_h" in weights and gate_init is not None:
        weights["u_h"].copy_(weights["u_h"].sign() * (1 - gate_init))
        return
    if cell.gate_option is not None and gate_init is not None:
        return  # a fixed gate is an option of the cell, set when it was made
    if cell.retention_bias is None:
        option = next(iter(options))
        raise UnsupportedError(
            f"{type(cell).__name__} has no retention gate whose bias {option} could set",
            got=f"{option}={options[option]}",
            fix="leave the option out, or choose a gated cell",
        )
    name, sign = cell.retention_bias
    bias = weights[name]
    if chrono is not None:
        # Tallec & Ollivier (2018): retention times uniform in [1, chrono - 1]
        times = torch.empty(bias.shape, dtype=torch.float64).uniform_(1, chrono - 1, generator=generator)
        logit = torch.log(times).to(bias.dtype)
        if "b_i" in weights:
            weights["b_i"].copy_(-logit)
    elif gate_init is not None:
        logit = torch.full_like(bias, math.log1p(-gate_init) - math.log(gate_init))
    elif forget_bias is not None:
        logit = torch.full_like(bias, forget_bias)
    bias.copy_(sign * logit)
