"""``lagreach bench`` finds the benchmarks of a checkout, and says so when there are none."""

import subprocess
from pathlib import Path

import pytest
from benchmarks import author

from lagreach import cli_bench
from lagreach.errors import InputError, UnsupportedError

ROOT = Path(__file__).parent.parent


def test_it_runs_the_benchmarks_of_the_checkout(monkeypatch, tmp_path):
    called = []

    def run(command, cwd, env, check):
        called.append((command[1:], cwd, env.get("LAGREACH_AUTHOR")))
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(cli_bench.subprocess, "run", run)
    (tmp_path / cli_bench.AUTHOR_SCRIPT).touch()
    assert cli_bench.run_bench(["transport"], quick=True, out=tmp_path, author=tmp_path) == 3
    words = ["-m", "benchmarks", "transport", "--quick", "--out", str(tmp_path.resolve())]
    assert called == [(words, ROOT, str(tmp_path.resolve()))]


def test_an_installed_package_has_no_benchmarks(monkeypatch, tmp_path):
    monkeypatch.setattr(cli_bench, "__file__", str(tmp_path / "site-packages" / "lagreach" / "cli_bench.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedError, match="checkout"):
        cli_bench.find_checkout()


def test_a_folder_without_the_scripts_is_refused(monkeypatch, tmp_path):
    with pytest.raises(InputError, match="learnability"):
        cli_bench.run_bench([], quick=True, out=None, author=tmp_path)
    with pytest.raises(SystemExit, match="learnability"):
        author.check_folder(tmp_path)


def test_scripts_of_another_kind_are_refused(monkeypatch, tmp_path):
    (tmp_path / author.SCRIPT).write_text("build_model = None\n")
    monkeypatch.setenv(author.VARIABLE, str(tmp_path))
    author.scripts.cache_clear()
    with pytest.raises(SystemExit, match="compute_vseq_jvp"):
        author.scripts()
    monkeypatch.delenv(author.VARIABLE)
    author.scripts.cache_clear()
    assert author.scripts() is None
