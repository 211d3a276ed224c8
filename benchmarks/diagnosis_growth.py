"""How a whole diagnosis and a whole forecast grow: CPU time and peak memory against sequences, steps, lags, units and layers.

An `nn.LSTM` with a linear readout; one axis is doubled at a time. Time is that of a second call in its process; a power of the
size is fitted to all repeats, with its 95 % interval. Memory is the peak of a process of its own that makes its data batch by
batch, so that the data themselves are never in memory: what a diagnosis holds must not grow with the number of sequences.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.diagnose import Batches, LastLayer
from benchmarks.harness import ROOT, Case, Op, Timing, measure
from lagreach import diagnose, forecast

BASE = {"sequences": 128, "time": 64, "lags": 16, "hidden": 32, "layers": 1}
TINY = {"sequences": 32, "time": 16, "lags": 4, "hidden": 4, "layers": 1}
INPUTS, DIRECTIONS = 8, 32
POINTS = {"full": 3, "quick": 2, "tiny": 2}  # doublings
CALLS = ("diagnose", "forecast")


def cases(size: str) -> list[Case]:
    """One case for each call and axis."""
    base = TINY if size == "tiny" else BASE
    return [
        Case(
            f"{call}, {axis}",
            {
                "cell": "nn.LSTM",
                **base,
                "call": call,
                "axis": axis,
                "values": [start * 2**k for k in range(POINTS[size])],
            },
            {"full": 3, "quick": 1, "tiny": 1}[size],
        )
        for call in CALLS
        for axis, start in base.items()
    ]


def at(shape: Mapping[str, Any], value: int) -> dict[str, int]:
    """Sizes of one point; lags need room."""
    sizes = {name: shape[name] for name in BASE} | {shape["axis"]: value}
    return sizes | {"time": max(sizes["time"], 2 * sizes["lags"])}


def call(name: str, sizes: Mapping[str, int], *, from_batches: bool = False) -> Callable[[], object]:
    """Return what is to be timed."""
    torch.manual_seed(0)
    model = LastLayer(INPUTS, sizes["hidden"])
    model.lstm = nn.LSTM(INPUTS, sizes["hidden"], sizes["layers"], batch_first=True)
    batches = Batches(sizes["sequences"], sizes["time"], INPUTS)
    data: Any = batches if from_batches else tuple(torch.cat(part) for part in zip(*batches, strict=True))
    lags = range(1, sizes["lags"] + 1)
    if name == "diagnose":
        return lambda: diagnose(model, data, lags=lags, progress=False)
    return lambda: forecast(model, data, lags=lags, directions=DIRECTIONS)


def run(case: Case) -> dict[str, Timing]:
    """Seconds at every value of the axis."""
    shape = case.shape
    points = {f"{shape['axis']}={v}": call(shape["call"], at(shape, v)) for v in shape["values"]}
    return measure(points, case.repeats)


def slope(sizes: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Exponent of a power of the size, and half of its 95 % interval.

    >>> exponent, half = slope([1, 2, 4, 8], [3, 6, 12, 24])
    >>> round(exponent, 6), round(half, 6)
    (1.0, 0.0)
    """
    from scipy.stats import linregress, t

    fit = linregress([math.log(size) for size in sizes], [math.log(value) for value in values])
    free = len(sizes) - 2
    return float(fit.slope), float(t.ppf(0.975, free) * fit.stderr) if free > 0 else math.nan


def exponents(case: Case, timings: Mapping[str, Timing]) -> dict[str, float]:
    """Powers of time and memory, and the peaks of memory they come from."""
    sizes = case.shape["values"]
    repeated = [(size, second) for size, timing in zip(sizes, timings.values(), strict=True) for second in timing.cpu]
    time, time_half = slope(*zip(*repeated, strict=True))
    peaks = {size: peak(case.shape["call"], at(case.shape, size)) for size in sizes}
    memory, memory_half = slope(sizes, list(peaks.values()))
    exponents = {"exponent of time": time, "its interval, half": time_half}
    exponents |= {"exponent of memory": memory, "of memory, half": memory_half}
    known = {name: value for name, value in exponents.items() if math.isfinite(value)}
    return known | {f"peak MiB at {size}": value for size, value in peaks.items()}


def peak(name: str, sizes: Mapping[str, int]) -> float:
    """Peak memory, in MiB, of a process that makes the call once."""
    code = "from benchmarks.diagnosis_growth import print_peak; print_peak()"
    words = [name, *(str(sizes[axis]) for axis in BASE)]
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def print_peak() -> None:
    """Be the process whose memory is measured, beyond what it takes to import the package."""
    name, *words = sys.argv[1:]
    started = highest_resident()
    call(name, dict(zip(BASE, map(int, words), strict=True)), from_batches=True)()
    print(highest_resident() - started)


def highest_resident() -> float:
    """MiB of memory that this program has held at most. (`getrusage` would count what its parent held when it forked.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


OP = Op(
    name="diagnosis_growth",
    about="a whole diagnosis and a forecast against sequences, steps, lags, units and layers",
    unit="call",
    guards=("tests/transport/test_joined_steps.py",),
    cases=cases,
    run=run,
    derive=exponents,
)
