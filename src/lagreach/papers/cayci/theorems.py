"""Propositions 3 to 6, Theorem 1 and Corollary 1 as numbers, every term by its name.

Throughout, R is summed over steps and averaged over sequences, and steps are taken on R/2. "corrected" statements hold
with probability 1 - delta over the symmetric start; "printed" ones are the paper's, errors included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lagreach._util.arrays import Number, finite_or_none
from lagreach.cells.activations import Activation, get_activation
from lagreach.errors import InputError
from lagreach.papers.cayci.checks import check_pair, check_positive, check_probability, within_range
from lagreach.papers.cayci.constants import FORMS, Printed, certified, growth, mu0, printed

Pair = tuple[Number, Number]


@dataclass(frozen=True)
class Bound:
    """A bound on the risk, or on an output, with everything it is made of.

    Attributes
    ----------
    name, form
        The statement, and "corrected" or "printed".
    value
        The bound.
    terms
        Its parts; for the theorems they add up to the value.
    quantities
        What the terms were computed from: eta, constants, ``err`` and its parts, ``F_max``, ``y_max``.
    trivial
        What doing nothing achieves at worst, ``T y_max^2`` (or ``y_max`` for an output); NaN where that says nothing.
    gain, T
        ``a * sigma_1`` and the number of steps.
    """

    name: str
    form: str
    value: float
    terms: Mapping[str, float]
    quantities: Mapping[str, float]
    trivial: float
    gain: float
    T: int

    @property
    def vacuous(self) -> bool:
        """Whether the bound says no more than doing nothing would achieve."""
        return self.value >= self.trivial

    @property
    def verdict(self) -> str:
        """One sentence: is the bound worth anything, and if not, why."""
        where = f"a * sigma_1 = {self.gain:.3g}, {growth(self.gain, self.T)}"
        if not self.vacuous:
            return f"informative: below {self.trivial:.3g}, what doing nothing achieves at worst; {where}"
        return f"vacuous: not below {self.trivial:.3g}, what doing nothing achieves at worst; {where}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON; what is infinite or missing becomes None."""
        kept = {
            "name": self.name,
            "form": self.form,
            "value": finite_or_none(self.value),
            "terms": finite_values(self.terms),
        }
        rest = {
            "quantities": finite_values(self.quantities),
            "trivial": finite_or_none(self.trivial),
            "vacuous": self.vacuous,
        }
        return kept | rest | {"gain": self.gain, "verdict": self.verdict}

    def __str__(self) -> str:
        lines = [f"{self.name} ({self.form}): {self.value:.4g}"]
        lines += [f"  {name:<14} {value:.4g}" for name, value in self.terms.items()]
        lines.append("  with " + ", ".join(f"{name} {value:.4g}" for name, value in self.quantities.items()))
        return "\n".join([*lines, f"  {self.verdict}"])


def proposition3(
    activation: str | Activation,
    *,
    alpha: Number,
    m: int,
    T: int,
    nu: Pair,
    n: int = 1,
    delta: Number = 0.05,
    x_bound: Number = 1.0,
    form: str = "corrected",
) -> Bound:
    """Distance of the linear model at the transported weights to its target (CE Proposition 3).

    Corrected: ``max_{j,t} |F_Lin - F~| <= 2 y_max sqrt(log(2nT/delta)/m)``. The printed form is for one output
    and misses a factor 2 in the logarithm.
    """
    sigma, nu_w, nu_u = _prepare(activation, form, nu, m, T, delta)
    if form == "corrected":
        y_max = certified(sigma, alpha, T, x_bound).y_max((nu_w, nu_u))
        value = 2 * y_max * math.sqrt(math.log(2 * n * T / delta) / m)
    else:
        y_max = _printed_y_max(sigma, float(alpha), T, (nu_w, nu_u))
        value = 2 * y_max * math.sqrt(math.log(1 / delta) / m)
    gain = float(alpha) * sigma.sigma_1
    return Bound("Proposition 3", form, value, {"approximation": value}, {"y_max": y_max}, y_max, gain, T)


