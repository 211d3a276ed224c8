"""``python -m studies.validation run ...`` runs it; ``python -m studies.validation results/validation ...`` analyses a run.

    python -m studies.validation run --scale small --out runs/validation
    python -m studies.validation results/validation --page docs/validation/index.md --readme docs/window.md

`run` takes the options of ``lagreach study run`` (``--study validation-tails`` for the part about heavy tails).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from studies.validation import register
from studies.validation.page import summarise
from studies.validation.readme import write_readme


def main(
    folder: Annotated[Path, typer.Argument(help="Folder with outcomes.parquet and predictors.parquet.")],
    page: Annotated[Path | None, typer.Option(help="Where the page goes; its figures go beside it.")] = None,
    tails: Annotated[
        Path | None, typer.Option(help="Run of the part about tails; else the folder of the same name with -tails.")
    ] = None,
    readme: Annotated[Path | None, typer.Option(help="README whose paragraph about validation is renewed.")] = None,
) -> None:
    """Analyse a validation run: write analysis.json, the page and its figures, and print the numbers."""
    analysis = summarise(folder, page, tails=tails)
    if readme is not None:
        write_readme(readme, analysis)
    typer.echo(str(analysis))


def run(arguments: list[str]) -> None:
    """Hand the options on to ``lagreach study run``, which knows this kind of study from here on."""
    from lagreach.cli import run as command

    register()
    study = "validation"
    if "--study" in arguments:
        at = arguments.index("--study")
        study = arguments[at + 1]
        arguments = arguments[:at] + arguments[at + 2 :]
    sys.argv = ["lagreach", "study", "run", study, *arguments]
    command()


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(sys.argv[2:])
    else:
        typer.run(main)
