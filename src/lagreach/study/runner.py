"""Run a study: train every variant, diagnose every checkpoint, test the claims, draw, and write it all down."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from lagreach._util.progress import Progress, progress_bar
from lagreach.errors import InputError
from lagreach.report import study_page
from lagreach.study.claims import VERDICTS, ClaimResult, check_claims
from lagreach.study.config import StudyConfig
from lagreach.study.convergence import ExperimentJob, run_experiment, summarise_experiments
from lagreach.study.executors import Executor, LocalExecutor, counting
from lagreach.study.figures import draw_all
from lagreach.study.group_tables import gather
from lagreach.study.jobs import (
    DiagnoseJob,
    TrainJob,
    diagnose_checkpoint,
    diagnose_jobs,
    is_diagnosed,
    is_trained,
    read_diagnosis,
    train_variants,
)
from lagreach.study.kinds import kind_named
from lagreach.study.results import results_text, verdict_sentence
from lagreach.study.status import epochs_done
from lagreach.study.store import RunDirectory
from lagreach.study.tables import write_rows

SHOWN_IN_REPORT = 8  # diagnoses side by side on the page
POLL_SECONDS = 0.5


def run_study(
    config: StudyConfig,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    executor: Executor | None = None,
    device: str = "cpu",
    kernel: str = "auto",
    show_progress: bool | None = None,
    command: str = "lagreach study run",
    only: str | None = None,
) -> RunDirectory:
    """Run or resume a study in a folder; return the folder.

    `config` is a study at one scale (`StudyConfig.at_scale`). Everything that is finished is kept, so that an interrupted run
    goes on where it was, to the same result. `only` "trainings" or "predictors" does one part of a validation study.
    """
    if only is not None and config.kind != "validation":
        raise InputError(
            "only a validation study can be run in parts", got=f"only={only!r}, a study of kind {config.kind}"
        )
    device = _device(device)
    run = RunDirectory.create(out, config, resume=resume, overwrite=overwrite)
    workers = executor or LocalExecutor(1)
    with run.lock(), progress_bar(show_progress) as report:
        started = time.perf_counter()
        run.log(f"start: `{command}`, {_plural(workers.workers, 'process')}, {_machine(device)}")
        if config.kind == "convergence":
            experiments = [ExperimentJob(str(run.path), name) for name in config.experiments]
            workers.map(run_experiment, experiments, on_result=counting(report, "experiments", len(experiments)))
            summarise_experiments(run, config, time.perf_counter() - started, command)
            run.finish()
            return run
        if config.kind == "validation":
            kind_named("validation").run(
                run, config, workers, report, device=device, kernel=kernel, only=only, command=command
            )
            return run
        left = [v.name for v in config.variants if not is_trained(run, config, v)]
        # networks share a GPU from one process, where they run side by side; processors each get their own
        together = [tuple(left)] if device != "cpu" and left else [(name,) for name in left]
        with _watching(run, config, report):
            workers.map(train_variants, [TrainJob(str(run.path), names, device, kernel) for names in together])
        jobs = diagnose_jobs(run, config, device, workers.workers)
        todo = [job for job in jobs if not is_diagnosed(run, job)]
        count = counting(report, "diagnosing", len(jobs), len(jobs) - len(todo))
        workers.map(diagnose_checkpoint, todo, on_result=count)
        run.log("measured")
        summarise_run(run)
        run.finish()
    return run


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}es"


def _device(name: str) -> str:
    """The device that is there by this name, before a folder is made for a run that cannot begin."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InputError("a study runs on a processor or a GPU", got=f"device={name!r}", expected="cpu, cuda or cuda:0")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("there is no CUDA device here", got=f"device={name!r}", fix='use device="cpu"')
    return "cpu" if device.type == "cpu" else name


def _machine(device: str) -> str:
    """What a run is worked on with: the device by its name, and the version of torch."""
    name = "processor" if device == "cpu" else torch.cuda.get_device_name(device)
    return f"{name}, torch {torch.__version__}"


@contextmanager
def _watching(run: RunDirectory, config: StudyConfig, report: Progress) -> Iterator[None]:
    """Show how many epochs are trained, counted from the files that the workers write."""
    total = sum(config.training_of(v).epochs for v in config.variants)
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(POLL_SECONDS):
            report("training", sum(done for done, _ in epochs_done(run, config).values()), total)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def summarise_run(run: RunDirectory) -> list[ClaimResult]:
    """Write summary.parquet, the figures, RESULTS.md and report.html from what the folder holds."""
    config = run.config()
    groups = gather(run, config)
    write_rows(run.path / "summary.parquet", [row for tables in groups.values() for row in tables.every], run.write)
    final = [row for tables in groups.values() for row in tables.final]
    claims = check_claims(config.claims, final, config.diagnosis.budget_grid, seeds=config.seeds, scale=config.scale)
    figures = {g: draw_all(tables, run.path / "figures", g or "all", run.write) for g, tables in groups.items()}
    linked = {g: [(caption, f"figures/{path.name}") for caption, path in made] for g, made in figures.items()}
    run.write_text("claims.json", json.dumps([asdict(claim) for claim in claims], indent=2))
    shown = [
        DiagnoseJob(str(run.path), v.name, config.seed, config.checkpoint_epochs(v)[-1], "exact")
        for v in config.variants[:SHOWN_IN_REPORT]
    ]
    study_page(
        config.title,
        [read_diagnosis(run, job) for job in shown],
        [_page_claim(claim) for claim in claims],
        [picture for made in figures.values() for picture in made],
        run.path / "report.html",
        names=[job.variant for job in shown],
        answer=[verdict_sentence(claims)],
        write=run.write,
    )
    # last, because a folder with RESULTS.md is a finished run
    run.write_text("RESULTS.md", results_text(config, claims, groups, linked, run.sessions()))
    return claims


def _page_claim(claim: ClaimResult) -> dict[str, str]:
    where = ", ".join(part for part in (claim.group, claim.definition) if part)
    return asdict(claim) | {"claim": f"{claim.claim} ({where})", "verdict": VERDICTS[claim.verdict]}