def proposition4(
    activation: str | Activation,
    *,
    alpha: Number,
    m: int,
    T: int,
    moved: Number,
    moved_w: Number,
    d: int = 1,
    x_bound: Number = 1.0,
    form: str = "corrected",
) -> Bound:
    """Distance of the network to its linear model (CE Proposition 4).

    Parameters
    ----------
    moved
        ``|W - W(0)|^2 + |U - U(0)|^2``, summed over the units.
    moved_w
        ``sqrt(m) max_i |W_ii - W_ii(0)|``, which sets ``a = alpha + moved_w / sqrt(m)``.
    """
    sigma, *_ = _prepare(activation, form, (0.0, 0.0), m, T, 0.5)
    a = float(alpha) + float(moved_w) / math.sqrt(m)
    if form == "corrected":
        beta = certified(sigma, a, T, x_bound).beta
        value, used = beta / (2 * math.sqrt(m)) * float(moved), {"beta": beta}
    else:
        c = printed(sigma, alpha=alpha, a=a, T=T, d=d)
        value = 2 / math.sqrt(m) * (c.Lam * c.Lam * sigma.sigma_2 + c.gam * sigma.sigma_1) * float(moved)
        used = {"Lam": c.Lam, "gam": c.gam}
    gain = a * sigma.sigma_1
    return Bound("Proposition 4", form, value, {"linearisation": value}, used | {"a": a}, math.nan, gain, T)


def proposition5(
    activation: str | Activation,
    *,
    alpha: Number,
    m: int,
    T: int,
    n: int,
    nu: Pair,
    delta: Number = 0.05,
    d: int = 1,
    x_bound: Number = 1.0,
    form: str = "corrected",
) -> Bound:
    """Distance of the network at the transported weights to its target (CE Proposition 5): 3 and 4 together."""
    nu_w, nu_u = check_pair("nu", nu)
    moved = nu_w**2 + nu_u**2
    # the union bound over outputs that the printed Proposition 3 leaves out is printed here
    share = delta if form == "corrected" else float(delta) / (2 * n * T)
    near = proposition3(activation, alpha=alpha, m=m, T=T, nu=nu, n=n, delta=share, x_bound=x_bound, form=form)
    bent = proposition4(activation, alpha=alpha, m=m, T=T, moved=moved, moved_w=nu_w, d=d, x_bound=x_bound, form=form)
    terms = {**near.terms, **bent.terms}
    used = {**near.quantities, **bent.quantities}
    return Bound("Proposition 5", form, sum(terms.values()), terms, used, near.trivial, bent.gain, T)


def proposition6(
    activation: str | Activation,
    *,
    alpha: Number,
    m: int,
    T: int,
    nu: Pair,
    rho: Pair | None = None,
    d: int = 1,
    x_bound: Number = 1.0,
    form: str = "corrected",
) -> tuple[float, float]:
    """``F_max`` within radii rho and ``y_max`` of systems with norms nu (CE Proposition 6)."""
    sigma, nu_w, nu_u = _prepare(activation, form, nu, m, T, 0.5)
    radii = check_pair("rho", nu if rho is None else rho)
    a = float(alpha) + radii[0] / math.sqrt(m)
    if form == "corrected":
        y_max = certified(sigma, alpha, T, x_bound).y_max((nu_w, nu_u))
        return certified(sigma, a, T, x_bound).f_max(radii), y_max
    f_max = printed(sigma, alpha=alpha, a=a, T=T, d=d).L * math.hypot(*radii)
    return f_max, _printed_y_max(sigma, float(alpha), T, (nu_w, nu_u))


