"""Does gradient descent on diagonal networks behave as the theory says? Six experiments, measured against its rates.

Every experiment takes a `Scale`, a seed and an optional progress callback, and gives an `Experiment`. Targets are
realizable systems on inputs of width two, computed exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lagreach._util.progress import Progress
from lagreach.errors import InputError
from lagreach.papers.cayci import ntk
from lagreach.papers.cayci.constants import mu0, mu1
from lagreach.papers.cayci.curves import Curve, Experiment
from lagreach.papers.cayci.descent import descend
from lagreach.papers.cayci.initialise import Weights, symmetric_init
from lagreach.papers.cayci.linear import kernel_descent, linearised
from lagreach.papers.cayci.recurrence import sensitivity_steps
from lagreach.papers.cayci.requirements import theorem2
from lagreach.papers.cayci.streaming import outputs, risk
from lagreach.papers.cayci.theorems import theorem1
from lagreach.papers.cayci.transport_maps import TransportMap, random_map, target, transport

NU = (0.5, 1.0)
DELTA = 0.05
_D = 2


@dataclass(frozen=True)
class Scale:
    """Sizes of the experiments.

    T, n, alpha : steps, sequences and recurrent size of the standard problem
    m : its width, where that is not what varies
    draws : random starts
    taus, widths, samples, alphas : the axes
    steps : descent steps in the experiment on width
    memory_time, memory_steps : steps of a sequence, and of descent, in the experiment on memory
    nodes : points per axis of the quadrature
    """

    name: str
    T: int
    n: int
    alpha: float
    m: int
    draws: int
    taus: tuple[int, ...]
    widths: tuple[int, ...]
    samples: tuple[int, ...]
    alphas: tuple[float, ...]
    steps: int
    memory_time: int
    memory_steps: int
    nodes: int


SCALES = {
    scale.name: scale
    for scale in (
        Scale("smoke", 4, 6, 0.3, 64, 3, (10, 40, 160), (32, 128, 512), (4, 16, 64), (0.3, 0.9, 1.2), 40, 8, 150, 81),
        Scale(
            "small", 10, 32, 0.3, 512, 5, (10, 30, 100, 300, 1000), (16, 64, 256, 1024, 4096), (4, 16, 64, 256, 1024),
            (0.1, 0.3, 0.6, 0.9, 1.0, 1.1, 1.3), 200, 20, 1000, 121,
        ),
        Scale(
            "paper", 10, 32, 0.3, 1024, 20, (10, 30, 100, 300, 1000, 3000, 10_000),
            (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192), (4, 16, 64, 256, 1024, 4096),
            (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5), 1000, 40, 10_000, 201,
        ),
    )
}  # fmt: skip


def iterations(scale: Scale, seed: int = 0, progress: Progress | None = None) -> Experiment:
    """Risk against steps of projected descent: the paper's step sizes give 1/sqrt(tau), a constant step 1/tau."""
    x, _, y = _problem(scale, seed)
    bound = theorem1("tanh", alpha=scale.alpha, m=scale.m, T=scale.T, n=scale.n, tau=1, nu=NU)
    constant = bound.quantities["eta"]
    names = ("mean risk", "best risk", "risk of the average", "running mean, constant step")
    risks = {name: np.empty((len(scale.taus), scale.draws)) for name in names}
    for draw, start in enumerate(_starts(scale, scale.m, seed, "iterations", progress)):
        for k, tau in enumerate(scale.taus):
            run = descend(start, x, y, eta=1 / (scale.T * math.sqrt(tau)), steps=tau, rho=NU)
            risks[names[0]][k, draw] = run.mean_risk
            risks[names[1]][k, draw] = run.best_risk
            risks[names[2]][k, draw] = risk(outputs(run.average, x), y)
        steady = descend(start, x, y, eta=constant, steps=scale.taus[-1], rho=NU)
        means = np.cumsum(steady.risks) / np.arange(1, scale.taus[-1] + 1)
        risks[names[3]][:, draw] = means[np.array(scale.taus) - 1]
    taus = np.array(scale.taus, dtype=float)
    predicted = (-0.5, None, None, -1.0)
    late = len(taus) // 2  # the rates are those of many steps
    curves = tuple(Curve(name, "steps", taus, risks[name], p, late) for name, p in zip(names, predicted, strict=True))
    settings: dict[str, Any] = {
        "alpha": scale.alpha,
        "m": scale.m,
        "T": scale.T,
        "n": scale.n,
        "tau": scale.taus[-1],
        "nu": NU,
    }
    facts = {
        "risk at the start": risk(torch.zeros_like(y), y),
        "bound, corrected, most steps": theorem1("tanh", **settings).value,
        "bound, printed, most steps": theorem1("tanh", d=_D, form="printed", **settings).value,
    }
    return Experiment("iterations", "how does the risk fall with the steps?", curves, facts, scale.name, seed)


