"""Run the second validation study, analyse a run, and write its page.

python -m studies.validation2 run --device cuda --workers 14 --out runs/validation2
python -m studies.validation2 analyse results/validation2
python -m studies.validation2 page
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
) -> None:
    """Train, measure predictors, and write the tables."""
    from studies.validation2.run import run_study, study

    run_study(out, study(scale, seeds), device=device, workers=workers, minutes=minutes, resume=resume)


if __name__ == "__main__":
    app()
