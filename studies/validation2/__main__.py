"""Run the second validation study, analyse a run, and write its page.

python -m studies.validation2 run --device cuda --workers 14 --out runs/validation2
python -m studies.validation2 growth --device cuda --workers 14 --out runs/growth
python -m studies.validation2 analyse results/validation2
python -m studies.validation2 page
python -m studies.validation2 first FOLDER
python -m studies.validation2 record
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.command()
def run(
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    scale: Annotated[str, typer.Option(help="paper, or smoke for a trial in seconds.")] = "paper",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    workers: Annotated[int, typer.Option(help="Processes that measure predictors.")] = 1,
    seeds: Annotated[int | None, typer.Option(help="Another number of seeds than the protocol's.")] = None,
    minutes: Annotated[float, typer.Option(help="Begin no further group of conditions after this time.")] = 1e6,
    resume: Annotated[bool, typer.Option(help="Go on with the run in this folder.")] = False,
    tasks: Annotated[str, typer.Option(help="Only conditions of these tasks, such as series_16,series_40.")] = "",
) -> None:
    """Train, measure predictors, and write the tables."""
    from studies.validation2.run import run_study, study

    chosen = tuple(name for name in tasks.split(",") if name)
    run_study(out, study(scale, seeds), device=device, workers=workers, minutes=minutes, resume=resume, tasks=chosen)


@app.command()
def growth(
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    scale: Annotated[str, typer.Option(help="paper, linear, or smoke for a trial.")] = "paper",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    workers: Annotated[int, typer.Option(help="Processes that turn sums into shares.")] = 1,
) -> None:
    """Let untrained networks grow, forecast from there, and write growth.parquet."""
    from studies.validation2.growth import run_growth
    from studies.validation2.run import study

    run_growth(out, study(scale), device=device, workers=workers)


@app.command()
def replaced(
    of_some: Annotated[Path, typer.Argument(help="Folder of a run with --tasks.")],
    folder: Annotated[
        Path, typer.Argument(help="Folder whose tables get its rows, in place of those of the same conditions.")
    ],
) -> None:
    """Put the rows of some conditions, run again, into the tables of the whole study."""
    from studies.validation2.tables import replace_conditions

    replace_conditions(of_some, folder)


@app.command()
def analyse(
    folder: Annotated[Path, typer.Argument(help="Folder with outcomes.parquet and predictors.parquet.")],
    draws: Annotated[int, typer.Option(help="Bootstrap draws.")] = 2000,
) -> None:
    """Write summary.json and RESULTS.md beside the tables, and print the goals."""
    from studies.validation2.analysis import analyse as analyse_folder
    from studies.validation2.page import write_results
    from studies.validation2.summary import save_summary

    analysis = analyse_folder(folder, draws)
    made = save_summary(analysis, folder / "summary.json")
    write_results(analysis, folder)
    for goal in made["goals"]:
        typer.echo(
            f"{'met   ' if goal['met'] else 'missed'}  {goal['name']}: {goal['found']} (wanted {goal['wanted']})"
        )


@app.command()
def first(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the tables before shares of single inputs, from git's history.")
    ],
    out: Annotated[Path | None, typer.Option(help="Where the numbers go; results/validation2 if left out.")] = None,
    draws: Annotated[int, typer.Option(help="Bootstrap draws.")] = 2000,
) -> None:
    """Write first_definition.json: the main numbers by the protocol's first definition of a share."""
    from studies.validation2.analysis import analyse as analyse_folder
    from studies.validation2.page import FIRST
    from studies.validation2.summary import save_first_definition

    save_first_definition(analyse_folder(folder, draws), out or FIRST)


@app.command()
def page(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of the tables; results/validation2 if left out.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the page goes; its figures go beside it.")] = None,
    draws: Annotated[int, typer.Option(help="Bootstrap draws.")] = 2000,
) -> None:
    """Write the page of the documentation and its figures."""
    from studies.validation2.analysis import analyse as analyse_folder
    from studies.validation2.growth_analysis import growth as judge_growth
    from studies.validation2.page import PAGE, RESULTS, write_page
    from studies.validation2.summary import linear_folder

    chosen = folder or RESULTS
    beside = linear_folder(chosen)
    linear = analyse_folder(beside, draws) if beside.is_dir() else None
    parts = {"all tasks": chosen, "linear dependencies": beside}
    grown = {name: judge_growth(part, draws) for name, part in parts.items()}
    write_page(analyse_folder(chosen, draws), linear, out or PAGE, grown)


@app.command()
def record(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of the tables; results/validation2 if left out.")
    ] = None,
) -> None:
    """Count how often lags were learned by the share forecast, for the package to quote."""
    from studies.validation2.page import RESULTS
    from studies.validation2.record import write_record

    write_record(folder or RESULTS)


if __name__ == "__main__":
    app()
