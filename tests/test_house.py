"""The house stays in order: import direction, laziness, notation, public names."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lagreach

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "lagreach"

# From left to right; a part may import what stands to its left, and itself.
ORDER = [
    "_version", "_moved", "errors", "types", "_util", "data", "cells", "kernels", "models", "adapters", "transport", "tails",
    "detection", "regimes", "papers.cayci", "tasks", "gradients", "statistics", "whole_model", "forecasting", "diagnosis",
    "advice", "report", "papers.livi", "callbacks",
    "study", "testing", "cli", "__main__",
]  # fmt: skip

# Results can save and report themselves, and the gallery draws the paper's figures too: handed on when they are asked for.
HANDED_ON = {
    ("diagnosis", "report"),
    ("forecasting", "diagnosis"),
    ("forecasting", "report"),
    ("report", "papers.livi"),
    ("advice", "report"),
}
PRIVATE_TO_PYTHON = ("__pycache__", "py.typed", "__init__.pyi", "__init__.py", "papers")


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("lagreach"):
            if node.module in ("lagreach", "lagreach.papers"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("lagreach."))


def part_of(module):
    """The part of the package that a module belongs to: a folder or file at its root, or one of the papers."""
    _, first, *rest = module.split(".")
    return f"papers.{rest[0]}" if first == "papers" else first


def test_imports_go_one_way():
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts in [("__init__",), ("papers", "__init__")]:
            continue
        part = part_of(".".join(("lagreach", *parts)))
        for imported in imports_of(path):
            if imported != "lagreach" and not imported.startswith("lagreach.__"):
                other = part_of(imported)
                if (part, other) not in HANDED_ON and ORDER.index(other) > ORDER.index(part):
                    wrong.append(f"{path.relative_to(SOURCE)} must not import {imported}")
    assert not wrong, "\n".join(wrong)


def test_files_hold_one_idea():
    lines = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert len(lines) > 200
    assert {path: count for path, count in lines.items() if count > 420} == {}


def test_few_modules_lie_at_the_root_of_the_package():
    assert len(list(SOURCE.glob("*.py"))) <= 8


def test_every_part_of_the_package_has_tests():
    parts = {path.name for path in SOURCE.iterdir() if path.is_dir()} - {"__pycache__", "testing"}
    assert parts <= {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}


def test_the_architecture_page_names_every_part_and_no_other():
    page = (ROOT / "docs" / "extend" / "architecture.md").read_text()
    table = page.partition("| folder or file |")[2].partition("\n\n")[0]
    named = {
        name for row in table.splitlines() for name in re.findall(r"`([\w/]+(?:/|\.py))`", row.partition(" | ")[0])
    }
    there = {f"{path.name}/" if path.is_dir() else path.name for path in SOURCE.iterdir()}
    there = {name for name in there if name.strip("/") not in PRIVATE_TO_PYTHON and name[:2] != "__"}
    assert named == there | {"papers/livi/", "papers/cayci/"}


def loaded_after(statement, names):
    code = f"{statement}\nimport sys\nprint(*[n for n in {names!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


HEAVY = ["torch", "scipy", "scipy.stats", "xarray", "matplotlib", "numba", "pandas"]


def test_importing_the_package_and_its_command_loads_nothing_heavy():
    assert loaded_after("import lagreach, lagreach.cli.main", HEAVY) == []


def test_using_transport_loads_torch_alone():
    statement = "import lagreach; lagreach.GatedRNN, lagreach.lag_gradients, lagreach.fidelity, lagreach.testing"
    assert loaded_after(statement, HEAVY) == ["torch"]


def test_public_names_exist():
    for name in lagreach.__all__:
        assert getattr(lagreach, name) is not None
    assert set(lagreach.__all__) <= set(dir(lagreach))
    with pytest.raises(AttributeError, match="lag_gradients"):
        lagreach.lag_gradient  # noqa: B018


def test_every_function_in_the_notation_exists():
    rows = [line for line in (ROOT / "theory" / "notation.md").read_text().splitlines() if line.startswith("|")]
    names = [name for row in rows for name in re.findall(r"`(lagreach\.[\w.]+)`", row)]
    assert len(names) > 20
    for name in names:
        parts = name.split(".")
        value = importlib.import_module("lagreach")
        for i, part in enumerate(parts[1:], 2):
            module = ".".join(parts[:i])
            value = getattr(value, part) if hasattr(value, part) else importlib.import_module(module)


def test_every_cell_is_in_the_notation():
    text = (ROOT / "theory" / "notation.md").read_text()
    for cell in lagreach.all_cells().values():
        assert f"`{cell.__module__}.{cell.__name__}`" in text


def test_the_repository_speaks_of_lagreach_alone():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    path = re.compile(r"(?<![\w.])/(work|root|home|opt)/")
    for name in tracked:
        text = (ROOT / name).read_bytes()
        assert not path.search(text.decode(errors="replace")), f"{name} names a path of some machine"
