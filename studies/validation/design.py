"""The design of the validation study: which networks are trained on which tasks, as a balanced fraction of the whole grid.

A *condition* is a task, a cell, a gate initialisation and an optimiser. Each chosen condition is trained with every number
of sequences and every seed, so that the whole curve in N is seen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, product
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from lagreach.cells import all_cells
from lagreach.errors import InputError
from lagreach.models.gated_rnn import GatedRNN
from lagreach.study.config import NAME, Part, StudyConfig, parse
from lagreach.study.data import generator_for
from lagreach.study.optimisers import OptimiserSettings
from lagreach.tasks import Task, make_task
from lagreach.tasks.multi_lag import MultiLag
from studies.validation.tables import FAMILIES, FIRST_STUDY, STAGES

CHRONO, NONE = "chrono", "none"
SWAPS = 3000  # proposals of the search for balance; it has settled long before
FORBIDDEN = 1e6  # cost of a combination that cannot be built
EVERY_STEP = ("sparse", "dense", "tails")  # families whose loss asks for the lag at every step
OWN_TASKS: dict[str, Callable[..., Task]] = {}  # tasks of a study that are not in the package, by name


class TaskPlan(Part):
    """A task of the study: `task` holds its name and options."""

    name: str = Field(pattern=NAME)
    family: str
    hidden: int = Field(ge=1)
    task: dict[str, Any]

    @model_validator(mode="after")
    def _check(self) -> TaskPlan:
        if self.family not in FAMILIES:
            raise ValueError(f"unknown family {self.family}; families are {', '.join(FAMILIES)}")
        return self

    def build(self) -> Task:
        """Return the task itself."""
        options = {k: tuple(v) if isinstance(v, list) else v for k, v in self.task.items()}
        name = str(options.pop("name"))
        return OWN_TASKS[name](**options) if name in OWN_TASKS else make_task(name, **options)


class OptimiserPlan(Part):
    """An optimiser by a name of its own; `batch` goes before the plan's, the other keys are those of `OptimiserSettings`."""

    name: str = Field(pattern=NAME)
    optimiser: Literal["sgd", "momentum", "adam", "adamw"]
    lr: float
    clip: float | None = None
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine", "linear", "step"] = "constant"
    batch: int | None = Field(default=None, ge=1)

    def settings(self) -> OptimiserSettings:
        """Return the settings of a training."""
        return OptimiserSettings(**self.model_dump(exclude={"name", "batch"}))


class TailsPlan(Part):
    """Heavy tails: one task with noises of several indices and several sizes of its coefficients, plain against clipped."""

    task: TaskPlan | None = None
    alphas: tuple[float, ...] = ()
    coefficients: tuple[float, ...] = ()  # each one for all lags of the task; none leaves the task as it is
    cells: tuple[str, ...] = ()
    gate: str = "0.05"
    optimisers: tuple[OptimiserPlan, ...] = ()


class PredictorPlan(Part):
    """How predictors are measured, and when: without stages none are."""

    stages: tuple[str, ...] = FIRST_STUDY
    sequences: int = Field(default=192, ge=32)
    blocks: int = Field(default=16, ge=6)
    probes: int = Field(default=2, ge=1)
    flips: int = Field(default=499, ge=19)
    strength: float = 0.05
    error: float = 0.05
    ablations: int = Field(default=0, ge=0)  # trainings for which variants of the predictors are measured too


