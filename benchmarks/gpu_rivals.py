"""What training steps on a GPU are compared with: torch's eager loop, cuDNN, a JAX scan, and the floors of the device."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.training_step import EAGER, EagerLoop
from lagreach.kernels.gpu.plan import FAMILIES

CUDNN: dict[str, type[nn.RNNBase]] = {"lstm": nn.LSTM, "torch_gru": nn.GRU}
COPIED = 2**30  # bytes
SQUARE = 8192  # rows of the matrices whose product gives the rate
SPLIT = 3  # products of float16 numbers in one of float32 accuracy

Step = Callable[[], object]


def problem_data(shape: Mapping[str, int]) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one model."""
    x = torch.randn(shape["sequences"], shape["time"], shape["input"], device="cuda")
    return x, torch.randn_like(x[..., :1])


def eager_step(cell: str, shape: Mapping[str, int]) -> Step | None:
    """Forward and backward pass of the loop one writes by hand; None for a cell it was not written for."""
    if cell not in EAGER:
        return None
    network: EagerLoop = EAGER[cell](shape["input"], shape["hidden"]).cuda()
    x, y = problem_data(shape)
    leaves = list(network.parameters())
    return lambda: torch.autograd.grad(nn.functional.mse_loss(network(x), y), leaves)


def cudnn_step(cell: str, shape: Mapping[str, int]) -> Step | None:
    """The same for one model of cuDNN's; None for a cell that it does not have."""
    if cell not in CUDNN:
        return None
    layer = CUDNN[cell](shape["input"], shape["hidden"], batch_first=True).cuda()
    readout = nn.Linear(shape["hidden"], 1).cuda()
    x, y = problem_data(shape)
    leaves = [*layer.parameters(), *readout.parameters()]
    return lambda: torch.autograd.grad(nn.functional.mse_loss(readout(layer(x)[0]), y), leaves)


def jax_ms(cell: str, shape: Mapping[str, int], repeats: int) -> float | None:
    """Milliseconds (wall time) of a compiled ``jax.lax.scan``; None without JAX on a GPU, or for other cells."""
    if importlib.util.find_spec("jax") is None or cell not in EAGER:
        return None
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # it would take most of the memory at once
    import jax

    if jax.default_backend() != "gpu":
        return None
    step, data = jax_step(cell, shape)
    compiled = jax.jit(jax.grad(step))
    jax.block_until_ready(compiled(*data))
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(compiled(*data))
        taken.append(1e3 * (time.perf_counter() - began))
    return median(taken)


def jax_step(cell: str, shape: Mapping[str, int]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Loss as a function of the weights, and its arguments: products with the inputs before the scan, gates stacked."""
    import jax
    import jax.numpy as jnp

    B, T, D, H = (shape[k] for k in ("sequences", "time", "input", "hidden"))
    widths = [1 if kind in EAGER[cell].shared else H for kind in EAGER[cell].kinds]
    total, ends = sum(widths), [sum(widths[: k + 1]) for k in range(len(widths) - 1)]
    keys = jax.random.split(jax.random.PRNGKey(0), 5)
    weights = {
        "W": 0.1 * jax.random.normal(keys[0], (D, total)),
        "U": 0.1 * jax.random.normal(keys[1], (H, total)),
        "b": jnp.zeros(total),
        "readout": 0.1 * jax.random.normal(keys[2], (H, 1)),
    }
    x, y = jax.random.normal(keys[3], (T, B, D)), jax.random.normal(keys[4], (T, B, 1))

    def advance(U: Any, h: Any, c: Any, pre: Any) -> tuple[Any, Any]:
        if cell == "gru":
            gates = jax.nn.sigmoid(pre[:, : 2 * H] + h @ U[:, : 2 * H])
            z, r = gates[:, :H], gates[:, H:]
            g = jnp.tanh(pre[:, 2 * H :] + (r * h) @ U[:, 2 * H :])
            return (1 - z) * h + z * g, c
        a = jnp.split(pre + h @ U, ends, axis=1)
        if cell == "lstm":
            i, f, o = (jax.nn.sigmoid(a[k]) for k in (0, 1, 3))
            c = f * c + i * jnp.tanh(a[2])
            return o * jnp.tanh(c), c
        s = 0.05 if cell == "const_gate" else jax.nn.sigmoid(a[0])
        return (1 - s) * h + s * jnp.tanh(a[-1]), c

    def loss(weights: Any, x: Any, y: Any) -> Any:
        def one(carry: Any, pre: Any) -> tuple[Any, Any]:
            h, c = advance(weights["U"], *carry, pre)
            return (h, c), h

        zero = jnp.zeros((B, H))
        _, states = jax.lax.scan(one, (zero, zero), x @ weights["W"] + weights["b"])
        return jnp.mean((states @ weights["readout"] - y) ** 2)

    return loss, (weights, x, y)


# Floors


def counts(cell: str, shape: Mapping[str, int], replicas: int) -> tuple[int, int]:
    """Least bytes through device memory, and multiplications and additions, of one training step.

    Bytes: inputs and states read in both passes, states, kept activations and gradients of the gates written once and
    read once, in float32. Operations: the products with the recurrent weights (forward, backward, gradient) and with
    those of the inputs (forward, gradient).

    >>> counts("lstm", {"sequences": 16, "time": 1024, "input": 16, "hidden": 64}, 1)
    (85983232, 1879048192)
    """
    family, H, D = FAMILIES[cell], shape["hidden"], shape["input"]
    rows = replicas * shape["sequences"] * shape["time"]
    width = family.blocks * H
    numbers = 2 * D + 2 * family.state * H + 2 * family.kept * H + 2 * (family.gradients or family.blocks) * H
    recurrent = width * H if family.dense else width
    return 4 * rows * numbers, 2 * rows * (3 * recurrent + 2 * width * D)


def device_rates(milliseconds: Callable[[Step], list[float]]) -> dict[str, float]:
    """Measured bytes per second of a copy, and operations per second of a float16 product with float32 sums."""
    source = torch.randn(COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    copy = median(milliseconds(lambda: target.copy_(source)))
    a, b = (torch.randn(SQUARE, SQUARE, device="cuda", dtype=torch.float16) for _ in range(2))
    product = median(milliseconds(lambda: a @ b))
    return {"bytes_per_second": 2 * COPIED / copy * 1e3, "float16_flops_per_second": 2 * SQUARE**3 / product * 1e3}


def floors(
    cell: str, shape: Mapping[str, int], replicas: int, rates: Mapping[str, float], step_latency_ms: float
) -> dict[str, float]:
    """Milliseconds that no version of a step can do without: its memory traffic, its products, and its chain of steps.

    `step_latency_ms` is that of one time step of the fastest fused recurrence, forward and backward.
    """
    moved, operations = counts(cell, shape, replicas)
    return {
        "memory": 1e3 * moved / rates["bytes_per_second"],
        "products": 1e3 * SPLIT * operations / rates["float16_flops_per_second"],
        "latency": shape["time"] * step_latency_ms,
    }
