"""One step of gradient descent on a wide diagonal network (risk and gradient) beside the floor of its arithmetic.

"floor" does what no implementation without stored states can avoid, and nothing else: two tanh per cell (forward, and
again for the gradient; storing 1 GiB of states costs as much as computing them again) on numbers that stay in cache, by
the same vector routine, and the multiplications of the three products with the inputs at the speed of a large matrix
product. "torch" is the blocked twin; "autograd" the plain loop over time, where its memory allows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numba import njit

from benchmarks.harness import Case, Op, Timing, measure
from lagreach.papers.cayci import Weights, fused, symmetric_init
from lagreach.papers.cayci.streaming import risk_and_gradient

WORKLOADS = {
    "full": {"wide": {"sequences": 256, "time": 128, "width": 4096, "input": 8}},
    "quick": {"quick": {"sequences": 64, "time": 64, "width": 1024, "input": 8}},
    "tiny": {"tiny": {"sequences": 3, "time": 5, "width": 40, "input": 3}},
}
SIDE = 512  # of the matrices that measure how fast multiplications can be
NOTE = "floor: two tanh per cell in cache, and the products with the inputs at the speed of a large matrix product"


def cases(size: str) -> list[Case]:
    repeats = {"full": 5, "quick": 3, "tiny": 1}[size]
    return [Case(name, {**shape, "autograd": size != "full"}, repeats, NOTE) for name, shape in WORKLOADS[size].items()]


def run(case: Case) -> dict[str, Timing]:
    """Seconds per step."""
    shape = case.shape
    generator = torch.Generator().manual_seed(0)
    start = symmetric_init(shape["width"], shape["input"], 0.9, generator)
    moved = 0.1 * torch.randn(shape["width"], generator=generator, dtype=torch.float64)
    weights = start._replace(W=start.W + moved)
    x = torch.randn(shape["sequences"], shape["time"], shape["input"], generator=generator, dtype=torch.float64)
    x = x / x.norm(dim=-1, keepdim=True)
    y = torch.randn(shape["sequences"], shape["time"], generator=generator, dtype=torch.float64)

    implementations: dict[str, Callable[[], object]] = {
        "floor": lambda: floor(x.shape[0] * x.shape[1] * len(weights.W), x.shape[2]),
        "lagreach": lambda: risk_and_gradient(weights, x, y, engine="numba"),
        "torch": lambda: risk_and_gradient(weights, x, y, engine="torch"),
    }
    if shape["autograd"]:
        implementations["autograd"] = lambda: by_autograd(weights, x, y)
    risk, *gradients = risk_and_gradient(weights, x, y, engine="numba")
    for name in list(implementations)[2:]:
        other, *others = implementations[name]()
        for mine, its in zip((torch.tensor(risk), *gradients), (torch.tensor(other), *others), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-9, atol=1e-11)
    return measure(implementations, case.repeats)


def by_autograd(weights: Weights, x: torch.Tensor, y: torch.Tensor) -> tuple[float, torch.Tensor, torch.Tensor]:
    W, U = weights.W.clone().requires_grad_(), weights.U.clone().requires_grad_()
    H, outputs = torch.zeros(len(x), len(W), dtype=x.dtype), []
    for drive in torch.einsum("ntd,md->tnm", x, U).unbind():
        H = torch.tanh(W * H + drive)
        outputs.append(H @ weights.c)
    risk = (torch.stack(outputs, dim=1) / len(W) ** 0.5 - y).square().sum() / len(x)
    return risk.item(), *torch.autograd.grad(risk / 2, (W, U))


@njit(fastmath={"contract"}, error_model="numpy")
def tanh_again_and_again(values, out, times):
    for _ in range(times):
        for k in range(values.size):
            out[k] = fused.tanh(values[k])


VALUES, OUT = np.linspace(-3, 3, 1024), np.empty(1024)
SQUARE = torch.ones(SIDE, SIDE, dtype=torch.float64)


def floor(cells: int, width: int) -> None:
    tanh_again_and_again(VALUES, OUT, -(-2 * cells // VALUES.size))
    for _ in range(-(-3 * cells * width // SIDE**3)):
        torch.mm(SQUARE, SQUARE)


OP = Op(
    name="wide_network",
    about="risk and gradient of a wide diagonal network",
    unit="descent step",
    guards=("tests/papers/cayci/test_recurrence.py",),
    cases=cases,
    run=run,
    baseline="floor",
)
