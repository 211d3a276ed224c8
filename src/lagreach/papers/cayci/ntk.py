"""The recurrent neural tangent kernel: of a network of finite width, and in the limit of infinite width.

Both are the same weighted sum over units, ``K_t(x, x') = sum_i p_i <dH_t(x)/dTheta_i, dH_t(x')/dTheta_i>``: with
``p_i = 1/m`` for a network, and with the nodes and weights of a quadrature for the expectation of Proposition 2.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.arrays import Number
from lagreach.cells.activations import Activation, get_activation
from lagreach.errors import InputError, TooLargeError
from lagreach.papers.cayci.initialise import Weights
from lagreach.papers.cayci.recurrence import sensitivity_steps

METHODS = ("auto", "trapezoid", "qmc", "mc")
_REACH = 9.0  # the trapezoid covers +-9 standard deviations: what lies beyond weighs 1e-18
_REPEATS = 16  # randomised repetitions behind a standard error
_CHUNK_ELEMENTS = 1 << 19  # numbers in the sensitivities of one chunk of units
_LARGEST_FULL = 20_000


@dataclass(frozen=True)
class Kernel:
    """The infinite-width kernel with its error.

    Attributes
    ----------
    value
        ``kappa_t(x_j, x'_k)``, axes (time, seq, other); from `infinite_full` (seq, time, seq, time).
    error
        Of the trapezoid: the difference to half as many nodes per axis. Of (quasi) Monte Carlo: the standard error.
    method
        How it was computed.
    """

    value: Float[Tensor, "..."]
    error: Float[Tensor, "..."]
    method: str

    def __str__(self) -> str:
        shape = " x ".join(str(size) for size in self.value.shape)
        return f"infinite-width kernel ({shape}) by {self.method}, largest error {float(self.error.max()):.2g}"


class Nodes(NamedTuple):
    """Points (w0, u0) with weights that sum to one: a quadrature of ``w0 = +-alpha``, ``u0 ~ N(0, I)``."""

    W: Float[Tensor, "unit"]
    U: Float[Tensor, "unit input"]
    weight: Float[Tensor, "unit"]


def finite(
    weights: Weights,
    x: Float[Tensor, "seq time input"],
    activation: str | Activation = "tanh",
    x2: Float[Tensor, "other time input"] | None = None,
    *,
    chunk: int | None = None,
) -> Float[Tensor, "time seq other"]:
    """Kernel of a network: ``sum_i <dF_t(x)/dTheta_i, dF_t(x')/dTheta_i>`` (CE Proposition 2 before the limit).

    Runs through time and through chunks of units, so it holds the result and one chunk's sensitivities.

    Examples
    --------
    >>> from lagreach.papers.cayci import symmetric_init
    >>> x = torch.tensor([[[0.5], [-0.25]], [[1.0], [0.5]]], dtype=torch.float64)
    >>> K = finite(symmetric_init(64, 1, 0.5), x)
    >>> K.shape, bool((K == K.mT).all())
    (torch.Size([2, 2, 2]), True)
    """
    share = torch.full_like(weights.W, 1.0 / len(weights.W))
    return _weighted(Nodes(weights.W, weights.U, share), x, x2, get_activation(activation), 0, chunk)


def full(
    weights: Weights,
    x: Float[Tensor, "seq time input"],
    activation: str | Activation = "tanh",
    *,
    chunk: int | None = None,
) -> Float[Tensor, "seq time seq time"]:
    """Kernel between all pairs of sequences *and* times; it drives training on all steps at once."""
    share = torch.full_like(weights.W, 1.0 / len(weights.W))
    return _weighted_full(Nodes(weights.W, weights.U, share), x, get_activation(activation), chunk)


def sharpness(
    weights: Weights,
    x: Float[Tensor, "seq time input"],
    activation: str | Activation = "tanh",
    *,
    by_readout: bool = False,
) -> float:
    """Largest eigenvalue of ``K/n``: the gradient of R/2 is never longer than ``sqrt(sharpness * R)``.

    The measured counterpart of the certified ``T L^2``; steps up to 2 over it do not diverge in the linear regime.
    With `by_readout`, units count with the square of their c, for readouts other than +-1.
    """
    share = (weights.c.square() if by_readout else torch.ones_like(weights.W)) / len(weights.W)
    K = _weighted_full(Nodes(weights.W, weights.U, share), x, get_activation(activation), None)
    return float(torch.linalg.eigvalsh(K.flatten(0, 1).flatten(1))[-1]) / len(x)


def infinite(
    x: Float[Tensor, "seq time input"],
    x2: Float[Tensor, "other time input"] | None = None,
    *,
    alpha: Number,
    activation: str | Activation = "tanh",
    method: str = "auto",
    nodes: int | None = None,
    seed: int = 0,
    form: str = "corrected",
    chunk: int | None = None,
) -> Kernel:
    """Return the infinite-width kernel ``kappa_t`` of Proposition 2 with an error for every entry.

    Parameters
    ----------
    x, x2
        Sequences; `x2` is `x` unless given.
    alpha
        Size of the recurrent weights, ``w0 = +-alpha``; both signs are summed exactly.
    method
        "trapezoid" (inputs of width 1 or 2), "qmc" (scrambled Sobol points, 16 randomisations), "mc", or "auto".
    nodes
        Points per axis of the trapezoid (odd; 1001 for one axis, 301 for two), or in all for the others (2^15).
    form
        "corrected", or "printed" with sums that start at lag 1 as in the paper; those miss the newest input and are
        zero at t = 1.

    Examples
    --------
    >>> x = torch.tensor([[[0.5], [-0.25], [1.0], [0.75]]], dtype=torch.float64)
    >>> kernel = infinite(x, alpha=0.5)
    >>> [round(float(k), 6) for k in kernel.value[[0, 3], 0, 0]]
    [0.179345, 0.584478]
    """
    sigma = get_activation(activation)
    if form not in ("corrected", "printed"):
        raise InputError("unknown form", got=repr(form), expected="corrected or printed")
    first_lag = 0 if form == "corrected" else 1
    kind, count = choose_method(method, nodes, x.shape[2])
    if kind == "trapezoid":
        fine, coarse = (
            _weighted(trapezoid(alpha, x.shape[2], points, x.dtype), x, x2, sigma, first_lag, chunk)
            for points in (count, (count + 1) // 2)
        )
        return Kernel(fine, (fine - coarse).abs(), kind)
    warn_of_rare_units(alpha, sigma)
    parts = torch.stack(
        [_weighted(part, x, x2, sigma, first_lag, chunk) for part in samples(kind, alpha, x.shape[2], count, seed)]
    )
    return Kernel(parts.mean(0), parts.std(0) / math.sqrt(len(parts)), kind)


def infinite_full(
    x: Float[Tensor, "seq time input"],
    *,
    alpha: Number,
    activation: str | Activation = "tanh",
    method: str = "auto",
    nodes: int | None = None,
    seed: int = 0,
    chunk: int | None = None,
) -> Kernel:
    """Return the infinite-width kernel between all pairs of sequences and times; arguments as for `infinite`."""
    sigma = get_activation(activation)
    kind, count = choose_method(method, nodes, x.shape[2])
    if kind == "trapezoid":
        fine, coarse = (
            _weighted_full(trapezoid(alpha, x.shape[2], points, x.dtype), x, sigma, chunk)
            for points in (count, (count + 1) // 2)
        )
        return Kernel(fine, (fine - coarse).abs(), kind)
    warn_of_rare_units(alpha, sigma)
    parts = torch.stack(
        [_weighted_full(part, x, sigma, chunk) for part in samples(kind, alpha, x.shape[2], count, seed)]
    )
    return Kernel(parts.mean(0), parts.std(0) / math.sqrt(len(parts)), kind)


def choose_method(method: str, nodes: int | None, d: int) -> tuple[str, int]:
    """Return the quadrature to use and its number of points, for inputs of width d."""
    if method not in METHODS:
        raise InputError("unknown method", got=repr(method), expected=", ".join(METHODS))
    kind = method if method != "auto" else ("trapezoid" if d <= 2 else "qmc")
    if kind == "trapezoid":
        if d > 2:
            raise InputError("the trapezoid is for inputs of width 1 or 2", got=f"width {d}", fix="use method='qmc'")
        return kind, (nodes or (1001 if d == 1 else 301)) | 1
    if nodes is not None and nodes < 2 * _REPEATS:
        raise InputError("too few points for an error bar", got=nodes, expected=f"at least {2 * _REPEATS}")
    return kind, nodes or 1 << 15


def trapezoid(alpha: Number, d: int, points: int, dtype: torch.dtype = torch.float64) -> Nodes:
    """Trapezoid rule on [-9, 9] for the Gaussian; it converges faster than Gauss-Hermite, since tanh has poles."""
    half = points // 2
    axis = torch.arange(-half, half + 1, dtype=dtype) * (_REACH / half)  # exactly symmetric, with zero in the middle
    density = torch.exp(-axis * axis / 2)
    density = density / density.sum()
    U = torch.cartesian_prod(*[axis] * d).reshape(-1, d)
    weight = torch.cartesian_prod(*[density] * d).reshape(-1, d).prod(-1)
    return _both_signs(float(alpha), U, weight)


def samples(kind: str, alpha: Number, d: int, count: int, seed: int) -> Iterator[Nodes]:
    """Yield sixteen independent sets of points, Sobol or plain random, with `count` points in all."""
    each = max(1, count // _REPEATS)
    for stream in np.random.SeedSequence(seed).spawn(_REPEATS):
        rng = np.random.default_rng(stream)
        if kind == "qmc":
            from scipy.stats import norm, qmc

            power = max(0, math.ceil(math.log2(each)))
            u = norm.ppf(qmc.Sobol(d, rng=rng).random_base2(power))
        else:
            u = rng.standard_normal((each, d))
        U = torch.from_numpy(np.ascontiguousarray(u))
        yield _both_signs(float(alpha), U, torch.full((len(U),), 1.0 / len(U), dtype=U.dtype))


def warn_of_rare_units(alpha: Number, sigma: Activation) -> None:
    """Sampling cannot be trusted above the cut-off, where units with tiny |u| carry the expectation."""
    if float(alpha) * sigma.sigma_1 > 1:
        warnings.warn(
            f"alpha * sigma_1 = {float(alpha) * sigma.sigma_1:.3g} > 1: rare units carry the kernel, and the standard "
            "error of a sample misses them; use method='trapezoid' (inputs of width 1 or 2) or a smaller alpha",
            UserWarning,
            stacklevel=3,
        )


def _both_signs(alpha: float, U: Tensor, weight: Tensor) -> Nodes:
    W = torch.full((len(U),), alpha, dtype=U.dtype)
    return Nodes(torch.cat((W, -W)), torch.cat((U, U)), torch.cat((weight, weight)) / 2)


def _weighted(
    nodes: Nodes, x: Tensor, x2: Tensor | None, sigma: Activation, first_lag: int, chunk: int | None
) -> Tensor:
    """``sum_i weight_i <g_t,i(x), g_t,i(x')>`` for every time and pair."""
    other = x if x2 is None else x2
    if other.shape[1:] != x.shape[1:]:
        raise InputError("both sets of sequences need the same length and width", got=f"{x.shape}, {other.shape}")
    size = chunk or max(1, _CHUNK_ELEMENTS // ((len(x) + len(other)) * (1 + x.shape[2])))
    total = torch.zeros(x.shape[1], len(x), len(other), dtype=x.dtype, device=x.device)
    for start in range(0, len(nodes.W), size):
        W, U, weight = (part[start : start + size] for part in nodes)
        part = Weights(W, U, torch.ones_like(W))
        root = weight.sqrt()[:, None]
        ours = sensitivity_steps(part, x, sigma, first_lag=first_lag)
        theirs = itertools.repeat(None) if x2 is None else sensitivity_steps(part, x2, sigma, first_lag=first_lag)
        for t, (mine, its) in enumerate(zip(ours, theirs, strict=False)):
            a = (root * mine.g).flatten(1)
            total[t] += a @ (a if its is None else (root * its.g).flatten(1)).T
    # a product with its own transpose may miss symmetry by a bit
    return (total + total.mT) / 2 if x2 is None else total


def _weighted_full(nodes: Nodes, x: Tensor, sigma: Activation, chunk: int | None) -> Tensor:
    """``sum_i weight_i <g_s,i(x), g_t,i(x')>`` for every pair of sequences and times."""
    n, steps, d = x.shape
    if n * steps > _LARGEST_FULL:
        raise TooLargeError(
            "the kernel between all sequences and times would not fit",
            got=f"{n * steps} rows",
            expected=f"at most {_LARGEST_FULL}",
            fix="use fewer sequences, or `finite` / `infinite`, which keep equal times only",
        )
    size = chunk or max(1, 4 * _CHUNK_ELEMENTS // (n * steps * (1 + d)))
    total = torch.zeros(n * steps, n * steps, dtype=x.dtype, device=x.device)
    for start in range(0, len(nodes.W), size):
        W, U, weight = (part[start : start + size] for part in nodes)
        root = weight.sqrt()[:, None]
        part = Weights(W, U, torch.ones_like(W))
        flat = torch.stack([(root * step.g).flatten(1) for step in sensitivity_steps(part, x, sigma)], dim=1)
        flat = flat.flatten(0, 1)
        total.addmm_(flat, flat.T)
    return ((total + total.T) / 2).unflatten(0, (n, steps)).unflatten(-1, (n, steps))
