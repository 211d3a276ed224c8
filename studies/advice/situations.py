"""The situations: networks and trainings in which a lag may well be missed. See docs/advice/protocol.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lagreach.models.gated_rnn import GatedRNN
from lagreach.study.data import generator_for
from lagreach.study.optimisers import OptimiserSettings
from lagreach.tasks import Adding, MultiLag, Recall, Task

CELLS = ("lstm", "torch_gru", "diag_gate", "min_gru", "elman")
TASKS: dict[str, Task] = {
    "recall_20": Recall(lag=20, length=28, noise=0.5),
    "recall_40": Recall(lag=40, length=48, noise=0.5),
    "recall_80": Recall(lag=80, length=88, noise=0.5),
    "adding_60": Adding(length=60, bins=3),
    "lags_2_12": MultiLag(lags=(2, 12), coefficients=(0.5, 0.5), noise=0.5, input_size=1, length=40),
    "lags_3_24": MultiLag(lags=(3, 24), coefficients=(0.5, 0.5), noise=0.5, input_size=1, length=64),
    "lags_1_4": MultiLag(lags=(1, 4), coefficients=(0.5, 0.5), noise=0.5, input_size=1, length=24),
    "wide_1_4": MultiLag(lags=(1, 4), coefficients=(0.15, 0.15), noise=1.0, input_size=8, length=16),
    "weak_1_4": MultiLag(lags=(1, 4), coefficients=(0.2, 0.2), noise=1.0, input_size=1, length=16),
    "noisy_recall_2": Recall(lag=10, length=14, noise=2.0),
    "noisy_recall_3": Recall(lag=10, length=14, noise=3.0),
    "noisy_lag_2": MultiLag(lags=(2,), coefficients=(0.4,), noise=1.0, input_size=2, length=12),
}
SCORED_BY_LOSS = ("noisy_recall_2", "noisy_recall_3", "noisy_lag_2")  # see the protocol, third set
NOISY, ENOUGH = (
    "noisy",
    "enough",
)  # groups of the third set: asked for more sequences alone, and for nothing to do alone
UNIFORM = {"recurrent_init": "uniform"}  # as torch.nn starts its layers
SHORT, LONG = {"gate_init": 0.5}, {"gate_init": 0.05}  # half-lives of 1 and of 14 steps
RATES = {"adam": 3e-3, "momentum": 0.1}


@dataclass(frozen=True)
class Situation:
    """A network and how it is trained. `piece` is the length that sequences are cut into; None leaves them whole."""

    name: str
    group: str
    task_name: str
    cell: str
    start: Mapping[str, Any] = field(default_factory=dict)
    units: int = 32
    optimiser: str = "adam"
    lr: float = 3e-3
    steps: int = 800
    sequences: int = 1000
    piece: int | None = None
    batch: int = 32

    @property
    def task(self) -> Task:
        """The task itself."""
        return TASKS[self.task_name]

    @property
    def lag(self) -> int:
        """The lag that is looked at: the longest of the task."""
        return max(self.task.lags)

    def model(self, seed: int) -> GatedRNN:
        """The network at its start."""
        task = self.task
        generator = generator_for("start", self.cell, self.units, seed)
        return GatedRNN(
            self.cell, task.input_size, self.units, task.output_size, **dict(self.start), generator=generator
        )

    def settings(self) -> OptimiserSettings:
        """How weights move."""
        return OptimiserSettings(optimiser=self.optimiser, lr=self.lr, clip=1.0)  # type: ignore[arg-type]

    def torch_optimiser(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """The same as an optimiser of torch."""
        if self.optimiser == "adam":
            return torch.optim.Adam(model.parameters(), lr=self.lr)
        return torch.optim.SGD(model.parameters(), lr=self.lr, momentum=0.9)


def start_of(cell: str) -> dict[str, Any]:
    """As torch starts it, where torch has it; else half-lives of one step."""
    return dict(UNIFORM) if cell in ("lstm", "torch_gru", "elman") else dict(SHORT)


def situations() -> list[Situation]:
    """All of them, by group."""
    collected: list[Situation] = []

    def add(group: str, task: str, cell: str, **options: Any) -> None:
        options = {"start": start_of(cell), **options}
        name = f"{group}-{len([situation for situation in collected if situation.group == group]):02d}"
        if "optimiser" in options and "lr" not in options:
            options["lr"] = RATES[options["optimiser"]]
        collected.append(Situation(name, group, task, cell, **options))

    for task in ("recall_40", "recall_80", "adding_60"):
        for cell in ("lstm", "torch_gru", "diag_gate", "min_gru"):
            for optimiser in RATES:
                add("gates", task, cell, optimiser=optimiser)
    for task in ("recall_20", "recall_40", "lags_2_12", "lags_3_24"):
        for optimiser in RATES:
            add("vanilla", task, "elman", optimiser=optimiser)
    for task in ("lags_2_12", "lags_3_24"):
        for cell in CELLS:
            add("units", task, cell, units=4)
    for task in ("lags_2_12", "lags_3_24"):
        for cell in ("lstm", "torch_gru", "diag_gate", "min_gru"):
            add("blended", task, cell, start=start_of(cell) if cell in ("lstm", "torch_gru") else dict(LONG))
    for cell in CELLS:
        for sequences in (16, 48):
            add("sequences", "weak_1_4", cell, sequences=sequences)
    for cell in CELLS:
        add("steps", "lags_1_4", cell, steps=30)
    for cell in ("lstm", "torch_gru", "min_gru"):
        add("steps", "recall_20", cell, steps=30, start={"chrono": 40})
    for cell in CELLS:
        add("rate", "lags_1_4", cell, lr=3e-5)
    for cell in ("lstm", "torch_gru", "elman"):
        add("rate", "lags_1_4", cell, optimiser="momentum", lr=1e-3)
    for cell in ("lstm", "torch_gru", "diag_gate", "elman"):
        add("truncation", "lags_2_12", cell, piece=10)
    for cell in ("lstm", "torch_gru", "elman"):
        add("truncation", "lags_1_4", cell, piece=4)
    for start in (dict(UNIFORM), {}):  # the second set, see the protocol
        for sequences in (16, 32, 64, 128):
            add("scarce", "wide_1_4", "elman", start=start, sequences=sequences)
    _third_set(add)
    return collected


def _third_set(add: Callable[..., None]) -> None:
    def noisy(group: str, task: str, cell: str, sequences: int) -> None:
        start = {} if cell == "elman" else {"chrono": 2 * max(TASKS[task].lags)}
        add(group, task, cell, start=start, units=24, steps=400, sequences=sequences)

    for cell, few, more in (
        ("lstm", 60, 150), ("torch_gru", 60, 150), ("diag_gate", 60, 150), ("elman", 60, 300), ("min_gru", 40, None),
    ):  # fmt: skip
        noisy(NOISY, "noisy_recall_2", cell, few)
        if more is not None:
            noisy(NOISY, "noisy_recall_3", cell, more)
        noisy(NOISY, "noisy_lag_2", cell, 30)
    for cell in ("lstm", "torch_gru", "diag_gate", "elman"):
        noisy(ENOUGH, "noisy_recall_2", cell, 2000)
    for cell in ("lstm", "diag_gate", "min_gru", "elman"):
        noisy(ENOUGH, "noisy_lag_2", cell, 1000)


def tiny(chosen: list[Situation]) -> list[Situation]:
    """A few situations at a size for tests: they run, and mean nothing."""
    names = ("gates-00", "vanilla-00", "sequences-00", "steps-00", "truncation-00")
    return [
        replace(situation, units=6, steps=20, lr=0.05, sequences=min(situation.sequences, 40))
        for situation in chosen
        if situation.name in names
    ]
