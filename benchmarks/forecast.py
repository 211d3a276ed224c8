"""What a forecast costs beside running the model: the sums of the readout, and those of all weights along 256 directions.

All weights in the two ways that recurrent layers have, on some of the sequences: gradients carried back from the steps looked
at, and a run of the model in double precision for every direction (timed for a few of them). `derive` gives them in forward
passes over the same sequences, which lie in the computer's memory for both and are brought to a GPU on the way. The shares that
follow from the sums take the same time whatever the number of sequences, and are timed alone. Where there is a GPU, the same
models are timed there too, by the clock on the wall (`--only cuda`). So is the readout on all cores (`--only cores`): a pass of a
few sequences has work for one of them, and a pass over all of them has for more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import Case, Op, Timing, measure
from lagreach import GatedRNN
from lagreach._util.threads import one_thread
from lagreach.data.sequences import as_sequences
from lagreach.forecasting.forecast import forecast
from lagreach.forecasting.linearise import Linearisation, choose_linearisation
from lagreach.forecasting.network import as_network
from lagreach.forecasting.plan import BLOCKS, make_plan
from lagreach.forecasting.run import DIRECTIONS
from lagreach.forecasting.target_batches import Measurement
from lagreach.statistics import reachable, readable
from lagreach.statistics.linear_share import ShareMoments, output_space, share_curves
from lagreach.statistics.reachable import Directions

SHORT = 48  # steps on which answers are compared
OF_TORCH = ("nn.LSTM", "nn.GRU")
CELLS = {"full": ("diag_gate", "gru", "lstm", *OF_TORCH), "quick": ("diag_gate",), "tiny": ("diag_gate",)}
W1 = {
    "sequences": 256,
    "few": 32,
    "batch": 16,
    "time": 1024,
    "input": 16,
    "hidden": 64,
    "directions": DIRECTIONS,
    "runs": 8,
}
ON_GPU = {"few": 256, "runs": 2}  # a GPU that carries back 32 sequences waits for its host
TINY = {"sequences": 32, "few": 32, "batch": 16, "time": 12, "input": 2, "hidden": 4, "directions": 4, "runs": 2}


class OfTorch(nn.Module):
    """A recurrent layer of torch with a readout."""

    def __init__(self, kind: str, inputs: int, hidden: int) -> None:
        super().__init__()
        self.layer, self.read = getattr(nn, kind)(inputs, hidden, batch_first=True), nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.layer(x)[0])


def cases(size: str) -> list[Case]:
    """One case a cell, at the sizes of the first reference workload."""
    shape, repeats = TINY if size == "tiny" else W1, {"full": 5, "quick": 3, "tiny": 1}[size]
    every = [Case(cell, {"cell": cell, "device": "cpu", **shape}, repeats) for cell in CELLS[size]]
    cores = os.cpu_count() or 1
    if cores > 1:
        every += [
            Case(f"{cell}, {cores} cores", {"cell": cell, "device": "cpu", "threads": cores, **shape}, repeats)
            for cell in CELLS[size]
        ]
    if torch.cuda.is_available():
        every += [
            Case(f"{cell}, cuda", {"cell": cell, "device": "cuda", **shape} | ON_GPU, repeats) for cell in CELLS[size]
        ]
    return every


def build(shape: Mapping[str, Any], generator: torch.Generator) -> nn.Module:
    """An untrained network, on its device."""
    cell, sizes = shape["cell"], (shape["input"], shape["hidden"])
    if cell in OF_TORCH:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model: nn.Module = OfTorch(cell.removeprefix("nn."), *sizes)
    else:
        model = GatedRNN(cell, *sizes, 1, gate_init=0.05, generator=generator)
    return model.to(shape["device"])


def finished(work: Callable[[], object], device: str) -> Callable[[], None]:
    """The same work, which ends when the device has done it."""

    def done() -> None:
        work()
        if device == "cuda":
            torch.cuda.synchronize()

    return done


def run(case: Case) -> dict[str, Timing]:
    """Seconds of a forward pass, of both sums, and of what follows from them."""
    shape = case.shape
    generator = torch.Generator().manual_seed(0)
    model = build(shape, generator)
    x = torch.randn(shape["sequences"], shape["time"], shape["input"], generator=generator)
    y = torch.randn(shape["sequences"], shape["time"], 1, generator=generator)
    plan = make_plan(as_sequences((x, y)), "auto", 0)
    sample = plan.sequences.read([0, 1])
    network = as_network(model, sample)
    space = output_space("mse", 1, 1, plan.coding.project.shape[1], torch.Generator().manual_seed(1))
    measurement = Measurement(network, plan, "mse", None, space)
    on_few = replace(measurement, plan=plan.only(shape["few"]))  # for all weights
    ways = {
        "reachable": (choose_linearisation(network, sample, "backward"), shape["directions"]),
        "by runs": (choose_linearisation(network, sample, "difference"), shape["runs"]),
    }

    def forward() -> None:
        with torch.no_grad():
            for batch in x.split(shape["batch"]):
                model(batch.to(shape["device"]))

    def read() -> ShareMoments:
        sums = readable.start(BLOCKS, shape["hidden"], plan.lags, space.copies, network.device)
        measurement.add_readable(sums)
        return sums

    def reach(how: Linearisation, count: int) -> ShareMoments:
        moved = {name: weight for name, weight in how.weights(network).items() if name not in network.readout}
        directions = Directions(moved, count, 0)
        sums = reachable.start(BLOCKS, len(directions) + shape["hidden"], space, plan.lags, network.device)
        on_few.add_reachable(sums, directions, how)
        return sums

    agree(model, x[:, :SHORT], y[:, :SHORT])
    done = read()
    timed = {
        "forward": forward,
        "readable": read,
        **{name: (lambda way=way: reach(*way)) for name, way in ways.items()},
        "shares": lambda: share_curves(done),
    }
    if "threads" in shape:  # runs along directions are as many as there are: they keep all cores busy in any case
        timed = {"forward": forward, "readable": one_thread()(read)}  # as a forecast does
    return measure({name: finished(work, shape["device"]) for name, work in timed.items()}, case.repeats)


def agree(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Compare the ways on the first steps, where gradients of an untrained network have not exploded yet."""
    back, apart = (
        forecast(model, (x, y), lags=[0, 1, 4], directions=16, derivatives=way).reach
        for way in ("backward", "difference")
    )
    assert back is not None
    assert apart is not None
    torch.testing.assert_close(*(torch.from_numpy(curves.share) for curves in (back, apart)), rtol=0, atol=1e-4)


def passes(case: Case, timings: Mapping[str, Timing]) -> dict[str, float]:
    """Both in forward passes; all weights for as many directions as a forecast takes."""
    clock = "cpu" if case.shape["device"] == "cpu" and "threads" not in case.shape else "wall"
    seconds = {name: median(getattr(timing, clock)) for name, timing in timings.items()}
    few = case.shape["few"] / case.shape["sequences"]
    readable = seconds["readable"] / seconds["forward"]
    if "reachable" not in seconds:
        return {"forward passes of the readout": readable}
    reachable, by_runs = (seconds[name] / (few * seconds["forward"]) for name in ("reachable", "by runs"))
    wanted = case.shape["directions"]
    return {
        "forward passes of the readout": readable,
        f"forward passes of {wanted} directions": reachable,
        f"forward passes of {wanted} directions by runs": wanted * (by_runs - readable) / case.shape["runs"] + readable,
    }


OP = Op(
    name="forecast",
    about="a forecast beside running the model",
    unit="pass over the sequences",
    guards=(
        "tests/statistics/test_linear_share.py",
        "tests/forecasting/test_derivatives.py::test_gradients_carried_back_agree_with_differences",
    ),
    cases=cases,
    run=run,
    baseline="forward",
    derive=passes,
)
