"""The diagonal Elman network written out: states, output, first and second derivatives, by the plain recursions.

``z_t = W H_t + U.X_t``, ``H_{t+1} = sigma(z_t)``, ``F_t = m^(-1/2) sum_i c_i H_t^(i)`` for t = 1..T (CE (2), (3)).
Every unit sees only itself, so all derivatives are elementwise over units. These functions hold all times in memory
where they say so; `lagreach.papers.cayci.streaming` gives output and gradients without.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.cells.activations import Activation, get_activation
from lagreach.papers.cayci.derivatives import curvature, with_slope
from lagreach.papers.cayci.initialise import Weights


class States(NamedTuple):
    """Hidden states ``H_0..H_T`` and slopes ``I_t = sigma'(z_t)``."""

    H: Float[Tensor, "seq time_and_start unit"]
    I: Float[Tensor, "seq time unit"]  # noqa: E741 (the paper's letter)


class Sensitivity(NamedTuple):
    """One step of Proposition 1: t, H_t, and ``dH_t/d(W, U)`` with W first on the last axis."""

    t: int
    H: Float[Tensor, "seq unit"]
    g: Float[Tensor, "seq unit param"]


def halves(weights: Weights) -> list[Weights]:
    """Split an even width in two, in memory of their own, so that equal halves are computed bit for bit alike."""
    half, odd = divmod(len(weights.W), 2)
    if odd:
        return [weights]
    return [Weights(*(w[rows].clone() for w in weights)) for rows in (slice(half), slice(half, None))]


def forward(weights: Weights, x: Float[Tensor, "seq time input"], activation: str | Activation = "tanh") -> States:
    """Run the network from ``H_0 = 0`` (CE (2)); keeps every step of every unit."""
    sigma = get_activation(activation)
    parts = [_forward(half.W, half.U, x, sigma) for half in halves(weights)]
    return States(*(torch.cat(units, dim=-1) for units in zip(*parts, strict=True)))


def _forward(W: Tensor, U: Tensor, x: Tensor, sigma: Activation) -> States:
    drive = torch.einsum("ntd,md->tnm", x, U).contiguous()
    H, slopes = [torch.zeros_like(drive[0])], []
    for step in drive:
        value, slope = with_slope(sigma, W * H[-1] + step)
        H.append(value)
        slopes.append(slope)
    return States(torch.stack(H, dim=1), torch.stack(slopes, dim=1))


def output(c: Float[Tensor, "unit"], H: Float[Tensor, "seq time_and_start unit"]) -> Float[Tensor, "seq time"]:
    """``F_t = m^(-1/2) sum_i c_i H_t^(i)`` for t >= 1 (CE (3)).

    The two halves are combined unit by unit before the sum. At the symmetric start every pair cancels, so the output
    there is zero to the last bit.
    """
    products = c * H[:, 1:]
    m = len(c)
    if m % 2 == 0:
        products = products[..., : m // 2] + products[..., m // 2 :]
    return products.sum(-1) / m**0.5


def sensitivity_steps(
    weights: Weights, x: Float[Tensor, "seq time input"], activation: str | Activation = "tanh", *, first_lag: int = 0
) -> Iterator[Sensitivity]:
    """Yield ``dH_t/d(W, U)`` for t = 1..T by the recursion behind Proposition 1.

    ``g_t = I_{t-1} (e_{t-1} + W g_{t-1})`` with ``e_s = [H_s; X_s]``. With ``first_lag=1`` the term of lag 0 is left
    out of each yielded sum, as in the printed Proposition 2.
    """
    sigma = get_activation(activation)
    W, U = weights.W, weights.U
    H = torch.zeros(x.shape[0], len(W), dtype=W.dtype, device=W.device)
    g = torch.zeros(*H.shape, 1 + x.shape[2], dtype=W.dtype, device=W.device)
    for t in range(1, x.shape[1] + 1):
        now = x[:, t - 1]
        value, slope = with_slope(sigma, W * H + now @ U.T)
        carried = g * (slope * W)[..., None]
        e = torch.cat((H[..., None], now[:, None, :].expand(-1, len(W), -1)), dim=-1)
        g = torch.addcmul(carried, slope[..., None], e)
        H = value
        yield Sensitivity(t, H, g if first_lag == 0 else carried)


def sensitivities(
    weights: Weights, x: Float[Tensor, "seq time input"], activation: str | Activation = "tanh"
) -> Float[Tensor, "seq time unit param"]:
    """``dH_t^(i)/d(W_ii, U_i)`` for every t = 1..T (CE Proposition 1)."""
    return torch.stack([step.g for step in sensitivity_steps(weights, x, activation)], dim=1)


def hessian_steps(
    weights: Weights, x: Float[Tensor, "seq time input"], activation: str | Activation = "tanh"
) -> Iterator[tuple[Sensitivity, Float[Tensor, "seq unit param param"]]]:
    """Yield the sensitivity and the Hessian ``d2 H_t/d(W, U)2`` of every unit, for t = 1..T.

    ``S_t = sigma''(z) q q' + I (W S_{t-1} + E g' + g E')`` with ``q = e + W g``, g of the step before, and E the unit
    vector of W.
    """
    sigma = get_activation(activation)
    W, U = weights.W, weights.U
    H = torch.zeros(x.shape[0], len(W), dtype=W.dtype, device=W.device)
    size = 1 + x.shape[2]
    g = torch.zeros(*H.shape, size, dtype=W.dtype, device=W.device)
    S = torch.zeros(*g.shape, size, dtype=W.dtype, device=W.device)
    for t in range(1, x.shape[1] + 1):
        now = x[:, t - 1]
        z = W * H + now @ U.T
        value, slope = with_slope(sigma, z)
        q = torch.cat((H[..., None], now[:, None, :].expand(-1, len(W), -1)), dim=-1) + W[:, None] * g
        inner = W[:, None, None] * S
        inner[..., 0, :] += g
        inner[..., :, 0] += g
        S = curvature(sigma, z)[..., None, None] * q[..., :, None] * q[..., None, :] + slope[..., None, None] * inner
        g, H = slope[..., None] * q, value
        yield Sensitivity(t, H, g), S
