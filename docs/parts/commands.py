"""The reference of the command line, from the command itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from lagreach.cli.main import app


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """All commands below a group, with their full names."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def default(parameter: Any) -> str:
    """What a parameter is if it is not given."""
    if parameter.required:
        return "required"
    value = parameter.default
    return "" if value is None or value is False or value == [] or callable(value) else f"`{value}`"


def _cell(text: str) -> str:
    """Text for a table; options are code, or two dashes would become one long one."""
    return re.sub(r"(?<![`\w-])--[a-z][\w-]*", lambda option: f"`{option[0]}`", text.replace("|", r"\|"))


def section(name: str, command: Any) -> str:
    """One command: what it does, an example, its arguments and options."""
    words = re.sub(r"\s+Example: `.+?`\s*$", "", command.help, flags=re.S)
    example = re.search(r"Example: `(.+?)`", command.help)
    lines = [f"## lagreach {name}", "", *(line.strip() for line in words.splitlines()), ""]
    if example is not None:
        lines += ["```console", f"$ {example[1]}", "```", ""]
    rows = [
        (
            ", ".join(f"`{one}`" for one in parameter.opts)
            if parameter.opts[0].startswith("-")
            else f"{parameter.name}",
            getattr(parameter, "help", None) or "",
            default(parameter),
        )
        for parameter in command.params
        if parameter.name != "help"
    ]
    if rows:
        lines += ["| option | meaning | default |", "|---|---|---|"]
        lines += [f"| {' | '.join(_cell(part) for part in row)} |" for row in rows]
    return "\n".join([*lines, ""])


def text() -> str:
    """All commands."""
    return "\n".join(section(name, command) for name, command in commands(typer.main.get_command(app)))
