"""Exact transport, per lag step, beside its matrix products alone and beside one backward pass per anchor.

Workload W1 of the paper: 16 sequences (or 256 at once), T=1024, D=16, H=64, lags up to 128, float32. "gemms" does the
matrix products that a lag step cannot avoid, ``lambda U`` for every H x H matrix U of the cell over all anchors
left, in torch, and nothing else. "per_anchor" is what one writes first: a graph over the loop, and one backward
pass from every anchor t to the states t-1 .. t-L. At W1 it visits a few anchors and is scaled to all of them; at
the small size it visits all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from benchmarks.harness import PAPER_CELLS, Case, Op, Timing, measure
from lagreach import GatedRNN, all_cells, rollout
from lagreach.transport.exact import exact_transport
from lagreach.transport.rollout import Rollout

W1 = {"sequences": 16, "time": 1024, "input": 16, "hidden": 64, "lags": 128, "gate_init": 0.05, "anchors_visited": 12}
SMALL = {**W1, "time": 128, "lags": 32, "anchors_visited": 128}
QUICK = {**W1, "time": 256, "lags": 64, "anchors_visited": 8}
TINY = {**W1, "sequences": 2, "time": 12, "input": 3, "hidden": 5, "lags": 6, "anchors_visited": 12}
MANY = {**W1, "sequences": 256, "anchors_visited": 0}  # one chunk of what a diagnosis carries
WORKLOADS = {"full": {"W1": W1, "W1 of 256": MANY, "small": SMALL}, "quick": {"quick": QUICK}, "tiny": {"tiny": TINY}}
NOTE = "per_anchor leaves out its forward pass, and is scaled up from the anchors it visited where it skips some"


def cases(size: str) -> list[Case]:
    """All cells at every workload of the size."""
    return [
        Case(f"{workload} {cell}", {"cell": cell, **shape}, repeats=repeats(size, workload), note=NOTE)
        for workload, shape in WORKLOADS[size].items()
        for cell in all_cells()
        if workload != "W1 of 256" or cell in PAPER_CELLS
    ]


def repeats(size: str, workload: str) -> int:
    """How often a case is timed; the large one takes half a minute each time."""
    return {"full": 7, "quick": 3, "tiny": 1}[size] if workload != "W1 of 256" else 3


def run(case: Case) -> dict[str, Timing]:
    """Seconds per lag step."""
    shape = case.shape
    generator = torch.Generator().manual_seed(0)
    retains = all_cells()[shape["cell"]].first_order != "vanishes"
    gate_init = shape["gate_init"] if retains else None
    model = GatedRNN(shape["cell"], shape["input"], shape["hidden"], 1, gate_init=gate_init, generator=generator)
    x = torch.randn(shape["sequences"], shape["time"], shape["input"], generator=generator)
    part = rollout(model, x)
    delta = torch.zeros_like(part.states)
    model.cell.output(delta).normal_(generator=generator)
    last, time = shape["lags"], shape["time"]
    visits = shape["anchors_visited"]
    implementations: dict[str, Callable[[], object]] = {
        "lagreach": lambda: drain(exact_transport(part, delta, range(last + 1)))
    }
    anchors = range(0)
    if visits:
        states = loop_with_graph(part)
        anchors = range(0, time, max(1, time // visits))
        if len(anchors) < time:  # with a full window behind each, so that all cost the same
            anchors = range(last, time, max(1, (time - last) // visits))
        check(part, delta, states, anchors, last)
        implementations["per_anchor"] = lambda: drain(per_anchor(states, delta, anchors, last))
    products = gemms_alone(model, shape["sequences"], time, last, generator)
    if products is not None:
        implementations["gemms"] = products
    visited, all_steps = (sum(min(t, last) for t in some) for some in (anchors, range(time)))
    return measure(
        implementations, case.repeats, per={"lagreach": last, "gemms": last, "per_anchor": last * visited / all_steps}
    )


def drain(iterator: Iterable[object]) -> None:
    """Run through an iterator and keep nothing."""
    for _ in iterator:
        pass


def loop_with_graph(part: Rollout) -> list[Tensor]:
    """States of the plain loop over time, connected in one graph.

    Held to the states of the rollout: a chaotic network (the LSTM at W1) would leave them within a thousand steps.
    """
    state, states = part.initial.clone().requires_grad_(), []
    for x_t, reached in zip(part.x.unbind(1), part.states.unbind(1), strict=True):
        state = part.recurrence.stack.step(x_t, state, part.recurrence.params)
        state = state + (reached - state).detach()
        states.append(state)
    return states


def per_anchor(states: list[Tensor], delta: Tensor, anchors: Iterable[int], last: int) -> Iterator[tuple[int, tuple]]:
    """One backward pass per anchor; gradients at the states before it, nearest first."""
    for t in anchors:
        before = states[max(0, t - last) : t][::-1]
        if before:
            yield t, torch.autograd.grad(states[t], before, delta[:, t], retain_graph=True)


def gemms_alone(
    model: GatedRNN, sequences: int, time: int, last: int, generator: torch.Generator
) -> Callable[[], object] | None:
    """Products of the same size as those of a lag step, into buffers that exist; None for a diagonal recurrence."""
    hidden = model.hidden_size
    matrices = [shape for shape in model.cell.shapes(model.input_size, hidden).values() if shape == (hidden, hidden)]
    if model.input_size == hidden:
        raise ValueError("recurrent matrices are told from input matrices by their shape: let input differ from hidden")
    if not matrices:
        return None
    left = [torch.randn(sequences * time, hidden, generator=generator) for _ in matrices]
    right = [torch.randn(hidden, hidden, generator=generator) for _ in matrices]
    out = torch.empty(sequences * time, hidden)

    def products() -> None:
        for lag in range(last):
            rows = sequences * (time - lag)
            reached = torch.mm(left[0][:rows], right[0], out=out[:rows])
            for cotangent, matrix in zip(left[1:], right[1:], strict=True):
                torch.addmm(reached, cotangent[:rows], matrix, out=reached)

    return products


def check(part: Rollout, delta: Tensor, states: list[Tensor], anchors: range, last: int) -> None:
    """Both ways must give the same gradients at the anchors that the slow one visits."""
    slow = dict(per_anchor(states, delta, anchors, last))
    for cotangent, _ in exact_transport(part, delta, range(last + 1)):
        lag = cotangent.lag
        reaching = [t for t in slow if lag > 0 and len(slow[t]) >= lag]
        if reaching:
            fast = cotangent.double()[:, [t - lag for t in reaching]]
            expected = torch.stack([slow[t][lag - 1] for t in reaching], dim=1).double()
            error = torch.linalg.norm(fast - expected) / torch.linalg.norm(expected)
            assert error < 1e-4, f"relative difference {error:.2g} at lag {lag}"


OP = Op(
    name="transport",
    about="exact transport of loss gradients through time",
    unit="lag step",
    guards=(
        "tests/theory/test_identity.py",
        "tests/gradients/test_lag_gradients.py::test_chunks_and_order_do_not_matter",
    ),
    cases=cases,
    run=run,
)
