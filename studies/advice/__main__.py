"""``python -m studies.advice run --device cuda`` runs the study; ``python -m studies.advice analyse`` makes its page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False)
RESULTS = Path("results/advice")


@app.command()
def run(
    out: Annotated[Path, typer.Option(help="Folder of the run; an interrupted one goes on.")] = Path("runs/advice"),
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seeds: Annotated[int, typer.Option(help="Seeds of each training.")] = 5,
    workers: Annotated[
        int | None, typer.Option(help="Processes that make the advice; all cores but one if left out.")
    ] = None,
    smoke: Annotated[bool, typer.Option(help="Five situations at a size for tests.")] = False,
    earlier: Annotated[Path | None, typer.Option(help="A finished run whose situations are taken over.")] = None,
) -> None:
    """Give advice in every situation, and train all arms."""
    from studies.advice.run import run_study

    run_study(out, device=device, seeds=seeds, workers=workers, smoke=smoke, earlier=earlier, say=typer.echo)


@app.command()
def analyse(
    folder: Annotated[Path, typer.Argument(help="Folder with advice.json and outcomes.parquet.")] = RESULTS,
    page: Annotated[Path | None, typer.Option(help="Where the page goes; its figure goes beside it.")] = None,
) -> None:
    """Hold the advice against the outcomes: write analysis.json, RESULTS.md and the page."""
    from studies.advice.page import summarise

    typer.echo(summarise(folder, page))


if __name__ == "__main__":
    app()
