"""`lagreach forecast`: which lags training will recover, and exit codes for pipelines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lagreach._util.arrays import finite_or_none
from lagreach._util.disk import make_folder, refuse_others
from lagreach._util.extras import require_extra
from lagreach.cli.diagnose import load_data, load_model, load_weights, parse_lags, parse_steps
from lagreach.errors import InputError
from lagreach.forecasting.forecast import forecast
from lagreach.forecasting.kinds import meanings
from lagreach.forecasting.result import Forecast

TOO_LITTLE = 3
NUMBERS = ("if_present", "in_data", "readable", "reachable", "budgeted", "needed", "seen")
FILE = "forecast.nc"
OPTIMISERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}


def parse_counts(text: str) -> list[int]:
    """Read numbers of sequences.

    >>> parse_counts("100,1000")
    [100, 1000]
    """
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError("numbers of sequences could not be read", got=repr(text), expected="100,1000,10000") from error
    if min(counts) < 1:
        raise InputError("numbers of sequences are positive", got=repr(text), expected="100,1000,10000")
    return counts


def parse_optimiser(text: str, model: nn.Module) -> torch.optim.Optimizer:
    """Build an optimiser from its name and learning rate.

    >>> type(parse_optimiser("sgd:0.1", nn.Linear(1, 1))).__name__
    'SGD'
    """
    name, _, rate = text.partition(":")
    try:
        return OPTIMISERS[name.lower()](model.parameters(), lr=float(rate))
    except (KeyError, ValueError) as error:
        expected = f"one of {', '.join(OPTIMISERS)} and a learning rate, such as adam:0.001"
        raise InputError("the optimiser could not be read", got=repr(text), expected=expected) from error


def run_forecast(
    model: str,
    data: Path,
    *,
    weights: Path | None,
    fit: str,
    loss: str,
    lags: str,
    sequences: str,
    strength: float,
    require: Sequence[int],
    require_share: float,
    optimiser: str | None,
    steps: int | None,
    target_steps: str | None,
    outputs: str | None,
    directions: int | None,
    budget: float | None,
    seed: int,
    out: Path | None,
    report: Path | None,
    as_json: bool,
) -> int:
    """Run the command and return its exit code."""
    if not 0 < require_share <= 1:
        raise InputError(
            "a share lies between 0 and 1", got=f"--require-share {require_share}", expected="0 < share <= 1"
        )
    if report is not None:
        require_extra("report")
    refuse_others([*([] if report is None else [report]), *([] if out is None else [out / FILE])])
    built = load_model(model)
    if weights is not None:
        load_weights(built, weights)
    made = forecast(
        built,
        load_data(data),
        parse_counts(sequences),
        parse_lags(lags),
        strength=strength,
        weights=fit,
        loss=loss,
        optimiser=None if optimiser is None else parse_optimiser(optimiser, built),
        steps=steps,
        target_steps=parse_steps(target_steps),
        outputs=outputs,
        require=require,
        directions=directions,
        budget=budget,
        seed=seed,
    )
    made = replace(made, about={**made.about, "data": f"{data.name}: {made.about['data']}"})
    if out is not None:
        make_folder(out)
        made.save(out / FILE)
    if report is not None:
        made.report(report)
    rows = required_rows(made, require, require_share)
    print(json.dumps(summary(made, rows), indent=2) if as_json else made)
    missed = [row for row in rows if not row["recovered"]]
    for row in missed if not as_json else []:
        print(f"lag {row['lag']}: {row['reason']}")
    return TOO_LITTLE if missed else 0


def required_rows(made: Forecast, require: Sequence[int], require_share: float) -> list[dict[str, Any]]:
    """For each required lag: the share from the most sequences that were asked about, and why it is too little."""
    most = max(made.sequences)
    words = made.limits_at(most)
    rows = []
    for lag in require:
        share, word = made.share(lag, most), words[made.lags.index(lag)]
        enough = bool(share["value"] >= require_share)
        reason = "" if enough else (
            f"a share of {share['value']:.2f} [{share['low']:.2f}, {share['high']:.2f}] of it would be recovered from {most:,} "
            f"sequences, less than the {require_share:g} required; {word}: {meanings(made.kind)[word]}"
        )  # fmt: skip
        numbers = {name: finite_or_none(value) for name, value in share.items()}
        rows.append({"lag": lag, "sequences": most, **numbers, "limit": word, "recovered": enough, "reason": reason})
    return rows


def summary(made: Forecast, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Plain numbers for other programs; what is infinite or unknown is null."""

    def table(name: str) -> dict[str, Any]:
        array = getattr(made, name)
        parts = {"value": array.values, "low": array.low.values, "high": array.high.values}
        return {key: _numbers(values.tolist()) for key, values in parts.items()}

    return {
        "lags": list(made.lags),
        "sequences": list(made.sequences),
        "available": made.available,
        "strength": made.strength,
        "limits": made.limits.values.tolist(),
        "limits_if_present": made.limits_if_present.values.tolist(),
        **{name: table(name) for name in NUMBERS},
        "adjusted_p": _numbers(made.adjusted_p.tolist()),
        "required_lags": rows,
        "warnings": list(made.warnings),
    }


def _numbers(values: Any) -> Any:
    return [_numbers(value) for value in values] if isinstance(values, list) else finite_or_none(values)