class ValidationPlan(Part):
    """Everything that differs from other kinds of studies; either part, the fraction of the grid or the tails, may be empty."""

    tasks: tuple[TaskPlan, ...] = ()
    cells: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    optimisers: tuple[OptimiserPlan, ...] = ()
    conditions: int = Field(default=0, ge=0)
    sequences: tuple[int, ...] = Field(min_length=1)
    nested: bool = True  # whether networks of a seed share the first of their sequences, or have sequences of their own
    steps: int = Field(ge=1)
    batch: int = Field(default=32, ge=1)
    epochs: int = Field(default=100, ge=20)  # pieces of the training: stages and states lie between them
    held_out: int = Field(default=256, ge=1)
    save_every: int = Field(default=20, ge=1)  # epochs
    side_by_side: int = Field(default=6, ge=1)  # conditions that share a GPU
    tails: TailsPlan = TailsPlan()
    predictors: PredictorPlan = PredictorPlan()

    @model_validator(mode="after")
    def _check(self) -> ValidationPlan:
        unknown = (set(self.cells) | set(self.tails.cells)) - set(all_cells())
        if unknown:
            raise ValueError(f"unknown cells {sorted(unknown)}; cells are {', '.join(all_cells())}")
        if not self.conditions and self.tails.task is None:
            raise ValueError("there is nothing to train")
        if self.conditions and not all((self.tasks, self.cells, self.gates, self.optimisers)):
            raise ValueError("conditions need tasks, cells, gates and optimisers")
        if not set(self.predictors.stages) <= set(STAGES):
            raise ValueError(f"stages of predictors are {', '.join(STAGES)}")
        if self.steps % self.epochs:
            raise ValueError("steps must be a multiple of epochs")
        if list(self.sequences) != sorted(set(self.sequences)):
            raise ValueError("sequences must ascend")
        return self

    def stage_epochs(self) -> dict[str, int]:
        """Epochs after which weights are kept: 1 %, 5 % and 20 % of the training, and its end."""
        shares = {"early_1": 0.01, "early_5": 0.05, "early_20": 0.2, "end": 1.0}
        return {stage: round(share * self.epochs) or 1 for stage, share in shares.items()}


@dataclass(frozen=True)
class Condition:
    """What is trained: a task, a cell, a gate initialisation and an optimiser."""

    plan: TaskPlan
    cell: str
    gate: str
    optimiser: OptimiserPlan

    @property
    def name(self) -> str:
        """Name for files and tables."""
        return f"{self.plan.name}-{self.cell}-{self.gate}-{self.optimiser.name}"

    @cached_property
    def task(self) -> Task:
        """The task, built once."""
        return self.plan.build()

    @property
    def capacity_binds(self) -> list[bool]:
        """For each lag, whether a memory of every step up to it needs as many units as there are."""
        return [self.plan.family in EVERY_STEP and lag >= self.plan.hidden for lag in self.task.lags]

    @property
    def ratios(self) -> list[float]:
        """For each lag, the scale of the noise over its coefficient; NaN for a task that has none."""
        if not isinstance(self.task, MultiLag):
            return [math.nan] * len(self.task.lags)
        return [self.task.noise / abs(c) for c in self.task.coefficients]

    def model(self, seed: int) -> GatedRNN:
        """Return the network as it starts from a seed: the same for every number of sequences."""
        options: dict[str, Any] = {}
        if self.gate == CHRONO:
            options["chrono"] = self.task.length
        elif self.gate != NONE:
            options["gate_init"] = float(self.gate)
        return GatedRNN(
            self.cell,
            self.task.input_size,
            self.plan.hidden,
            self.task.output_size,
            generator=generator_for(seed, "weights"),
            **options,
        )

    def training(self, sequences: int, seed: int) -> str:
        """Identify one training in the tables."""
        return f"{self.name}-n{sequences}-s{seed}"


def validation_plan(config: StudyConfig) -> ValidationPlan:
    """Read and check the plan of a study of kind "validation"."""
    if config.kind != "validation":
        raise InputError(
            "this is not a validation study",
            got=f"{config.name}, of kind {config.kind}",
            expected="a study of kind validation",
        )
    return parse(ValidationPlan, config.validation, "validation plan")


def conditions(plan: ValidationPlan, seed: int = 0) -> list[Condition]:
    """Return the chosen conditions, then those of the part about tails."""
    if not plan.conditions:
        return _tails(plan.tails)
    tasks = {one.name: one for one in plan.tasks}
    optimisers = {one.name: one for one in plan.optimisers}
    rows = balanced_fraction(tuple(tasks), plan.cells, plan.gates, tuple(optimisers), plan.conditions, seed)
    chosen = [Condition(tasks[task], cell, gate, optimisers[name]) for task, cell, gate, name in rows]
    return chosen + _tails(plan.tails)


