"""`lagreach study`: run, resume, list and look at studies."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Reproduce the papers, or run a study of your own."
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
def run(
    study: Annotated[str, typer.Argument(help="A name from `lagreach study list`, or the path of a YAML file.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for everything the run writes.")],
    scale: Annotated[str, typer.Option(help="smoke (a minute), small (ten) or paper (hours on a CPU).")] = "small",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start again in a folder that holds a run.")] = False,
    executor: Annotated[str, typer.Option(help="local (processes) or ray (a cluster).")] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; all processors by default.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster; a local one is started without.")
    ] = None,
    gpus: Annotated[float, typer.Option(min=0.0, help="Share of a GPU that each piece of work needs (Ray).")] = 0.0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    kernel: Annotated[str, typer.Option(help="auto, reference, numba, triton or parallel.")] = "auto",
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds, instead of the study's.")] = None,
    group: Annotated[str | None, typer.Option(help="Only the variants of this group, such as AdamW.")] = None,
    only: Annotated[str | None, typer.Option(help="trainings or predictors: one part of the validation study.")] = None,
    as_json: Json = False,
) -> None:
    """Train, diagnose, test the printed claims, and write figures, RESULTS.md and report.html.

    Example: `lagreach study run livi-v1 --scale small --out runs/livi`
    """
    from lagreach.study.config import find_study
    from lagreach.study.executors import Resources, make_executor
    from lagreach.study.runner import run_study

    config = find_study(study).at_scale(scale)
    if seeds is not None:
        config = config.model_copy(update={"seeds": seeds})
    if group is not None:
        config = config.only_group(group)
    processes = workers or (1 if device != "cpu" else len(os.sched_getaffinity(0)))
    made = make_executor(executor, workers=processes, address=address, resources=Resources(gpus=gpus))
    command = shlex.join(["lagreach", *sys.argv[1:]])
    with made as pool:
        finished = run_study(
            config,
            out,
            resume=resume,
            overwrite=overwrite,
            executor=pool,
            device=device,
            kernel=kernel,
            command=command,
            only=only,
        )
    if config.kind == "validation":
        from lagreach.study.kinds import kind_named

        shown = kind_named("validation").show(finished.path)
        typer.echo(json.dumps(shown, indent=2) if as_json else "\n".join(f"{k}: {v}" for k, v in shown.items()))
        return
    claims = json.loads((finished.path / "claims.json").read_text())
    if as_json:
        typer.echo(json.dumps({"run": str(finished.path), "claims": claims}, indent=2))
        return
    show_run(finished.path)


def show_run(folder: Path) -> None:
    """Print the numbers and verdicts of a finished run."""
    from rich.console import Console
    from rich.markdown import Markdown

    from lagreach.study.group_tables import gather
    from lagreach.study.results import numbers_text
    from lagreach.study.store import RunDirectory

    run, console = RunDirectory(folder), Console()
    config = run.config()
    groups = gather(run, config) if config.kind == "training" else {}
    for group, tables in groups.items():
        console.print(Markdown("\n".join([f"### {group or config.title}", "", *numbers_text(tables)])))
    show_claims(json.loads((folder / "claims.json").read_text()), console)
    typer.echo(f"\nresults: {folder / 'RESULTS.md'}\nreport:  {folder / 'report.html'}")


def show_claims(claims: list[dict[str, str]], console: Console) -> None:
    """Print one line a claim: whether it came out, in each group and under each definition."""
    from rich.table import Table

    from lagreach.study.claims import ClaimResult
    from lagreach.study.results import verdict_sentence

    if all(claim["verdict"] == "not tested" for claim in claims):
        console.print(verdict_sentence([ClaimResult(**claim) for claim in claims]))
        return
    columns = list(dict.fromkeys((c["group"], c["definition"]) for c in claims))
    table = Table(title="Did the printed claims come out? RESULTS.md has the numbers, and why not.")
    table.add_column("claim")
    for group, definition in columns:
        table.add_column(f"{group}\n{definition}".strip())
    verdicts = {(c["claim"], c["group"], c["definition"]): c["verdict"] for c in claims}
    colours = {"yes": "[green]yes[/]", "no": "[red]no[/]", "not tested": "[dim]not tested[/]", "": ""}
    for claim in dict.fromkeys(c["claim"] for c in claims):
        table.add_row(claim, *(colours[verdicts.get((claim, *column), "")] for column in columns))
    console.print(table)


@app.command("list")
def list_studies(as_json: Json = False) -> None:
    """List the studies that come with lagreach.

    Example: `lagreach study list`
    """
    from lagreach.study.config import known_studies, read_config

    rows = []
    for name, path in known_studies().items():
        config = read_config(path)
        rows.append({"name": name, "title": config.title, "scales": [*config.scales, "paper"], "seeds": config.seeds})
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        typer.echo(f"{row['name']:<12} {row['title']}   [{', '.join(row['scales'])}]")  # type: ignore[arg-type]


@app.command()
def show(
    study: Annotated[str, typer.Argument(help="A name from `lagreach study list`, or the path of a YAML file.")],
    scale: Annotated[str, typer.Option(help="smoke, small or paper.")] = "paper",
) -> None:
    """Print the whole configuration of a study at a scale, as YAML: a start for a study of your own.

    Example: `lagreach study show livi-v1 --scale small > mine.yaml`
    """
    import yaml

    from lagreach.study.config import find_study

    config = find_study(study).at_scale(scale)
    typer.echo(yaml.safe_dump(config.model_dump(mode="json", exclude_defaults=True), sort_keys=False).rstrip())


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(help="Folder of a run.")],
    as_json: Json = False,
) -> None:
    """Tell how far a run is, from its folder alone.

    Example: `lagreach study status runs/livi`
    """
    from lagreach.study.status import run_status

    progress = run_status(folder)
    if as_json:
        typer.echo(json.dumps(progress.as_dict(), indent=2))
    else:
        typer.echo(str(progress))


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    to: Annotated[Path, typer.Argument(help="Folder for its outcome.")],
    as_json: Json = False,
) -> None:
    """Copy the outcome of a run without its weights: tables, claims, figures and RESULTS.md.

    Example: `lagreach study export runs/livi results/livi-v1`
    """
    from lagreach.study.export import export_run

    written = export_run(folder, to)
    size = sum(path.stat().st_size for path in written)
    if as_json:
        typer.echo(json.dumps({"to": str(to), "files": [path.name for path in written], "bytes": size}, indent=2))
    else:
        typer.echo(f"{len(written)} files, {size / 2**20:.1f} MiB, in {to}")
