"""How time grows with sequences, steps, units and lags: each axis doubled on its own, and a power fitted.

Exact transport (with the gradients of the input weights, as a diagnosis needs them) and the first order. Both should be
linear in sequences, steps and lags; the first order in units as well, while exact transport multiplies matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import median

import torch

from benchmarks.harness import Case, Op, Timing, measure
from lagreach import GatedRNN, effective_rates, rollout
from lagreach.transport.exact import exact_transport

BASE = {"cell": "diag_gate", "sequences": 8, "time": 512, "input": 16, "hidden": 64, "lags": 64}
TINY = {"cell": "diag_gate", "sequences": 2, "time": 16, "input": 3, "hidden": 4, "lags": 4}
AXES = ("sequences", "time", "hidden", "lags")
POINTS = {"full": 4, "quick": 3, "tiny": 2}  # doublings


def cases(size: str) -> list[Case]:
    """One case an axis."""
    base = TINY if size == "tiny" else BASE
    by_axis = []
    for axis in AXES:
        start = base[axis] if axis == "sequences" else base[axis] // 2
        values = [start * 2**k for k in range(POINTS[size])]
        time = max(base["time"], 2 * max(values)) if axis == "lags" else base["time"]  # lags need room
        shape = {**base, "time": time, "axis": axis, "values": values}
        by_axis.append(Case(axis, shape, {"full": 5, "quick": 3, "tiny": 1}[size]))
    return by_axis


def run(case: Case) -> dict[str, Timing]:
    """Seconds per call at every value of the axis."""
    implementations: dict[str, Callable[[], object]] = {}
    for value in case.shape["values"]:
        shape = {**case.shape, case.shape["axis"]: value}
        generator = torch.Generator().manual_seed(0)
        model = GatedRNN(shape["cell"], shape["input"], shape["hidden"], 1, gate_init=0.05, generator=generator)
        x = torch.randn(shape["sequences"], shape["time"], shape["input"], generator=generator)
        implementations |= at(f"{shape['axis']}={value}", model, x, range(1, shape["lags"] + 1))
    return measure(implementations, case.repeats)


def at(label: str, model: GatedRNN, x: torch.Tensor, lags: range) -> dict[str, Callable[[], object]]:
    """Both transports of one model and batch."""
    part = rollout(model, x)
    delta = torch.randn_like(part.states)
    names = [name for name in part.recurrence.params if ".W_" in name]

    def exact() -> None:
        for _ in exact_transport(part, delta, lags, params=names):
            pass

    return {f"exact {label}": exact, f"first order {label}": lambda: effective_rates(model, x, lags)}


def exponents(case: Case, timings: Mapping[str, Timing]) -> dict[str, float]:
    """Least-squares slope of log time over log size, for each transport."""
    slopes = {}
    for kind in ("exact", "first order"):
        seconds = [median(t.cpu) for name, t in timings.items() if name.startswith(kind)]
        across = [math.log2(v) for v in case.shape["values"]]
        along = [math.log2(s) for s in seconds]
        middle = sum(across) / len(across)
        slope = sum((a - middle) * b for a, b in zip(across, along, strict=True))
        slopes[f"exponent of {kind}"] = slope / sum((a - middle) ** 2 for a in across)
    return slopes


OP = Op(
    name="growth",
    about="time against sequences, steps, units and lags",
    unit="call",
    guards=("tests/transport/test_fast_transport.py::test_blocks_of_rows_do_not_matter",),
    cases=cases,
    run=run,
    derive=exponents,
)
