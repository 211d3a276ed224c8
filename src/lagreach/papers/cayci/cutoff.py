"""Where a given diagonal network stands: the memory cut-off, and what the theorems would ask of a network like it.

The theorems describe descent from a symmetric random start with a fixed readout. A trained model is none of that; what
carries over are its sizes: recurrent weights, inputs, width, steps, and how far its units would have to move.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.arrays import Array, Number, finite_or_none
from lagreach.cells.activations import Activation, get_activation
from lagreach.cells.diag_elman import DiagElman
from lagreach.errors import InputError, UnsupportedError
from lagreach.models.gated_rnn import GatedRNN
from lagreach.papers.cayci import ntk
from lagreach.papers.cayci.checks import check_inputs
from lagreach.papers.cayci.constants import Certified, certified, growth, mu0, mu1
from lagreach.papers.cayci.initialise import Weights
from lagreach.papers.cayci.lags import lag_parts
from lagreach.papers.cayci.requirements import Requirement, theorem1_requirement, theorem2
from lagreach.papers.cayci.transport_maps import estimate_norms

ASSUMED_NORMS = (0.5, 1.0)  # of a target about which nothing is known
_ROWS = 1500  # sequences x times in a kernel: its eigenvalues take a second
_CELLS = 1 << 23  # sequences x times x units whose states are kept
_LAGS = 64


@dataclass(frozen=True)
class Standing:
    """Where a diagonal network stands; print it.

    Attributes
    ----------
    m, T, d, n
        Width, steps, width of the input (with a constant coordinate for a bias) and sequences.
    alpha, gain
        Largest recurrent weight, and ``alpha * sigma_1``, which is to be compared with the cut-off at 1.
    above
        Share of the units above the cut-off.
    x_bound
        Largest length of an input.
    mu
        ``mu_0,T mu_1,T`` at the gain (CE Remark 5): the factor by which memory scales width and steps.
    constants
        Certified constants at ``a = alpha``.
    retention
        ``E|P_l|`` for l = 0, 1, ...: what is really handed on over l steps, as a mean over units.
    sharpness
        Largest eigenvalue of the kernel over n, with the model's own readout; on `sharpness_sequences` sequences.
    nu, nu_from
        Norms of the target, and whether they were "given", "estimated" from targets or "assumed".
    error, delta
        Target risk and probability of failure behind the requirements.
    projected, plain
        What Theorem 1 and Theorem 2 ask for.
    """

    m: int
    T: int
    d: int
    n: int
    activation: str
    alpha: float
    gain: float
    above: float
    x_bound: float
    mu: float
    constants: Certified
    retention: Array
    sharpness: float
    sharpness_sequences: int
    nu: tuple[float, float]
    nu_from: str
    error: float
    delta: float
    projected: Requirement
    plain: Requirement

    @property
    def typical_gain(self) -> float:
        """Mean factor per step over the lags that were looked at; NaN for a single step."""
        lags = len(self.retention) - 1
        return float(self.retention[-1] ** (1 / lags)) if lags else math.nan

    @property
    def certified(self) -> bool:
        """Whether the network is as wide as one of the theorems asks."""
        return self.m >= min(self.projected.m, self.plain.m)

    @property
    def verdict(self) -> str:
        """What this means, in a sentence or two."""
        if self.plain.vacuous and self.projected.vacuous:
            return (
                f"the bound is exp(T): vacuous. With a worst-case gain of {self.gain:.3g} over {self.T} steps no width "
                "is certified; this speaks of worst cases, saturation usually prevents them"
            )
        if self.certified:
            return f"width {self.m} is enough for the certificate"
        least = min(self.projected.m, self.plain.m)
        return (
            f"width {self.m} is below the certified {least:.2g}, so no promise is made; the certificate is sufficient, "
            "never necessary, and usually thousands of times too careful"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is infinite or missing becomes None."""
        same = ("m", "T", "d", "n", "activation", "alpha", "gain", "above", "x_bound", "nu_from", "error", "delta")
        more = {"mu_T": finite_or_none(self.mu), "sharpness": self.sharpness, "nu": list(self.nu)}
        rest = {"retention": self.retention.tolist(), "verdict": self.verdict, "certified": self.certified}
        asked = {"theorem1": self.projected.to_dict(), "theorem2": self.plain.to_dict()}
        return {name: getattr(self, name) for name in same} | more | rest | asked

    def __str__(self) -> str:
        c, show = self.constants, [lag for lag in (1, 4, 16, 64) if lag < len(self.retention)]
        kept = ", ".join(f"{self.retention[lag]:.2g}" for lag in show)
        steps = "/".join(str(lag) for lag in show)
        lines = [
            f"Model    diagonal Elman, {self.activation}, m = {self.m}, T = {self.T}, |x| <= {self.x_bound:.3g}",
            f"Memory   worst-case gain alpha * sigma_1 = {self.gain:.3g}: {growth(self.gain, self.T)}",
            f"         {100 * self.above:.0f} % of the units above the cut-off; mu_T = {self.mu:.3g}, "
            f"L = {c.L:.3g}, beta = {c.beta:.3g}",
            f"         typical gain per step {self.typical_gain:.3g}"
            + (f"; kept at lag {steps}: {kept}" if show else ""),
            f"Target   nu = ({self.nu[0]:.3g}, {self.nu[1]:.3g}), {self.nu_from}; risk wanted {self.error:.3g} "
            f"with probability {1 - self.delta:g}",
            f"Descent  projected  {_asked(self.projected)}",
            f"         plain      {_asked(self.plain)}",
            f"         measured   eta up to {2 / self.sharpness:.3g} (certified: {2 / (self.T * c.L * c.L):.3g})",
            f"Verdict  {self.verdict}",
        ]
        return "\n".join(lines)


