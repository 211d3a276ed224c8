"""``python -m lagreach.study.validation results/validation --page PAGE --readme README``: every number and figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lagreach.study.validation.page import summarise
from lagreach.study.validation.readme import write_readme


def main(
    folder: Annotated[Path, typer.Argument(help="Folder with outcomes.parquet and predictors.parquet.")],
    page: Annotated[Path | None, typer.Option(help="Where the page goes; its figures go beside it.")] = None,
    tails: Annotated[
        Path | None, typer.Option(help="Run of the part about tails; else the folder of the same name with -tails.")
    ] = None,
    readme: Annotated[Path | None, typer.Option(help="README whose paragraph about validation is renewed.")] = None,
) -> None:
    """Analyse a validation run: write analysis.json, the page and its figures, and print the numbers."""
    found = summarise(folder, page, tails=tails)
    if readme is not None:
        write_readme(readme, found)
    typer.echo(str(found))


if __name__ == "__main__":
    typer.run(main)
