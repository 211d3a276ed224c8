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

# From left to right; a module may import what stands to its left, and its own group.
ORDER = [
    ["_version", "errors", "types", "threads", "directional", "arrays", "batch", "progress", "disk", "tensor_files"],
    ["cells"],
    ["kernels"],
    ["initialise", "torch_layout"],
    ["model"],
    ["adapters"],
    ["transport"],
    ["decays", "gate_advice"],
    ["tails"],
    ["detection", "regimes"],
    ["planning", "planning_figure"],
    ["convergence"],
    ["tasks"],
    ["gradients"],
    ["window", "sequences_needed", "what_if", "measure_settings", "assembly", "measure"],
    ["diagnosis"],
    ["records"],
    ["io", "comparison"],
    ["report"],
    ["dry_run", "pipeline", "suggestion"],
    ["callbacks"],
    ["study"],
    ["testing"],
    ["cli_diagnose", "cli_report", "cli_convergence", "cli_study", "cli_bench"],
    ["cli", "__main__"],
]


# A diagnosis can save and report itself: methods that hand it on, loaded when they are called.
HANDED_ON = {("diagnosis", "io"), ("diagnosis", "report")}


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("lagreach"):
            if node.module == "lagreach":
                yield from (f"lagreach.{alias.name}" for alias in node.names)
            else:
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("lagreach."))


def rank(module):
    part = module.split(".")[1]
    ranks = [i for i, group in enumerate(ORDER) if part in group]
    assert ranks, f"{module} has no place in ORDER"
    return ranks[0]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    if parts == ("__init__",):
        return
    own = rank("lagreach." + parts[0])
    for imported in imports_of(path):
        if imported != "lagreach" and not imported.startswith("lagreach.__"):
            allowed = (parts[0], imported.split(".")[1]) in HANDED_ON
            assert allowed or rank(imported) <= own, f"{path.name} must not import {imported}"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_hold_one_idea(path):
    assert len(path.read_text().splitlines()) <= 420


def test_the_architecture_page_names_every_module_and_no_other():
    page = (ROOT / "docs" / "extend" / "architecture.md").read_text()
    table = page.partition("| folder or file |")[2].partition("\n\n")[0]
    named = {
        name for row in table.splitlines() for name in re.findall(r"`([\w*]+(?:/|\.py))`", row.partition(" | ")[0])
    }
    there = {f"{path.name}/" if path.is_dir() else path.name for path in SOURCE.iterdir() if path.name[:1] not in "_."}
    commands = {name for name in there if name.startswith("cli_")}
    assert named == (there - commands - {"py.typed"}) | {"cli_*.py"}


def loaded_after(statement, names):
    code = f"{statement}\nimport sys\nprint(*[n for n in {names!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


HEAVY = ["torch", "scipy", "scipy.stats", "xarray", "matplotlib", "numba", "plotly", "pandas"]


def test_importing_the_package_and_its_command_loads_nothing_heavy():
    assert loaded_after("import lagreach, lagreach.cli", HEAVY) == []


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
        found = importlib.import_module("lagreach")
        for i, part in enumerate(parts[1:], 2):
            module = ".".join(parts[:i])
            found = getattr(found, part) if hasattr(found, part) else importlib.import_module(module)


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