def width(scale: Scale, seed: int = 0, progress: Progress | None = None) -> Experiment:
    """Distance to the infinitely wide network, approximation, linearisation and movement against width.

    The risk itself is limited by the number of steps as soon as the width is moderate; the distance to the infinitely
    wide network, trained alike, shows what width does.
    """
    x, v, y = _problem(scale, seed)
    K = ntk.infinite_full(x, alpha=scale.alpha, nodes=scale.nodes).value
    eta = scale.n / float(torch.linalg.eigvalsh(K.flatten(0, 1).flatten(1))[-1])
    limit = kernel_descent(K, y, eta=eta, steps=scale.steps)[-1]
    predicted = {
        "distance to infinite width": -0.5,
        "approximation error": -0.5,
        "largest move of W": -0.5,
        "largest move of U": -0.5,
        "linearisation error": None,
        "best risk": None,
    }
    measured = {name: np.empty((len(scale.widths), scale.draws)) for name in predicted}
    for k, m in enumerate(scale.widths):
        for draw, start in enumerate(_starts(scale, m, seed + 1000 * k, f"width {m}", progress)):
            run = descend(start, x, y, eta=eta, steps=scale.steps)
            F = outputs(run.weights, x)
            measured["distance to infinite width"][k, draw] = float((F - limit).square().mean().sqrt())
            near = linearised(start, transport(start, v), x)
            measured["approximation error"][k, draw] = float((near - y).abs().max())
            measured["largest move of W"][k, draw] = run.moved_w.max() / math.sqrt(m)
            measured["largest move of U"][k, draw] = run.moved_u.max() / math.sqrt(m)
            measured["linearisation error"][k, draw] = float((F - linearised(start, run.weights, x)).abs().max())
            measured["best risk"][k, draw] = min(run.best_risk, run.final_risk)
    widths = np.array(scale.widths, dtype=float)
    curves = tuple(Curve(name, "width", widths, measured[name], p) for name, p in predicted.items())
    return Experiment("width", "what does width change?", curves, {"eta": eta}, scale.name, seed)


def kernel(scale: Scale, seed: int = 0, progress: Progress | None = None) -> Experiment:
    """Distance of the finite to the infinite kernel against width; to the printed kernel it does not fall."""
    x, *_ = _problem(scale, seed)
    right, wrong = (
        ntk.infinite(x, alpha=scale.alpha, nodes=scale.nodes, form=form).value for form in ("corrected", "printed")
    )
    errors = np.empty((2, len(scale.widths), scale.draws))
    for k, m in enumerate(scale.widths):
        for draw, start in enumerate(_starts(scale, m, seed + 1000 * k, f"kernel {m}", progress)):
            K = ntk.finite(start, x)
            for which, limit in enumerate((right, wrong)):
                errors[which, k, draw] = float((K - limit).square().mean().sqrt())
    widths = np.array(scale.widths, dtype=float)
    curves = (
        Curve("kernel error", "width", widths, errors[0], -0.5),
        Curve("to the printed kernel", "width", widths, errors[1]),
    )
    return Experiment("kernel", "does the kernel converge?", curves, {}, scale.name, seed)


