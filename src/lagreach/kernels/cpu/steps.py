"""First-order factors of every step, and how a direction of the weights moves each state, from large products.

States are known here, so nothing waits for the step before: pre-activations of all steps are one product, their movement
along the direction a second one, and one pass over both makes the rest. LayerNorm and the GRUs are left to others.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.buffers import empty
from lagreach.cells import Cell, Dual, Factors, Params
from lagreach.kernels.cpu import missing
from lagreach.kernels.cpu.compiled import Weights, compiled
from lagreach.kernels.cpu.nonlinear import activate, activate_gates, one_minus_sigmoid_of, sigmoid_of
from lagreach.kernels.cpu.packing import pack
from lagreach.kernels.entry import check_arrays, check_scan

# whose recurrent weights the diagonals are needed of, in the order of the blocks
DIAGONALS = {"const_gate": "h", "shared_gate": "h", "diag_gate": "sh", "lstm": "ifgo"}


class FirstOrderSteps(NamedTuple):
    """Factors (seq, time, unit) and, if a direction was given, ``B_t w`` (seq, time, state)."""

    factors: Factors
    moved: Tensor | None


def first_order_steps(
    cell: Cell,
    x: Float[Tensor, "seq time input"],
    s: Float[Tensor, "seq time state"],
    params: Params,
    direction: Params | None = None,
) -> FirstOrderSteps | None:
    """Return what `Cell.factors` returns, and the movement along a direction; None where that is not known here.

    Parameters
    ----------
    s
        States before each step.
    direction
        A direction of the weights, which names every weight.

    Examples
    --------
    >>> from lagreach.cells.diag_gate import DiagGate
    >>> x, s, params = DiagGate().example(torch.Generator().manual_seed(0))
    >>> steps = first_order_steps(DiagGate(), x, s, params, params)
    >>> bool(torch.allclose(steps.factors.middle.slope, DiagGate().correction(x, s, params)))
    True
    """
    known, plain = cell.plain(params)
    along = None if direction is None else cell.plain(direction)[1]
    tensors = [x, s, *plain.values(), *(along or {}).values()]
    if (
        known.name not in DIAGONALS
        or getattr(known, "layernorm", False)
        or any(v.dtype != x.dtype or v.device != x.device or v.numel() == 0 for v in tensors)
        or missing(known, x.device, x.dtype) is not None
    ):
        return None
    _check(known, x, s, plain, along)
    seq, time, units = *x.shape[:2], known.output(s).shape[-1]
    blocks = [block.detach().flatten(0, 1).contiguous() for block in known.split(s)]
    inputs = x.detach().flatten(0, 1)
    weights = _packed(known, plain)
    act = _products(inputs, blocks[0], weights)
    dot = None if along is None else _products(inputs, blocks[0], _packed(known, along))
    u = np.stack([plain[f"U_{k}"].detach().diagonal().numpy() for k in DIAGONALS[known.name]])
    if known.name == "shared_gate":
        u = np.concatenate((u, plain["U_s"].detach().numpy()))
    moved = None if dot is None else empty((len(inputs), s.shape[-1]), act.dtype)
    out = empty((4 if known.name == "lstm" else 2, len(inputs), units), act.dtype)
    h, *c = (block.numpy() for block in blocks)
    {"const_gate": _const, "shared_gate": _shared, "diag_gate": _diag, "lstm": _lstm}[known.name](
        act, dot, h, c[0] if c else None, u, weights.gate, weights.kept, time, out, moved
    )
    made = torch.from_numpy(out).unflatten(1, (seq, time))
    factors = Factors.uniform(Dual(made[0], made[1]))
    if known.name == "lstm":
        zero = torch.zeros_like(made[0])
        factors = Factors(Dual(made[2], made[3]), factors.middle, Dual(made[0], zero), Dual(made[2], zero))
    return FirstOrderSteps(factors, None if moved is None else torch.from_numpy(moved).unflatten(0, (seq, time)))


def _check(cell: Cell, x: Tensor, s: Tensor, params: Params, direction: Params | None) -> None:
    """Compare inputs, states before each step and weights with the shapes that the loops take for granted."""
    check_arrays(f"the steps of {cell.name}", {"states": (s, (*x.shape[:2], s.shape[-1]))})
    for what, weights in (("the weight", params), ("the direction of", direction)):
        if weights is not None:
            check_scan(cell, x[None], s[None, :, 0], {name: p[None] for name, p in weights.items()}, what)


def _packed(cell: Cell, params: Params) -> Weights:
    return pack(cell, {name: p.detach()[None] for name, p in params.items()})[0]


def _products(x: Tensor, h: Tensor, weights: Weights) -> np.ndarray:
    """``W x + U h + b`` for all blocks, one row per step."""
    result = empty((len(x), weights.b.size), weights.b.dtype)
    out = torch.from_numpy(result)
    torch.addmm(torch.from_numpy(weights.b), x, torch.from_numpy(weights.Wt), out=out)
    out.addmm_(h, torch.from_numpy(weights.Ut))
    return result


# Rows are steps. `act` holds pre-activations and is overwritten, `dot` their movement (or None), `u` diagonals of U, `out`
# retention and correction, and `moved` the movement of the state. All have the same arguments, used or not.


@compiled
@no_type_check
def _const(act, dot, h, c, u, gate, kept, time, out, moved):
    """``1 - s`` and ``s (1-g^2) u``."""
    units, one = np.uint64(h.shape[1]), h.dtype.type(1)
    activate(act, 0, h.shape[1])
    for i in range(h.shape[0]):
        for j in range(units):
            slope = gate * (one - act[i, j] * act[i, j])
            out[0, i, j], out[1, i, j] = kept, slope * u[0, j]
            if dot is not None:
                moved[i, j] = slope * dot[i, j]


@compiled
@no_type_check
def _shared(act, dot, h, c, u, gate, kept, time, out, moved):
    """As `_diag`, with one gate for all units, in the column behind them; u holds the diagonal of U_h, then the row U_s."""
    n, units, one = h.shape[1], np.uint64(h.shape[1]), h.dtype.type(1)
    activate(act, 0, n)
    activate_gates(act, n, n + 1)
    for i in range(h.shape[0]):
        share, rest = sigmoid_of(act[i, n]), one_minus_sigmoid_of(act[i, n])
        for j in range(units):
            g = act[i, j]
            slope, gate_slope = share * (one - g * g), share * rest * (g - h[i, j])
            out[0, i, j], out[1, i, j] = rest, slope * u[0, j] + gate_slope * u[1, j]
            if dot is not None:
                moved[i, j] = slope * dot[i, j] + gate_slope * dot[i, n]


@compiled
@no_type_check
def _diag(act, dot, h, c, u, gate, kept, time, out, moved):
    """``1 - s`` and ``s (1-g^2) u_h + (g-h) s(1-s) u_s``."""
    n, units, one = h.shape[1], np.uint64(h.shape[1]), h.dtype.type(1)
    activate_gates(act, 0, n)
    activate(act, n, 2 * n)
    for i in range(h.shape[0]):
        for j in range(units):
            s, g = act[i, j], act[i, units + j]
            slope, gate_slope = sigmoid_of(s) * (one - g * g), sigmoid_of(s) * one_minus_sigmoid_of(s) * (g - h[i, j])
            out[0, i, j], out[1, i, j] = one_minus_sigmoid_of(s), slope * u[1, j] + gate_slope * u[0, j]
            if dot is not None:
                moved[i, j] = slope * dot[i, units + j] + gate_slope * dot[i, j]


@compiled
@no_type_check
def _lstm(act, dot, h, c, u, gate, kept, time, out, moved):
    """Retention and correction of the middle of a window, then of its newest step: see `lagreach.cells.lstm.LSTM`."""
    n, units, one = h.shape[1], np.uint64(h.shape[1]), h.dtype.type(1)
    activate_gates(act, 0, 2 * n)
    activate(act, 2 * n, 3 * n)
    activate_gates(act, 3 * n, 4 * n)
    tanh_c = np.empty((1, n), h.dtype)
    e_before = np.zeros(n, h.dtype)
    two, three = units + units, units + units + units
    for i in range(h.shape[0]):
        for j in range(units):
            tanh_c[0, j] = sigmoid_of(act[i, units + j]) * c[i, j] + sigmoid_of(act[i, j]) * act[i, two + j]
        activate(tanh_c, 0, n)
        if i % time == 0:
            e_before[:] = 0
        for j in range(units):
            a_i, a_f, g, a_o = act[i, j], act[i, units + j], act[i, two + j], act[i, three + j]
            f, o, th = sigmoid_of(a_f), sigmoid_of(a_o), tanh_c[0, j]
            i_slope, f_slope = g * sigmoid_of(a_i) * one_minus_sigmoid_of(a_i), c[i, j] * f * one_minus_sigmoid_of(a_f)
            g_slope, o_slope = sigmoid_of(a_i) * (one - g * g), th * o * one_minus_sigmoid_of(a_o)
            e = o * (one - th * th)
            c1 = i_slope * u[0, j] + f_slope * u[1, j] + g_slope * u[2, j]
            out[0, i, j], out[1, i, j] = f, c1 * e_before[j]
            out[2, i, j], out[3, i, j] = e * f, (o_slope * u[3, j] + e * c1) * e_before[j]
            e_before[j] = e
            if dot is not None:
                c_dot = i_slope * dot[i, j] + f_slope * dot[i, units + j] + g_slope * dot[i, two + j]
                moved[i, j], moved[i, units + j] = o_slope * dot[i, three + j] + e * c_dot, c_dot
