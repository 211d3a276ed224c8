"""Gradient descent and its projected form as torch optimisers, and a loop that keeps what the theorems speak of."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.arrays import Array, Number
from lagreach.cells.activations import Activation, get_activation
from lagreach.errors import InputError
from lagreach.papers.cayci.checks import check_inputs, check_pair, check_positive, check_targets
from lagreach.papers.cayci.initialise import Weights
from lagreach.papers.cayci.streaming import choose_engine, outputs, pullback, risk


class _KeepsAverage(torch.optim.Optimizer, ABC):
    """Gradient descent that keeps the mean of its iterates; what follows a step is left to the two kinds."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every parameter against its gradient, after taking it into the average."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["taken"] = state.get("taken", 0) + 1
                    average = state.setdefault("average", torch.zeros_like(p))
                    average += (p - average) / state["taken"]
                    p.copy_(self._settle(p - group["lr"] * p.grad, p, group))
        return loss

    def averaged(self, p: Tensor) -> Tensor:
        """Mean of the iterates from which steps were taken: ``1/tau sum_{s<tau} Theta(s)`` (CE Corollary 1)."""
        if "average" not in self.state[p]:
            raise InputError("there is no average before the first step", fix="call step() first")
        return self.state[p]["average"]

    @abstractmethod
    def _settle(self, stepped: Tensor, p: Tensor, group: dict[str, Any]) -> Tensor:
        """Return where the parameter ends up after its step."""


class GradientDescent(_KeepsAverage):
    """Plain gradient descent (CE (5)) that also keeps the average of its iterates.

    Parameters
    ----------
    params
        Parameters or groups, as for every torch optimiser.
    lr
        Step size eta. The theorems hold for steps on R/2, so give it the gradient of that.

    Examples
    --------
    >>> p = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    >>> descent = GradientDescent([p], lr=0.5)
    >>> (p**2).sum().backward(); descent.step()
    >>> p.tolist(), descent.averaged(p).tolist()
    ([0.0, 0.0], [1.0, -2.0])
    """

    def __init__(self, params: Iterable[Any], lr: Number) -> None:
        check_positive(lr=lr)
        super().__init__(params, {"lr": float(lr)})

    def _settle(self, stepped: Tensor, p: Tensor, group: dict[str, Any]) -> Tensor:
        return stepped


class ProjectedGradientDescent(_KeepsAverage):
    """Gradient descent that keeps every unit within ``radius / sqrt(m)`` of where it started (CE section 2.3).

    Parameters
    ----------
    params
        Groups with a "radius" each; the first axis of a parameter counts the units. `DiagonalNetwork.radii` makes them.
    lr
        Step size eta.

    Examples
    --------
    >>> p = torch.nn.Parameter(torch.zeros(4, 2, dtype=torch.float64))
    >>> descent = ProjectedGradientDescent([{"params": [p], "radius": 1.0}], lr=1.0)
    >>> p.grad = torch.tensor([[3.0, 4.0]] * 4, dtype=torch.float64)
    >>> descent.step(); [round(entry, 12) for entry in p[0].tolist()]
    [-0.3, -0.4]
    """

    def __init__(self, params: Iterable[dict[str, Any]], lr: Number) -> None:
        check_positive(lr=lr)
        super().__init__(params, {"lr": float(lr)})
        for group in self.param_groups:
            if not group.get("radius", -1.0) >= 0:
                raise InputError(
                    "every parameter group needs a radius that is not negative",
                    got=group.get("radius"),
                    fix="use network.radii((rho_w, rho_u))",
                )
            for p in group["params"]:
                self.state[p]["centre"] = p.detach().clone()

    def _settle(self, stepped: Tensor, p: Tensor, group: dict[str, Any]) -> Tensor:
        return project(stepped, self.state[p]["centre"], group["radius"] / math.sqrt(len(p)))


def project(p: Tensor, centre: Tensor, radius: Number) -> Tensor:
    """Bring every row (entry, for a vector) of `p` that is farther than `radius` from `centre` back to that distance."""
    if not radius >= 0:
        raise InputError("a radius cannot be negative", got=radius)
    moved = p - centre
    length = moved.abs() if p.ndim == 1 else torch.linalg.vector_norm(moved, dim=1, keepdim=True)
    # rows inside stay as they are, bit for bit
    return torch.where(length <= radius, p, centre + moved * (float(radius) / length))


