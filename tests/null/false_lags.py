"""How often is a lag named that the data do not depend on? Fresh, half-trained and trained networks, on other data.

The targets depend on some lags, so "no dependence at all" is not the null here: the other lags must not be named although
the network mixes them with the true ones. From the root of the repository,

    python -m tests.null.false_lags --runs 200 --workers 16

prints, for every kind of network and stage of training, how often each lag was named, the upper end of the binomial interval
of the worst false one, and how often the swap contrast alone names the same. `--tasks` and `--cells` choose, `--first` is the
first seed.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from scipy.stats import beta
from torch import nn
from torch.nn.functional import cross_entropy

from lagreach import GatedRNN
from lagreach._util.threads import one_thread
from lagreach.diagnosis.locate import LookHere
from lagreach.diagnosis.measure import MeasureSettings, plan_measurement
from lagreach.diagnosis.passes import between_passes, first_pass

TIME, HIDDEN, SEQUENCES = 30, 12, 160
NETWORKS = 8  # of each kind and stage; seeds take turns
LAGS = [0, 2, 4, 6, 7, 8, 9, 10, 12, 14, 16, 20, 25]
CELLS = ("lstm", "gru", "diag_gate", "stack")
STAGES = {"fresh": 0, "half way": 80, "trained": 300}
TASKS = {
    "delay": (8,),
    "two": (2, 9),
    "product": (4, 9),
    "classes": (8,),
    "last": (8,),
    "smooth": (4, 16),
    "loud": (8,),
}


def sample(task: str, sequences: int, seed: int, noise: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of a task; a seed gives the same ones every time."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(sequences, TIME, 1))
    if task == "smooth":  # autocorrelated inputs
        for t in range(1, TIME):
            x[:, t] = 0.8 * x[:, t - 1] + 0.6 * x[:, t]
    if task == "loud":  # one sequence in ten is four times as loud
        x *= np.where(rng.random((sequences, 1, 1)) < 0.1, 4.0, 1.0)
    y = noise * rng.normal(size=(sequences, TIME, 1))
    if task == "product":
        y[:, 9:] += x[:, 5:-4] * x[:, :-9] + 0.5 * x[:, 5:-4] + 0.5 * x[:, :-9]
    else:
        for lag in TASKS[task]:
            y[:, lag:] += x[:, :-lag]
    inputs, targets = torch.from_numpy(x).float(), torch.from_numpy(y).float()
    if task == "classes":
        return inputs, (targets[..., 0] > 0).long()
    return inputs, targets[:, -1] if task == "last" else targets


class Network(nn.Module):
    """A recurrent layer of torch with a linear readout of every step, or of the last."""

    def __init__(self, layer: nn.RNNBase, outputs: int, last: bool) -> None:
        super().__init__()
        self.rnn, self.out, self.last = layer, nn.Linear(HIDDEN, outputs), last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = self.rnn(x)[0]
        return self.out(states[:, -1] if self.last else states)


@functools.cache
def network(task: str, cell: str, stage: str, number: int) -> nn.Module:
    """One of the networks of a kind, trained on sequences that are not used again."""
    torch.manual_seed(1000 * number + 17)
    outputs = 2 if task == "classes" else 1
    if cell == "diag_gate":
        model: nn.Module = GatedRNN(
            cell, 1, HIDDEN, outputs, gate_init=0.2, generator=torch.Generator().manual_seed(number)
        )
    else:
        kind = nn.GRU if cell == "gru" else nn.LSTM
        layer = kind(1, HIDDEN, 2 if cell == "stack" else 1, batch_first=True)
        model = Network(layer, outputs, task == "last")
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(STAGES[stage]):
        x, y = sample(task, 64, 10**9 + 10**6 * number + step)
        output = model(x)
        if cell == "diag_gate" and task == "last":
            output = output[:, -1]
        loss = cross_entropy(output.flatten(0, -2), y.flatten()) if task == "classes" else (output - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model


def named(task: str, cell: str, stage: str, seed: int, noise: float = 1.0) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lags that are named, and those that the swap contrast alone would name."""
    settings = MeasureSettings(probes=1, flips=399, blocks=32, seed=seed)
    model = network(task, cell, stage, seed % NETWORKS)
    loss = "cross_entropy" if task == "classes" else "mse"
    with one_thread():
        plan = plan_measurement(model, sample(task, SEQUENCES, seed, noise), loss, LAGS, settings=settings)
        first = first_pass(plan, {})
        between = between_passes(plan, first.means, settings, first.inputs, LookHere(plan))
    swapped = np.array(plan.bands.lags)[between.marginal <= settings.error]
    return between.dependences, tuple(swapped.tolist())


def upper_end(count: int, runs: int) -> float:
    """Upper end of the 95 % interval of a rate (Clopper and Pearson)."""
    return float(beta.ppf(0.975, count + 1, runs - count)) if count < runs else 1.0


def _named(item: tuple[str, str, str, int, float]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return named(*item)


def main() -> None:
    """Count named lags, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--noise", type=float, default=1.0)
    parser.add_argument("--tasks", default="delay")
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--stages", default=",".join(STAGES))
    asked = parser.parse_args()
    kinds = itertools.product(asked.tasks.split(","), asked.cells.split(","), asked.stages.split(","))
    with ProcessPoolExecutor(asked.workers) as pool:
        for task, cell, stage in kinds:
            items = [(task, cell, stage, asked.first + i, asked.noise) for i in range(asked.runs)]
            results = list(pool.map(_named, items, chunksize=max(1, asked.runs // (4 * asked.workers))))
            by_exchange, by_swap = (Counter(lag for one in results for lag in one[i]) for i in (0, 1))
            false = {lag: count for lag, count in by_exchange.items() if lag not in TASKS[task]}
            worst = max(false.values(), default=0)
            some = sum(any(lag not in TASKS[task] for lag in one[0]) for one in results)
            print(
                f"{task:8s} {cell:9s} {stage:9s} true "
                + ", ".join(f"{lag}: {by_exchange[lag]} (swap {by_swap[lag]})" for lag in TASKS[task])
                + f" | false: worst {worst} of {asked.runs} (upper end {100 * upper_end(worst, asked.runs):.1f} %), any {some}"
                + f" | false by swap {dict(sorted((k, v) for k, v in by_swap.items() if k not in TASKS[task]))}",
                flush=True,
            )


if __name__ == "__main__":
    main()
