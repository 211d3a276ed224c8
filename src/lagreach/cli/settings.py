"""Options of a command from the settings of a measurement: each is declared once, in `lagreach.diagnosis.settings`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from lagreach.diagnosis.settings import MeasureSettings


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for every setting, and hand it the settings as its argument `settings`."""
    types = get_type_hints(MeasureSettings)
    options = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[types[field.name], typer.Option(help=_sentence(field.metadata["meaning"]))],
        )
        for field in dataclasses.fields(MeasureSettings)
    ]
    signature = inspect.signature(command, eval_str=True)
    kept = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in signature.parameters.values()]

    @wraps(command)
    def run(**values: Any) -> None:
        chosen = {option.name: values.pop(option.name) for option in options}
        command(**values, settings=MeasureSettings(**chosen))

    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*(one for one in kept if one.name != "settings"), *options]
    )
    run.__annotations__ = {}  # typer reads the signature alone
    return run


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
