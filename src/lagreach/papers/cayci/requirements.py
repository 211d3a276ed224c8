"""The inverse questions: what width and how many steps make the risk at most epsilon?

`theorem1_requirement` turns Theorem 1 around; Theorem 2 is of this kind by itself. The answers are sufficient, never
necessary: networks a thousand times narrower usually do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lagreach._util.arrays import Number, finite_or_none
from lagreach.cells.activations import Activation, get_activation
from lagreach.errors import InputError
from lagreach.papers.cayci.checks import check_pair, check_positive, check_probability, within_range
from lagreach.papers.cayci.constants import FORMS, certified, certified_over, growth, mu0, printed
from lagreach.papers.cayci.theorems import Pair, finite_values, printed_err, theorem1

_WIDEST = 2.0**1000
_GAPS = np.geomspace(1e-8, 1e3, 1101)


@dataclass(frozen=True)
class Requirement:
    """A width and a number of steps that suffice.

    Attributes
    ----------
    name, form
        The statement, and "corrected" or "printed".
    m, tau
        Width and number of steps, whole but kept as floats for their range; inf where numbers end.
    eta
        Step size.
    error, delta
        The target R and the probability of failure.
    guarantee
        What is then promised, in words.
    quantities
        Constants on the way.
    gain, T
        ``a * sigma_1`` and the number of steps of a sequence.
    """

    name: str
    form: str
    m: float
    tau: float
    eta: float
    error: float
    delta: float
    guarantee: str
    quantities: Mapping[str, float]
    gain: float
    T: int

    @property
    def vacuous(self) -> bool:
        """Whether no width that a number can hold is enough."""
        return math.isinf(self.m)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON; what is infinite or missing becomes None."""
        kept = {"name": self.name, "form": self.form, "m": finite_or_none(self.m), "tau": finite_or_none(self.tau)}
        asked = {
            "eta": self.eta,
            "error": self.error,
            "delta": self.delta,
            "guarantee": self.guarantee,
            "vacuous": self.vacuous,
        }
        return kept | asked | {"quantities": finite_values(self.quantities), "gain": self.gain}

    def __str__(self) -> str:
        if self.vacuous:
            said = f"{self.name} ({self.form}): vacuous, no width that a number can hold is enough"
            return f"{said}\n  a * sigma_1 = {self.gain:.3g}, {growth(self.gain, self.T)}"
        return (
            f"{self.name} ({self.form}): width {_count(self.m)}, {_count(self.tau)} steps of eta = {self.eta:.3g}\n"
            f"  then {self.guarantee}, with probability {1 - self.delta:g}\n"
            f"  a * sigma_1 = {self.gain:.3g}, {growth(self.gain, self.T)}"
        )


@within_range
def theorem1_requirement(
    activation: str | Activation,
    *,
    error: Number,
    alpha: Number,
    T: int,
    n: int,
    nu: Pair,
    rho: Pair | None = None,
    delta: Number = 0.05,
    d: int = 1,
    share: Number = 0.5,
    y_max: Number | None = None,
    x_bound: Number = 1.0,
    form: str = "corrected",
) -> Requirement:
    """Width and steps with which Theorem 1 promises ``mean R <= error`` for projected descent.

    Parameters
    ----------
    error
        Target risk epsilon.
    share
        Part of it that optimisation may use up; the width gets the rest.

    Examples
    --------
    >>> print(theorem1_requirement("tanh", error=0.1, alpha=0.3, T=1, n=100, nu=(0.5, 1.0)))
    Theorem 1 (corrected): width 5336, 50 steps of eta = 1
      then the mean risk of the iterates is at most 0.1, with probability 0.95
      a * sigma_1 = 0.307, below the cut-off: bounded in T
    """
    check_positive(error=error)
    if not 0 < share < 1:
        raise InputError("share divides the error between steps and width", got=share, expected="0 < share < 1")
    options: dict[str, Any] = {
        "alpha": alpha, "T": T, "n": n, "nu": nu, "rho": rho, "delta": delta, "d": d, "y_max": y_max,
        "x_bound": x_bound, "form": form,
    }  # fmt: skip

    def at(m: float, tau: int = 1) -> Any:
        return theorem1(activation, m=2 * math.ceil(m / 2), tau=tau, **options)

    allowed = (1 - float(share)) * float(error)
    m = _smallest(lambda width: at(width).terms["width"] <= allowed)
    bound = at(min(m, _WIDEST))
    once = bound.terms["optimisation"]  # of a single step
    left = float(share) * float(error)
    tau = once / left * (once / left) if form == "printed" else once / left
    tau = _whole(tau) if math.isfinite(m) else math.inf
    if form == "printed":
        eta = 1 / (T * math.sqrt(tau))
        guarantee = f"the paper promises a smallest risk of at most {float(error):g}"
    else:
        eta = bound.quantities["eta"]
        guarantee = f"the mean risk of the iterates is at most {float(error):g}"
    return Requirement(
        "Theorem 1", form, m, tau, eta, float(error), float(delta), guarantee, bound.quantities, bound.gain, T
    )


