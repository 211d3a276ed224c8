"""The `lagreach` command. Heavy imports happen inside the commands, so that ``--help`` is quick."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lagreach._version import __version__
from lagreach.cli.convergence import app as convergence
from lagreach.cli.settings import with_settings
from lagreach.cli.study import app as study
from lagreach.diagnosis.settings import default

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
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the picture.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the data, the weights and the training.")] = 0,
) -> None:
    """One minute: what a small LSTM will learn from its data, what stands in the way, what mends it, and what came of it.

    Example: `lagreach demo`
    """
    from lagreach.cli.demo import run_demo

    typer.echo("\n".join(run_demo(out, seed)))


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
def plan(
    law: Annotated[str, typer.Option(help="Decay of the envelope: power, exponential, logarithmic or stretched.")],
    sigma: Annotated[float, typer.Option(help="Noise of one sequence (stable scale with --alpha, else sd).")],
    beta: Annotated[float | None, typer.Option(help="Exponent of the power law.")] = None,
    tau: Annotated[float | None, typer.Option(help="Time scale of the (stretched) exponential, in steps.")] = None,
    b: Annotated[float | None, typer.Option("--b", help="Stretching exponent.")] = None,
    signal: Annotated[float, typer.Option(help="Signal at full envelope.")] = 1.0,
    alpha: Annotated[float | None, typer.Option(help="Tail index of stable noise, in (1, 2].")] = None,
    kappa: Annotated[float | None, typer.Option(help="Measured concentration exponent, instead of --alpha.")] = None,
    error: Annotated[float, typer.Option(help="Error probability of the test.")] = default("error"),
    sequences: Annotated[int | None, typer.Option(help="Number of sequences: also print the window.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the plan into this file (png, svg or pdf).")] = None,
    as_json: Json = False,
) -> None:
    """Power analysis without a model: sequences needed per lag, and the window of a number of sequences.

    Example: `lagreach plan --law power --beta 1 --signal 1 --sigma 5 --alpha 1.7 --error 0.05 --sequences 8000`
    """
    from lagreach.advice.plan import plan as make_plan

    made = make_plan(
        law, beta=beta, tau=tau, b=b, signal=signal, sigma=sigma, alpha=alpha, kappa=kappa, error=error,
        sequences=sequences,
    )  # fmt: skip
    if figure is not None:
        made.figure(figure)
    typer.echo(json.dumps(made.to_dict(), indent=2) if as_json else str(made))


@app.command()
@with_settings
def diagnose(
    model: Annotated[
        str,
        typer.Option(
            help="Where the model comes from: package.module:factory or file.py:factory, called without arguments; or "
            "hf:folder, a local Hugging Face model in safetensors."
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            help="Data with x and y (and mask, lengths), or input_ids (and labels, attention_mask): .npz, .safetensors or .pt."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for diagnosis.nc and report.html.")],
    weights: Annotated[
        Path | None, typer.Option(help="Weights of the model: .safetensors, or .pt without code.")
    ] = None,
    loss: Annotated[str, typer.Option(help="mse or cross_entropy.")] = "mse",
    lags: Annotated[str, typer.Option(help='"auto", or lags such as 1,2,4 or 0:64.')] = "auto",
    sequences: Annotated[int | None, typer.Option(help="Plan for this many sequences.")] = None,
    require_lag: Annotated[list[int] | None, typer.Option(help="Exit with 3 if this lag is out of reach.")] = None,
    budget: Annotated[float | None, typer.Option(help="Seconds to stay within.")] = None,
    memory: Annotated[int | None, typer.Option(help="Bytes for the sequences that are run together.")] = None,
    steps: Annotated[str | None, typer.Option(help='Steps that targets belong to: "last", or 3,7,11.')] = None,
    outputs: Annotated[
        str | None, typer.Option(help='Whether outputs belong to each step or to the end: "per step" or "at the end".')
    ] = None,
    lags_of: Annotated[
        str, typer.Option(help='Lags of recurrent "layers", of the whole "model", or "auto" to choose.')
    ] = "auto",
    inputs: Annotated[
        str | None, typer.Option(help="Path of the module that reads the input, for lags of the whole model.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Path of the part of the model to diagnose.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would do and cost.")] = False,
    as_json: Json = False,
    *,
    settings: Any,
) -> None:
    """Tell how far back a model learns from data; write diagnosis.nc and report.html.

    Exit codes: 0 when all is well, 2 on bad input, 3 when a required lag needs more sequences than there are.

    Example: `lagreach diagnose --model my.models:build --weights w.safetensors --data val.npz --require-lag 64 --out run`
    """
    from lagreach.cli.diagnose import run_diagnose

    raise typer.Exit(
        run_diagnose(
            model, data, out, weights=weights, loss=loss, lags=lags, sequences=sequences, require=require_lag or [],
            budget=budget, memory=memory, steps=steps, outputs=outputs, lags_of=lags_of, inputs=inputs, only=only,
            dry_run=dry_run, as_json=as_json, settings=settings,
        )
    )  # fmt: skip


@app.command()
def forecast(
    model: Annotated[
        str,
        typer.Option(
            help="Where the model comes from: package.module:factory or file.py:factory, called without arguments."
        ),
    ],
    data: Annotated[Path, typer.Option(help="Data with x and y (and mask, lengths): .npz, .safetensors or .pt.")],
    weights: Annotated[
        Path | None, typer.Option(help="Weights of the model: .safetensors, or .pt without code.")
    ] = None,
    sequences: Annotated[str, typer.Option(help="Numbers of sequences to forecast for.")] = "100,1000,10000",
    fit: Annotated[str, typer.Option(help='Weights that training moves: "all", or "readout".')] = "all",
    loss: Annotated[str, typer.Option(help="mse or cross_entropy.")] = "mse",
    lags: Annotated[str, typer.Option(help='"auto", or lags such as 1,2,4 or 0:64.')] = "auto",
    strength: Annotated[float, typer.Option(help="Share of the target that a dependency explains.")] = default(
        "strength"
    ),
    require_lag: Annotated[
        list[int] | None, typer.Option(help="Exit with 3 if too little of this lag is recovered.")
    ] = None,
    require_share: Annotated[float, typer.Option(help="Share of it that is enough.")] = 0.5,
    optimiser: Annotated[
        str | None, typer.Option(help="Optimiser and learning rate, such as adam:0.001; needs --steps.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps that training will take; needs --optimiser.")] = None,
    target_steps: Annotated[str | None, typer.Option(help='Steps that targets belong to: "last", or 3,7,11.')] = None,
    outputs: Annotated[
        str | None, typer.Option(help='Whether outputs belong to each step or to the end: "per step" or "at the end".')
    ] = None,
    directions: Annotated[int | None, typer.Option(help="Random directions of the weights to look at.")] = None,
    budget: Annotated[float | None, typer.Option(help="Seconds to stay within, about.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of blocks, probes and directions.")] = default("seed"),
    out: Annotated[Path | None, typer.Option(help="Folder for forecast.nc.")] = None,
    report: Annotated[Path | None, typer.Option(help="Page to write: the figure, with sliders.")] = None,
    as_json: Json = False,
) -> None:
    """Forecast which lags training will recover from how many sequences, and what stands in the way of the others.

    Exit codes: 0 when all is well, 2 on bad input, 3 when less than the required share of a required lag would be recovered from
    the largest number of sequences.

    Example: `lagreach forecast --model my.models:build --data val.npz --sequences 100,1000 --require-lag 64`
    """
    from lagreach.cli.forecast import run_forecast

    raise typer.Exit(
        run_forecast(
            model, data, weights=weights, fit=fit, loss=loss, lags=lags, sequences=sequences, strength=strength,
            require=require_lag or [], require_share=require_share, optimiser=optimiser, steps=steps,
            target_steps=target_steps, outputs=outputs, directions=directions, budget=budget, seed=seed, out=out, report=report,
            as_json=as_json,
        )
    )  # fmt: skip


@app.command()
def compare(
    files: Annotated[list[Path], typer.Argument(help="Files written by `lagreach diagnose` or Diagnosis.save.")],
    sequences: Annotated[int | None, typer.Option(help="Number of sequences to compare at.")] = None,
    as_json: Json = False,
) -> None:
    """Compare several diagnoses at one number of sequences.

    Example: `lagreach compare before/diagnosis.nc after/diagnosis.nc --sequences 8000`
    """
    from lagreach.diagnosis.compare import compare as compare_diagnoses
    from lagreach.diagnosis.files import load_diagnosis

    comparison = compare_diagnoses(
        [load_diagnosis(file) for file in files], [str(file) for file in files], sequences=sequences
    )
    if not as_json:
        typer.echo(str(comparison))
        return
    rows = [
        {"name": name, "sequences": at.sequences, "strength": at.strength, "lag": at.lag, "interval": list(at.interval)}
        for name, at in zip(comparison.names, comparison.windows, strict=True)
    ]
    typer.echo(json.dumps(rows, indent=2))


@app.command()
def suggest(
    path: Annotated[Path, typer.Argument(help="A diagnosis (.nc).")],
    lag: Annotated[list[int] | None, typer.Option(help="A lag that must be learnable; may be repeated.")] = None,
    sequences: Annotated[int | None, typer.Option(help="Number of sequences to plan for.")] = None,
    as_json: Json = False,
) -> None:
    """Suggest how many steps to backpropagate through and how long sequences should be, with the reasons.

    Example: `lagreach suggest run/diagnosis.nc --lag 64`
    """
    from lagreach.advice.suggest import suggest as make_suggestion
    from lagreach.diagnosis.files import load_diagnosis

    made = make_suggestion(load_diagnosis(path), lag, sequences=sequences)
    typer.echo(json.dumps(made.to_dict(), indent=2) if as_json else str(made))


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(help="Diagnoses (.nc), or folders of them; or a forecast (.nc).")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Title of the page.")] = "lagreach report",
) -> None:
    """Write a self-contained page with sliders and figures; several diagnoses stand side by side.

    Example: `lagreach report before/diagnosis.nc after/diagnosis.nc --out report.html`
    """
    from lagreach.cli.report import run_report

    run_report(paths, out, title=title)


@app.command()
def figures(
    paths: Annotated[list[Path], typer.Argument(help="Diagnoses (.nc), or folders of them.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")],
    kind: Annotated[str, typer.Option("--format", help="png, svg or pdf.")] = "png",
    figure: Annotated[list[str] | None, typer.Option(help="Only this figure; may be repeated.")] = None,
    as_json: Json = False,
) -> None:
    """Draw figures for a paper: windows, gains, noise, time scales, and the paper's Figures 1 to 4.

    Example: `lagreach figures run/diagnosis.nc --out figures --format pdf --figure window`
    """
    from lagreach.cli.report import run_figures

    run_figures(paths, out, kind=kind, figures=figure or [], as_json=as_json)


@app.command()
def bench(
    names: Annotated[list[str] | None, typer.Argument(help="What to time; everything by default.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes, fewer repeats.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the JSON files.")] = None,
    author: Annotated[
        Path | None, typer.Option(help="The paper author's scripts, to be timed in the same run.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, or cuda: training steps of the GPU kernels; NAMES are cells then.")
    ] = "cpu",
) -> None:
    """Time lagreach beside what one would use instead, after running the tests of what is timed (in a checkout).

    Example: `lagreach bench transport first_order --quick --author ../learnability`
    """
    from lagreach.cli.bench import run_bench

    raise typer.Exit(run_bench(names or [], quick=quick, out=out, author=author, device=device))


app.add_typer(convergence)
app.add_typer(study, name="study")


def run() -> None:
    """Entry point: errors raised on purpose, and what the system refuses, are printed without a traceback, with exit code 2."""
    from lagreach._util.disk import disk_errors
    from lagreach.errors import LagreachError

    try:
        try:
            app()
        except OSError as error:
            _drop_output_that_cannot_be_written()
            with disk_errors(Path(error.filename or "standard output")):
                raise
    except LagreachError as error:
        typer.echo(f"lagreach: {error}", err=True)
        sys.exit(2)


def _drop_output_that_cannot_be_written() -> None:
    """Leave nothing to print for the interpreter when it ends: that would fail once more, with another exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
