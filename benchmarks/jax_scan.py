"""The training step in JAX, where it is installed: input projections in one product, then `jax.lax.scan` over time.

JAX is no dependency of lagreach; without it this competitor is left out, and the table says so.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lagreach import GatedRNN

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
KINDS = {"const_gate": "h", "shared_gate": "sh", "diag_gate": "sh", "gru": "zrh", "lstm": "ifgo"}


def note() -> str:
    """Which JAX takes part, or that none does."""
    installed = importlib.util.find_spec("jax") is not None
    return f"jax.scan is JAX {version('jax')}" if installed else "JAX is not installed, so it is not timed"


def training_step(ours: GatedRNN, x: Tensor, y: Tensor) -> Callable[[], tuple[Any, Any]] | None:
    """Loss and gradients of the same network with the same weights; None without JAX."""
    if importlib.util.find_spec("jax") is None:
        return None
    os.environ.setdefault("XLA_FLAGS", ONE_THREAD)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # it would take a GPU where there is one
    import jax

    cell, gate = ours.cell.name, getattr(ours.cell, "gate", None)
    weights = {name: p.detach().numpy() for name, p in ours.layers[0].items()}
    blocks = {kind: [weights[f"{kind}_{k}"] for k in KINDS[cell]] for kind in "WUb"}
    params = {kind: jax.numpy.asarray(np.concatenate(parts).T) for kind, parts in blocks.items()}
    params["readout"] = jax.numpy.asarray(ours.readout.weight.detach().numpy())
    params["shift"] = jax.numpy.asarray(ours.readout.bias.detach().numpy())
    inputs, targets = (jax.numpy.asarray(v.numpy().swapaxes(0, 1)) for v in (x, y))  # time first
    step = jax.jit(jax.value_and_grad(_loss(cell, ours.hidden_size, gate)))

    def run() -> tuple[Any, Any]:
        return jax.block_until_ready(step(params, inputs, targets))

    return run


def gradients(pytree: Any) -> dict[str, Tensor]:
    """Gradients under the names of `benchmarks.training_step.comparable_gradients`."""
    return {name: torch.from_numpy(np.array(pytree[name]).T) for name in "WUb"} | {
        "readout": torch.from_numpy(np.array(pytree["readout"]))
    }


def _loss(cell: str, hidden: int, gate: float | None) -> Callable[..., Any]:
    """Squared error of the network, as a function of its weights."""
    import jax

    sigmoid, tanh = jax.nn.sigmoid, jax.numpy.tanh

    def const_gate(a: Any, h: Any, c: Any, U: Any) -> tuple[Any, Any]:
        return (1 - gate) * h + gate * tanh(a + h @ U), c

    def own_gate(a: Any, h: Any, c: Any, U: Any) -> tuple[Any, Any]:
        width = a.shape[1] - hidden  # 1 where all units share a gate
        a = a + h @ U
        s, g = sigmoid(a[:, :width]), tanh(a[:, width:])
        return (1 - s) * h + s * g, c

    def gru(a: Any, h: Any, c: Any, U: Any) -> tuple[Any, Any]:
        gates = sigmoid(a[:, : 2 * hidden] + h @ U[:, : 2 * hidden])
        z, r = gates[:, :hidden], gates[:, hidden:]
        g = tanh(a[:, 2 * hidden :] + (r * h) @ U[:, 2 * hidden :])
        return (1 - z) * h + z * g, c

    def lstm(a: Any, h: Any, c: Any, U: Any) -> tuple[Any, Any]:
        i, f, g, o = jax.numpy.split(a + h @ U, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c

    cells = {"const_gate": const_gate, "shared_gate": own_gate, "diag_gate": own_gate, "gru": gru, "lstm": lstm}
    advance = cells[cell]

    def loss(params: Any, x: Any, y: Any) -> Any:
        start = jax.numpy.zeros((x.shape[1], hidden), x.dtype)

        def one(state: Any, a: Any) -> tuple[Any, Any]:
            after = advance(a, *state, params["U"])
            return after, after[0]

        _, h = jax.lax.scan(one, (start, start), x @ params["W"] + params["b"])
        return jax.numpy.mean((h @ params["readout"].T + params["shift"] - y) ** 2)

    return loss