@dataclass(frozen=True)
class Descent:
    """A run of (projected) gradient descent on R/2.

    Attributes
    ----------
    weights, average
        The last iterate, and the mean of ``Theta(0)..Theta(tau-1)``.
    risks
        R at ``Theta(0)..Theta(tau-1)``, the iterates the theorems speak of.
    final_risk
        R at the last iterate.
    moved_w, moved_u
        ``sqrt(m) max_i |W_i - W_i(0)|`` and ``sqrt(m) max_i |U_i - U_i(0)|`` after each step.
    gradient_norms
        Norm of the gradient of R/2 at each of the iterates.
    distances
        Squared distance of each iterate to `reference`, where one was given; otherwise empty.
    eta, rho
        Step size, and radii (None: no projection).
    reached
        First s with ``R(Theta(s)) <= stop``; None if that did not happen or nothing was asked.
    """

    weights: Weights
    average: Weights
    risks: Array
    final_risk: float
    moved_w: Array
    moved_u: Array
    gradient_norms: Array
    distances: Array
    eta: float
    rho: tuple[float, float] | None
    reached: int | None

    @property
    def steps(self) -> int:
        """Number of steps tau."""
        return len(self.moved_w)

    @property
    def mean_risk(self) -> float:
        """Mean of R over the iterates, what Theorem 1 bounds."""
        return float(self.risks.mean())

    @property
    def best_risk(self) -> float:
        """Smallest R of the iterates."""
        return float(self.risks.min())

    def __str__(self) -> str:
        kind = "gradient descent" if self.rho is None else f"projected gradient descent, rho = {self.rho}"
        moved = (0.0, 0.0) if self.steps == 0 else (self.moved_w.max(), self.moved_u.max())
        return (
            f"{kind}, eta = {self.eta:.3g}, {self.steps} steps\n"
            f"  R: {self.risks[0]:.4g} at the start, best {self.best_risk:.4g}, last {self.final_risk:.4g}\n"
            f"  largest move times sqrt(m): W {moved[0]:.3g}, U {moved[1]:.3g}"
        )


def descend(
    weights: Weights,
    x: Float[Tensor, "seq time input"],
    y: Float[Tensor, "seq time"],
    activation: str | Activation = "tanh",
    *,
    eta: Number,
    steps: int,
    rho: tuple[Number, Number] | None = None,
    stop: Number | None = None,
    reference: Weights | None = None,
    x_bound: Number = 1.0,
    engine: str = "auto",
    on_step: Callable[[int, float], None] | None = None,
) -> Descent:
    """Take `steps` steps of gradient descent on R/2 (CE (5)), projected if radii are given.

    Parameters
    ----------
    weights
        Where it starts; also the centre of the projection.
    eta, steps
        Step size and number of steps tau.
    rho
        Radii (rho_w, rho_u) of the projection; None for none.
    stop
        End at the first iterate whose R is at most this.
    reference
        Weights to which distances are kept, such as the transported ones.
    on_step
        Called with s and R at every iterate.

    Examples
    --------
    >>> from lagreach.papers.cayci import symmetric_init
    >>> x = torch.full((2, 3, 1), 0.5, dtype=torch.float64)
    >>> run = descend(symmetric_init(16, 1, 0.5), x, 0.1 * x[..., 0], eta=0.2, steps=20, rho=(0.5, 1.0))
    >>> bool(run.final_risk < 0.1 * run.risks[0]), bool(run.moved_u.max() <= 1.0)
    (True, True)
    """
    check_inputs(x, x_bound)
    check_targets(x, y)
    check_positive(eta=eta)
    if steps < 1:
        raise InputError("descent needs at least one step", got=steps)
    sigma = get_activation(activation)
    engine = choose_engine(engine, weights, x, sigma, calls=2 * steps)
    W, U = weights.W.detach().clone(), weights.U.detach().clone()
    groups: list[dict[str, Any]] = [{"params": [W]}, {"params": [U]}]
    if rho is None:
        optimiser: _KeepsAverage = GradientDescent(groups, eta)
    else:
        for group, radius in zip(groups, check_pair("rho", rho), strict=True):
            group["radius"] = radius
        optimiser = ProjectedGradientDescent(groups, eta)
    root = math.sqrt(len(W))
    kept: dict[str, list[float]] = {name: [] for name in ("risk", "moved_w", "moved_u", "gradient", "distance")}
    reached = None
    for s in range(steps):
        now = Weights(W, U, weights.c)
        error = outputs(now, x, sigma, engine=engine) - y
        kept["risk"].append(float(error.square().sum() / len(x)))
        if on_step is not None:
            on_step(s, kept["risk"][-1])
        if reference is not None:
            kept["distance"].append(float((W - reference.W).square().sum() + (U - reference.U).square().sum()))
        if stop is not None and kept["risk"][-1] <= stop:
            reached = s
            break
        W.grad, U.grad = pullback(now, x, error / len(x), sigma, engine=engine)
        kept["gradient"].append(math.hypot(float(W.grad.norm()), float(U.grad.norm())))
        optimiser.step()
        kept["moved_w"].append(root * float((W - weights.W).abs().max()))
        kept["moved_u"].append(root * float(torch.linalg.vector_norm(U - weights.U, dim=1).max()))
    last = Weights(W, U, weights.c)
    average = Weights(optimiser.averaged(W), optimiser.averaged(U), weights.c) if kept["moved_w"] else last
    arrays = {name: np.array(values) for name, values in kept.items()}
    return Descent(
        weights=last,
        average=average,
        risks=arrays["risk"],
        final_risk=risk(outputs(last, x, sigma, engine=engine), y),
        moved_w=arrays["moved_w"],
        moved_u=arrays["moved_u"],
        gradient_norms=arrays["gradient"],
        distances=arrays["distance"],
        eta=float(eta),
        rho=None if rho is None else check_pair("rho", rho),
        reached=reached,
    )
