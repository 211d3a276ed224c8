"""How far a run is, read from the files in its folder."""

from __future__ import annotations

import fcntl
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lagreach._util.disk import is_file
from lagreach.study.config import StudyConfig
from lagreach.study.convergence import experiment_path
from lagreach.study.jobs import diagnose_jobs
from lagreach.study.kinds import kind_named
from lagreach.study.store import RunDirectory


@dataclass(frozen=True)
class RunStatus:
    """Epochs trained and diagnoses made, of how many, and whether a process is at work."""

    study: str
    scale: str
    state: str  # "finished", "running" or "interrupted"
    kind: str  # of the study
    epochs: dict[str, tuple[int, int]]
    diagnoses: tuple[int, int]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.study} at scale {self.scale}: {self.state}"]
        unit = "trained:" if self.kind == "validation" else "epoch"
        lines += [f"  {name:<20} {unit} {done} of {of}" for name, (done, of) in self.epochs.items()]
        what = {"training": "diagnoses", "convergence": "experiments", "validation": "pieces of predictors"}[self.kind]
        lines.append(f"  {what:<20} {self.diagnoses[0]} of {self.diagnoses[1]}")
        if self.state == "interrupted":
            lines.append("go on with the same command and --resume")
        return "\n".join(lines)


def epochs_done(run: RunDirectory, config: StudyConfig) -> dict[str, tuple[int, int]]:
    """Epochs saved for each variant, and how many there are to be."""
    by_variant = {}
    for variant in config.variants:
        epochs = [path.stem.partition("-")[2] for path in run.training(variant.name).glob("state-*.safetensors")]
        last = max((int(epoch) for epoch in epochs if epoch.isdecimal()), default=0)
        by_variant[variant.name] = (last, config.training_of(variant).epochs)
    return by_variant


def run_status(folder: str | Path) -> RunStatus:
    """Read the status of a run without disturbing it."""
    run = RunDirectory(folder)
    config = run.config()
    paths = [run.diagnosis_path(j.variant, j.seed, j.epoch, j.recipe) for j in diagnose_jobs(run, config)]
    paths += [experiment_path(run, name) for name in config.experiments]
    made = (sum(path.exists() for path in paths), len(paths))
    epochs = epochs_done(run, config)
    if config.kind == "validation":
        counts = kind_named("validation").status(run, config)
        epochs, made = {"all conditions": counts["conditions"]}, counts["predictors"]
    state = "running" if _held(run) else ("finished" if run.finished else "interrupted")
    return RunStatus(config.name, config.scale, state, config.kind, epochs, made)


def _held(run: RunDirectory) -> bool:
    """Whether a process holds the lock."""
    lock = run.path / ".lock"
    if not is_file(lock):
        return False
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