@within_range
def theorem1(
    activation: str | Activation,
    *,
    alpha: Number,
    m: int,
    T: int,
    n: int,
    tau: int,
    nu: Pair,
    rho: Pair | None = None,
    delta: Number = 0.05,
    d: int = 1,
    eta: Number | None = None,
    residual: Number = 0.0,
    sharpness: Number | None = None,
    y_max: Number | None = None,
    x_bound: Number = 1.0,
    form: str = "corrected",
) -> Bound:
    """Risk after tau steps of projected gradient descent (CE Theorem 1).

    Corrected: ``mean_{s<tau} R <= 2|nu|^2/(k eta tau) + (4/k^2)(sqrt(T) err/sqrt(m) + sqrt(residual))^2`` with
    ``k = 2 - eta T L^2``: 1/tau and 1/m, where the paper prints the square roots of both.

    Parameters
    ----------
    alpha, m, T, n, d
        Size of the recurrent weights, width, steps, sequences, width of the input (printed form only).
    tau, eta
        Steps of descent and step size; eta is ``1/(T L^2)`` unless given (printed: ``1/(T sqrt(tau))`` always).
    nu, rho
        Norms of the target's map and radii of the projection, both (w, u); rho is nu unless given.
    delta
        Probability over the start with which the bound may fail.
    residual
        Part of the targets' mean square that is not of the realizable class.
    sharpness
        Measured largest eigenvalue of K/n along the path, in place of the certified ``T L^2``.
    y_max
        Bound on one unit's part of the target, where one is known that is smaller than the certified one.

    Examples
    --------
    >>> bound = theorem1("tanh", alpha=0.3, m=1024, T=10, n=32, tau=1000, nu=(0.5, 1.0))
    >>> round(bound.terms["optimisation"], 6), bound.vacuous
    (0.106749, True)
    """
    sigma, nu_w, nu_u = _prepare(activation, form, nu, m, T, delta)
    check_positive(n=n, tau=tau)
    rho_w, rho_u = check_pair("rho", (nu_w, nu_u) if rho is None else rho)
    if rho_w < nu_w or rho_u < nu_u:
        raise InputError(
            "the projection must leave room for the target's map",
            got=f"rho = {(rho_w, rho_u)}",
            expected=f"at least nu = {(nu_w, nu_u)}",
        )
    a = float(alpha) + rho_w / math.sqrt(m)
    size = nu_w**2 + nu_u**2
    if form == "printed":
        sizes: dict[str, Any] = {"alpha": float(alpha), "a": a, "m": m, "T": T, "n": n, "tau": tau, "d": d}
        return _printed_theorem1(sigma, nu=(nu_w, nu_u), rho=(rho_w, rho_u), delta=float(delta), **sizes)
    c = certified(sigma, a, T, x_bound)
    steep = T * _square(c.L) if sharpness is None else float(sharpness)
    step = 1 / steep if eta is None else float(eta)
    if eta is not None:
        check_positive(eta=eta)
    k = 1.0 if eta is None else 2 - step * steep
    if not k > 0:
        raise InputError(
            "the step is too long for this theorem",
            got=f"eta = {step:.4g}",
            expected=f"eta < {2 / steep:.4g}",
            fix="leave eta out, or pass the measured sharpness (largest eigenvalue of K/n)",
        )
    most = certified(sigma, alpha, T, x_bound).y_max((nu_w, nu_u)) if y_max is None else float(y_max)
    bend = c.beta / 2 * ((rho_w + nu_w) ** 2 + (rho_u + nu_u) ** 2 + size)
    sampling = 2 * most * math.sqrt(math.log(2 * n * T / delta))
    terms = {
        "optimisation": 2 * size / (k * step * tau) if step > 0 else math.inf,
        "width": 4 / k**2 * _square(math.sqrt(T / m) * (bend + sampling) + math.sqrt(float(residual))),
    }
    used = {
        "eta": step, "L": c.L, "beta": c.beta, "a": a, "err": bend + sampling, "err_linearisation": bend,
        "err_approximation": sampling, "F_max": c.f_max((rho_w, rho_u)), "y_max": most,
    }  # fmt: skip
    return Bound("Theorem 1", form, sum(terms.values()), terms, used, T * _square(most), c.gain, T)


