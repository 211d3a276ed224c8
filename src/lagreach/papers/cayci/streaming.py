"""Output, gradient and directional derivative in blocks of units: memory does not grow with the width.

Pass one sums the output over blocks; the gradient runs every block forward again and then back in time, so only the
block's own states are ever held. `lagreach.papers.cayci.fused` is the compiled twin for activations of tanh kind.
"""

from __future__ import annotations

import importlib.util

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.arrays import Number
from lagreach.cells.activations import Activation, get_activation
from lagreach.errors import InputError, UnsupportedError
from lagreach.papers.cayci.derivatives import affine_tanh, with_slope
from lagreach.papers.cayci.initialise import Weights
from lagreach.papers.cayci.recurrence import halves

ENGINES = ("auto", "torch", "numba")
_STEP_ELEMENTS = 1 << 14  # sequences x units of one torch call: the temporaries of a step stay in cache
_COMPILE_FROM = 1 << 22  # cells from which the compiled kernel is worth loading


def outputs(
    weights: Weights,
    x: Float[Tensor, "seq time input"],
    activation: str | Activation = "tanh",
    *,
    engine: str = "auto",
) -> Float[Tensor, "seq time"]:
    """Return ``F_t`` for t = 1..T (CE (3)); exactly zero at the symmetric start."""
    sigma = get_activation(activation)
    if choose_engine(engine, weights, x, sigma) == "numba":
        from lagreach.papers.cayci import fused

        return fused.outputs(weights, x, sigma)
    total = torch.zeros(x.shape[:2], dtype=x.dtype, device=x.device).T.contiguous()
    parts = halves(weights)
    for units in _blocks(parts[0], x):
        # both halves of a pair before the sum: at the symmetric start each pair cancels exactly
        readouts = [part.c[units] * _states(part, units, x, sigma)[0][1:] for part in parts]
        total += (readouts[0] + readouts[1] if len(readouts) == 2 else readouts[0]).sum(-1)
    return total.T / len(weights.W) ** 0.5


def pullback(
    weights: Weights,
    x: Float[Tensor, "seq time input"],
    cotangent: Float[Tensor, "seq time"],
    activation: str | Activation = "tanh",
    *,
    engine: str = "auto",
) -> tuple[Float[Tensor, "unit"], Float[Tensor, "unit input"]]:
    """Gradient of ``sum_jt cotangent_jt F_jt`` with respect to W and U, by the adjoint recursion.

    ``lambda_t = cotangent_t c / sqrt(m) + W dz_t`` and ``dz_{t-1} = lambda_t I_{t-1}``, from the last step back.
    """
    sigma = get_activation(activation)
    if choose_engine(engine, weights, x, sigma) == "numba":
        from lagreach.papers.cayci import fused

        return fused.pullback(weights, x, cotangent, sigma)
    dW, dU = torch.empty_like(weights.W), torch.empty_like(weights.U)
    scaled = cotangent.T / len(weights.W) ** 0.5
    for units in _blocks(weights, x):
        H, slopes = _states(weights, units, x, sigma)
        W, c = weights.W[units], weights.c[units]
        back = torch.zeros_like(H[0])
        dz = torch.empty_like(slopes)
        for t in range(x.shape[1] - 1, -1, -1):
            torch.mul(torch.addcmul(scaled[t, :, None] * c, W, back), slopes[t], out=dz[t])
            back = dz[t]
        dW[units] = (dz * H[:-1]).sum((0, 1))
        dU[units] = torch.einsum("tnm,ntd->md", dz, x)
    return dW, dU


def pushforward(
    weights: Weights,
    x: Float[Tensor, "seq time input"],
    dW: Float[Tensor, "unit"],
    dU: Float[Tensor, "unit input"],
    activation: str | Activation = "tanh",
    *,
    readout: Float[Tensor, "unit"] | None = None,
) -> Float[Tensor, "seq time"]:
    """Derivative of F along (dW, dU): ``sum_i readout_i <dH_t/dTheta_i, dTheta_i>``, readout ``c / sqrt(m)`` unless given."""
    sigma = get_activation(activation)
    total = torch.zeros(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device)
    read = weights.c / len(weights.W) ** 0.5 if readout is None else readout
    for units in _blocks(weights, x):
        W, moved = weights.W[units], dW[units]
        H = torch.zeros(x.shape[0], len(W), dtype=x.dtype, device=x.device)
        tangent = torch.zeros_like(H)
        for t in range(x.shape[1]):
            now = x[:, t]
            value, slope = with_slope(sigma, torch.addcmul(now @ weights.U[units].T, W, H))
            tangent = slope * (moved * H + W * tangent + now @ dU[units].T)
            H = value
            total[t] += tangent @ read[units]
    return total.T


def risk(output: Float[Tensor, "seq time"], y: Float[Tensor, "seq time"]) -> float:
    """``R = (1/n) sum_j sum_t (F - Y)^2`` (CE (1)): summed over steps, averaged over sequences."""
    return float((output - y).square().sum() / len(y))


def risk_and_gradient(
    weights: Weights,
    x: Float[Tensor, "seq time input"],
    y: Float[Tensor, "seq time"],
    activation: str | Activation = "tanh",
    *,
    loss_scale: Number = 0.5,
    engine: str = "auto",
) -> tuple[float, Float[Tensor, "unit"], Float[Tensor, "unit input"]]:
    """R, and the gradient of ``loss_scale * R``; the theorems take their steps on R/2."""
    error = outputs(weights, x, activation, engine=engine) - y
    dW, dU = pullback(weights, x, error * (2 * float(loss_scale) / len(x)), activation, engine=engine)
    return float(error.square().sum() / len(x)), dW, dU


def choose_engine(
    engine: str, weights: Weights, x: Float[Tensor, "seq time input"], sigma: Activation, *, calls: int = 1
) -> str:
    """Return "torch" or "numba"; "auto" takes the compiled kernel where it can and where the work repays loading it."""
    if engine not in ENGINES:
        raise InputError("unknown engine", got=repr(engine), expected=", ".join(ENGINES))
    able = affine_tanh(sigma) is not None and x.dtype == torch.float64 and x.device.type == "cpu"
    able = able and importlib.util.find_spec("numba") is not None
    if engine == "numba" and not able:
        raise UnsupportedError(
            "the compiled kernel needs numba, float64 on the CPU and activations of tanh kind (tanh, logistic, scaled_tanh)",
            got=f"{sigma.name}, {x.dtype} on {x.device}",
            fix="use engine='torch'",
        )
    if engine == "auto":
        return "numba" if able and calls * x.shape[0] * x.shape[1] * len(weights.W) >= _COMPILE_FROM else "torch"
    return engine


def _blocks(weights: Weights, x: Tensor) -> list[slice]:
    width = max(8, _STEP_ELEMENTS // x.shape[0])
    return [slice(start, start + width) for start in range(0, len(weights.W), width)]


def _states(weights: Weights, units: slice, x: Tensor, sigma: Activation) -> tuple[Tensor, Tensor]:
    """H (time + 1, seq, unit) and I (time, seq, unit) of a block."""
    W = weights.W[units]
    drive = torch.matmul(x.transpose(0, 1), weights.U[units].T)
    H = torch.zeros(x.shape[1] + 1, x.shape[0], len(W), dtype=x.dtype, device=x.device)
    slopes = torch.empty_like(drive)
    for t in range(x.shape[1]):
        H[t + 1], slopes[t] = with_slope(sigma, torch.addcmul(drive[t], W, H[t]))
    return H, slopes