@within_range
def theorem2(
    activation: str | Activation,
    *,
    error: Number,
    alpha: Number,
    T: int,
    n: int,
    nu: Pair,
    delta: Number = 0.05,
    d: int = 1,
    gap: Number | None = None,
    y_max: Number | None = None,
    x_bound: Number = 1.0,
    form: str = "corrected",
) -> Requirement:
    """Width and steps with which plain gradient descent reaches ``min R <= error`` (CE Theorem 2).

    Corrected: with L and beta at ``a = alpha + gap``, ``lambda = 2 sqrt(T) L |nu|^2 / sqrt(error)`` and
    ``err = beta |nu|^2 + 2 y_max sqrt(log(2nT/delta))``, width ``max(16 T err^2 / error, (lambda/gap)^2)`` and
    ``2 |nu|^2 / (eta error)`` steps of ``eta = 1/(T L^2)`` suffice; both grow like 1/error, where the paper prints
    the cube. The printed form promises R/2 at most 9/4 of `error`, by a proof that gives 4.62 times.

    Parameters
    ----------
    gap
        Room for the recurrent weights to grow; the one that needs the smallest width unless given.

    Examples
    --------
    >>> print(theorem2("tanh", error=0.1, alpha=0.3, T=1, n=100, nu=(0.5, 1.0)))
    Theorem 2 (corrected): width 7230, 25 steps of eta = 1
      then some iterate has a risk of at most 0.1, with probability 0.95
      a * sigma_1 = 0.393, below the cut-off: bounded in T
    """
    if form not in FORMS:
        raise InputError("unknown form", got=repr(form), expected=" or ".join(FORMS))
    check_positive(error=error, n=n)
    check_probability(delta)
    sigma, norms = get_activation(activation), check_pair("nu", nu)
    if form == "printed":
        sizes: dict[str, Any] = {"alpha": float(alpha), "T": T, "n": n, "nu": norms, "d": d}
        return _printed_theorem2(sigma, float(error), float(delta), **sizes)
    size = norms[0] ** 2 + norms[1] ** 2
    most = certified(sigma, alpha, T, x_bound).y_max(norms) if y_max is None else float(y_max)
    if gap is not None:
        check_positive(gap=gap)
    gaps = _GAPS if gap is None else np.array([float(gap)])
    fixed: dict[str, Any] = {
        "alpha": float(alpha), "T": T, "n": n, "nu": norms, "y_max": most, "delta": float(delta), "error": error,
        "x_bound": x_bound,
    }  # fmt: skip
    if gap is None:  # twice on a grid, the second time around the first answer
        _, width, *_ = _theorem2_over(sigma, gaps, **fixed)
        best = int(np.argmin(width))
        gaps = np.geomspace(_GAPS[max(best - 1, 0)], _GAPS[min(best + 1, len(_GAPS) - 1)], 1001)
    lam, width, L, beta, err = _theorem2_over(sigma, gaps, **fixed)
    k = int(np.argmin(width))
    a = float(alpha) + float(gaps[k])
    eta = 1 / (T * float(L[k] * L[k]))
    used = {
        "lam": lam[k], "gap": gaps[k], "a": a, "L": L[k], "beta": beta[k], "err": err[k], "y_max": most,
    }  # fmt: skip
    return Requirement(
        name="Theorem 2",
        form=form,
        m=_even(float(width[k])),
        tau=_whole(2 * size * T * float(L[k] * L[k]) / float(error)),
        eta=eta,
        error=float(error),
        delta=float(delta),
        guarantee=f"some iterate has a risk of at most {float(error):g}",
        quantities={name: float(value) for name, value in used.items()},
        gain=a * sigma.sigma_1,
        T=T,
    )


