"""Commands that write files under names of their own choice leave alone what somebody else has put there."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lagreach.cli import app
from lagreach.errors import InputError

OLD = Path(__file__).parent.parent / "diagnosis" / "data" / "schema-1.nc"


@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("report.html", ["report", str(OLD), "--out", "report.html"]),
        ("report.html", ["diagnose", "--model", "mine:build", "--data", "data.npz", "--out", "."]),
        ("diagnosis.nc", ["diagnose", "--model", "mine:build", "--data", "data.npz", "--out", "."]),
        ("window.png", ["figures", str(OLD), "--out", ".", "--figure", "window"]),
        ("gain.pdf", ["figures", str(OLD), "--out", ".", "--figure", "gain", "--format", "pdf"]),
    ],
)
def test_files_that_lagreach_did_not_write_are_named_and_kept(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("years of work")
    refused = CliRunner().invoke(app, words).exception
    assert isinstance(refused, InputError)
    assert "did not write them" in str(refused)
    assert name in str(refused)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert Path(name).read_text() == "years of work"
    if words[0] != "diagnose":  # what the command has written itself is replaced
        Path(name).unlink()
        for _ in range(2):
            assert CliRunner().invoke(app, words).exception is None
        assert Path(name).stat().st_size > 1000
