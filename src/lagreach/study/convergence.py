"""Studies of the second paper: experiments instead of trainings, slopes instead of windows."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lagreach._util.disk import make_folder
from lagreach.errors import InputError
from lagreach.report import study_page
from lagreach.study.claims import VERDICTS, ClaimResult
from lagreach.study.figures import save_figure
from lagreach.study.results import table
from lagreach.study.store import RunDirectory, versions

if TYPE_CHECKING:
    from lagreach.papers.cayci.curves import Curve, Experiment
    from lagreach.study.config import StudyConfig

SLACK = 0.1  # in a slope: rates are asymptotic, and the axes are finite
LEAST_STARTS = 5


@dataclass(frozen=True)
class ExperimentJob:
    """One experiment of a run."""

    run: str
    name: str


def experiment_path(run: RunDirectory, name: str) -> Path:
    """Where an experiment's numbers lie."""
    return run.path / "experiments" / f"{name}.json"


def run_experiment(job: ExperimentJob) -> None:
    """Run an experiment and save its numbers; one that is there and whole is left alone."""
    from lagreach.papers.cayci.experiments import run as measure

    run = RunDirectory(job.run)
    if read_experiment(run, job.name) is not None:
        return
    config = run.config()
    experiment = measure(job.name, config.scale, config.seed)
    path = experiment_path(run, job.name)
    make_folder(path.parent)
    run.write(path, json.dumps(experiment.to_dict()).encode())
    run.log(f"experiment {job.name} done")


def read_experiment(run: RunDirectory, name: str) -> Experiment | None:
    """Read an experiment back; None if it is not there, or damaged."""
    from lagreach.papers.cayci.curves import Experiment

    try:
        return Experiment.from_dict(json.loads(run.read(experiment_path(run, name))))
    except (OSError, ValueError, KeyError, TypeError, InputError):
        return None


def slope_claims(experiments: list[Experiment], scale: str) -> list[ClaimResult]:
    """One line for every predicted slope: whether the measured one is as predicted, or steeper."""
    claims = []
    for experiment in experiments:
        for curve in experiment.curves:
            if curve.predicted is None:
                continue
            slope, starts = curve.slope, curve.values.shape[1]
            verdict, why = "not tested", f"{starts} starts at scale {scale}: too little to test a slope"
            if scale != "smoke" and starts >= LEAST_STARTS and not math.isnan(slope.value):
                near = slope.low - SLACK <= slope.predicted <= slope.high + SLACK
                faster = slope.high < slope.predicted
                verdict = "yes" if near or faster else "no"
                why = "better than the bound asks" if faster and not near else ""
                if verdict == "no":
                    why = "worse than predicted over this range"
            claims.append(
                ClaimResult(
                    claim=f"{experiment.name}: {curve.name} against {curve.against}",
                    group="",
                    definition="lagreach",
                    printed=f"slope {slope.predicted:+.2f}",
                    obtained=f"slope {slope.value:+.2f}{_fitted(curve)}",
                    interval=f"[{slope.low:+.2f}, {slope.high:+.2f}]",
                    verdict=verdict,
                    why=why,
                )
            )
    return claims


def _fitted(curve: Curve) -> str:
    """Say so where a slope is fitted to the far end only."""
    return f" (from {curve.against} {curve.x[curve.fit_from]:g} on)" if curve.fit_from else ""


def summarise_experiments(run: RunDirectory, config: StudyConfig, seconds: float, command: str) -> list[ClaimResult]:
    """Write figures, claims, RESULTS.md and report.html."""
    from lagreach.papers.cayci.figures import figure

    experiments = [one for name in config.experiments if (one := read_experiment(run, name)) is not None]
    claims = slope_claims(experiments, config.scale)
    pictures: list[tuple[str, str | Path]] = []
    for experiment in experiments:
        path = run.path / "figures" / f"{experiment.name}.png"
        save_figure(figure(experiment), path, run.write)
        pictures.append((f"{experiment.question[0].upper()}{experiment.question[1:]}", path))
    run.write_text("claims.json", json.dumps([vars(claim) for claim in claims], indent=2))
    rows = [vars(claim) | {"verdict": VERDICTS[claim.verdict]} for claim in claims]
    sentences = [f"{sum(c.verdict == 'yes' for c in claims)} of {len(claims)} predicted slopes came out."]
    study_page(config.title, [], rows, pictures, run.path / "report.html", answer=sentences, write=run.write)
    headers = ("claim", "claimed", "obtained", "interval", "agrees?", "why")
    lines = [f"# {config.title}", "", config.about.strip(), ""]
    lines += [f"Scale **{config.scale}**. Made by `{command}`; {seconds / 60:.1f} minutes.", ""]
    lines += [", ".join(f"{name} {number}" for name, number in versions().items()) + ".", "", "## Slopes", ""]
    lines += [
        "Intervals are 95 % over random starts of one data set; a slope agrees when it is as predicted (within 0.1) or better.",
        "",
    ]
    lines += table(headers, [(c.claim, c.printed, c.obtained, c.interval, c.verdict, c.why) for c in claims])
    for experiment in experiments:
        lines += ["", f"## {experiment.name}", "", f"![{experiment.question}](figures/{experiment.name}.png)", ""]
        lines += ["```", str(experiment), "```"]
    run.write_text("RESULTS.md", "\n".join(lines).rstrip() + "\n")
    return claims
