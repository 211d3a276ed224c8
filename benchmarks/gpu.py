"""Training steps on a GPU: ``lagreach bench --device cuda`` checks every fused kernel, then times whole steps.

W1: batch 16, T=1024, D=16, H=64. W2: batch 512, H=128. A step is the forward and backward pass with a linear readout and
squared error at every step, captured in a CUDA graph and timed by CUDA events, for one model and for several at once.
Beside one model: torch's eager loop, cuDNN's LSTM and GRU, a JAX scan where JAX has a GPU; and the floors of the device.
Nothing is timed unless values, gradients and tangents agree with the float64 loop.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_rivals import cudnn_step, device_rates, eager_step, floors, jax_ms
from benchmarks.harness import PAPER_CELLS, commit, finish, keep_unfinished
from benchmarks.printing import in_words
from lagreach.cells import Cell, all_cells
from lagreach.errors import UnsupportedError
from lagreach.kernels import scan
from lagreach.kernels.gpu.plan import FAMILIES

LIMIT = 1e-5  # on relative errors, of gradients too
SIZES = ((20, 5, 33, True), (64, 16, 64, False), (64, 16, 64, True), (128, 16, 64, False), (256, 16, 24, False))
W1 = {"sequences": 16, "time": 1024, "input": 16, "hidden": 64}
W2 = {"sequences": 512, "time": 1024, "input": 16, "hidden": 128}
CASES = (("W1", W1, 1), ("W1", W1, 132), ("W2", W2, 1), ("W2", W2, 5))
QUICK_CASES = (("W1", W1, 1), ("W1", W1, 132))
# The time of the fastest of these is that of the chain of steps; the wider one has the faster kernels.
SMALLEST = tuple({"sequences": 8, "time": 1024, "input": 16, "hidden": hidden} for hidden in (16, 64))
TIMED = (*PAPER_CELLS, "torch_gru")


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
        gradients = torch.autograd.grad(states, leaves, pull.to(dtype))
        _, tangent = torch.func.jvp(run, tuple(v.detach() for v in leaves), tuple(v.to(dtype) for v in push))
        return {"states": states.detach(), "tangent": tangent} | dict(zip(["x", "s0", *names], gradients, strict=True))

    got, expected = measure(kernel, torch.float32), measure("reference", torch.float64)
    return {k: float((got[k] - v).norm() / v.norm()) for k, v in expected.items()}


def check(name: str) -> dict[str, float]:
    """Largest relative error of a cell at each size."""
    kind, worst_by_size = all_cells()[name], {}
    for hidden, sequences, time, layernorm in SIZES:
        if layernorm and name == "diag_elman":
            continue
        cell = kind(layernorm=True) if layernorm else kind()  # type: ignore[call-arg]
        worst = errors(cell, hidden, sequences, time)
        key = max(worst, key=lambda k: worst[k] if worst[k] == worst[k] else torch.inf)
        worst_by_size[f"H={hidden}{' layernorm' if layernorm else ''} ({key})"] = worst[key]
    return worst_by_size


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


def milliseconds(step: Callable[[], object], repeats: int = 15, warm_up: int = 3) -> list[float]:
    """Time by CUDA events, one for each repeat, after a warm-up."""
    for _ in range(warm_up):
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
    times: dict[str, float] = {}
    for event in seen.key_averages():  # names of templates differ far behind; what looks alike is added up
        times[event.key[:60]] = times.get(event.key[:60], 0.0) + event.self_device_time_total / 1e3
    return {k: round(v, 3) for k, v in sorted(times.items(), key=lambda item: -item[1])[:8]}


def rivals(name: str, shape: Mapping[str, int]) -> dict[str, float]:
    """Milliseconds of what one would use instead, for one model; the eager loop as it is, since no graph holds it."""
    times = {}
    eager, cudnn, jax = eager_step(name, shape), cudnn_step(name, shape), jax_ms(name, shape, repeats=5)
    if eager is not None:
        times["eager torch"] = median(milliseconds(eager, repeats=3, warm_up=1))
    if cudnn is not None:
        times["cuDNN"] = median(milliseconds(captured(cudnn)))
    if jax is not None:
        times["JAX scan"] = jax
    torch.cuda.empty_cache()
    return times


def timings(names: Sequence[str], cases: Sequence[tuple[str, dict[str, int], int]]) -> Iterator[dict[str, Any]]:
    """Time every case, one after the other."""
    rates = device_rates(milliseconds)
    latency = min(median(milliseconds(training_step("elman", shape, 1))) / shape["time"] for shape in SMALLEST)
    for name in names:
        for workload, shape, replicas in cases:
            step = training_step(name, shape, replicas)
            taken = milliseconds(step)
            record = {"cell": name, "workload": workload, **shape, "replicas": replicas}
            record |= {"ms": median(taken), "ms_per_model": median(taken) / replicas, "repeats": taken}
            record |= {"kernels": kernels_of(step), "floors_ms": floors(name, shape, replicas, rates, latency)}
            del step
            torch.cuda.empty_cache()
            record["rivals_ms"] = rivals(name, shape) if replicas == 1 else {}
            print(f"  {name} {workload} x {replicas}: {in_words(record['ms'] / 1e3)}", file=sys.stderr, flush=True)
            yield record


def show(record: Mapping[str, Any], console: Any) -> None:
    """Print a record as a table."""
    from rich.table import Table

    where = ", ".join(f"{what} {value}" if what != "gpu" else value for what, value in record["machine"].items())
    table = Table(title=f"{record['op']}: {record['about']}", caption=f"medians of CUDA events; {where}")
    for header in ("case", "implementation"):
        table.add_column(header, overflow="fold")
    for header in ("per training step", "per model", "x lagreach"):
        table.add_column(header, justify="right", no_wrap=True)
    for case in record["cases"]:
        models = f"{case['replicas']} model{'s' if case['replicas'] > 1 else ''}"
        rows = {"lagreach": case["ms"], **case["rivals_ms"]}
        rows |= {
            f"floor: {what}" if what != "latency" else "floor: chain of steps": ms
            for what, ms in case["floors_ms"].items()
        }
        for i, (name, ms) in enumerate(rows.items()):
            times = [in_words(ms / 1e3), in_words(ms / 1e3 / case["replicas"]), f"{ms / case['ms']:.3g}"]
            table.add_row(f"{case['workload']} {case['cell']}, {models}" if i == 0 else "", name, *times)
        table.add_section()
    console.print(table)


def check_all(names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Errors of each cell, in one process for each since compiling takes the time; cells whose check stopped are left out."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--check"]
    running = {
        name: subprocess.Popen([*command, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name in names
    }
    errors_by_cell: dict[str, dict[str, float]] = {}
    for name, process in running.items():
        said, complaint = process.communicate()
        if process.returncode != 0:
            print(f"{name}: the check stopped\n{complaint[-3000:]}")
            continue
        errors_by_cell[name] = json.loads(said.splitlines()[-1])
    return errors_by_cell


def need_cuda() -> None:
    """Say so where there is no CUDA device."""
    if not torch.cuda.is_available():
        raise UnsupportedError(
            "there is no CUDA device here",
            got=f"torch {torch.__version__}",
            fix="run `lagreach bench` without --device",
        )


def machine() -> dict[str, Any]:
    """What the times hold for."""
    import triton

    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    jax = {"jax": version("jax")} if find_spec("jax") is not None else {}
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver.stdout.strip(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        **jax,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, measure, write JSON, print; the exit code is 1 when a cell was refused."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="CELL", help=f"cells to time (default all): {', '.join(TIMED)}")
    parser.add_argument("--quick", action="store_true", help="only W1")
    parser.add_argument("--out", type=Path, help="where to write gpu.json (default benchmarks/results; quick: runs/)")
    parser.add_argument("--check", metavar="CELL", help="only check one cell and print its errors as JSON")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in TIMED]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(TIMED)}")
    need_cuda()
    if options.check:
        print(json.dumps(check(options.check)))
        return 0
    names = options.names or TIMED
    checks = check_all(list(FAMILIES) if names is TIMED else names)
    wrong = [name for name in names if not all(e < LIMIT for e in checks.get(name, {"": torch.nan}).values())]
    record: dict[str, Any] = {
        "op": "gpu",
        "about": "forward and backward pass on a GPU, squared error at every step, as a CUDA graph",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "errors": checks,
        "cases": [],
    }
    for case in timings([name for name in names if name not in wrong], QUICK_CASES if options.quick else CASES):
        record["cases"].append(case)
        keep_unfinished(record, options.out)  # the time on a GPU may end before the work does
    finish(record, options.out, stored=not options.quick)
    from rich.console import Console  # late: the numbers are safe by now

    console = Console(width=120, highlight=False)
    show(record, console)
    if wrong:
        console.print(f"not timed, because not known to be right: {', '.join(wrong)}", style="bold red")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UnsupportedError as error:
        sys.exit(f"lagreach: {error}")
