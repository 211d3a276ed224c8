"""The command line, as a user sees it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lagreach import __version__, all_cells
from tests.cli.running import lagreach

ALONE = [sys.executable, "-c", "from lagreach.cli.main import run; run()"]


def test_version():
    done = subprocess.run([*ALONE, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"lagreach {__version__}"


@pytest.mark.parametrize("command", [(), ("cells",), ("study", "run"), ("study", "show")])
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
    assert {row["name"] for row in rows if row["first_order"] == "exact"} == {"diag_elman", "min_gru"}


def test_studies_are_listed_and_shown():
    rows = json.loads(lagreach("study", "list", "--json").stdout)
    assert {"livi-v1", "livi-later"} <= {row["name"] for row in rows}
    assert all(row["name"] in lagreach("study", "list").stdout for row in rows)
    shown = yaml.safe_load(lagreach("study", "show", "livi-v1", "--scale", "small").stdout)
    assert shown["scale"] == "small"
    assert [v["name"] for v in shown["variants"]][:2] == ["const_sgd", "shared_sgd"]


def test_errors_are_sentences_and_exit_with_2():
    done = subprocess.run([*ALONE, "study", "show", "livi-v11"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "did you mean livi-v1?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_written_is_a_sentence_too():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*ALONE, "cells", "--json"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("lagreach: the disk is full")
    assert "Traceback" not in done.stderr
