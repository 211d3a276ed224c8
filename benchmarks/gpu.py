"""Training steps on a GPU: ``python -m benchmarks.gpu [--out DIR]`` checks every fused kernel, then times whole steps.

W1: batch 16, T=1024, D=16, H=64. W2: batch 512, H=128. A step is the forward and backward pass with a linear readout and
squared error at every step, captured in a CUDA graph and timed by CUDA events, for one model and for several at once.
Beside it: cuDNN's LSTM and GRU. Nothing is timed unless values, gradients and tangents agree with the float64 loop.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from lagreach.cells import Cell, all_cells
from lagreach.kernels import scan

LIMIT = 1e-5  # on relative errors, of gradients too
SIZES = ((20, 5, 33, True), (64, 16, 64, False), (64, 16, 64, True), (128, 16, 64, False), (256, 16, 24, False))
W1 = {"sequences": 16, "time": 1024, "input": 16, "hidden": 64}
W2 = {"sequences": 512, "time": 1024, "input": 16, "hidden": 128}
CASES = (("W1", W1, 1), ("W1", W1, 132), ("W2", W2, 1), ("W2", W2, 4))
TIMED = ("const_gate", "shared_gate", "diag_gate", "gru", "lstm", "torch_gru")
CUDNN: dict[str, type[nn.RNNBase]] = {"lstm": nn.LSTM, "torch_gru": nn.GRU}


def problem(cell: Cell, replicas: int, sequences: int, time: int, hidden: int, size: int) -> tuple[Tensor, ...]:
    """Inputs, first states and weights of several models, on the GPU, at a scale at which gradients neither vanish nor grow."""
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(replicas, *shape, generator=generator, device="cuda")

    weights = []
    for name, shape in cell.shapes(size, hidden).items():
        centre = 1.0 if name == "ln_gain" else -2.0 if (name, 1) == (cell.retention_bias or ("", 0)) else 0.0
        weights.append(centre + draw(*shape) * (0.5 / shape[-1] ** 0.5 if len(shape) > 1 else 0.3))
    return draw(sequences, time, size), 0.5 * draw(sequences, cell.state_size(hidden)), *weights


def errors(cell: Cell, hidden: int, sequences: int, time: int, kernel: str = "triton") -> dict[str, float]:
    """Relative errors of states, gradients (each input's) and tangents against the float64 loop."""
    inputs = problem(cell, 2, sequences, time, hidden, 5)
    names = list(cell.shapes(5, hidden))
    pull, *push = (
        torch.randn_like(v) for v in (torch.empty(2, sequences, time, cell.state_size(hidden)).cuda(), *inputs)
    )

    def measure(kernel: str, dtype: torch.dtype) -> dict[str, Tensor]:
        def run(x: Tensor, s0: Tensor, *weights: Tensor) -> Tensor:
            return scan(cell, x, s0, dict(zip(names, weights, strict=True)), kernel=kernel)

        leaves = [v.to(dtype).requires_grad_() for v in inputs]
        states = run(*leaves)
        found = torch.autograd.grad(states, leaves, pull.to(dtype))
        _, tangent = torch.func.jvp(run, tuple(v.detach() for v in leaves), tuple(v.to(dtype) for v in push))
        return {"states": states.detach(), "tangent": tangent} | dict(zip(["x", "s0", *names], found, strict=True))

    got, expected = measure(kernel, torch.float32), measure("reference", torch.float64)
    return {k: float((got[k] - v).norm() / v.norm()) for k, v in expected.items()}


def check(name: str) -> dict[str, float]:
    """Largest relative error of a cell at each size."""
    kind, found = all_cells()[name], {}
    for hidden, sequences, time, layernorm in SIZES:
        if layernorm and name == "diag_elman":
            continue
        cell = kind(layernorm=True) if layernorm else kind()  # type: ignore[call-arg]
        worst = errors(cell, hidden, sequences, time)
        key = max(worst, key=lambda k: worst[k] if worst[k] == worst[k] else torch.inf)
        found[f"H={hidden}{' layernorm' if layernorm else ''} ({key})"] = worst[key]
    return found


def training_step(name: str, shape: dict[str, int], replicas: int) -> Callable[[], object]:
    """Forward and backward pass of several models, as a CUDA graph."""
    cell, hidden = all_cells()[name](), shape["hidden"]
    x, s0, *weights = problem(cell, replicas, shape["sequences"], shape["time"], hidden, shape["input"])
    names = list(cell.shapes(shape["input"], hidden))
    readout, y = torch.randn(replicas, 1, hidden, 1, device="cuda") / hidden, torch.randn_like(x[..., :1])
    leaves = [w.requires_grad_() for w in (*weights, readout)]
    unread = readout.new_zeros(replicas, 1, s0.shape[-1] - hidden, 1)  # blocks of the state that are not the output

    def step() -> tuple[Tensor, ...]:
        states = scan(cell, x, s0, dict(zip(names, leaves[:-1], strict=True)), kernel="triton")
        # Reading the whole state with zero weights costs less than cutting the output out of it and padding its gradient.
        out = torch.matmul(states, torch.cat((leaves[-1], unread), dim=2))
        loss = nn.functional.mse_loss(out, y, reduction="none").mean((1, 2, 3)).sum()
        return torch.autograd.grad(loss, leaves)

    return captured(step)


def cudnn_step(name: str, shape: dict[str, int]) -> Callable[[], object]:
    """The same for one model of cuDNN's."""
    layer = CUDNN[name](shape["input"], shape["hidden"], batch_first=True).cuda()
    readout = nn.Linear(shape["hidden"], 1).cuda()
    x = torch.randn(shape["sequences"], shape["time"], shape["input"], device="cuda")
    y = torch.randn_like(x[..., :1])
    leaves = [*layer.parameters(), *readout.parameters()]

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(nn.functional.mse_loss(readout(layer(x)[0]), y), leaves)

    return captured(step)


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """Capture a step in a CUDA graph, so that the host does not limit it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = step()

    def replay() -> object:
        graph.replay()
        return held

    return replay


def milliseconds(step: Callable[[], object], repeats: int = 15) -> list[float]:
    """Time by CUDA events, one for each repeat, after a warm-up."""
    for _ in range(3):
        step()
    taken = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end))
    return taken


def kernels_of(step: Callable[[], object]) -> dict[str, float]:
    """Milliseconds in each GPU kernel of one step: the profile."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    times = {e.key[:60]: e.self_device_time_total / 1e3 for e in seen.key_averages()}
    return {k: round(v, 3) for k, v in sorted(times.items(), key=lambda item: -item[1])[:8]}


def timings(names: tuple[str, ...] = TIMED) -> list[dict[str, Any]]:
    """Time every case."""
    records = []
    for name in names:
        for workload, shape, replicas in CASES:
            step = training_step(name, shape, replicas)
            taken = milliseconds(step)
            record = {"cell": name, "workload": workload, **shape, "replicas": replicas}
            record |= {"ms": median(taken), "ms_per_model": median(taken) / replicas, "repeats": taken}
            records.append(record | {"kernels": kernels_of(step)})
            del step
            if name in CUDNN and replicas == 1:
                records[-1]["cudnn_ms"] = median(milliseconds(cudnn_step(name, shape)))
            torch.cuda.empty_cache()
            shown = {k: v for k, v in records[-1].items() if k in ("cell", "workload", "replicas", "ms", "cudnn_ms")}
            print(shown, records[-1]["kernels"], flush=True)
    return records


def machine() -> dict[str, Any]:
    """What the times hold for."""
    import triton

    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver.stdout.strip(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def main() -> int:
    """Check, in one process for each cell since compiling takes the time; then measure; then write JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--check", metavar="CELL", help="only check one cell and print its errors as JSON")
    options = parser.parse_args()
    if options.check:
        print(json.dumps(check(options.check)))
        return 0
    command = [sys.executable, "-m", "benchmarks.gpu", "--check"]
    running = {
        name: subprocess.Popen([*command, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name in all_cells()
    }
    checks: dict[str, dict[str, float]] = {}
    for name, process in running.items():
        said, complaint = process.communicate()
        if process.returncode != 0:
            print(f"{name}: the check stopped\n{complaint[-3000:]}")
            continue
        checks[name] = json.loads(said.splitlines()[-1])
        print(name, checks[name], flush=True)
    wrong = [name for name in running if not all(e < LIMIT for e in checks.get(name, {"": torch.nan}).values())]
    if wrong:
        print(f"not timed, because not known to be right: {', '.join(wrong)}")
    record = {
        "op": "gpu",
        "about": "training step on a GPU: forward and backward pass, squared error at every step, as a CUDA graph",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "errors": checks,
        "cases": timings(tuple(name for name in TIMED if name not in wrong)),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu.json").write_text(json.dumps(record, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
