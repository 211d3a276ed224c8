"""Dynamical systems that infinitely wide networks realise: transport maps, their targets, and finite-width images.

A map v gives every initial unit (w0, u0) a displacement (v_w, v_u). The target is its effect in the limit of infinite
width, ``F~_t = E[<dH_t/dTheta(w0, u0), v(w0, u0)>]`` (CE (8)). The paper prints v_w(w0) and v_u(u0); here both may
depend on both, without which the class would be far smaller (for tanh, v_w(w0) alone gives F~ = 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.arrays import Number
from lagreach._util.generators import seeded
from lagreach.cells.activations import Activation, get_activation
from lagreach.errors import InputError
from lagreach.papers.cayci import ntk
from lagreach.papers.cayci.checks import check_inputs, check_pair, check_targets
from lagreach.papers.cayci.initialise import Weights
from lagreach.papers.cayci.streaming import pullback, pushforward

Displacement = tuple[Tensor, Tensor]
_ROUNDING = 8 * torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class TransportMap:
    """A displacement for every initial unit, with the sup norms that the theorems use.

    Attributes
    ----------
    function
        Takes w0 (unit,) and u0 (unit, input), gives v_w (unit,) and v_u (unit, input).
    nu_w, nu_u
        ``sup |v_w|`` and ``sup |v_u|``; exceeding them raises an error when the map is used.
    """

    function: Callable[[Tensor, Tensor], Displacement]
    nu_w: float
    nu_u: float

    @property
    def nu(self) -> tuple[float, float]:
        """Both norms."""
        return self.nu_w, self.nu_u

    def __call__(self, w0: Float[Tensor, "unit"], u0: Float[Tensor, "unit input"]) -> Displacement:
        v_w, v_u = self.function(w0, u0)
        largest = float(v_w.abs().max()), float(torch.linalg.vector_norm(v_u, dim=1).max())
        for name, norm, size in (("nu_w", self.nu_w, largest[0]), ("nu_u", self.nu_u, largest[1])):
            if not size <= norm * (1 + _ROUNDING):
                raise InputError(
                    "the map moves some unit farther than it promised",
                    got=f"{size:.6g}",
                    expected=f"at most {name} = {norm:.6g}",
                )
        return v_w, v_u


def wave_map(
    direction: Float[Tensor, "input"], frequency: Float[Tensor, "input"], nu: tuple[Number, Number]
) -> TransportMap:
    """``v_w = nu_w sin(a.u)``, ``v_u = nu_u e (1 if w0 > 0 else cos(a.u))`` with unit e: a target with all lags in it.

    The parts are chosen so that nothing cancels for odd activations: there only the part of v_u that is even in u0
    and the part of v_w that is odd in u0 act, and a map that ignores w0 leaves little at odd lags.
    """
    nu_w, nu_u = check_pair("nu", nu)
    e = direction / torch.linalg.vector_norm(direction)

    def function(w0: Tensor, u0: Tensor) -> Displacement:
        phase = u0 @ frequency
        along = torch.where(w0 > 0, torch.ones_like(phase), torch.cos(phase))
        return nu_w * torch.sin(phase), nu_u * along[:, None] * e

    return TransportMap(function, nu_w, nu_u)


def random_map(d: int, nu: tuple[Number, Number] = (0.5, 1.0), seed: int | torch.Generator = 0) -> TransportMap:
    """Return a `wave_map` with random direction and frequency.

    >>> random_map(3, nu=(0.5, 1.0), seed=0).nu
    (0.5, 1.0)
    """
    generator = seeded(seed)
    direction, frequency = torch.randn(2, d, generator=generator, dtype=torch.float64)
    return wave_map(direction, frequency, nu)


def transport(start: Weights, v: TransportMap) -> Weights:
    """Project a map to width m: ``Theta_i = Theta_i(0) + c_i v(Theta_i(0)) / sqrt(m)`` (CE (20), Remark 4)."""
    v_w, v_u = v(start.W, start.U)
    scale = start.c / math.sqrt(len(start.W))
    return Weights(start.W + scale * v_w, start.U + scale[:, None] * v_u, start.c)


@dataclass(frozen=True)
class Target:
    """Values of a realizable system, with their error (see `lagreach.papers.cayci.ntk.Kernel`)."""

    value: Float[Tensor, "seq time"]
    error: Float[Tensor, "seq time"]
    method: str


def target(
    x: Float[Tensor, "seq time input"],
    v: TransportMap,
    *,
    alpha: Number,
    activation: str | Activation = "tanh",
    method: str = "auto",
    nodes: int | None = None,
    seed: int = 0,
) -> Target:
    """Return ``F~_t = E[<dH_t/dTheta, v>]`` for t = 1..T (CE (8)); arguments as for `lagreach.papers.cayci.ntk.infinite`.

    Examples
    --------
    >>> x = torch.tensor([[[0.5], [-0.25], [1.0], [0.75]]], dtype=torch.float64)
    >>> v = TransportMap(lambda w, u: (torch.sin(u[:, 0]), torch.cos(u)), 1.0, 1.0)
    >>> [round(float(f), 6) for f in target(x, v, alpha=0.5).value[0]]
    [0.291961, 0.081125, 0.501298, 0.629542]
    """
    sigma = get_activation(activation)
    kind, count = ntk.choose_method(method, nodes, x.shape[2])

    def mean(part: ntk.Nodes) -> Tensor:
        unread = Weights(part.W, part.U, torch.ones_like(part.W))
        return pushforward(unread, x, *v(part.W, part.U), sigma, readout=part.weight)

    if kind == "trapezoid":
        fine, coarse = (mean(ntk.trapezoid(alpha, x.shape[2], points)) for points in (count, (count + 1) // 2))
        return Target(fine, (fine - coarse).abs(), kind)
    ntk.warn_of_rare_units(alpha, sigma)
    parts = torch.stack([mean(part) for part in ntk.samples(kind, alpha, x.shape[2], count, seed)])
    return Target(parts.mean(0), parts.std(0) / math.sqrt(len(parts)), kind)


@dataclass(frozen=True)
class EstimatedNorms:
    """Norms of a transport map that explains data up to a residual.

    Attributes
    ----------
    nu_w, nu_u
        Largest displacements over the units.
    nu_rms
        Root mean square of the displacement, the norm in the kernel's function space.
    ridge, residual
        The ridge, and the risk R that is left at it.
    sharpness
        Largest eigenvalue of K/n.
    """

    nu_w: float
    nu_u: float
    nu_rms: float
    ridge: float
    residual: float
    sharpness: float

    @property
    def nu(self) -> tuple[float, float]:
        """Both sup norms."""
        return self.nu_w, self.nu_u


def estimate_norms(
    start: Weights,
    x: Float[Tensor, "seq time input"],
    y: Float[Tensor, "seq time"],
    activation: str | Activation = "tanh",
    *,
    residual: Number,
    x_bound: Number = 1.0,
) -> EstimatedNorms:
    """Find the smallest map, in the kernel's norm, that explains y up to a risk of `residual`, and measure it.

    Kernel ridge regression at the start: ``v_i = sum_jt a_jt dH_jt/dTheta_i`` with ``(K + ridge) a = y``. The ridge is
    the largest one whose residual R is small enough.
    """
    check_inputs(x, x_bound)
    check_targets(x, y)
    K = ntk.full(start, x, activation).flatten(0, 1).flatten(1)
    values, vectors = torch.linalg.eigh(K)
    values = values.clamp_min(0.0)
    share = vectors.T @ y.flatten()
    n = len(x)

    def left(ridge: float) -> float:
        return float((ridge / (values + ridge) * share).square().sum()) / n

    floor = float(values[-1]) * len(values) * torch.finfo(values.dtype).eps
    if not 0 < residual < float(y.square().sum()) / n:
        raise InputError(
            "the residual must lie between zero and the risk of saying nothing",
            got=residual,
            expected=f"0 < residual < {float(y.square().sum()) / n:.6g}",
        )
    if left(floor) > residual:
        raise InputError(
            "the kernel cannot explain these targets up to this residual",
            got=residual,
            expected=f"at least {left(floor):.3g}",
            fix="allow a larger residual, add a constant input coordinate, or use a wider network",
        )
    from scipy.optimize import brentq

    high = float(values[-1])
    while left(high) < residual:
        high *= 4.0
    ridge = math.exp(brentq(lambda log: left(math.exp(log)) - float(residual), math.log(floor), math.log(high)))
    a = (vectors @ (share / (values + ridge))).reshape(y.shape)
    # readout c = 1 / sqrt(m) turns the gradient of <a, F> into sum a dH
    ones = start._replace(c=torch.full_like(start.c, math.sqrt(len(start.c))))
    v_w, v_u = pullback(ones, x, a, activation)
    return EstimatedNorms(
        nu_w=float(v_w.abs().max()),
        nu_u=float(torch.linalg.vector_norm(v_u, dim=1).max()),
        nu_rms=math.sqrt(float((v_w.square().sum() + v_u.square().sum()) / len(v_w))),
        ridge=ridge,
        residual=left(ridge),
        sharpness=float(values[-1]) / n,
    )
