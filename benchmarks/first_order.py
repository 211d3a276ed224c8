"""First-order diagnosis at 128 lags, from inputs to averages: effective learning rates and the matched statistic.

W1: 16 sequences, T=1024, D=16, H=64, float32 weights; W2: 128 sequences, H=128, and once more with 16. "rates" leaves the
matched statistic out. "log_cumsum" takes each window's product as a difference of cumulative logarithms and its first-order
part as a difference of cumulative ratios, for the rates alone. It divides by retention and cannot pass zero, which is why
lagreach multiplies instead; here no gate closes, so it is right. All start with the same loop over time, which is also timed
alone. "author" are the paper author's own functions, for the cells they know, where ``--author`` says where they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks import author
from benchmarks.harness import Case, Op, Timing, measure
from lagreach import GatedRNN, all_cells, effective_rates, rollout
from lagreach.cells import Dual, Factors
from lagreach.papers.livi.matched import matched_statistic, rates_and_matched_statistic

W1 = {"sequences": 16, "time": 1024, "input": 16, "hidden": 64, "lags": 128, "gate_init": 0.05}
WORKLOADS = {
    "full": {"W1": W1, "W2": {**W1, "sequences": 128, "hidden": 128}, "W2, 16 sequences:": {**W1, "hidden": 128}},
    "quick": {"quick": {**W1, "time": 256, "lags": 32}},
    "tiny": {"tiny": {"sequences": 2, "time": 12, "input": 3, "hidden": 5, "lags": 6, "gate_init": 0.05}},
}
WIDE = {"W2": ("diag_gate",), "W2, 16 sequences:": ("diag_gate", "lstm")}  # the slow rivals take minutes there
REPEATS = {"W2": 2, "quick": 3, "tiny": 1}  # else five
NOTE = "lagreach and author make rates and matched statistic, log_cumsum the rates alone; rollout is part of all"


def cases(size: str) -> list[Case]:
    """Every gated cell (the others have no retention, or one that changes sign and has no logarithm)."""
    return [
        Case(f"{workload} {name}", {"cell": name, **shape}, REPEATS.get(workload, 5), NOTE)
        for workload, shape in WORKLOADS[size].items()
        for name, cell in all_cells().items()
        if cell.gate_names and (name in WIDE.get(workload, all_cells()))
    ]


def run(case: Case) -> dict[str, Timing]:
    """Seconds per call."""
    shape = case.shape
    generator = torch.Generator().manual_seed(0)
    model = GatedRNN(
        shape["cell"], shape["input"], shape["hidden"], 1, gate_init=shape["gate_init"], generator=generator
    )
    x = torch.randn(shape["sequences"], shape["time"], shape["input"], generator=generator)
    lags = range(1, shape["lags"] + 1)

    ours, theirs = effective_rates(model, x, lags), log_cumsum_rates(model, x, lags)
    for mine, plain in ((ours.rates, theirs["rate"]), *((v, theirs[k]) for k, v in ours.channels.items())):
        torch.testing.assert_close(mine, plain, rtol=2e-5, atol=1e-9)  # products in float32, as the weights
    y = torch.randn(*x.shape[:2], 1, generator=generator)

    options = {"signal": "gradient", "orientation": "same-data", "params": "all"}
    joint, apart = (
        rates_and_matched_statistic(model, x, y, lags, **options),
        matched_statistic(model, x, y, lags, **options),
    )
    torch.testing.assert_close(joint[0].rates, ours.rates, rtol=1e-5, atol=1e-9)
    scale = abs(apart.values).max()
    torch.testing.assert_close(joint[1].values / scale, apart.values / scale, rtol=1e-4, atol=1e-6)
    implementations = {
        "lagreach": lambda: rates_and_matched_statistic(model, x, y, lags, **options),
        "rates": lambda: effective_rates(model, x, lags),
        "log_cumsum": lambda: log_cumsum_rates(model, x, lags),
        "rollout": lambda: rollout(model, x),
    }
    theirs_too = author.diagnosis(model, x, y, lags, shape["gate_init"])
    if theirs_too is not None:
        implementations["author"] = theirs_too
    return measure(implementations, case.repeats)


def log_cumsum_rates(model: GatedRNN, x: Tensor, lags: range) -> dict[str, Tensor]:
    """Mean size of the rates and of their two parts, (lag, unit), by cumulative logarithms in float64."""
    part = rollout(model, x)
    params = model.stack.layer_params(0, part.recurrence.params)
    factors = Factors(*(Dual(d.real.double(), d.slope.double()) for d in model.cell.factors(x, part.previous, params)))
    uniform = model.cell.rate_block == "h"  # one kind of factor; the LSTM has its own at both ends of a window
    middle = factors.middle
    start = torch.zeros_like(middle.real[:, :1])
    logs = torch.cat((start, middle.real.log().cumsum(1)), dim=1)
    ratios = torch.cat((start, (middle.slope / middle.real).cumsum(1)), dim=1)
    steps = x.shape[1]
    means: dict[str, list[Tensor]] = {"retention": [], "correction": [], "rate": []}
    for lag in lags:
        first, behind = (1, lag + 1) if uniform else (2, lag)  # the middle of a window: steps i+first .. i+behind-1
        if uniform:
            kept = (logs[:, behind:] - logs[:, first : steps - lag + first]).exp()
            moved = kept * (ratios[:, behind:] - ratios[:, first : steps - lag + first])
        elif lag == 1:
            kept, moved = factors.single.real[:, 1:], factors.single.slope[:, 1:]
        else:
            inner = (logs[:, behind:steps] - logs[:, first : steps - lag + first]).exp()
            inner = inner * factors.oldest.real[:, 1 : steps - lag + 1]
            spread = ratios[:, behind:steps] - ratios[:, first : steps - lag + first]
            newest, slope = factors.newest.real[:, lag:], factors.newest.slope[:, lag:]
            kept, moved = newest * inner, slope * inner + newest * inner * spread
        for name, values in (("retention", kept), ("correction", moved), ("rate", kept + moved)):
            means[name].append(values.abs().mean((0, 1)))
    return {name: torch.stack(values) for name, values in means.items()}


OP = Op(
    name="first_order",
    about="effective learning rates and their parts, from inputs to averages",
    unit="call",
    guards=(
        "tests/transport/test_first_order_sums.py",
        "tests/theory/test_first_order.py",
        "tests/theory/test_jacobians.py",
        "tests/papers/livi/test_matched.py",
    ),
    cases=cases,
    run=run,
)
