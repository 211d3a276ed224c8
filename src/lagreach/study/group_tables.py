"""What tables and figures of a study are made from: the numbers of its diagnoses and trainings, group by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lagreach.study.config import StudyConfig
from lagreach.study.jobs import diagnose_jobs, study_task, summary_row
from lagreach.study.store import RunDirectory
from lagreach.study.tables import Row, read_rows


@dataclass(frozen=True)
class GroupTables:
    """What figures are drawn from: rows of the summary, epochs of training, recovered lags."""

    final: Sequence[Row]  # after training, by all recipes
    every: Sequence[Row]  # at all checkpoints
    metrics: Sequence[Row]
    recovered: Sequence[Row]
    budgets: Sequence[int]
    noise_floor: float | None
    task_lags: Sequence[int]

    def roles(self) -> list[str]:
        """Roles in the order of the study."""
        return list(dict.fromkeys(row["role"] for row in self.final))

    def rows(self, role: str, recipe: str) -> list[Row]:
        """Rows of a role after training, one a seed."""
        return [row for row in self.final if row["role"] == role and row["recipe"] == recipe]


def stacked(rows: Sequence[Row], name: str) -> np.ndarray:
    """A list-valued column as an array (seed, ...), missing entries as NaN."""
    return np.array([[np.nan if v is None else v for v in row[name]] for row in rows], dtype=float)


def reach(rows: Sequence[Row]) -> np.ndarray:
    """Windows (seed, budget): 0 where nothing lies within reach, NaN where no N is known."""
    windows = np.nan_to_num(stacked(rows, "windows"))
    for of_seed, row in zip(windows, rows, strict=True):
        needed = row["n_data"] if row.get("n_probe") is None else row["n_probe"]  # the printed recipe has one N only
        if all(n is None or np.isnan(n) for n in needed):
            of_seed[:] = np.nan
    return windows


def gather(run: RunDirectory, config: StudyConfig) -> dict[str, GroupTables]:
    """Read a finished run's numbers, one `GroupTables` for each group of variants."""
    task, budgets = study_task(config), config.diagnosis.budget_grid
    place = {v.name: {"variant": v.name, "role": v.role or v.name, "group": v.group} for v in config.variants}
    last = {v.name: config.checkpoint_epochs(v)[-1] for v in config.variants}
    every = [summary_row(run, job, budgets) | place[job.variant] for job in diagnose_jobs(run, config)]
    tables: dict[str, list[Row]] = {"metrics": [], "recovered": []}
    for name, rows in tables.items():
        for v in config.variants:
            rows += [row | place[v.name] for row in read_rows(run.training(v.name) / f"{name}.parquet", read=run.read)]
    by_group = {}
    for group in dict.fromkeys(of_group["group"] for of_group in place.values()):
        of_group = [row for row in every if row["group"] == group]
        by_group[group] = GroupTables(
            final=[row for row in of_group if row["epoch"] == last[row["variant"]]],
            every=of_group,
            metrics=[row for row in tables["metrics"] if row["group"] == group],
            recovered=[row for row in tables["recovered"] if row["group"] == group],
            budgets=budgets,
            noise_floor=task.noise_floor,
            task_lags=[lag for lag in task.lags if lag < task.length],
        )
    return by_group