@within_range
def corollary1(activation: str | Activation, *, form: str = "corrected", **settings: Any) -> Bound:
    """Risk at the average of the iterates (CE Corollary 1); arguments as for `theorem1`.

    Corrected: ``sqrt(R(average)) <= sqrt(mean R) + sqrt(T) beta |rho|^2 / (2 sqrt(m))``.

    >>> settings = dict(alpha=0.3, m=2**20, T=2, n=8, tau=10**6, nu=(0.1, 0.2))
    >>> corollary1("tanh", **settings).value < 1.1 * theorem1("tanh", **settings).value
    True
    """
    first = theorem1(activation, form=form, **settings)
    m, T = settings["m"], settings["T"]
    rho = check_pair("rho", settings.get("rho") or settings["nu"])
    around = rho[0] ** 2 + rho[1] ** 2
    if form == "corrected":
        apart = math.sqrt(T) * first.quantities["beta"] * around / (2 * math.sqrt(m))
        value = _square(math.sqrt(first.value) + apart)
        terms = {"mean risk": first.value, "averaging": apart * (2 * math.sqrt(first.value) + apart)}
    else:
        sigma, used = get_activation(activation), first.quantities
        bent = 6 / m * (used["Lam"] * used["Lam"] * sigma.sigma_2 + used["gam"] * sigma.sigma_1) * around
        terms = {name: 4 * part for name, part in first.terms.items()} | {"averaging": bent}
        value = sum(terms.values())
    return Bound("Corollary 1", form, value, terms, first.quantities, first.trivial, first.gain, T)


def _printed_theorem1(
    sigma: Activation, *, alpha: float, a: float, m: int, T: int, n: int, tau: int, nu: tuple[float, float],
    rho: tuple[float, float], delta: float, d: int,
) -> Bound:  # fmt: skip
    """CE (18) and (19)."""
    c = printed(sigma, alpha=alpha, a=a, T=T, d=d)
    f_max, y_max = c.L * math.hypot(*rho), _printed_y_max(sigma, alpha, T, nu)
    err = printed_err(sigma, c, nu=nu, rho=rho, n=n, delta=delta)
    far = f_max + y_max
    size = nu[0] ** 2 + nu[1] ** 2
    terms = {
        "optimisation": T / math.sqrt(tau) * (size / 2 + _square(c.L * far) / 2),
        "width": T * far / math.sqrt(m) * err,
    }
    used = {
        "eta": 1 / (T * math.sqrt(tau)), "L": c.L, "beta": c.beta, "Lam": c.Lam, "gam": c.gam, "a": a, "err": err,
        "F_max": f_max, "y_max": y_max,
    }  # fmt: skip
    return Bound("Theorem 1", "printed", sum(terms.values()), terms, used, T * _square(y_max), c.gain, T)


def printed_err(
    sigma: Activation, c: Printed, *, nu: tuple[float, float], rho: tuple[float, float], n: int, delta: float
) -> float:
    """``err(T, n, delta)`` of CE (19)."""
    around = _square(rho[0]) + _square(rho[1])
    sampling = c.L * math.hypot(*nu) * math.sqrt(math.log(2 * c.T * n / delta))
    return sampling + 2 * around * (sigma.sigma_2 * c.Lam * c.Lam + sigma.sigma_1 * c.gam) + 2 * c.beta * around


def finite_values(values: Mapping[str, float]) -> dict[str, float | None]:
    """Apply `finite_or_none` to every value."""
    return {name: finite_or_none(value) for name, value in values.items()}


def _square(value: float) -> float:
    return value * value  # `**` would raise where this gives inf


def _printed_y_max(sigma: Activation, alpha: float, T: int, nu: tuple[float, float]) -> float:
    return sigma.sigma_1 * mu0(alpha * sigma.sigma_1, T) * (nu[1] + sigma.sigma_0 * nu[0])


def _prepare(
    activation: str | Activation, form: str, nu: Pair, m: int, T: int, delta: Number
) -> tuple[Activation, float, float]:
    """Check what all statements share."""
    if form not in FORMS:
        raise InputError("unknown form", got=repr(form), expected=" or ".join(FORMS))
    if m < 2 or m % 2:
        raise InputError("the symmetric start needs an even width", got=f"m = {m}", fix=f"use m={max(2, m + m % 2)}")
    check_probability(delta)
    return get_activation(activation), *check_pair("nu", nu)
