"""A whole diagnosis, end to end, and how much memory it takes with ten times as many sequences.

An `nn.LSTM` with a linear readout, 16 inputs and 64 units, 256 steps, all lags in bands, or the first 32 one by one. "epoch" is
what training would take to go over the same sequences once, forward and backward in batches of 16. For memory, batches of a
small model are made while they are read, so that the data themselves are never in memory; every size has a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from benchmarks.harness import ROOT, Case, Op, Timing, measure
from lagreach import GatedRNN, diagnose

LSTM = {"model": "nn.LSTM", "sequences": 256, "time": 256, "input": 16, "hidden": 64}
SHAPES = {
    "full": {**LSTM, "memory": {"sequences": [800, 8000], "time": 64, "input": 8, "hidden": 32}},
    "quick": {**LSTM, "sequences": 64, "memory": {"sequences": [160, 1600], "time": 32, "input": 4, "hidden": 8}},
    "tiny": {**LSTM, "sequences": 16, "time": 12, "hidden": 4},
}
BATCH = 50


class LastLayer(nn.Module):
    """An LSTM and a linear readout of every step."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.readout = nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Output of every step."""
        return self.readout(self.lstm(x)[0])


class Batches:
    """Sequences with a planted lag, made batch by batch and the same every time."""

    def __init__(self, sequences: int, steps: int, inputs: int) -> None:
        self.shape = (sequences, steps, inputs)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        sequences, steps, inputs = self.shape
        for start in range(0, sequences, BATCH):
            generator = torch.Generator().manual_seed(start)
            x = torch.randn(min(BATCH, sequences - start), steps, inputs, generator=generator)
            noise = torch.randn(*x.shape[:2], 1, generator=generator)
            yield x, nn.functional.pad(x[:, :-4, :1], (0, 0, 4, 0)) + 0.3 * noise


def cases(size: str) -> list[Case]:
    """All lags, where it is also said how much memory is taken, and single ones."""
    shape, repeats = SHAPES[size], {"full": 3, "quick": 1, "tiny": 1}[size]
    name, lags = f"{shape['sequences']} sequences", min(32, shape["time"] // 2)
    alone = {key: value for key, value in shape.items() if key != "memory"} | {"lags": lags}
    return [Case(name, shape, repeats), Case(f"{name}, lags 1 to {lags}", alone, repeats)]


def run(case: Case) -> dict[str, Timing]:
    """Seconds of a diagnosis; the first one warms up."""
    shape = case.shape
    torch.manual_seed(0)
    model = LastLayer(shape["input"], shape["hidden"])
    x, y = (torch.cat(part) for part in zip(*Batches(shape["sequences"], shape["time"], shape["input"]), strict=True))

    def epoch() -> None:
        for inputs, targets in zip(x.split(16), y.split(16), strict=True):
            (model(inputs) - targets).square().mean().backward()

    lags = range(1, shape["lags"] + 1) if "lags" in shape else "auto"
    return measure(
        {"lagreach": lambda: diagnose(model, (x, y), lags=lags, progress=False), "epoch": epoch}, case.repeats
    )


def peaks(case: Case, _: Mapping[str, Timing]) -> dict[str, float]:
    """Peak memory of diagnoses of few and of many sequences, each in a process of its own."""
    shape = case.shape.get("memory")
    if shape is None:
        return {}
    code = "from benchmarks.diagnose import print_peak; print_peak()"
    mebibytes = {}
    for sequences in shape["sequences"]:
        words = [str(v) for v in (sequences, shape["time"], shape["input"], shape["hidden"])]
        command = [sys.executable, "-c", code, *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        mebibytes[f"peak MiB of {sequences} sequences"] = float(done.stdout.split()[-1])
    few, many = mebibytes.values()
    return mebibytes | {"many over few": many / few}


def print_peak() -> None:
    """Be the process whose memory is measured."""
    import resource

    sequences, steps, inputs, hidden = (int(word) for word in sys.argv[1:])
    model = GatedRNN("diag_gate", inputs, hidden, 1, gate_init=0.1, generator=torch.Generator().manual_seed(0))
    diagnose(model, Batches(sequences, steps, inputs), progress=False)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


OP = Op(
    name="diagnose",
    about="a whole diagnosis",
    unit="diagnosis",
    guards=("tests/gradients/test_invariance.py",),
    cases=cases,
    run=run,
    derive=peaks,
)
