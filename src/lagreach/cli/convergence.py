"""`lagreach convergence`: the second paper's bounds on the command line, and what they ask for."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="convergence",
    help=(
        "Gradient descent on diagonal recurrent networks: error bounds, width and steps needed.\n\n"
        "Example: `lagreach convergence plan --error 0.1 --alpha 0.3 --steps 10 --samples 100`"
    ),
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Alpha = Annotated[float, typer.Option(help="Size of the recurrent weights at the start; the cut-off is 1/sigma_1.")]
Steps = Annotated[int, typer.Option(min=1, help="Time steps of a sequence, T.")]
Samples = Annotated[int, typer.Option(min=1, help="Sequences, n.")]
NuW = Annotated[float, typer.Option(help="Norm of the target's map, recurrent part.")]
NuU = Annotated[float, typer.Option(help="Norm of the target's map, input part.")]
RhoW = Annotated[float | None, typer.Option(help="Radius of the projection, recurrent part (default: --nu-w).")]
RhoU = Annotated[float | None, typer.Option(help="Radius of the projection, input part (default: --nu-u).")]
Delta = Annotated[float, typer.Option(help="Probability with which the promise may fail.")]
Inputs = Annotated[int, typer.Option(min=1, help="Width of the input, d (printed form only).")]
Name = Annotated[str, typer.Option("--activation", help="tanh, logistic, gaussian, erf or sine.")]
Form = Annotated[str, typer.Option(help="corrected, printed or both.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def _forms(form: str) -> list[str]:
    from lagreach.errors import InputError

    known = {"corrected": ["corrected"], "printed": ["printed"], "both": ["corrected", "printed"]}
    if form not in known:
        raise InputError("unknown form", got=repr(form), expected=", ".join(known))
    return known[form]


@app.command()
def bounds(
    width: Annotated[int, typer.Option(help="Number of units, m (even).")],
    alpha: Alpha,
    steps: Steps,
    samples: Samples,
    iterations: Annotated[int, typer.Option(min=1, help="Steps of gradient descent, tau.")] = 1000,
    error: Annotated[float | None, typer.Option(help="Target risk: also say whether the width suffices.")] = None,
    nu_w: NuW = 0.5,
    nu_u: NuU = 1.0,
    rho_w: RhoW = None,
    rho_u: RhoU = None,
    delta: Delta = 0.05,
    inputs: Inputs = 1,
    activation: Name = "tanh",
    form: Form = "corrected",
    as_json: Json = False,
) -> None:
    """Bound the risk of a network of given width after given steps of projected gradient descent.

    Example: `lagreach convergence bounds --width 4096 --alpha 0.3 --steps 10 --samples 100 --error 0.1`
    """
    from lagreach.papers.cayci import bounds as paper

    nu = (nu_w, nu_u)
    rho = (nu_w if rho_w is None else rho_w, nu_u if rho_u is None else rho_u)
    same: dict[str, Any] = {"alpha": alpha, "T": steps, "n": samples, "nu": nu, "delta": delta, "d": inputs}
    certified, asked = [], []
    for kind in _forms(form):
        settings: dict[str, Any] = {"m": width, "tau": iterations, "rho": rho, "form": kind, **same}
        certified += [paper.theorem1(activation, **settings), paper.corollary1(activation, **settings)]
        if error is not None:
            needs: dict[str, Any] = {"error": error, "form": kind, **same}
            asked += [
                paper.theorem1_requirement(activation, rho=rho, **needs),
                paper.theorem2(activation, **needs),
            ]
    if as_json:
        written = {"width": width, "bounds": [bound.to_dict() for bound in certified]}
        written["required"] = [need.to_dict() | {"enough": width >= need.m} for need in asked]
        typer.echo(json.dumps(written, indent=2))
        return
    for bound in certified:
        typer.echo(str(bound))
    for need in asked:
        verdict = "enough" if width >= need.m else "not certified (sufficient, never necessary)"
        typer.echo(f"{need}\n  width {width}: {verdict}")


@app.command()
def plan(
    error: Annotated[float, typer.Option(help="Target risk: summed over steps, averaged over sequences.")],
    alpha: Alpha,
    steps: Steps,
    samples: Samples,
    nu_w: NuW = 0.5,
    nu_u: NuU = 1.0,
    rho_w: RhoW = None,
    rho_u: RhoU = None,
    delta: Delta = 0.05,
    inputs: Inputs = 1,
    activation: Name = "tanh",
    form: Form = "both",
    as_json: Json = False,
) -> None:
    """Width and steps with which projected and plain gradient descent are certain to reach a target risk.

    Example: `lagreach convergence plan --error 0.1 --alpha 0.3 --steps 10 --samples 100`
    """
    from lagreach.papers.cayci import bounds as paper

    rho = (nu_w if rho_w is None else rho_w, nu_u if rho_u is None else rho_u)
    requirements = []
    for kind in _forms(form):
        settings: dict[str, Any] = {
            "error": error, "alpha": alpha, "T": steps, "n": samples, "nu": (nu_w, nu_u), "delta": delta, "d": inputs,
            "form": kind,
        }  # fmt: skip
        requirements += [
            paper.theorem1_requirement(activation, rho=rho, **settings),
            paper.theorem2(activation, **settings),
        ]
    if as_json:
        typer.echo(json.dumps([need.to_dict() for need in requirements], indent=2))
        return
    for need in requirements:
        typer.echo(str(need))
    typer.echo("Sufficient, never necessary: networks a thousand times narrower usually do.")