def _theorem2_over(
    sigma: Activation, gaps: Any, *, alpha: float, T: int, n: int, nu: tuple[float, float], y_max: float, delta: float,
    error: Number, x_bound: Number,
) -> tuple[Any, Any, Any, Any, Any]:  # fmt: skip
    """Lambda, width, L, beta and err for many gaps at once."""
    size = nu[0] ** 2 + nu[1] ** 2
    bounds = certified_over(sigma, alpha + gaps, T, float(x_bound))
    with np.errstate(over="ignore"):
        lam = 2 * math.sqrt(T) * bounds["L"] * size / math.sqrt(error)
        err = bounds["beta"] * size + 2 * y_max * math.sqrt(math.log(2 * n * T / delta))
        # the transported weights must have room within the gap as well
        width = np.maximum(16 * T * err**2 / float(error), (np.maximum(lam, nu[0]) / gaps) ** 2)
    return lam, width, bounds["L"], bounds["beta"], err


def _printed_theorem2(
    sigma: Activation, error: float, delta: float, *, alpha: float, T: int, n: int, nu: tuple[float, float], d: int
) -> Requirement:
    a = alpha + math.sqrt(2 * error)
    c = printed(sigma, alpha=alpha, a=a, T=T, d=d)
    size = nu[0] ** 2 + nu[1] ** 2
    lam = c.L * size / math.sqrt(error)
    f_max = c.L * math.hypot(lam, lam)
    y_max = sigma.sigma_1 * mu0(alpha * sigma.sigma_1, T) * (nu[1] + sigma.sigma_0 * nu[0])
    reach = T * c.L * (f_max + y_max)
    eta = error / (2 * reach * reach)
    err = printed_err(sigma, c, nu=nu, rho=(lam, lam), n=n, delta=delta)
    return Requirement(
        name="Theorem 2",
        form="printed",
        m=_even((err * err + lam * lam) / (2 * error)),
        tau=_whole(2 * size * reach * reach / ((math.sqrt(2) + 1) ** 2 * error * error)),
        eta=eta,
        error=error,
        delta=delta,
        guarantee=f"the paper promises half a risk of at most {9 * error / 4:g} (its proof gives {4.62 * error:.3g})",
        quantities={"lam": lam, "a": a, "L": c.L, "beta": c.beta, "err": err, "F_max": f_max, "y_max": y_max},
        gain=c.gain,
        T=T,
    )


def _smallest(enough: Callable[[float], bool]) -> float:
    """Smallest even width that is enough, by bisection; inf if none below 2^1000 is."""
    low, high = 0.0, 2.0
    while not enough(high):
        low, high = high, high * high
        if high > _WIDEST:
            return math.inf
    while low < (middle := 2.0 * math.floor((low + high) / 4)) < high:  # until floats have no even width in between
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _whole(value: float) -> float:
    return float(math.ceil(value)) if math.isfinite(value) else math.inf


def _even(value: float) -> float:
    return max(2.0, 2.0 * math.ceil(value / 2)) if math.isfinite(value) else math.inf


def _count(value: float) -> str:
    return f"{value:.0f}" if value < 1e6 else f"{value:.2g}"
