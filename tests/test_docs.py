"""The documentation says what is true: every command and option is described, and README code runs."""

import re
from pathlib import Path

import pytest
import typer

from lagreach.cli import app

ROOT = Path(__file__).parent.parent


def leaves(group, before=""):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


COMMANDS = dict(leaves(typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name):
    text = (ROOT / "docs" / "cli.md").read_text()
    section = re.search(rf"^## lagreach {name}$(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert section is not None, f"docs/cli.md has no section on lagreach {name}"
    options = {opt for param in COMMANDS[name].params for opt in param.opts if opt.startswith("--")}
    missing = {opt for opt in options if f"`{opt}`" not in section[1] and f" {opt} " not in section[1]}
    assert not missing
    mentioned = set(re.findall(r"`(--[\w-]+)`", section[1]))
    assert mentioned <= options | {"--help"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_in_the_help_is_the_one_in_the_docs(name):
    example = re.search(r"Example: `(.+?)`", COMMANDS[name].help)
    assert example is not None
    assert example[1] in (ROOT / "docs" / "cli.md").read_text()


def test_python_in_the_readme_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
