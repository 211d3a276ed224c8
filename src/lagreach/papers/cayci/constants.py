"""How fast one unit's state can change with its weights: Lipschitz and smoothness constants, certified and printed.

Write gw, gu for bounds on ``|dH_T/dW|`` and ``|dH_T/dU|``. Everything is worst case over inputs with ``|X_t| <= x_bound``
and weights with ``|W_ii| <= a``; it stays bounded in T exactly when ``a * sigma_1 < 1``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lagreach._util.arrays import Number
from lagreach.cells.activations import Activation, get_activation
from lagreach.errors import InputError
from lagreach.papers.cayci.checks import check_positive

MOST_STEPS = 10_000  # the constants are sums over them
FORMS = ("corrected", "printed")


def mu0(z: Number, t: int) -> float:
    """``sum_{k<t} z^k`` (CE (10)); inf beyond the range of numbers.

    >>> mu0(0.5, 3), mu0(1.0, 40)
    (1.75, 40.0)
    """
    return _sum(float(z), t, lambda k: 1.0)


def mu1(z: Number, t: int) -> float:
    """``sum_{k<t} (k+1) z^k`` (CE (10)); inf beyond the range of numbers.

    >>> mu1(0.5, 3), mu1(1.0, 40)
    (2.75, 820.0)
    """
    return _sum(float(z), t, lambda k: k + 1.0)


def _sum(z: float, t: int, factor: Any) -> float:
    total, power = 0.0, 1.0
    for k in range(t):
        total += factor(k) * power
        power *= z
    return total


def growth(gain: Number, T: int) -> str:
    """What ``a * sigma_1`` means for the constants, in words; the cut-off of Remark 5 is at 1.

    >>> growth(0.9, 100)
    'below the cut-off: bounded in T'
    """
    if gain < 1:
        return "below the cut-off: bounded in T"
    if gain == 1:
        return "at the cut-off: polynomial in T"
    exponent = T * math.log10(gain)
    size = f"{10.0**exponent:.2g}" if exponent < 300 else f"1e{exponent:.0f}"
    return f"above the cut-off: exp(T), here {gain:.4g}^{T} = {size}"


@dataclass(frozen=True)
class Certified:
    """Dimension-free constants that hold for every unit, input and weight within their bounds.

    L, beta : bounds on the gradient and on the Hessian (Frobenius) of ``H_T`` with respect to (W, U) of its unit
    Lam, gam : the same for ``W H_T``
    gw, gu : bounds on ``|dH_T/dW|`` and ``|dH_T/dU|``
    a, T, x_bound, gain : where they hold; gain is ``a * sigma_1``
    """

    L: float
    beta: float
    Lam: float
    gam: float
    gw: float
    gu: float
    a: float
    T: int
    x_bound: float
    gain: float

    def f_max(self, rho: tuple[float, float]) -> float:
        """Largest ``|F_t|`` within radii rho of the symmetric start (CE Proposition 6, corrected)."""
        return _product(self.gw, rho[0]) + _product(self.gu, rho[1])

    def y_max(self, nu: tuple[float, float]) -> float:
        """Largest ``|F~_t|`` of a system with norms nu, for constants at ``a = alpha`` (CE Proposition 6)."""
        return _product(self.gw, nu[0]) + _product(self.gu, nu[1])

    def __str__(self) -> str:
        return (
            f"certified for |W| <= {self.a:g}, T = {self.T}: L = {self.L:.6g}, beta = {self.beta:.6g}, "
            f"Lambda = {self.Lam:.6g}, gamma = {self.gam:.6g}\n  a * sigma_1 = {self.gain:.3g}, {growth(self.gain, self.T)}"
        )


@dataclass(frozen=True)
class Printed:
    """The constants of Lemmas 1 and 2 as printed; several do not hold (see the documentation).

    L, beta, Lam, gam : as in the paper; L bounds the square of what it should bound
    mu0, mu1 : at ``a * sigma_1``
    club, diamond, heart, spade : the parts of beta in CE (31)
    """

    L: float
    beta: float
    Lam: float
    gam: float
    mu0: float
    mu1: float
    club: float
    diamond: float
    heart: float
    spade: float
    a: float
    T: int
    gain: float

    def __str__(self) -> str:
        return (
            f"as printed for |W| <= {self.a:g}, T = {self.T}: L = {self.L:.6g}, beta = {self.beta:.6g}, "
            f"Lambda = {self.Lam:.6g}, gamma = {self.gam:.6g}\n  (known errors: L bounds a square; beta and gamma "
            "miss terms)"
        )


def certified(activation: str | Activation, a: Number, T: int, x_bound: Number = 1.0) -> Certified:
    """Bound gradient and Hessian of the state by the recursions of the derivatives themselves.

    Parameters
    ----------
    activation
        A name or an `Activation` with its bounds.
    a
        Largest ``|W_ii|``: ``alpha + rho_w / sqrt(m)`` under projection.
    T
        Number of steps.
    x_bound
        Largest ``|X_t|``.

    Examples
    --------
    >>> print(certified("tanh", a=0.5, T=5))
    certified for |W| <= 0.5, T = 5: L = 2.69621, beta = 16.7525, Lambda = 2.16619, gamma = 13.0206
      a * sigma_1 = 0.5, below the cut-off: bounded in T
    """
    _check(a, T)
    check_positive(x_bound=x_bound)
    sigma = get_activation(activation)
    bounds = certified_over(sigma, np.array([float(a)]), T, float(x_bound))
    values = {name: float(value[0]) for name, value in bounds.items()}
    return Certified(**values, a=float(a), T=T, x_bound=float(x_bound), gain=float(a) * sigma.sigma_1)


def certified_over(sigma: Activation, a: Any, T: int, x_bound: float) -> dict[str, Any]:
    """Compute the certified constants for many a at once; inf beyond the range of numbers."""
    s0, s1, s2 = sigma.sigma_0, sigma.sigma_1, sigma.sigma_2
    gw, gu, beta = np.zeros_like(a), np.zeros_like(a), np.zeros_like(a)
    with np.errstate(over="ignore"):
        for k in range(T):
            qw = (s0 if k else 0.0) + a * gw  # H_0 = 0
            qu = x_bound + a * gu
            beta = s2 * (qw**2 + qu**2) + s1 * (a * beta + np.sqrt(4 * gw**2 + 2 * gu**2))
            gw, gu = s1 * qw, s1 * qu
        return {
            "L": np.hypot(gw, gu),
            "beta": beta,
            "Lam": np.hypot(s0 + a * gw, a * gu),
            "gam": a * beta + np.sqrt(4 * gw**2 + 2 * gu**2),
            "gw": gw,
            "gu": gu,
        }


def printed(activation: str | Activation, *, alpha: Number, a: Number, T: int, d: int) -> Printed:
    """Return the constants of CE Lemmas 1 and 2 with (31), letter by letter.

    >>> constants = printed("tanh", alpha=0.5, a=0.5, T=5, d=4)
    >>> round(constants.L, 4), round(constants.beta, 3), round(constants.Lam, 4), round(constants.gam, 3)
    (7.5078, 69.985, 8.1373, 60.105)
    """
    _check(a, T)
    sigma = get_activation(activation)
    s0, s1, s2 = sigma.sigma_0, sigma.sigma_1, sigma.sigma_2
    z = float(a) * s1
    m0, m1 = mu0(z, T), mu1(z, T)
    bracket = float(alpha) * s1 * m0 + 1
    L = m0 * m0 * (s0 * s0 + 1) * s1 * s1
    club = s2 * bracket * m1
    diamond = s1 * s1 * m0 * m0 + s0 * s1 * m0 * m1
    heart = m1 * (s1 + s2 + float(alpha) * s1 * s2 * m0)
    spade = s1 * s1 * m0 * m0 + s0 * s2 * m1 * bracket
    beta = d * club + math.sqrt(d) * (diamond + heart) + spade
    Lam = math.sqrt(2) * (s0 + 1 + float(a) * L)
    gam = math.sqrt(2) * (L + float(a) * beta)
    return Printed(L, beta, Lam, gam, m0, m1, club, diamond, heart, spade, float(a), T, z)


def _product(constant: float, norm: float) -> float:
    return constant * norm if norm else 0.0  # a constant may be inf


def _check(a: Number, T: int) -> None:
    if not 1 <= T <= MOST_STEPS:
        raise InputError("T counts the steps of a sequence", got=T, expected=f"1 to {MOST_STEPS}")
    if not 0 <= a < math.inf:
        raise InputError("a bounds the recurrent weights and cannot be negative", got=a)
