"""How long livi-later takes at paper scale on a GPU, from a part of it: ``python -m benchmarks.livi_later`` (needs CUDA).

All 25 networks train beside each other for a few of the 750 epochs, as `lagreach study run` does it, and all diagnoses of
some seeds are made by as many processes. What an epoch, a checkpoint and a diagnosis take then gives the whole:

    set-up + first epoch + the other epochs + checkpoints + the processes' first diagnoses + the others at the rate seen

Float32 is measured in full, float16 (of the recurrent products in training) for a few epochs. Nothing is timed unless a
network beside others learns what it learns alone, up to the rounding of sums.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu import machine, need_cuda
from benchmarks.harness import commit, finish, keep_unfinished
from lagreach._util.room import give_back
from lagreach.errors import UnsupportedError
from lagreach.study.config import StudyConfig, find_study
from lagreach.study.executors import LocalExecutor
from lagreach.study.jobs import SharedData, VariantTraining, diagnose_checkpoint, diagnose_jobs, make_trainer
from lagreach.study.store import RunDirectory
from lagreach.study.trainer import run_epoch

EPOCHS, EPOCHS_IN_HALF = 20, 4  # the fewest that have all five checkpoints, and a few
LIMIT = 1e-5  # on relative differences between weights trained alone and beside others


def shortened(scale: str, precision: str, epochs: int) -> tuple[StudyConfig, int]:
    """The study with fewer epochs, and how many it has."""
    whole = find_study("livi-later").at_scale(scale).only_group("AdamW")
    of_whole = whole.training_of(whole.variants[0]).epochs
    training = {**whole.training, "precision": precision, "epochs": epochs}
    return whole.model_copy(update={"training": training}), of_whole


def check(config: StudyConfig, device: str) -> float:
    """Largest relative difference that training beside others makes; refused where it is more than rounding."""
    batch = config.training_of(config.variants[0]).batch
    small = config.model_copy(update={"training": {**config.training, "sequences": 2 * batch}, "seeds": 2})
    trainers = [[make_trainer(small, variant, device, "auto", {}) for variant in small.variants] for _ in range(2)]
    run_epoch(trainers[0])
    for trainer in trainers[1]:
        trainer.run_epoch()
    weights = [[trainer.replicas.flat for trainer in some] for some in trainers]
    worst = max(float((a - b).norm() / b.norm()) for a, b in zip(*weights, strict=True))
    if not worst < LIMIT:
        raise SystemExit(
            f"networks beside others learn something else: weights differ by {worst:.1e}; nothing is timed"
        )
    return worst


def trained(folder: Path, config: StudyConfig, device: str, shared: SharedData) -> tuple[RunDirectory, dict[str, Any]]:
    """Seconds of training by phase."""
    start, run = time.perf_counter(), RunDirectory.create(folder, config)
    trainings = [VariantTraining(run, config, variant, device, "auto", shared) for variant in config.variants]
    seconds: dict[str, Any] = {"set_up": time.perf_counter() - start, "epochs": [], "checkpoints": []}
    for _ in range(config.training_of(config.variants[0]).epochs):
        start = time.perf_counter()
        outcomes = run_epoch([training.trainer for training in trainings])
        between = time.perf_counter()
        for training, outcome in zip(trainings, outcomes, strict=True):
            training.record(*outcome)
        seconds["epochs"].append(between - start)
        if trainings[0].trainer.epoch in trainings[0].wanted:
            seconds["checkpoints"].append(time.perf_counter() - between)
    for training in trainings:
        training.finish()
    steps = trainings[0].trainer.data.steps_per_epoch
    seconds["ms_per_step"] = median(seconds["epochs"][1:]) / steps * 1e3
    print(f"  {seconds['ms_per_step']:.1f} ms a step of all networks", file=sys.stderr, flush=True)
    return run, seconds


def diagnosed(run: RunDirectory, config: StudyConfig, device: str, workers: int, seeds: int) -> dict[str, Any]:
    """When each of some seeds' diagnoses was done, in seconds from the start; all that the study has is their number."""
    every = diagnose_jobs(run, config, device, workers)
    jobs = [job for job in every if job.seed in config.seed_list()[:seeds]]
    done: list[float] = []
    start = time.perf_counter()

    def note(*_: Any) -> None:
        done.append(time.perf_counter() - start)
        print(f"  {len(done)} of {len(jobs)} diagnoses after {done[-1]:.0f} s", file=sys.stderr, flush=True)

    with LocalExecutor(workers) as executor:
        executor.map(diagnose_checkpoint, jobs, on_result=note)
    return {"done": done, "of": len(every), "workers": workers}


def whole(training: Mapping[str, Any], epoch: float, diagnosing: Mapping[str, Any], epochs: int) -> dict[str, float]:
    """Seconds of the whole study by phase, given those of an epoch after the first."""
    done, workers = sorted(diagnosing["done"]), diagnosing["workers"]
    if len(done) <= workers:
        raise SystemExit(f"{len(done)} diagnoses tell no rate of {workers} processes: give more seeds")
    rate = (len(done) - workers) / (done[-1] - done[workers - 1])
    phases = {
        "set_up": training["set_up"],
        "training": training["epochs"][0] + (epochs - 1) * epoch,
        "checkpoints": len(training["checkpoints"]) * median(training["checkpoints"]),
        "diagnosing": done[workers - 1] + (diagnosing["of"] - workers) / rate,
    }
    return phases | {"whole": sum(phases.values())}


def measure(options: argparse.Namespace, record: dict[str, Any]) -> None:
    """Measure a part of the study, and keep what is known so far: the time on a GPU may end before the work does."""
    (config, epochs), (half, _) = (
        shortened(options.scale, precision, some)
        for precision, some in (("float32", options.epochs), ("float16", EPOCHS_IN_HALF))
    )
    record["beside_and_alone"] = check(config, options.device)
    with tempfile.TemporaryDirectory() as folder:
        shared: SharedData = {}
        run, training = trained(Path(folder) / "float32", config, options.device, shared)
        _, in_half = trained(Path(folder) / "float16", half, options.device, shared)
        shared.clear()
        give_back()
        record |= {"training": training, "training_in_float16": in_half}
        keep_unfinished(record, options.out)
        diagnosing = diagnosed(run, config, options.device, options.workers, options.seeds)
    record |= {"diagnosing": diagnosing, "seconds": {}}
    for precision, some in (("float32", training), ("float16", in_half)):
        record["seconds"][precision] = whole(training, median(some["epochs"][1:]), diagnosing, epochs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write JSON, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.livi_later", description=__doc__.splitlines()[0])
    parser.add_argument("--scale", default="paper")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="to train for")
    parser.add_argument("--seeds", type=int, default=1, help="whose diagnoses are made")
    parser.add_argument("--workers", type=int, default=12, help="processes that diagnose")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="where to write livi_later.json (default benchmarks/results)")
    options = parser.parse_args(arguments)
    if options.device != "cpu":
        need_cuda()
    record: dict[str, Any] = {
        "op": "livi_later",
        "about": "all of livi-later at paper scale, from a part of it",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine() if options.device != "cpu" else {},
        "options": {name: str(value) for name, value in vars(options).items() if name != "out"},
    }
    measure(options, record)
    finish(record, options.out, stored=options.device != "cpu")
    for precision, phases in record["seconds"].items():
        print(precision + ": " + ", ".join(f"{phase} {seconds / 60:.1f} min" for phase, seconds in phases.items()))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UnsupportedError as error:
        sys.exit(f"lagreach: {error}")
