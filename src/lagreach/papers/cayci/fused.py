"""Output and gradient of a diagonal network in one compiled loop, for activations ``p tanh(q z) + r``.

Sixty-four units at a time, one sequence after the other: the states of a block over all times stay in cache, every loop
over units becomes vector instructions, and there are enough of them to hide how long one tanh takes. The gradient runs
the block forward again instead of storing states, so memory is that of inputs and outputs. The plain twin is
`lagreach.papers.cayci.streaming`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import Float
from numba import njit, types
from numba.extending import intrinsic
from torch import Tensor

from lagreach._util.compiling import kept_on_disk
from lagreach.cells.activations import Activation
from lagreach.kernels.entry import check_arrays
from lagreach.papers.cayci.derivatives import affine_tanh
from lagreach.papers.cayci.initialise import Weights
from lagreach.papers.cayci.recurrence import halves

LANES = 64  # units side by side
_GROUP = 4  # input coordinates taken together; inputs are padded with zeros to a multiple of it


def outputs(weights: Weights, x: Float[Tensor, "seq time input"], sigma: Activation) -> Float[Tensor, "seq time"]:
    """Return ``F_t`` (CE (3)); see `lagreach.papers.cayci.streaming.outputs`."""
    _check(weights, x)
    p, q, r = _form(sigma)
    parts = [_blocks(half) for half in halves(weights)]
    W, U, c = (np.stack([part[k] for part in parts]) for k in range(3))
    total = np.zeros(x.shape[:2])
    run_outputs(W, U, c, _padded(x), p, q, r, total)
    return torch.from_numpy(total / math.sqrt(len(weights.W)))


def pullback(
    weights: Weights, x: Float[Tensor, "seq time input"], cotangent: Float[Tensor, "seq time"], sigma: Activation
) -> tuple[Float[Tensor, "unit"], Float[Tensor, "unit input"]]:
    """Gradient of ``sum cotangent F``; see `lagreach.papers.cayci.streaming.pullback`."""
    _check(weights, x, cotangent)
    p, q, r = _form(sigma)
    m, d = weights.U.shape
    W, U, c = _blocks(weights)
    dW, dU = np.zeros_like(W), np.zeros_like(U)
    scaled = np.ascontiguousarray(cotangent.detach().numpy() / math.sqrt(m))
    run_pullback(W, U, c, _padded(x), scaled, p, q, r, dW, dU)
    gradient_u = dU.transpose(0, 2, 1).reshape(-1, dU.shape[1])[:m, :d]
    return torch.from_numpy(dW.reshape(-1)[:m].copy()), torch.from_numpy(gradient_u.copy())


def _check(weights: Weights, x: Tensor, cotangent: Tensor | None = None) -> None:
    m, d = weights.U.shape
    arrays = {"W": (weights.W, (m,)), "c": (weights.c, (m,)), "x": (x, (*x.shape[:2], d))}
    check_arrays("a diagonal network", arrays | {"the cotangent": (cotangent, tuple(x.shape[:2]))})


def _form(sigma: Activation) -> tuple[float, float, float]:
    affine = affine_tanh(sigma)
    assert affine is not None  # streaming asks before it comes here
    return affine.outer, affine.inner, affine.shift


def _blocks(weights: Weights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """W (block, lane), U (block, input, lane) and c (block, lane), padded with units that read and say nothing."""
    m, d = weights.U.shape
    blocks = -(-m // LANES)
    W, c = np.zeros((2, blocks * LANES))
    U = np.zeros((blocks * LANES, -(-d // _GROUP) * _GROUP))
    W[:m], c[:m], U[:m, :d] = weights.W.detach().numpy(), weights.c.detach().numpy(), weights.U.detach().numpy()
    lanes = np.ascontiguousarray(U.reshape(blocks, LANES, -1).transpose(0, 2, 1))
    return W.reshape(blocks, LANES), lanes, c.reshape(blocks, LANES)


def _padded(x: Tensor) -> np.ndarray:
    n, steps, d = x.shape
    out = np.zeros((n, steps, -(-d // _GROUP) * _GROUP))
    out[..., :d] = x.detach().numpy()
    return out


# Vector tanh: exp by powers of two and a polynomial. The bit patterns of numbers are needed for the powers.
_ROUND = 1.5 * 2.0**52  # adding it rounds to an integer and leaves that integer in the lowest bits
_ONE_BITS = np.int64(1023) << np.int64(52)
_PER_OCTAVE = 1.0 / math.log(2.0)
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = (1.0 / math.factorial(k) for k in range(2, 14))
_FLAT = 44.0  # exp(44) no longer differs from exp(44) + 2


@intrinsic
@no_type_check
def bits_of(typing_context, number):
    """Return the bits of a float64 as an integer."""

    def build(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.int64))

    return types.int64(types.float64), build


@intrinsic
@no_type_check
def number_of(typing_context, bits):
    """Return the float64 that has these bits."""

    def build(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.float64))

    return types.float64(types.int64), build


# "contract" allows fused multiply-add; nothing may be reordered, which would undo the rounding by _ROUND
@njit(fastmath={"contract"}, error_model="numpy", inline="always")
@no_type_check
def tanh(z):
    """``expm1(2|z|) / (expm1(2|z|) + 2)`` without branches, so that a loop over it becomes vector code."""
    double = 2.0 * abs(z)
    size = _FLAT if double > _FLAT else double  # lets NaN through
    shifted = size * _PER_OCTAVE + _ROUND
    k = shifted - _ROUND
    f = (size - k * _LN2_HIGH) - k * _LN2_LOW
    f2 = f * f
    f4 = f2 * f2
    low = (_C2 + f * _C3) + f2 * (_C4 + f * _C5)
    middle = (_C6 + f * _C7) + f2 * (_C8 + f * _C9)
    high = (_C10 + f * _C11) + f2 * (_C12 + f * _C13)
    fraction = f + f2 * (low + f4 * (middle + f4 * high))
    power = number_of((bits_of(shifted) << np.int64(52)) + _ONE_BITS)
    e = power * fraction + (power - 1.0)
    return math.copysign(e / (e + 2.0), z)


@njit(fastmath={"contract"}, error_model="numpy", inline="always")
@no_type_check
def run(W, U, x, p, q, r, z, H):
    """States of one block over one sequence; H[0] is zero."""
    last = x.shape[1] - _GROUP
    for t in range(x.shape[0]):
        for k in range(0, last, _GROUP):
            x0, x1, x2, x3 = x[t, k], x[t, k + 1], x[t, k + 2], x[t, k + 3]
            for lane in range(LANES):
                part = (U[k, lane] * x0 + U[k + 1, lane] * x1) + (U[k + 2, lane] * x2 + U[k + 3, lane] * x3)
                z[lane] = part if k == 0 else z[lane] + part
        # the last coordinates go straight into the activation, without a detour through memory
        x0, x1, x2, x3 = x[t, last], x[t, last + 1], x[t, last + 2], x[t, last + 3]
        for lane in range(LANES):
            near = (U[last, lane] * x0 + U[last + 1, lane] * x1) + (U[last + 2, lane] * x2 + U[last + 3, lane] * x3)
            far = z[lane] + W[lane] * H[t, lane]  # z stays zero for a single group
            H[t + 1, lane] = p * tanh(q * (near + far)) + r


@njit(fastmath=True, inline="always")
@no_type_check
def lane_sum(values):
    """Sum in any order."""
    total = 0.0
    for lane in range(LANES):
        total += values[lane]
    return total


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first use."""
    return kept_on_disk(njit(fastmath={"contract"}, error_model="numpy")(function))


