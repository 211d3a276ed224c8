"""The command line, as a user sees it."""

import json
import subprocess
import sys

import pytest

from lagreach import __version__, all_cells
from lagreach.demo import TASK


def lagreach(*args):
    code = "from lagreach.cli import run; run()"
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False)


def test_version():
    assert lagreach("--version").stdout.strip() == f"lagreach {__version__}"


@pytest.mark.parametrize("command", [(), ("cells",), ("demo",)])
def test_help(command):
    done = lagreach(*command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout
    if command:
        assert "Example" in done.stdout


def test_cells_table_and_json():
    table = lagreach("cells").stdout
    rows = json.loads(lagreach("cells", "--json").stdout)
    assert [row["name"] for row in rows] == list(all_cells())
    for row in rows:
        assert row["name"] in table
    assert {row["name"] for row in rows if row["first_order"] == "exact"} == {"diag_elman"}


def test_demo_trains_and_reports():
    done = lagreach("demo", "--steps", "3", "--sequences", "32", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["lags"] == list(TASK.lags)
    assert len(result["recovered"]) == len(TASK.lags)
    assert all(0 < gain < 10 for gain in result["trained"]["exact_gain"])


def test_demo_table():
    done = lagreach("demo", "--steps", "2", "--sequences", "32", "--cell", "lstm")
    assert "what is left of the loss gradient" in done.stdout
    assert "First order against exact" in done.stdout


def test_errors_are_sentences_and_exit_with_2():
    done = lagreach("demo", "--steps", "1", "--cell", "elmann")
    assert done.returncode == 2
    assert "unknown cell" in done.stderr
    assert "Traceback" not in done.stderr