def memory(scale: Scale, seed: int = 0, progress: Progress | None = None) -> Experiment:
    """Certified quantities explode at ``alpha sigma_1 = 1``; measured ones bend, but an impulse follows alpha^t."""
    T = scale.memory_time
    x = _inputs(scale.n, T, seed)
    v = _map(seed)
    names = ("largest sensitivity", "sharpness", "steps to a tenth of the risk")
    certain = {name: np.empty((len(scale.alphas), 1)) for name in ("mu_T", "certified width", "certified steps")}
    growth = np.empty((len(scale.alphas), 1))
    measured = {name: np.empty((len(scale.alphas), scale.draws)) for name in names}
    for k, alpha in enumerate(scale.alphas):
        y = target(x, v, alpha=alpha, nodes=scale.nodes).value
        wanted = 0.1 * risk(torch.zeros_like(y), y)
        need = theorem2("tanh", error=wanted, alpha=alpha, T=T, n=scale.n, nu=NU)
        certain["mu_T"][k] = mu0(alpha, T) * mu1(alpha, T)
        certain["certified width"][k], certain["certified steps"][k] = need.m, need.tau
        growth[k] = impulse_growth(alpha, T)
        stage = f"memory {alpha:g}"
        for draw, start in enumerate(_starts(scale, scale.m, seed + 1000 * k, stage, progress, alpha=alpha)):
            lengths = [torch.linalg.vector_norm(step.g, dim=-1).max() for step in sensitivity_steps(start, x)]
            measured[names[0]][k, draw] = float(torch.stack(lengths).max())
            some = x[: max(1, 600 // T)]
            measured[names[1]][k, draw] = ntk.sharpness(start, some)
            run = descend(start, x, y, eta=1 / measured[names[1]][k, draw], steps=scale.memory_steps, stop=wanted)
            measured[names[2]][k, draw] = math.nan if run.reached is None else run.reached
    alphas = np.array(scale.alphas)
    curves = [Curve(name, "alpha", alphas, values) for name, values in (certain | measured).items()]
    curves.append(Curve("growth of an impulse's kernel per step", "alpha", alphas, growth))
    return Experiment("memory", "what does memory cost?", tuple(curves), {"cut-off": 1.0}, scale.name, seed)


def projection(scale: Scale, seed: int = 0, progress: Progress | None = None) -> Experiment:
    """Plain against projected descent, below and above the cut-off, with stable and with too long steps."""
    x = _inputs(scale.n, scale.T, seed)
    v = _map(seed)
    factors = np.array([0.5, 1.0, 4.0])
    curves = []
    for alpha in (0.3, 1.3):
        y = target(x, v, alpha=alpha, nodes=scale.nodes).value
        measured = {
            f"{kind}, alpha {alpha:g}: {what}": np.empty((len(factors), scale.draws))
            for kind in ("plain", "projected")
            for what in ("last risk", "largest move times sqrt(m)")
        }
        for draw, start in enumerate(_starts(scale, scale.m, seed, f"projection {alpha:g}", progress, alpha=alpha)):
            steep = ntk.sharpness(start, x)
            for k, factor in enumerate(factors):
                for kind, rho in (("plain", None), ("projected", NU)):
                    run = descend(start, x, y, eta=factor / steep, steps=scale.steps, rho=rho)
                    measured[f"{kind}, alpha {alpha:g}: last risk"][k, draw] = run.final_risk
                    moved = max(run.moved_w.max(), run.moved_u.max())
                    measured[f"{kind}, alpha {alpha:g}: largest move times sqrt(m)"][k, draw] = moved
        curves += [Curve(name, "step in units of 1/sharpness", factors, values) for name, values in measured.items()]
    facts = {"rho_w": NU[0], "rho_u": NU[1]}
    return Experiment("projection", "what does the projection do?", tuple(curves), facts, scale.name, seed)


def samples(scale: Scale, seed: int = 0, progress: Progress | None = None) -> Experiment:
    """Largest approximation error over n sequences: the union bound lets it grow like sqrt(log n), no faster."""
    most = max(scale.samples)
    x = _inputs(most, scale.T, seed)
    v = _map(seed)
    y = target(x, v, alpha=scale.alpha, nodes=scale.nodes).value
    draws = 8 * scale.draws  # cheap, and a maximum needs more of them
    errors = np.empty((len(scale.samples), draws))
    for draw, start in enumerate(_starts(scale, 256, seed, "samples", progress, draws=draws)):
        apart = (linearised(start, transport(start, v), x) - y).abs().amax(1)
        for k, n in enumerate(scale.samples):
            errors[k, draw] = float(apart[:n].max())
    counts = np.array(scale.samples, dtype=float)
    logs = np.sqrt(np.log(2 * counts * scale.T / DELTA))
    curves = (
        Curve("largest error", "sequences", counts, errors),
        Curve("largest error, by sqrt(log(2nT/delta))", "sqrt(log(2nT/delta))", logs, errors, 1.0),
    )
    facts = {
        "growth of the 95 % quantile": float(np.quantile(errors[-1], 0.95) / np.quantile(errors[0], 0.95)),
        "growth of sqrt(log(2nT/delta))": float(logs[-1] / logs[0]),
    }
    return Experiment("samples", "what do more sequences cost?", curves, facts, scale.name, seed)


def impulse_growth(alpha: float, T: int) -> float:
    """Factor by which ``kappa_t`` of an impulse followed by zeros grows in the last of T steps.

    Units with tiny ``|u0|`` stay in the linear range and carry it, so the grid is even in ``log |u0|``.
    """
    x = torch.zeros(1, T, 1, dtype=torch.float64)
    x[0, 0, 0] = 1.0
    logs = torch.linspace(-30.0 - 2 * T * max(0.0, math.log(alpha)), math.log(9.0), 4001, dtype=torch.float64)
    u = logs.exp()
    weight = u * torch.exp(-u * u / 2)
    weight = weight / weight.sum()
    W = torch.full_like(u, alpha)  # both signs of w0 and of u0 give the same
    grams = [
        float((weight * step.g[0].square().sum(-1)).sum())
        for step in sensitivity_steps(Weights(W, u[:, None], torch.ones_like(u)), x)
    ]
    return grams[-1] / grams[-2]


EXPERIMENTS: dict[str, Callable[..., Experiment]] = {
    function.__name__: function for function in (iterations, width, kernel, memory, projection, samples)
}


def run(name: str, scale: str | Scale = "small", seed: int = 0, progress: Progress | None = None) -> Experiment:
    """Run one experiment by name.

    >>> print(run("kernel", "smoke").slopes["kernel error"].predicted)
    -0.5
    """
    if name not in EXPERIMENTS:
        raise InputError("unknown experiment", got=repr(name), expected=", ".join(EXPERIMENTS))
    if isinstance(scale, str) and scale not in SCALES:
        raise InputError("unknown scale", got=repr(scale), expected=", ".join(SCALES), fix="or pass a Scale")
    return EXPERIMENTS[name](SCALES[scale] if isinstance(scale, str) else scale, seed, progress)


def _inputs(n: int, T: int, seed: int) -> Tensor:
    """Directions drawn uniformly, of length one."""
    x = torch.randn(n, T, _D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def _map(seed: int) -> TransportMap:
    return random_map(_D, NU, torch.Generator().manual_seed(seed + 1))


def _problem(scale: Scale, seed: int) -> tuple[Tensor, TransportMap, Tensor]:
    x, v = _inputs(scale.n, scale.T, seed), _map(seed)
    return x, v, target(x, v, alpha=scale.alpha, nodes=scale.nodes).value


def _starts(
    scale: Scale, m: int, seed: int, stage: str, progress: Progress | None, *, alpha: float | None = None,
    draws: int | None = None,
) -> Iterator[Weights]:  # fmt: skip
    """Random starts, one after the other, telling how many are done."""
    count = scale.draws if draws is None else draws
    for draw, stream in enumerate(np.random.SeedSequence([seed, m]).spawn(count)):
        yield symmetric_init(m, _D, scale.alpha if alpha is None else alpha, int(stream.generate_state(1)[0]))
        if progress is not None:
            progress(stage, draw + 1, count)