def _tails(plan: TailsPlan) -> list[Condition]:
    if plan.task is None:
        return []
    conditions = []
    for alpha, size in product(plan.alphas, plan.coefficients or (None,)):
        name, options = f"{plan.task.name}_{alpha:g}", plan.task.task | {"noise_alpha": alpha}
        if size is not None:
            name, options = f"{name}_{size:g}", options | {"coefficients": [size] * len(options["lags"])}
        task = plan.task.model_copy(update={"name": name, "task": options})
        conditions += [
            Condition(task, cell, plan.gate, optimiser) for cell in plan.cells for optimiser in plan.optimisers
        ]
    return conditions


@lru_cache(maxsize=8)
def balanced_fraction(
    tasks: tuple[str, ...],
    cells: tuple[str, ...],
    gates: tuple[str, ...],
    optimisers: tuple[str, ...],
    size: int,
    seed: int,
) -> tuple[tuple[str, str, str, str], ...]:
    """Choose combinations so that every level, and every pair of levels, appears as evenly as possible.

    Columns start balanced and shuffled; exchanges of two entries of a column are kept when they make the pairs more even.
    Cells without gates have the gate "none"; a fixed gate (`const_gate`) cannot start at spread-out values.

    Examples
    --------
    >>> rows = balanced_fraction(("a", "b"), ("gru", "lstm"), ("0.5", "0.05"), ("sgd", "adamw"), 4, seed=0)
    >>> sorted({row[0] for row in rows}), len(set(rows))
    (['a', 'b'], 4)
    """
    generator = np.random.default_rng(seed)
    columns = [_shuffled(levels, size, generator) for levels in (tasks, cells, gates, optimisers)]
    known = all_cells()
    gated = {cell: known[cell].retention_bias is not None or known[cell].gate_option is not None for cell in cells}
    fixed = {cell for cell in cells if known[cell].gate_option is not None}
    # gates are dealt evenly to the rows that have one
    with_gate = [row for row in range(size) if gated[columns[1][row]]]
    dealt = _shuffled(gates, len(with_gate), generator)
    columns[2] = [NONE] * size
    for row, gate in zip(with_gate, dealt, strict=True):
        columns[2][row] = gate
    best = _unevenness(columns, fixed)
    for _ in range(SWAPS):
        column = int(generator.integers(1, 4))
        a, b = (int(row) for row in generator.integers(size, size=2))
        moved = [column]
        if column == 1 and gated[columns[1][a]] != gated[columns[1][b]]:
            moved = [1, 2]  # a cell without gates takes its "none" along
        elif column == 2 and NONE in (columns[2][a], columns[2][b]):
            continue
        for c in moved:
            columns[c][a], columns[c][b] = columns[c][b], columns[c][a]
        cost = _unevenness(columns, fixed)
        if cost <= best:
            best = cost
        else:
            for c in moved:
                columns[c][a], columns[c][b] = columns[c][b], columns[c][a]
    rows = list(zip(*columns, strict=True))
    if best >= FORBIDDEN or len(set(rows)) < size:
        raise InputError(
            "no such fraction of the grid was found", got=f"{size} conditions", fix="ask for fewer, or add levels"
        )
    order = {task: place for place, task in enumerate(tasks)}
    return tuple(sorted(rows, key=lambda row: (order[row[0]], row[1:])))


def _shuffled(levels: tuple[str, ...], size: int, generator: np.random.Generator) -> list[str]:
    """Each level as often as the others, give or take one, in random order."""
    start = generator.permutation(len(levels))  # which levels get one more is random too
    return [levels[start[k % len(levels)]] for k in generator.permutation(size)]


def _unevenness(columns: list[list[str]], fixed: set[str]) -> float:
    """Squares of how often each pair of levels appears, and a high price for what cannot be."""
    pairs = sum(count**2 for a, b in combinations(columns, 2) for count in Counter(zip(a, b, strict=True)).values())
    rows = Counter(zip(*columns, strict=True))
    impossible = sum(cell in fixed and gate == CHRONO for cell, gate in zip(columns[1], columns[2], strict=True))
    return pairs + FORBIDDEN * (impossible + sum(count - 1 for count in rows.values()))
