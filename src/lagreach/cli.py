"""The `lagreach` command. Heavy imports happen inside the commands, so that ``--help`` is quick."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from lagreach._version import __version__

app = typer.Typer(
    name="lagreach",
    help="How far back in time can a recurrent model learn from N sequences?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def _version(show: bool) -> None:
    if show:
        typer.echo(f"lagreach {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """How far back in time can a recurrent model learn from N sequences?"""


@app.command()
def cells(as_json: Json = False) -> None:
    """List the cells: gates, state, where their equations come from, and whether first order is exact.

    Example: `lagreach cells --json`
    """
    from lagreach.cells import all_cells

    rows = [
        {
            "name": cell.name,
            "gates": list(cell.gate_names),
            "state": list(cell.blocks),
            "equations": cell.equations,
            "first_order": cell.first_order,
        }
        for cell in all_cells().values()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Cells")
    for header in ("name", "gates", "state", "equations", "first order"):
        table.add_column(header, no_wrap=header == "name")
    for row in rows:
        table.add_row(*(", ".join(value) or "-" if isinstance(value, list) else str(value) for value in row.values()))
    Console().print(table)


@app.command()
def demo(
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 1500,
    cell: Annotated[str, typer.Option(help="Any name from `lagreach cells`.")] = "diag_gate",
    lr: Annotated[float, typer.Option(min=0.0, help="Learning rate of AdamW.")] = 5e-3,
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = 0,
    as_json: Json = False,
) -> None:
    """Train a small network on planted lags and show how much of its gradient survives each lag.

    Example: `lagreach demo --cell lstm --steps 500`
    """
    from rich.console import Console

    from lagreach.demo import DemoSettings, run_demo, show

    result = run_demo(DemoSettings(cell=cell, steps=steps, lr=lr, seed=seed), Console(stderr=True))
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=2))
    else:
        show(result, Console())


def run() -> None:
    """Entry point: errors raised on purpose are printed without a traceback, with exit code 2."""
    from lagreach.errors import LagreachError

    try:
        app()
    except LagreachError as error:
        typer.echo(f"lagreach: {error}", err=True)
        sys.exit(2)