def standing(
    model: GatedRNN | Weights,
    x: Float[Tensor, "seq time input"],
    y: Tensor | None = None,
    *,
    activation: str | Activation = "tanh",
    nu: tuple[Number, Number] | None = None,
    error: Number | None = None,
    delta: Number = 0.05,
) -> Standing:
    """Say where a diagonal network stands to the memory cut-off and to the theorems' width and steps.

    Parameters
    ----------
    model
        A one-layer `GatedRNN` of `diag_elman` cells, or `Weights`.
    x
        Sequences it works on. Their largest length is measured and carried through the constants.
    y
        Targets, one number per step. With them the target's norms are estimated by kernel ridge regression at the
        model's weights, up to a tenth of their mean square.
    activation
        For `Weights`; a model knows its own.
    nu
        Norms (nu_w, nu_u) of the target; (0.5, 1) if neither they nor `y` are given.
    error
        Target risk R; by default a tenth of the targets' own, or 0.1 without targets.
    delta
        Probability with which the promise may fail.

    Examples
    --------
    >>> model = GatedRNN("diag_elman", 2, 16, 1, gate_init=0.5, dtype=torch.float64)
    >>> position = standing(model, torch.rand(4, 8, 2, dtype=torch.float64))
    >>> position.gain, position.above, position.certified
    (0.5, 0.0, False)
    """
    weights, read, sigma, inputs = _read(model, x.detach().double(), activation)
    n, T, d = inputs.shape
    x_bound = float(torch.linalg.vector_norm(inputs, dim=-1).max())
    if not x_bound > 0:
        raise InputError("the inputs are all zero", fix="pass sequences the network works on")
    check_inputs(inputs, x_bound)
    targets = None if y is None else _targets(y, n, T)
    alpha = float(weights.W.abs().max())
    few = inputs[: max(1, min(n, _ROWS // T, _CELLS // (T * len(weights.W)))), :_ROWS]
    loss = float(targets.square().sum() / n) if targets is not None else 1.0
    wanted = 0.1 * loss if error is None else float(error)
    if nu is not None:
        norms, source = (float(nu[0]), float(nu[1])), "given"
    elif targets is not None:
        norms, source = _estimated(weights, few, targets, sigma, x_bound)
    else:
        norms, source = ASSUMED_NORMS, "assumed"
    sharpness = ntk.sharpness(weights._replace(c=read), few, sigma, by_readout=True)
    parts = lag_parts(
        weights, few, torch.zeros(few.shape[:2], dtype=few.dtype), sigma, longest=min(few.shape[1] - 1, _LAGS)
    )
    asked: dict[str, Any] = {
        "error": wanted, "alpha": alpha, "T": T, "n": n, "nu": norms, "delta": delta, "d": d, "x_bound": x_bound,
    }  # fmt: skip
    gain = alpha * sigma.sigma_1
    return Standing(
        m=len(weights.W),
        T=T,
        d=d,
        n=n,
        activation=sigma.name,
        alpha=alpha,
        gain=gain,
        above=float((weights.W.abs() * sigma.sigma_1 >= 1).double().mean()),
        x_bound=x_bound,
        mu=mu0(gain, T) * mu1(gain, T),
        constants=certified(sigma, alpha, T, x_bound),
        retention=parts.transport,
        sharpness=sharpness,
        sharpness_sequences=len(few),
        nu=norms,
        nu_from=source,
        error=wanted,
        delta=float(delta),
        projected=theorem1_requirement(sigma, **asked),
        plain=theorem2(sigma, **asked),
    )


def _read(model: Any, x: Tensor, activation: str | Activation) -> tuple[Weights, Tensor, Activation, Tensor]:
    """Weights, readout in units of 1/sqrt(m), activation, and inputs with a constant for the bias."""
    if isinstance(model, Weights):
        return Weights(*(part.detach().double() for part in model)), model.c.double(), get_activation(activation), x
    if not isinstance(model, GatedRNN) or not isinstance(model.cell, DiagElman) or model.num_layers != 1:
        raise UnsupportedError(
            "the convergence theory speaks of one layer of diagonal Elman cells",
            got=str(model.extra_repr()) if isinstance(model, GatedRNN) else type(model).__name__,
            expected='GatedRNN("diag_elman", ..., num_layers=1), or Weights',
        )
    layer = {name.rsplit(".", 1)[1]: p.detach().double().cpu() for name, p in model.recurrent_params().items()}
    W, U, bias = layer["u_h"], layer["W_h"], layer["b_h"]
    x = x.cpu()
    if bool(bias.any()):
        U = torch.cat((U, bias[:, None]), dim=1)
        x = torch.cat((x, torch.ones_like(x[..., :1])), dim=-1)
    signs = torch.where(model.readout.weight.detach().double().cpu().sum(0) >= 0, 1.0, -1.0).to(W.dtype)
    read = torch.linalg.vector_norm(model.readout.weight.detach().double().cpu(), dim=0) * math.sqrt(len(W))
    return Weights(W, U, signs), read, get_activation(model.cell.activation), x


def _estimated(
    weights: Weights, x: Tensor, y: Tensor, sigma: Activation, x_bound: float
) -> tuple[tuple[float, float], str]:
    """Norms of the target up to a tenth of its mean square, from as many sequences as the weights could fit."""
    count = max(1, min(len(x), weights.U.numel() // (2 * x.shape[1])))
    some, wanted = x[:count], y[:count, : x.shape[1]]
    try:
        share = 0.1 * float(wanted.square().sum() / count)
        norms = estimate_norms(weights, some, wanted, sigma, residual=share, x_bound=x_bound)
    except InputError:
        return ASSUMED_NORMS, "assumed, for the kernel of this network cannot explain the targets"
    return norms.nu, f"estimated from {count} sequences"


def _targets(y: Tensor, n: int, T: int) -> Tensor:
    flat = y.detach().double().cpu()
    flat = flat[..., 0] if flat.ndim == 3 and flat.shape[2] == 1 else flat
    if flat.shape != (n, T):
        raise InputError(
            "the theory needs one target number per step",
            got=f"shape {tuple(y.shape)}",
            expected=f"({n}, {T}) or ({n}, {T}, 1)",
            fix="leave y out, or pass nu",
        )
    return flat


def _asked(requirement: Requirement) -> str:
    if requirement.vacuous:
        return "vacuous: exp(T)"
    return f"width {requirement.m:.2g}, {requirement.tau:.2g} steps of eta = {requirement.eta:.2g}"
