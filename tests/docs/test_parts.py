"""Parts of pages that are made from code and stored files, and the pictures."""

import importlib
import json
import re
import xml.etree.ElementTree as ET

import pytest
import typer

from docs.figures import FIGURES, flow
from docs.parts import PARTS, benchmarks, commands, evidence, filled, gallery, results
from lagreach.cli.main import app

COMMANDS = dict(commands.commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_example_and_every_option_its_meaning(name):
    text = commands.section(name, COMMANDS[name])
    assert text.startswith(f"## lagreach {name}\n")
    assert re.search(rf"^\$ lagreach {name}\b", text, re.M)
    rows = {row.split(" | ")[0].strip("| ") for row in text.splitlines() if row.startswith("| ")}
    for parameter in COMMANDS[name].params:
        shown = parameter.name if not parameter.opts[0].startswith("-") else f"`{parameter.opts[0]}`"
        assert any(shown in row for row in rows), parameter.name
        assert parameter.help, f"lagreach {name}: {parameter.name} has no help"


def test_the_reference_holds_every_command():
    text = commands.text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        f"## lagreach {name}" for name in COMMANDS
    ]


def test_marks_become_parts():
    page = filled("before\n<!-- made: evidence -->\nafter")
    assert page.startswith("before\n```{toctree}")
    assert page.endswith("```\nafter")
    with pytest.raises(KeyError):
        filled("<!-- made: nothing -->")
    assert all(callable(part) for part in PARTS.values())


@pytest.mark.parametrize("path", sorted(benchmarks.RESULTS.rglob("*.json")), ids=lambda path: path.stem)
def test_tables_hold_the_stored_numbers(path):
    record = json.loads(path.read_text(encoding="utf-8"))
    text = benchmarks.section(record)
    assert text.startswith(f"## {record['op'].replace('_', ' ')}\n")
    assert record["date"][:10] in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({line.count("|") for line in rows}) <= 2  # tables of at most two widths
    for case in record["cases"]:
        if "ms" in case:
            assert any(line.startswith(f"| {case['cell']} |") and f"{case['ms']:.3g} ms" in line for line in rows)
            if case["rivals_ms"]:
                (row,) = [line for line in rows if line.startswith(f"| {case['cell']}, {case['workload']} |")]
                shown = [*case["rivals_ms"].values(), *case["floors_ms"].values()]
                assert all(benchmarks.duration(ms / 1e3) in row for ms in shown)
            if case["replicas"] > 1:
                name = f"| {case['cell']}, {case['workload']}, {case['replicas']} models |"
                (row,) = [line for line in rows if line.startswith(name)]
                assert sum(map(float, re.findall(r"([\d.]+) ms", row))) == pytest.approx(case["ms"], abs=0.021)
        elif case.get("ratios"):
            (row,) = [line for line in rows if line.startswith(f"| {case['name']} |") and "x)" in line] or [""]
            if "lagreach" in case["seconds"]:
                assert benchmarks.duration(case["seconds"]["lagreach"]["median"]) in row


def test_benchmarks_of_another_machine_are_told_apart():
    headings = [line for line in benchmarks.text().splitlines() if line.startswith("## ")]
    assert len(headings) == len(set(headings))
    here = headings.index("## training step")
    assert headings[here + 1] == "## training step (Xeon)"


def test_ratios_are_those_of_the_medians():
    timing = {"lagreach": {"median": 0.01}, "eager": {"median": 0.25}}
    record = {"cases": [{"name": "W1", "seconds": timing}, {"name": "W2", "seconds": {"lagreach": {"median": 2.0}}}]}
    assert benchmarks.times(record)[2:] == ["| W1 | 10 ms | 250 ms (25x) |", "| W2 | 2 s |  |"]


def test_results_are_taken_over_with_their_pictures(tmp_path, monkeypatch):
    folder = tmp_path / "results" / "mine"
    (folder / "figures").mkdir(parents=True)
    (folder / "figures" / "own-SGD.png").write_bytes(b"")
    (folder / "RESULTS.md").write_text(
        "# Mine\n\n## Claims\n\n[file](claims.json) [page](https://x.y)\n\n```\n# code\n```\n"
    )
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(results, "DOCS", tmp_path / "docs")
    text = results.text()
    assert "## Mine\n\n### Claims\n\nfile [page](https://x.y)\n\n```\n# code\n```" in text
    assert "![own, SGD](../results/mine/figures/own-SGD.png)" in text


def test_without_results_the_page_says_how_to_make_them(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    assert "lagreach study run" in results.text()


def test_evidence_lists_what_there_is(tmp_path, monkeypatch):
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation" / "index.md").write_text("# Validation")
    monkeypatch.setattr(evidence, "DOCS", tmp_path)
    assert evidence.text().splitlines()[5:-1] == ["validation/index"]


def test_the_gallery_has_every_example_with_its_question():
    text = gallery.text()
    for script in gallery.scripts():
        assert gallery.question(script) in text
        assert f"output/{script.stem}.txt" in text


def test_the_picture_of_the_flow_names_modules_that_exist():
    for name in flow.modules():
        assert importlib.import_module(name) is not None
    assert ET.fromstring(flow.svg()).tag.endswith("svg")


@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize("name", ["drowning", "densities", "growth", "cutoff", "fading", "expansion"])
def test_pictures_are_drawn(name):
    figure = FIGURES[name]()
    assert all(axes.lines or axes.collections for axes in figure.axes)
    assert all(axes.get_xlabel() for axes in figure.axes)


@pytest.mark.slow
@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize("name", ["needed", "training", "averages", "echo"])
def test_pictures_that_take_longer_are_drawn(name):
    figure = FIGURES[name]()
    assert all(axes.lines for axes in figure.axes)