@compiled
@no_type_check
def run_outputs(W, U, c, x, p, q, r, total):
    """Add the readout of every block to `total`; with two halves, pair by pair."""
    steps = x.shape[1]
    z, pair = np.zeros(LANES), np.zeros(LANES)
    H = np.zeros((2, steps + 1, LANES))
    for block in range(W.shape[1]):
        for j in range(x.shape[0]):
            for half in range(W.shape[0]):
                run(W[half, block], U[half, block], x[j], p, q, r, z, H[half])
            for t in range(steps):
                for lane in range(LANES):
                    pair[lane] = c[0, block, lane] * H[0, t + 1, lane]
                if W.shape[0] == 2:
                    for lane in range(LANES):
                        pair[lane] += c[1, block, lane] * H[1, t + 1, lane]
                total[j, t] += lane_sum(pair)


@compiled
@no_type_check
def run_pullback(W, U, c, x, cotangent, p, q, r, dW, dU):
    """Run every block forward and then back in time, adding to dW and dU."""
    steps = x.shape[1]
    z, dz = np.zeros(LANES), np.zeros(LANES)
    H = np.zeros((steps + 1, LANES))
    outer, curve = q * p, q / p  # slope = q (p - (H - r)^2 / p)
    for block in range(W.shape[0]):
        for j in range(x.shape[0]):
            run(W[block], U[block], x[j], p, q, r, z, H)
            for lane in range(LANES):
                dz[lane] = 0.0
            for t in range(steps - 1, -1, -1):
                e = cotangent[j, t]
                for lane in range(LANES):
                    centred = H[t + 1, lane] - r
                    slope = outer - curve * (centred * centred)
                    back = (e * c[block, lane] + W[block, lane] * dz[lane]) * slope
                    dW[block, lane] += back * H[t, lane]
                    dz[lane] = back
                for k in range(0, x.shape[2], _GROUP):
                    x0, x1, x2, x3 = x[j, t, k], x[j, t, k + 1], x[j, t, k + 2], x[j, t, k + 3]
                    for lane in range(LANES):
                        back = dz[lane]
                        dU[block, k, lane] += back * x0
                        dU[block, k + 1, lane] += back * x1
                        dU[block, k + 2, lane] += back * x2
                        dU[block, k + 3, lane] += back * x3
